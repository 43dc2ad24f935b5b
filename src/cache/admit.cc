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

namespace {

// With kHalt and kFewer the output may never fit; the prompt must.
uint64_t TokensToReserve(uint64_t prompt_tokens, const SequenceOptions& options) {
  const bool whole = options.on_full != OnFull::kHalt && options.on_full != OnFull::kFewer;
  return whole ? std::max(options.reserve_tokens, prompt_tokens) : prompt_tokens;
}

// Bytes that are not counted as evictable for a while.
class Withheld {
 public:
  Withheld(uint64_t& evictable_bytes, uint64_t bytes)
      : evictable_bytes_(evictable_bytes), bytes_(bytes) {
    evictable_bytes_ -= bytes_;
  }
  ~Withheld() { evictable_bytes_ += bytes_; }
  Withheld(const Withheld&) = delete;
  Withheld& operator=(const Withheld&) = delete;

 private:
  uint64_t& evictable_bytes_;
  const uint64_t bytes_;
};

Error AsOpenSays(Error error, uint64_t tokens, uint64_t shared_blocks, uint64_t own_blocks,
                 uint64_t blocks_wanted) {
  error.message = fmt::format("open: {} tokens need {} shared and {} own blocks of {}; {}", tokens,
                              shared_blocks, own_blocks, blocks_wanted, error.message);
  return error;
}

}  // namespace

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
  auto leased = mutex_.Run([&]() QUIRE_REQUIRES(mutex_) -> Result<void> {
    if (request.reuse) {
      Expire(AccountOf(state->place));
      path = FindPath(request.tokens, state->place);
    }
    if (request.open_as != nullptr) {
      QUIRE_TRY(CheckRoomToOpen(*state, path.blocks, *request.open_as));
    }
    const uint64_t blocks = path.blocks.size();
    state->resident = blocks * block_tokens();
    for (uint64_t i = 0; i < blocks; ++i) {
      if (shrinking_) MoveBelowEnd(path.blocks[i]);  // while nobody holds it
      const BlockRecord& record = blocks_.at(path.blocks[i]);
      for (uint32_t c = 0; c < class_count(); ++c) {
        const bool needed = IsNeeded(c, i, state->resident);
        state->slots[c].push_back(needed ? record.slots[c] : SlotId::None());
        if (needed) held.push_back(record.slots[c]);
      }
    }
    for (const SlotId slot : held) HoldSlot(slot);
    return {};
  });
  QUIRE_TRY(std::move(leased));
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

// Of a block of a plan, whether a query after `resident` tokens can look at this class.
bool Core::IsNeeded(uint32_t slot_class, uint64_t block, uint64_t resident) const {
  const Reach& reach = reaches_[slot_class];
  return block < reach.sink_blocks() || block >= reach.first_needed(resident);
}

// What leases of a plan on a path will take from what its account could evict.
uint64_t Core::EvictableBytesOf(std::span<const BlockId> path) const {
  const uint64_t resident = path.size() * block_tokens();
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < path.size(); ++i) {
    const BlockRecord& record = blocks_.at(path[i]);
    for (uint32_t c = 0; c < class_count(); ++c) {
      const SlotId slot = record.slots[c];
      if (slot.is_none()) continue;
      const bool alone = reaches_[c].windowed() && references(slot) == 1;
      if (record.leases > 0 && !alone) continue;  // it is held already
      if (!alone || IsNeeded(c, i, resident)) bytes += charges_[c];
    }
  }
  return bytes;
}

// What a sequence with room for so many blocks, of which the first are shared, takes besides its
// slots and the entries that these pay for. Saturates.
uint64_t Core::SequenceBytes(uint64_t shared, uint64_t blocks,
                             const SequenceOptions& options) const {
  const BlockList list(class_count(), block_tokens(), options.publish && !options.contiguous);
  const uint64_t list_bytes =
      std::max(shared * list.block_bytes(), SequenceImpl::BytesToGrow(*this, list, blocks));
  return CheckedAdd(SequenceImpl::FixedBytes(*this), list_bytes).value_or(UINT64_MAX);
}

