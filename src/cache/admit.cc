// Plans, sequences and the room they need: everything is checked before anything is taken.
#include <fmt/format.h>

#include <utility>

#include "base/bits.h"
#include "cache/core.h"
#include "cache/hit_length.h"
#include "cache/sequence_impl.h"

namespace quire {

std::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kNeverSeen: return "never_seen";
    case MissReason::kPartialBlock: return "partial_block";
    case MissReason::kDamaged: return "damaged";
    case MissReason::kNotAsked: return "not_asked";
  }
  return "unknown";
}

Plan::Plan(std::unique_ptr<cache::PlanState> state) : state_(std::move(state)) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

uint64_t Plan::resident_tokens() const { return state_->resident_tokens.size(); }
uint64_t Plan::missing_tokens() const { return state_->prompt_tokens - resident_tokens(); }
MissReason Plan::reason() const { return state_->reason; }

namespace cache {

Result<Plan> Core::Acquire(const AcquireRequest& request) {
  if (request.identity == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "acquire: no identity");
  }
  const uint64_t tokens = request.tokens.size();
  if (tokens == 0) return Fail(ErrorCode::kInvalidArgument, "acquire: the prompt has no tokens");
  if (tokens > options_.tokens_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("acquire: a prompt of {} tokens is over the limit of {} (tokens_max)",
                            tokens, options_.tokens_max));
  }

  auto state = std::make_unique<PlanState>();
  state->prompt_tokens = tokens;
  state->place.root_key = RootKey(*request.identity, options_.geometry, options_.profile);
  state->place.domain = std::make_shared<const Domain>(request.identity->domain);
  const uint64_t reusable = ReusableBlocks(tokens, block_tokens());
  std::vector<SlotId> slots;
  {
    MutexLock lock(mutex_);
    ++counters_.lookups;
    counters_.lookup_tokens += tokens;
    const auto root = index_.FindRoot(state->place.root_key);
    if (request.reuse && root) {
      index_.Find(*root, request.tokens.first(reusable * block_tokens()), state->path);
    }
    const uint64_t resident = HitBlocks(tokens, block_tokens(), state->path.size());
    state->path.resize(resident);
    state->reason = !request.reuse         ? MissReason::kNotAsked
                    : resident == reusable ? MissReason::kPartialBlock
                                           : MissReason::kNeverSeen;
    for (size_t i = 0; i < state->path.size(); ++i) {
      if (blocks_.at(state->path[i]).quarantined) {
        state->path.resize(i);
        state->reason = MissReason::kDamaged;
        break;
      }
    }
    slots.reserve(state->path.size());
    for (BlockId block : state->path) {
      slots.push_back(blocks_.at(block).slot);
      HoldSlot(slots.back());
    }
    counters_.hit_tokens += state->path.size() * block_tokens();
  }
  const auto resident_tokens = request.tokens.first(state->path.size() * block_tokens());
  state->resident_tokens.assign(resident_tokens.begin(), resident_tokens.end());
  state->lease = Lease(this, std::move(slots));
  return Plan(std::move(state));
}

Result<std::unique_ptr<Sequence>> Core::Open(Plan plan, const SequenceOptions& options) {
  PlanState& state = *plan.state_;
  const uint64_t wanted = std::max(options.reserve_tokens, state.prompt_tokens);
  if (wanted > options_.tokens_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("open: {} tokens are over the limit of {} (tokens_max)", wanted,
                            options_.tokens_max));
  }
  const uint64_t shared = state.path.size();
  const uint64_t blocks_wanted = DivUp(wanted, block_tokens());
  const uint64_t reserve = options.on_full == OnFull::kReject ? wanted : state.prompt_tokens;
  const uint64_t own = DivUp(reserve, block_tokens()) - shared;
  // With kHalt the output may never fit; the prompt must.
  if (DivUp(reserve, block_tokens()) > sealed_->slots_max()) {
    MutexLock lock(mutex_);
    ++counters_.refused_total;
    return Fail(
        ErrorCode::kNoSpace,
        fmt::format("open: can never fit: {} tokens need {} blocks, hot_bytes {} holds {}", reserve,
                    DivUp(reserve, block_tokens()), options_.hot_bytes, sealed_->slots_max()));
  }
  auto slots = AllocateSlots(own);
  if (!slots) {
    Error error = std::move(slots).error();
    error.message = fmt::format("open: {} tokens need {} shared and {} own blocks of {}; {}",
                                reserve, shared, own, blocks_wanted, error.message);
    return std::unexpected(std::move(error));
  }
  return std::make_unique<SequenceImpl>(*this, std::move(state), *std::move(slots),
                                        options.publish);
}

Result<std::vector<SlotId>> Core::AllocateSlots(uint64_t count) {
  std::vector<SlotId> slots;
  if (count == 0) return slots;
  MutexLock lock(mutex_);
  const uint64_t available = sealed_->free_count() + policy_->size();
  if (count > available) {
    ++counters_.refused_total;
    return Fail(ErrorCode::kNoSpace,
                fmt::format("{} blocks needed, {} free or evictable of {} (hot_bytes {})", count,
                            available, sealed_->slots_max(), options_.hot_bytes));
  }
  slots.resize(count);
  while (sealed_->free_count() < count) EvictOne();
  // The pool has exactly as many slots as the budget can pay for, so the ledger agrees.
  QUIRE_CHECK(ledger_.TryCharge(count * charge_bytes_));
  QUIRE_CHECK(sealed_->Allocate(slots));
  return slots;
}

}  // namespace cache
}  // namespace quire
