#include "ranks/sequence/member.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/hash.h"
#include "cache/verbs/admit.h"

namespace quire::ranks::sequence {
namespace {

// The number of the rank that each error comes from, unless that names it.
std::string OfRank(uint32_t rank, const std::string& message) {
  return fmt::format("rank {}: {}", rank, message);
}

uint64_t LogitsOf(const StepEntry& entry) {
  switch (entry.logits) {
    case Wanted::kNone: return 0;
    case Wanted::kLast: return 1;
    case Wanted::kAll: return entry.tokens;
  }
  return 0;
}

}  // namespace

Result<std::vector<Member::Opinion>> Member::Agree(const Result<void>& done,
                                                   const Opinion& opinion) {
  Group& group = components_.group;
  struct Vote {
    Opinion opinion{};
    uint64_t code = 0;  // of an error
  };
  const Vote vote = {.opinion = opinion,
                     .code = done ? 0 : static_cast<uint64_t>(done.error().code)};
  std::vector<Vote> votes(group.size());
  QUIRE_TRY(group.AllGather(BytesOf(vote), std::as_writable_bytes(std::span(votes))));
  const auto refusal = std::ranges::find_if(votes, [](const Vote& v) { return v.code != 0; });
  if (refusal != votes.end()) {
    const auto rank = static_cast<uint32_t>(refusal - votes.begin());
    std::vector<std::byte> text;
    if (!done) {
      const auto bytes = std::as_bytes(std::span(done.error().message));
      text.assign(bytes.begin(), bytes.end());
    }
    QUIRE_TRY(group.BroadcastAny(rank, text));
    const std::string message(reinterpret_cast<const char*>(text.data()), text.size());
    return quire::Fail(static_cast<ErrorCode>(refusal->code), OfRank(rank, message));
  }
  std::vector<Opinion> opinions;
  for (const Vote& each : votes) opinions.push_back(each.opinion);
  return opinions;
}

Result<void> Member::CheckSame(std::span<const Opinion> opinions, std::string_view what) {
  std::string others;
  for (size_t rank = 1; rank < opinions.size(); ++rank) {
    if (opinions[rank].digest == opinions[0].digest) continue;
    others += fmt::format("{}{}", others.empty() ? "" : ", ", rank);
  }
  if (others.empty()) return {};
  return std::unexpected(components_.group.Fail(
      {ErrorCode::kCorrupt,
       fmt::format("ranks: rank {} differs from rank 0 in {}; nothing of it is used", others,
                   what)}));
}

Result<void> Member::Join(const Digest& description, uint64_t deadline_us) {
  QUIRE_TRY(components_.group.Barrier(deadline_us));
  QUIRE_ASSIGN(const auto opinions, Agree({}, {.digest = description}));
  return CheckSame(opinions, "its program, model or options");
}

// Ranks that found more are cut to what all have. Where that takes from one of them more than the
// others lack (twins and windows end in few places) all are cut again.
Result<Member::Acquired> Member::Acquire(const Command& command, const Result<TenantId>& tenant) {
  if (!tenant) return std::unexpected(Agree(std::unexpected(tenant.error()), {}).error());
  prompt_.assign(command.tokens.begin(), command.tokens.end());
  ShareCache::Request request = {.tenant = *tenant,
                                 .prompt = prompt_,
                                 .reuse = command.reuse,
                                 .open_as = command.has_options ? &command.options : nullptr};
  auto found = components_.cache.Acquire(request);
  while (true) {
    Opinion opinion;
    Result<void> done;
    if (found) {
      opinion.value = found->tokens;
      opinion.digest[0] = static_cast<uint8_t>(found->reason);
    } else {
      done = std::unexpected(found.error());
    }
    QUIRE_ASSIGN(const auto opinions, Agree(done, opinion));
    const auto [least, most] = std::ranges::minmax_element(opinions, {}, &Opinion::value);
    if (least->value == most->value) {
      cache::PlanState& plan = cache::PlanState::Of(found->plan);
      plan.differs_at.reset();
      plan.missing.assign(1, {.reason = static_cast<MissReason>(least->digest[0]),
                              .tokens = prompt_.size() - found->tokens});
      prompt_found_ = found->tokens;
      return Acquired{.plan = std::move(found->plan), .tokens = prompt_found_};
    }
    request.tokens_max = least->value;
    const LaneShare& share = components_.cache.share();
    if (share.Before(found->tokens) == share.Before(request.tokens_max)) {
      found->tokens = request.tokens_max;
      continue;
    }
    const MissReason reason = static_cast<MissReason>(least->digest[0]);
    found = components_.cache.Acquire(request);
    if (found && found->tokens == request.tokens_max) found->reason = reason;
  }
}

Result<void> Member::Open(const Command& command, Plan plan) {
  auto opened = components_.cache.Open(std::move(plan), prompt_, prompt_found_, command.options);
  Result<void> done;
  if (!opened) done = std::unexpected(opened.error());
  QUIRE_TRY(Agree(done, {}));
  sequences_.emplace(command.sequence, *std::move(opened));
  return {};
}

Result<void> Member::Reserve(const Command& command) {
  return AgreeOn(At(command.sequence).Reserve(command.number));
}

Result<void> Member::AgreeOn(const Result<void>& done) {
  QUIRE_TRY(Agree(done, {}));
  return {};
}

Result<void> Member::MakeOperators() {
  if (operators_ != nullptr) return {};
  SharedRows::Slices slices;
  for (auto& slice : slices) {
    QUIRE_ASSIGN(slice, components_.model.MakeOperators());
  }
  operators_ =
      std::make_unique<SharedRows>(std::move(slices), components_.group, components_.model.config(),
                                   components_.model.compute());
  return {};
}

Result<void> Member::Step(const Command& command, std::span<float* const> logits) {
  std::vector<model::StepItem> items;
  std::span<const TokenId> tokens = command.tokens;
  Result<void> ready = MakeOperators();
  for (size_t i = 0; i < command.items.size(); ++i) {
    const StepEntry& entry = command.items[i];
    ShareSequence& sequence = At(entry.sequence);
    items.push_back({.sequence = &sequence,
                     .tokens = tokens.first(entry.tokens),
                     .logits = logits[i],
                     .all_logits = entry.logits == Wanted::kAll});
    tokens = tokens.subspan(entry.tokens);
    if (ready) ready = sequence.Reserve(sequence.length() + entry.tokens);
  }
  QUIRE_TRY(Agree(ready, {}));
  auto done = components_.model.StepWith(*operators_, items, attention_, components_.executor);
  if (!done) {
    done.error().message = OfRank(components_.group.rank(), done.error().message);
    return std::unexpected(components_.group.Fail(std::move(done).error()));
  }
  ++steps_;
  Blake2b<sizeof(Digest)> digest;
  digest.UpdateNumber(steps_);
  digest.Update(std::as_bytes(std::span(command.tokens)));
  const uint64_t vocab = components_.model.config().vocab;
  for (size_t i = 0; i < items.size(); ++i) {
    digest.UpdateNumber(items[i].sequence->length());
    const std::span<const float> rows(logits[i], LogitsOf(command.items[i]) * vocab);
    digest.UpdateNumber(Crc32c(std::as_bytes(rows)));
  }
  QUIRE_ASSIGN(const auto opinions, Agree({}, {.digest = digest.Finish()}));
  return CheckSame(opinions, fmt::format("step {}", steps_));
}

Result<void> Member::Rollback(const Command& command) {
  ShareSequence& sequence = At(command.sequence);
  const auto done = sequence.Rollback(command.number);
  if (auto agreed = Agree(done, {}); !agreed) {
    // What some ranks have cut and others not is of no use.
    if (!done) return std::unexpected(std::move(agreed).error());
    return std::unexpected(components_.group.Fail(std::move(agreed).error()));
  }
  return {};
}

Result<void> Member::Fork(const Command& command) {
  auto forked = At(command.sequence).Fork();
  Result<void> done;
  if (!forked) done = std::unexpected(forked.error());
  QUIRE_TRY(Agree(done, {}));
  auto* const made = static_cast<ShareSequence*>(forked->release());
  sequences_.emplace(command.number, std::unique_ptr<ShareSequence>(made));
  return {};
}

namespace {

// What a rank computes for the digest of a step alone.
class SpareLogits {
 public:
  std::vector<float*> For(const Command& command, uint64_t vocab) {
    uint64_t rows = 0;
    for (const StepEntry& entry : command.items) rows += LogitsOf(entry);
    values_.resize(std::max<size_t>(values_.size(), rows * vocab));
    std::vector<float*> logits;
    float* next = values_.data();
    for (const StepEntry& entry : command.items) {
      logits.push_back(entry.logits == Wanted::kNone ? nullptr : next);
      next += LogitsOf(entry) * vocab;
    }
    return logits;
  }

