#include "remote/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "remote/epochs.h"
#include "remote/fleet_epochs.h"

namespace quire::remote {
namespace {

constexpr uint64_t kWaitUs = 10'000;
constexpr uint64_t kAnswersUs = 20'000'000;
constexpr size_t kNamesAtOnce = 256;

std::unexpected<Error> FailOf(const Objects& objects, const ObjectReply& reply) {
  const bool refused = reply.outcome == ObjectOutcome::kRefused;
  return Fail(refused ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
              fmt::format("{}: {}", objects.where(), reply.detail));
}

/// The answers to some requests, in their order.
Result<std::vector<ObjectReply>> AskAll(Objects& objects, std::vector<ObjectRequest> requests,
                                        const Clock& clock) {
  std::vector<ObjectReply> replies(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].tag = i;
    objects.Ask(std::move(requests[i]));
  }
  const uint64_t end_us = clock.NowMicros() + kAnswersUs;
  std::vector<ObjectReply> came;
  for (size_t left = replies.size(); left > 0;) {
    came.clear();
    objects.Take(came, kWaitUs);
    if (came.empty() && clock.NowMicros() > end_us) {
      return Fail(ErrorCode::kIo, fmt::format("{}: no answer", objects.where()));
    }
    for (ObjectReply& reply : came) {
      const bool failed =
          reply.outcome == ObjectOutcome::kUnavailable || reply.outcome == ObjectOutcome::kRefused;
      if (failed) return FailOf(objects, reply);
      const size_t at = reply.tag;
      replies[at] = std::move(reply);
      --left;
    }
  }
  return replies;
}

Result<ObjectReply> AskOne(Objects& objects, ObjectRequest request, const Clock& clock) {
  std::vector<ObjectRequest> requests;
  requests.push_back(std::move(request));
  QUIRE_ASSIGN(auto replies, AskAll(objects, std::move(requests), clock));
  return std::move(replies.front());
}

Result<EpochTable> ReadTable(Objects& objects, const FleetKeys& keys, const Clock& clock) {
  QUIRE_ASSIGN(const ObjectReply reply, AskOne(objects,
                                               {.verb = ObjectVerb::kGet,
                                                .name = EpochsName(keys),
                                                .bytes_max = kEpochBytesMax,
                                                .whole = true},
                                               clock));
  if (reply.outcome == ObjectOutcome::kAbsent) {
    return Fail(
        ErrorCode::kNotFound,
        fmt::format("{}: nothing is there that was written with this fleet key", objects.where()));
  }
  auto table = OpenEpochs(keys, reply.bytes);
  if (table) return *std::move(table);
  return Fail(
      ErrorCode::kIo,
      fmt::format("{}: its erase epochs were changed by others than this fleet", objects.where()));
}

/// Calls with some names at a time, each once, until there are no more.
Result<void> ForNames(Objects& objects, const Clock& clock,
                      const std::function<Result<void>(std::vector<std::string>)>& take) {
  std::string from;
  do {
    QUIRE_ASSIGN(
        ObjectReply reply,
        AskOne(objects,
               {.verb = ObjectVerb::kList, .bytes_max = kNamesAtOnce, .version = std::move(from)},
               clock));
    from = std::move(reply.version);
    for (size_t i = 0; i < reply.names.size(); i += kNamesAtOnce) {
      const auto begin = reply.names.begin() + static_cast<ptrdiff_t>(i);
      const size_t count = std::min(kNamesAtOnce, reply.names.size() - i);
      QUIRE_TRY(take({begin, begin + static_cast<ptrdiff_t>(count)}));
    }
  } while (!from.empty());
  return {};
}

/// Calls for each object of the fleet's records; what is none counts as another's.
Result<void> ForHeads(Objects& objects, const FleetKeys& keys, const Seal& seal, const Clock& clock,
                      RemoteReport& report, const RemoteProgress& progress,
                      const RemoteVisitor& visit) {
  std::set<std::string> seen;  // a list of a table that is resized may name some twice
  return ForNames(objects, clock, [&](std::vector<std::string> names) -> Result<void> {
    std::erase_if(names, [&](const std::string& name) {
      return name == EpochsName(keys) || !seen.insert(name).second;
    });
    std::vector<ObjectRequest> requests;
    for (const std::string& name : names) {
      requests.push_back({.verb = ObjectVerb::kGet, .name = name, .bytes_max = kSealedHeadBytes});
    }
    QUIRE_ASSIGN(const auto replies, AskAll(objects, std::move(requests), clock));
    for (size_t i = 0; i < names.size(); ++i) {
      if (replies[i].outcome == ObjectOutcome::kAbsent) continue;  // it went meanwhile
      const auto head = seal.OpenHead(names[i], replies[i].bytes);
      if (head) {
        visit(names[i], *head);
      } else {
        ++report.others;
      }
    }
    if (progress) progress(seen.size());
    return {};
  });
}

}  // namespace

