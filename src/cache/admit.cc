// Plans, and the sequences that begin with them.
#include <fmt/format.h>

#include <utility>

#include "base/bits.h"
#include "cache/core.h"
#include "cache/sequence_impl.h"

namespace quire {

Plan::Plan(std::unique_ptr<cache::PlanState> state) : state_(std::move(state)) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&& other) noexcept {
  if (this != &other) {
    cache::Core::EndPlan(state_.get());
    state_ = std::move(other.state_);
  }
  return *this;
}
Plan::~Plan() { cache::Core::EndPlan(state_.get()); }

uint64_t Plan::resident_tokens() const { return state_->resident; }
uint64_t Plan::missing_tokens() const { return state_->prompt_tokens - resident_tokens(); }
MissReason Plan::reason() const { return state_->missing.front().reason; }
std::span<const MissRun> Plan::missing() const { return state_->missing; }

namespace cache {

Result<void> Core::CheckRequest(const AcquireRequest& request, std::string_view what) const {
  if (request.identity == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}: no identity", what));
  }
  const uint64_t tokens = request.tokens.size();
  if (tokens == 0) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}: the prompt has no tokens", what));
  }
  if (tokens <= options_.tokens_max) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: a prompt of {} tokens is over the limit of {} (tokens_max)", what,
                          tokens, options_.tokens_max));
}

Result<Plan> Core::Acquire(const AcquireRequest& request) {
  QUIRE_TRY(CheckRequest(request, "acquire"));
  const uint64_t tokens = request.tokens.size();
  auto state = std::make_unique<PlanState>();
  state->prompt_tokens = tokens;
  QUIRE_ASSIGN(state->place, MakePlace(request));
  Path path;
  std::vector<SlotId> held;
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    if (request.reuse) {
      Expire(AccountOf(state->place));
      path = FindPath(request.tokens, state->place);
    }
    const uint64_t blocks = path.blocks.size();
    state->resident = blocks * block_tokens();
    for (uint64_t i = 0; i < blocks; ++i) {
      if (shrinking_) MoveBelowEnd(path.blocks[i]);  // while nobody holds it
      const BlockRecord& record = blocks_.at(path.blocks[i]);
      for (uint32_t c = 0; c < class_count(); ++c) {
        const Reach& reach = reaches_[c];
        const bool needed = i < reach.sink_blocks() || i >= reach.first_needed(state->resident);
        state->slots[c].push_back(needed ? record.slots[c] : SlotId::None());
        if (needed) held.push_back(record.slots[c]);
      }
    }
    for (const SlotId slot : held) HoldSlot(slot);
  });
  const auto resident_tokens = request.tokens.first(state->resident);
  state->resident_tokens.assign(resident_tokens.begin(), resident_tokens.end());
  state->lease = Lease(this, std::move(held));
  if (request.reuse) {
    Explain(request.tokens, path, *state);
  } else {
    state->missing.push_back({.reason = MissReason::kNotAsked, .tokens = tokens});
  }
  state->path = std::move(path.blocks);
  mutex_.Run([&]() QUIRE_REQUIRES(mutex_) {
    TenantStats& counters = TenantOf(state->place.tenant).stats;
    ++counters_.lookups;
    ++counters.lookups;
    counters_.lookup_tokens += tokens;
    counters.lookup_tokens += tokens;
    counters_.hit_tokens += state->resident;
    counters.hit_tokens += state->resident;
    for (const MissRun& run : state->missing) {
      counters.missed_tokens[static_cast<uint8_t>(run.reason)] += run.tokens;
    }
  });
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
  if (options.on_full == OnFull::kSpill && options_.spill == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "open: on_full is spill, but the cache was made without one (CacheOptions::spill, "
                "in C spill_store); make it with one, or ask for reject");
  }
  if (options.contiguous) QUIRE_TRY(CheckContiguous(state.resident));
  const uint64_t shared = state.path.size();
  const uint64_t blocks_wanted = DivUp(wanted, block_tokens());
  state.place.may_evict = options.on_full != OnFull::kNoEvict;
  state.place.spill = options.on_full == OnFull::kSpill;
  // With kHalt and kFewer the output may never fit; the prompt must.
  const bool whole = options.on_full != OnFull::kHalt && options.on_full != OnFull::kFewer;
  const uint64_t reserve = whole ? wanted : state.prompt_tokens;
  uint64_t blocks = DivUp(reserve, uint64_t{block_tokens()});
  QUIRE_TRY(CheckCanFit(state.place, reserve, blocks, options.step_tokens));
  uint64_t tokens_max = options_.tokens_max;
  if (options.on_full == OnFull::kFewer) {
    blocks = FittingBlocks(state, blocks_wanted, options.step_tokens);
    tokens_max = std::min(wanted, blocks * block_tokens());
  }
  const PerClass<uint64_t> own = OwnSlots(shared, blocks, options.step_tokens);
  Result<OwnedSlots> slots =
      options.contiguous ? ExtendRun(state.place, {}, own[0]) : AllocateSlots(state.place, own);
  if (!slots) {
    Error error = std::move(slots).error();
    error.message = fmt::format("open: {} tokens need {} shared and {} own blocks of {}; {}",
                                reserve, shared, blocks - shared, blocks_wanted, error.message);
    return std::unexpected(std::move(error));
  }
  return std::make_unique<SequenceImpl>(*this, std::move(state), *std::move(slots), blocks,
                                        tokens_max, options);
}

}  // namespace cache
}  // namespace quire