 private:
  std::vector<float> values_;
};

}  // namespace

Result<void> Follow(Member& member, uint64_t vocab) {
  FollowedTenants tenants(member.cache().cache());
  std::optional<Plan> plan;
  SpareLogits logits;
  std::vector<std::byte> bytes;
  while (true) {
    QUIRE_TRY(member.group().BroadcastAny(0, bytes));
    QUIRE_ASSIGN(const Command command, ReadCommand(bytes));
    // A refusal is rank 0's to deal with; what ends the group shows at the next call.
    switch (command.verb) {
      case Verb::kAcquire: {
        plan.reset();
        auto acquired = member.Acquire(command, tenants.Find(command.tenant));
        if (acquired) plan = std::move(acquired->plan);
        break;
      }
      case Verb::kOpen: {
        if (!plan) return quire::Fail(ErrorCode::kCorrupt, "ranks: open without a plan");
        static_cast<void>(member.Open(command, *std::exchange(plan, std::nullopt)));
        break;
      }
      case Verb::kReserve: static_cast<void>(member.Reserve(command)); break;
      case Verb::kStep: static_cast<void>(member.Step(command, logits.For(command, vocab))); break;
      case Verb::kRollback: static_cast<void>(member.Rollback(command)); break;
      case Verb::kFork: static_cast<void>(member.Fork(command)); break;
      case Verb::kReset: member.Reset(command); break;
      case Verb::kEnd: member.End(command); break;
      case Verb::kBeat: static_cast<void>(member.Beat()); break;
      case Verb::kTenant: {
        plan.reset();  // it keeps slots of a tenant
        QUIRE_ASSIGN(const TenantChange change, ReadTenantChange(command.text));
        static_cast<void>(member.AgreeOn(tenants.Take(change)));
        break;
      }
      case Verb::kStop: return {};
      default: return quire::Fail(ErrorCode::kCorrupt, "ranks: an unknown command");
    }
  }
}

}  // namespace quire::ranks::sequence