Result<RemoteReport> StatRemote(Objects& objects, const FleetKey& fleet, const Clock& clock,
                                const RemoteVisitor& visit, const RemoteProgress& progress) {
  const FleetKeys keys(fleet);
  QUIRE_ASSIGN(const EpochTable table, ReadTable(objects, keys, clock));
  const Seal seal(keys, table.incarnation);
  RemoteReport report;
  std::set<tier::PublisherId> publishers;
  QUIRE_TRY(ForHeads(objects, keys, seal, clock, report, progress,
                     [&](std::string_view name, const SealedHead& head) {
                       if (head.erase_epoch < table.EpochOf(head.publisher)) {
                         ++report.erased;
                         return;
                       }
                       ++report.records;
                       report.bytes += head.object_bytes;
                       publishers.insert(head.publisher);
                       if (visit) visit(name, head);
                     }));
  report.publishers = publishers.size();
  return report;
}

Result<RemoteReport> RemoveFromRemote(std::unique_ptr<Objects> objects, const FleetKey& fleet,
                                      std::string_view publisher, const Clock& clock,
                                      const RemoteProgress& progress) {
  const FleetKeys keys(fleet);
  QUIRE_ASSIGN(const EpochTable table, ReadTable(*objects, keys, clock));
  const tier::PublisherId id = tier::PublisherOf(publisher);
  FleetEpochs epochs(keys, {});
  std::vector<tier::StoreCompletion> ended;
  epochs.Erase(id, table.EpochOf(id) + 1, /*tag=*/1, clock.NowMicros());
  std::vector<ObjectReply> replies;
  while (ended.empty()) {
    if (auto request = epochs.Next(clock.NowMicros(), true, false)) {
      objects->Ask(*std::move(request));
    }
    replies.clear();
    objects->Take(replies, kWaitUs);
    for (const ObjectReply& reply : replies) {
      if (reply.outcome == ObjectOutcome::kRefused) return FailOf(*objects, reply);
      epochs.OnReply(reply, clock.NowMicros());
    }
    epochs.TakeEnded(ended, clock.NowMicros());
  }
  if (ended.front().outcome != tier::StoreOutcome::kOk) {
    return Fail(ErrorCode::kIo, fmt::format("{}: not all machines have heard of the erasure; try "
                                            "again",
                                            objects->where()));
  }
  const Seal seal(keys, table.incarnation);
  RemoteReport report;
  std::vector<ObjectRequest> removals;
  QUIRE_TRY(
      ForHeads(*objects, keys, seal, clock, report, progress,
               [&](std::string_view name, const SealedHead& head) {
                 const bool goes = head.publisher == id && head.erase_epoch < epochs.EpochOf(id);
                 if (goes) {
                   removals.push_back({.verb = ObjectVerb::kRemove, .name = std::string(name)});
                   return;
                 }
                 ++report.records;
                 report.bytes += head.object_bytes;
               }));
  report.removed = removals.size();
  for (size_t i = 0; i < removals.size(); i += kNamesAtOnce) {
    const size_t count = std::min(kNamesAtOnce, removals.size() - i);
    const auto begin = std::make_move_iterator(removals.begin() + static_cast<ptrdiff_t>(i));
    QUIRE_TRY(AskAll(*objects, {begin, begin + static_cast<ptrdiff_t>(count)}, clock));
  }
  return report;
}

}  // namespace quire::remote
