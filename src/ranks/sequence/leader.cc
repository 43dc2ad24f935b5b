#include "ranks/sequence/leader.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/verbs/admit.h"
#include "ranks/reserved_room.h"

namespace quire::ranks::sequence {
/// What an engine holds; the sequence itself is the member's.
class LeaderCache::LeaderSequence final : public registry::ForwardingSequence {
 public:
  LeaderSequence(LeaderCache& cache, uint64_t number)
      : ForwardingSequence(cache.member_.At(number)),
        cache_(cache),
        number_(number),
        room_(cache.options()) {}
  ~LeaderSequence() override {
    const Command end = {.verb = Verb::kEnd, .sequence = number_};
    // A group that has failed, or was stopped, ends all the same.
    static_cast<void>(cache_.Tell(end));
    cache_.member_.End(end);
  }

  uint64_t number() const { return number_; }

  Result<void> Reserve(uint64_t tokens) override {
    return room_.Grow(tokens, [this](uint64_t asked) -> Result<void> {
      const Command command = {.verb = Verb::kReserve, .sequence = number_, .number = asked};
      QUIRE_TRY(cache_.Tell(command));
      return cache_.member_.Reserve(command);
    });
  }
  Result<void> Rollback(uint64_t position) override {
    if (position == length() && position == cursor(0)) return {};  // a step that was not taken
    const Command command = {.verb = Verb::kRollback, .sequence = number_, .number = position};
    room_.Forget();
    QUIRE_TRY(cache_.Tell(command));
    return cache_.member_.Rollback(command);
  }
  Result<std::unique_ptr<Sequence>> Fork() override {
    const Command command = {.verb = Verb::kFork, .sequence = number_, .number = cache_.next_++};
    QUIRE_TRY(cache_.Tell(command));
    QUIRE_TRY(cache_.member_.Fork(command));
    return std::make_unique<LeaderSequence>(cache_, command.number);
  }
  void Reset() override {
    const Command command = {.verb = Verb::kReset, .sequence = number_};
    room_.Forget();
    static_cast<void>(cache_.Tell(command));
    cache_.member_.Reset(command);
  }

  // Model::Step calls these of the member's sequence.
  Result<void> Append(uint32_t /*layer*/, const LayerRows& /*rows*/) override {
    return cache_.Refuse("append");
  }
  Result<void> Commit(std::span<const TokenId> /*tokens*/) override {
    return cache_.Refuse("commit");
  }
  Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t> kept) override {
    return inner().Select(kept);
  }

 private:
  LeaderCache& cache_;
  const uint64_t number_;
  ReservedRoom room_;
};

LeaderCache::LeaderCache(Member& member)
    : GroupCache(member.cache().cache(), "sequence"), member_(member) {}

Result<void> LeaderCache::Tell(const Command& command) {
  if (stopped_) return Fail(ErrorCode::kCancelled, "ranks: they were stopped");
  std::vector<std::byte> bytes = Write(command);
  return member_.group().BroadcastAny(0, bytes);
}

Result<Plan> LeaderCache::Acquire(const AcquireRequest& request) {
  if (request.identity == nullptr || !request.identity->adapter.empty()) {
    return Refuse("acquire with an adapter");
  }
  Command command = {.verb = Verb::kAcquire,
                     .reuse = request.reuse,
                     .has_options = request.open_as != nullptr,
                     .tenant = request.tenant,
                     .tokens = {request.tokens.begin(), request.tokens.end()}};
  if (request.open_as != nullptr) command.options = *request.open_as;
  QUIRE_TRY(Tell(command));
  QUIRE_ASSIGN(auto acquired, member_.Acquire(command, request.tenant));
  acquired_ = &cache::PlanState::Of(acquired.plan);
  return std::move(acquired.plan);
}

Result<std::unique_ptr<Sequence>> LeaderCache::Open(Plan plan, const SequenceOptions& options) {
  if (&cache::PlanState::Of(plan) != std::exchange(acquired_, nullptr)) {
    return Fail(ErrorCode::kInvalidArgument,
                "open: with ranks a plan is opened before the next acquire");
  }
  const Command command = {.verb = Verb::kOpen, .sequence = next_++, .options = options};
  QUIRE_TRY(Tell(command));
  QUIRE_TRY(member_.Open(command, std::move(plan)));
  return std::make_unique<LeaderSequence>(*this, command.sequence);
}

// A tenant that some ranks have and others not is of no use.
Result<void> LeaderCache::TellOthers(const TenantChange& change,
                                     const std::function<void()>& meanwhile) {
  acquired_ = nullptr;
  QUIRE_TRY(Tell({.verb = Verb::kTenant, .text = Write(change)}));
  meanwhile();
  auto agreed = member_.AgreeOn({});
  if (agreed || change.kind != TenantChange::Kind::kAdd) return agreed;
  return std::unexpected(member_.group().Fail(std::move(agreed).error()));
}

Result<void> LeaderCache::Step(std::span<const model::StepItem> items,
                               AttentionBackend& /*attention*/, Executor& /*executor*/) {
  Command command = {.verb = Verb::kStep};
  std::vector<float*> logits;
  for (const model::StepItem& item : items) {
    if (item.observer != nullptr) return Refuse("a step that observes attention");
    if (item.adapter != nullptr) return Refuse("a step with an adapter");
    const Wanted last_or_all = item.all_logits ? Wanted::kAll : Wanted::kLast;
    command.items.push_back({.sequence = static_cast<LeaderSequence*>(item.sequence)->number(),
                             .tokens = static_cast<uint32_t>(item.tokens.size()),
                             .logits = item.logits == nullptr ? Wanted::kNone : last_or_all});
    command.tokens.insert(command.tokens.end(), item.tokens.begin(), item.tokens.end());
    logits.push_back(item.logits);
  }
  QUIRE_TRY(Tell(command));
  return member_.Step(command, logits);
}

Result<void> LeaderCache::Beat() {
  QUIRE_TRY(Tell({.verb = Verb::kBeat}));
  return member_.Beat();
}

Result<void> LeaderCache::Stop() {
  if (stopped_) return {};
  QUIRE_TRY(Tell({.verb = Verb::kStop}));
  stopped_ = true;
  return {};
}

}  // namespace quire::ranks::sequence
