#include "remote/memory_objects.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire::remote {
namespace {

std::string VersionText(const MemoryService::Object& object) {
  return std::to_string(object.version);
}

}  // namespace

uint64_t MemoryObjects::asked(ObjectVerb verb) const {
  const auto known = asked_.find(verb);
  return known == asked_.end() ? 0 : known->second;
}

void MemoryObjects::Ask(ObjectRequest request) {
  ++asked_[request.verb];
  const ObjectFault fault = script_ ? script_(request) : ObjectFault{};
  uint64_t at_us = clock_.NowMicros() + fault.delay_us;
  ObjectReply reply{.tag = request.tag};
  if (fault.kind == ObjectFault::kRefuse) {
    reply.outcome = ObjectOutcome::kRefused;
  } else if (fault.kind != ObjectFault::kNotDone) {
    reply = Do(request, fault.kind);
  }
  if (fault.kind == ObjectFault::kNoAnswer || fault.kind == ObjectFault::kNotDone) {
    reply = {.tag = request.tag, .detail = "no answer"};
    at_us += kNoAnswerUs;
  }
  if (reply.outcome == ObjectOutcome::kUnavailable && request.verb == ObjectVerb::kPut) {
    reply.bytes = std::move(request.bytes);
  }
  const auto first = coming_.emplace(at_us, Coming{std::move(reply), std::move(request.sink)});
  if (fault.kind == ObjectFault::kTwice) {
    coming_.emplace(at_us, Coming{.reply = first->second.reply});
  }
}

ObjectReply MemoryObjects::Do(ObjectRequest& request, ObjectFault::Kind fault) {
  ObjectReply reply{.tag = request.tag, .outcome = ObjectOutcome::kOk};
  const auto known = service_.objects.find(request.name);
  switch (request.verb) {
    case ObjectVerb::kGet: Read(request, fault, reply); break;
    case ObjectVerb::kSwap: {
      const std::string now = known == service_.objects.end() ? "" : VersionText(known->second);
      if (now != request.version) {
        reply.outcome = ObjectOutcome::kChanged;
        break;
      }
      [[fallthrough]];
    }
    case ObjectVerb::kPut: {
      if (fault == ObjectFault::kLoseWrite) break;
      MemoryService::Object& object = service_.objects[request.name];
      object.before = std::exchange(object.bytes, request.bytes);
      object.version = ++service_.versions;
      break;
    }
    case ObjectVerb::kRemove:
      if (service_.objects.erase(request.name) == 0) reply.outcome = ObjectOutcome::kAbsent;
      break;
    case ObjectVerb::kList:
      for (auto at = service_.objects.upper_bound(std::max(request.version, request.name));
           at != service_.objects.end() && at->first.starts_with(request.name); ++at) {
        if (reply.names.size() == request.bytes_max) {
          reply.version = reply.names.back();
          break;
        }
        reply.names.push_back(at->first);
      }
      break;
  }
  return reply;
}

void MemoryObjects::Read(const ObjectRequest& request, ObjectFault::Kind fault,
                         ObjectReply& reply) const {
  auto known = service_.objects.find(request.name);
  if (known == service_.objects.end()) {
    reply.outcome = ObjectOutcome::kAbsent;
    return;
  }
  if (request.wants_version) reply.version = VersionText(known->second);
  if (fault == ObjectFault::kOtherObject) {
    known =
        std::next(known) == service_.objects.end() ? service_.objects.begin() : std::next(known);
  }
  const std::vector<std::byte>& from =
      fault == ObjectFault::kStale ? known->second.before : known->second.bytes;
  if (fault == ObjectFault::kStale && from.empty()) {
    reply.outcome = ObjectOutcome::kAbsent;
    return;
  }
  if (request.whole && from.size() > request.bytes_max) {
    reply.outcome = ObjectOutcome::kTooLarge;
    return;
  }
  const uint64_t begin = std::min<uint64_t>(request.offset, from.size());
  const uint64_t bytes = std::min<uint64_t>(request.bytes_max, from.size() - begin);
  reply.bytes.assign(from.begin() + static_cast<ptrdiff_t>(begin),
                     from.begin() + static_cast<ptrdiff_t>(begin + bytes));
  if (reply.bytes.empty()) return;
  if (fault == ObjectFault::kCut) reply.bytes.resize(reply.bytes.size() / 2);
  if (fault == ObjectFault::kFlip) reply.bytes[reply.bytes.size() * 2 / 3] ^= std::byte{4};
}

void MemoryObjects::Take(std::vector<ObjectReply>& replies, uint64_t /*wait_us*/) {
  const uint64_t now_us = clock_.NowMicros();
  while (!coming_.empty() && coming_.begin()->first <= now_us) {
    auto& [reply, sink] = coming_.begin()->second;
    if (sink) {
      // In pieces, as a service has it.
      const std::vector<std::byte> bytes = std::exchange(reply.bytes, {});
      const std::span<const std::byte> all = bytes;
      sink(all.first(all.size() / 3));
      sink(all.subspan(all.size() / 3));
    }
    replies.push_back(std::move(reply));
    coming_.erase(coming_.begin());
  }
}

}  // namespace quire::remote