// Whether Open will have room for a plan on this path, of which nothing is leased yet. What can
// never fit passes: Open says so better.
Result<void> Core::CheckRoomToOpen(const PlanState& state, std::span<const BlockId> path,
                                   const SequenceOptions& options) {
  LetTimePass();  // pins may end, and what they kept is then to be had
  Place place = state.place;
  place.may_evict = options.on_full != OnFull::kNoEvict;
  const uint64_t tokens = TokensToReserve(state.prompt_tokens, options);
  const uint64_t blocks = DivUp(tokens, uint64_t{block_tokens()});
  const Tenant& tenant = TenantOf(place.tenant);
  const uint64_t most_bytes = std::min(ledger_.limit_bytes(), tenant.account.quota_bytes());
  const auto alone_bytes = CheckedAdd(Charge(OwnSlots(0, blocks, options.step_tokens)),
                                      SequenceBytes(0, blocks, options));
  if (alone_bytes.value_or(UINT64_MAX) > most_bytes) return {};
  const PerClass<uint64_t> own = OwnSlots(path.size(), blocks, options.step_tokens);
  const Withheld leased(AccountOf(place).evictable_bytes, EvictableBytesOf(path));
  auto room = CheckRoom(place, Charge(own) + SequenceBytes(path.size(), blocks, options));
  if (room) return {};
  if (room.error().message.empty()) room.error().message = RoomMessage(place, own);
  const uint64_t wanted = std::max(options.reserve_tokens, state.prompt_tokens);
  return std::unexpected(AsOpenSays(std::move(room).error(), tokens, path.size(),
                                    blocks - path.size(), DivUp(wanted, uint64_t{block_tokens()})));
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
  const bool publish = options.publish && !options.contiguous;
  BlockList list(class_count(), block_tokens(), publish);
  state.place.may_evict = options.on_full != OnFull::kNoEvict;
  state.place.spill = options.on_full == OnFull::kSpill;
  const uint64_t reserve = TokensToReserve(state.prompt_tokens, options);
  uint64_t blocks = DivUp(reserve, uint64_t{block_tokens()});
  QUIRE_TRY(CheckCanFit(state.place, reserve, blocks, options.step_tokens,
                        SequenceBytes(0, blocks, options)));
  uint64_t tokens_max = options_.tokens_max;
  if (options.on_full == OnFull::kFewer) {
    blocks = FittingBlocks(state, blocks_wanted, options);
    tokens_max = std::min(wanted, blocks * block_tokens());
  }
  const PerClass<uint64_t> own = OwnSlots(shared, blocks, options.step_tokens);
  auto taken = Allocate(state.place, options.contiguous ? PerClass<uint64_t>{} : own,
                        SequenceBytes(shared, blocks, options));
  if (taken && options.contiguous) {
    auto run = ExtendRun(state.place, {}, own[0]);
    if (run) {
      taken->slots = *std::move(run);
    } else {
      taken = std::unexpected(std::move(run).error());
    }
  }
  if (!taken) {
    return std::unexpected(
        AsOpenSays(std::move(taken).error(), reserve, shared, blocks - shared, blocks_wanted));
  }
  const bool asked = state.missing.empty() || state.missing.front().reason != MissReason::kNotAsked;
  list.Resize(shared);
  for (uint64_t block = 0; block < shared; ++block) {
    for (uint32_t c = 0; c < class_count(); ++c) list.SetSlot(c, block, state.slots[c][block]);
    list.AddPublished(state.path[block]);
  }
  if (publish) list.AddTokens(state.resident_tokens);
  return std::make_unique<SequenceImpl>(*this,
                                        SequenceImpl::Start{.place = std::move(state.place),
                                                            .prompt_tokens = state.prompt_tokens,
                                                            .tokens = state.resident,
                                                            .asked = asked,
                                                            .blocks = std::move(list),
                                                            .charge = std::move(taken->metadata),
                                                            .lease = std::move(state.lease)},
                                        std::move(taken->slots), blocks, tokens_max, options);
}

}  // namespace cache
}  // namespace quire
