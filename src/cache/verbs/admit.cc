#include "cache/verbs/admit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "base/sync_point.h"
#include "cache/sequence/sequence_impl.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/hit_length.h"
#include "cache/verbs/holds.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/lookup.h"
#include "cache/verbs/room.h"
#include "cache/verbs/tenants.h"

namespace quire {
namespace {

// Releases a plan that was never opened.
void EndPlan(cache::PlanState* plan) {
  if (plan == nullptr) return;
  const cache::PathUse use = {.prompt_tokens = plan->prompt_tokens,
                              .hit_blocks = plan->path.size(),
                              .user = cache::User::kPlan};
  const bool is_whole = plan->arrival == nullptr || plan->arrival->is_whole();
  cache::Holds::EndUse(plan->location, plan->path, use, plan->lease, /*zeroes=*/!is_whole);
}

}  // namespace

Plan::Plan(std::unique_ptr<cache::PlanState> state) : state_(std::move(state)) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&& other) noexcept {
  if (this != &other) {
    EndPlan(state_.get());
    state_ = std::move(other.state_);
  }
  return *this;
}
Plan::~Plan() { EndPlan(state_.get()); }

uint64_t Plan::resident_tokens() const { return state_->resident; }
uint64_t Plan::missing_tokens() const { return state_->prompt_tokens - resident_tokens(); }
MissReason Plan::reason() const { return state_->missing.front().reason; }
std::span<const MissRun> Plan::missing() const { return state_->missing; }
std::optional<uint64_t> Plan::differs_at() const { return state_->differs_at; }
uint64_t Plan::loadable_tokens() const { return state_->load.tokens; }
uint64_t Plan::uncertain_tokens() const { return state_->load.uncertain_tokens; }
uint64_t Plan::loadable_bytes() const { return state_->load.bytes; }
uint64_t Plan::approximate_tokens() const { return state_->approximate_tokens; }
float Plan::approximate_error() const { return state_->approximate_error; }

namespace cache {

namespace {

// Attempts to find and lease a path of which some blocks are evicted meanwhile; after them the plan
// has no hit.
constexpr int kAttempts = 8;

// With kHalt and kFewer the output may never fit; the prompt must.
uint64_t TokensToReserve(uint64_t prompt_tokens, const SequenceOptions& options) {
  const bool whole = options.on_full != OnFull::kHalt && options.on_full != OnFull::kFewer;
  return whole ? std::max(options.reserve_tokens, prompt_tokens) : prompt_tokens;
}

Error AsOpenSays(Error error, uint64_t tokens, uint64_t shared_blocks, uint64_t own_blocks,
                 uint64_t blocks_wanted) {
  error.message = fmt::format("open: {} tokens need {} shared and {} own blocks of {}; {}", tokens,
                              shared_blocks, own_blocks, blocks_wanted, error.message);
  return error;
}

// The reason of tokens that the store has, or should have, is that they are not loaded.
void MarkNotLoaded(const LoadList& load, MissReason reason, FoundPath& path) {
  const uint64_t hit = path.blocks.size();
  for (uint64_t i = hit; i < load.blocks; ++i) {
    if (i - hit < path.beyond.size()) {
      path.beyond[i - hit] = reason;
    } else {
      path.beyond.push_back(reason);
      path.last_key = load.keys.back();
    }
  }
}

// Which of a plan's blocks are read sealed: those without an open form, and those before them in
// their split. The slots that are not read then, the last one first.
std::vector<SlotId> ChooseForms(const SlotClasses& classes, const FoundPath& path,
                                PlanState& plan) {
  std::vector<SlotId> unread;
  std::vector<SlotId>& open = plan.slots[classes.OpenClassOf(0)];
  const uint64_t blocks_per_split = kSplitTokens / classes.block_tokens();
  plan.approximate_tokens = 0;
  plan.approximate_error = 0.0f;
  for (uint64_t i = open.size(); i-- > 0;) {
    const bool is_last = i + 1 == open.size() || (i + 1) % blocks_per_split == 0;
    if (!is_last && open[i + 1].is_none() && !open[i].is_none()) {
      unread.push_back(std::exchange(open[i], SlotId::None()));
    }
    if (!open[i].is_none()) continue;
    plan.approximate_tokens += classes.block_tokens();
    plan.approximate_error = std::max(plan.approximate_error, path.errors[i]);
  }
  return unread;
}

}  // namespace

Result<Plan> Admission::Acquire(const AcquireRequest& request) {
  QUIRE_ASSIGN(PublishLocation location, Locate(cache_, request, "acquire"));
  auto plan = std::make_unique<PlanState>();
  if (!(request.approximate_error_max >= 0)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("acquire: approximate_error_max is {}", request.approximate_error_max));
  }
  plan->prompt_tokens = request.tokens.size();
  plan->location = std::move(location);
  plan->error_max = request.approximate_error_max;
  if (request.reuse) {
    while (cache_.With(
        [&](State& state) { return Expire(state, state.account_of(plan->location)); })) {
    }
  }
  QUIRE_TRY(FillPlan(*plan, request.tokens, {.reuse = request.reuse, .open_as = request.open_as}));
  Count(*plan, +1);
  return PlanState::Wrap(std::move(plan));
}

Result<void> Admission::FillPlan(PlanState& plan, std::span<const TokenId> prompt,
                                 const PlanFor& what) {
  FoundPath path;
  LoadList load;
  std::vector<SlotId> held;
  for (int attempt = 0;; ++attempt) {
    path = {.last_key = plan.location.root_key};
    load = {};
    if (what.reuse && attempt < kAttempts) {
      path = search_.FindPath(prompt, plan.location);
      path.error_max = plan.error_max;
      if (what.looks_below && cache_.transfers() != nullptr) {
        search_.FindBelow(prompt, plan.location, path, load);
        const bool is_unknown = path.blocks.empty() && path.elsewhere == 0 && load.blocks == 0;
        if (is_unknown) path.elsewhere = search_.FindElsewhereBelow(prompt, plan.location);
      }
      CutToHit(cache_.classes(), prompt.size(), path);
    }
    if (what.open_as != nullptr) {
      // A streamed sequence leases no block of the path.
      const bool streams = what.open_as->resident_tokens > 0;
      QUIRE_TRY(CheckCapacityToOpen(plan.location, prompt.size(),
                                    streams ? std::span<const BlockId>() : path.blocks,
                                    *what.open_as));
    }
    if (search_.LeasePath(path, held)) break;
  }
  plan.resident = path.blocks.size() * cache_.block_tokens();
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    plan.slots[c].resize(path.blocks.size());
    for (uint64_t i = 0; i < path.blocks.size(); ++i) {
      if (cache_.classes().IsNeeded(c, i, plan.resident)) plan.slots[c][i] = path.slots[c][i];
    }
  }
  if (cache_.classes().has_ladder()) {
    const std::vector<SlotId> unread = ChooseForms(cache_.classes(), path, plan);
    const std::set<SlotId> released(unread.begin(), unread.end());
    std::erase_if(held, [&](SlotId slot) { return released.contains(slot); });
    cache_.ReleaseSlots(unread);
  }
  const auto resident_tokens = prompt.first(plan.resident);
  plan.resident_tokens.assign(resident_tokens.begin(), resident_tokens.end());
  plan.lease = verbs_.holds.MakeLease(std::move(held));
  const bool is_loaded = load.blocks > path.blocks.size();
  const bool streams = what.open_as != nullptr && what.open_as->resident_tokens > 0;
  // A sequence that streams may go on in a run, or begin with one that the prompt has whole.
  const auto may_be_in_run = [&] {
    if (cache_.store() == nullptr || !what.reuse || cache_.shapes().run_blocks() == 1) return false;
    const uint64_t blocks = path.blocks.size();
    return blocks % cache_.shapes().run_blocks() != 0 ||
           blocks < ReusableBlocks(prompt.size(), cache_.block_tokens());
  };
  if (is_loaded || streams || may_be_in_run()) plan.prompt.assign(prompt.begin(), prompt.end());
  if (is_loaded) {
    MarkNotLoaded(load, MissReason::kNotLoaded, path);
    plan.load = std::move(load);
  } else if (load.refused_blocks > path.blocks.size()) {
    const LoadList refused = {.blocks = load.refused_blocks, .keys = std::move(load.keys)};
    MarkNotLoaded(refused, MissReason::kApproximate, path);
  } else if (what.failed != nullptr && what.failure != MissReason::kNeverSeen) {
    MarkNotLoaded(*what.failed, what.failure, path);
  }
  if (what.reuse) {
    const uint64_t known = (path.blocks.size() + path.beyond.size()) * cache_.block_tokens();
    const uint64_t reusable =
        ReusableBlocks(prompt.size(), cache_.block_tokens()) * cache_.block_tokens();
    const std::vector<Ghost> ghosts =
        search_.FindGhosts(prompt.subspan(known, reusable - known), path.last_key, plan.location);
    plan.missing = MissesOf(prompt, cache_.block_tokens(), path, ghosts);
  } else {
    plan.missing.push_back({.reason = MissReason::kNotAsked, .tokens = prompt.size()});
  }
  // The tokens of blocks that only the store has are not known here.
  plan.differs_at.reset();
  if (plan.load.blocks * cache_.block_tokens() <= path.differs_at.value_or(0)) {
    plan.differs_at = path.differs_at;
  }
  plan.path = std::move(path.blocks);
  return {};
}

void Admission::Count(const PlanState& plan, int64_t sign, uint64_t computed_tokens) {
  const auto add = [&](uint64_t& counter, uint64_t count) {
    counter += sign > 0 ? count : 0 - count;
  };
  cache_.With([&](State& state) {
    TenantStats& of_tenant = state.accounts.counters(plan.location.tenant);
    add(state.counters.lookups, 1);
    add(of_tenant.lookups, 1);
    add(state.counters.lookup_tokens, plan.prompt_tokens);
    add(of_tenant.lookup_tokens, plan.prompt_tokens);
    add(state.counters.hit_tokens, plan.resident - computed_tokens);
    add(state.counters.approximate_hit_tokens, plan.approximate_tokens);
    add(of_tenant.hit_tokens, plan.resident - computed_tokens);
    const auto not_loaded = static_cast<uint8_t>(MissReason::kNotLoaded);
    add(of_tenant.missed_tokens[not_loaded], computed_tokens);
    for (const MissRun& run : plan.missing) {
      add(of_tenant.missed_tokens[static_cast<uint8_t>(run.reason)], run.tokens);
    }
  });
}

// Bytes that a sequence with room for so many blocks, of which the first are shared, takes besides
// its slots and the entries that these pay for. Saturates.
uint64_t Admission::SequenceBytes(uint64_t shared, uint64_t blocks,
                                  const SequenceOptions& options) const {
  const BlockList list(cache_.classes().count(), cache_.block_tokens(),
                       options.publish && !options.contiguous);
  const uint64_t list_bytes =
      std::max(shared * list.block_bytes(), BytesToGrow(cache_.classes(), list, blocks));
  return CheckedAdd(SequenceImpl::FixedBytes(cache_.classes()), list_bytes).value_or(UINT64_MAX);
}

// The same with its slots.
uint64_t Admission::BytesOfSequence(uint64_t shared, uint64_t blocks,
                                    const SequenceOptions& options) const {
  if (options.resident_tokens > 0) {
    const auto needs = StreamNeedsOf(cache_, options);
    return needs ? StreamedBytes(cache_.classes(), *needs, blocks, options)
                 : 0;  // Open reports the error
  }
  const uint64_t slot_bytes =
      cache_.classes().Charge(cache_.classes().OwnSlots(shared, blocks, options.step_tokens));
  return CheckedAdd(slot_bytes, SequenceBytes(shared, blocks, options)).value_or(UINT64_MAX);
}

// The largest number up to `blocks` that fits now, at least the prompt's blocks.
uint64_t Admission::FittingBlocks(const PlanState& plan, uint64_t blocks,
                                  const SequenceOptions& options) {
  const uint64_t capacity_bytes = cache_.With(
      [&](State& state) { return state.accounts.CapacityBytes(plan.location.asker()); });
  uint64_t fits = DivUp(plan.prompt_tokens, uint64_t{cache_.block_tokens()});
  while (fits < blocks) {
    const uint64_t middle = fits + (blocks - fits + 1) / 2;
    const uint64_t shared = plan.resident / cache_.block_tokens();
    if (BytesOfSequence(shared, middle, options) <= capacity_bytes) {
      fits = middle;
    } else {
      blocks = middle - 1;
    }
  }
  return fits;
}

// Whether Open will have room for a plan on this path, of which nothing is leased yet. A request
// that can never fit passes: Open has the better error.
Result<void> Admission::CheckCapacityToOpen(const PublishLocation& request_location,
                                            uint64_t prompt_tokens, std::span<const BlockId> path,
                                            const SequenceOptions& options) {
  PublishLocation location = request_location;
  location.may_evict = options.on_full != OnFull::kNoEvict;
  const uint64_t tokens = TokensToReserve(prompt_tokens, options);
  const uint64_t blocks = DivUp(tokens, uint64_t{cache_.block_tokens()});
  LetTimePass(cache_);  // pins may end, and their slots are then free to evict
  uint64_t leased_bytes = 0;
  LockedState::ForPieces(path.size(), [&](size_t begin, size_t end) {
    cache_.With([&](State& state) { leased_bytes += EvictableBytesOf(state, path, begin, end); });
  });
  auto room = cache_.With([&](State& state) -> Result<void> {
    const uint64_t most_bytes =
        std::min(state.accounts.charges().ledger().limit_bytes(),
                 state.accounts.charges().account(location.tenant).quota_bytes());
    if (BytesOfSequence(0, blocks, options) > most_bytes) return {};
    const TenantId account = state.account_of(location);
    const uint64_t withheld =
        std::min(leased_bytes, state.accounts.order().evictable_bytes(account));
    state.accounts.order().Withhold(account, withheld);
    auto checked = state.accounts.CheckCapacity(location.asker(),
                                                BytesOfSequence(path.size(), blocks, options));
    if (!checked && checked.error().message.empty()) {
      checked.error().message = CapacityMessage(
          state, location, cache_.classes().OwnSlots(path.size(), blocks, options.step_tokens));
    }
    state.accounts.order().GiveBack(account, withheld);
    return checked;
  });
  if (room) return {};
  const uint64_t wanted = std::max(options.reserve_tokens, prompt_tokens);
  return std::unexpected(AsOpenSays(std::move(room).error(), tokens, path.size(),
                                    blocks - path.size(),
                                    DivUp(wanted, uint64_t{cache_.block_tokens()})));
}

Result<void> Admission::CheckContiguous(uint64_t resident_tokens) const {
  if (cache_.options().placement == Placement::kFreeList) {
    return Fail(ErrorCode::kUnsupported,
                "open: contiguous needs a cache with placement first_fit, "
                "best_fit or buddy; this one has free_list");
  }
  if (cache_.classes().count() > 1 || cache_.classes().reach(0).windowed()) {
    return Fail(ErrorCode::kUnsupported,
                "open: contiguous: the model has layers with a window, or the codec encodes");
  }
  if (resident_tokens > 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("open: contiguous with a plan that shares {} tokens; acquire it with "
                            "reuse = false",
                            resident_tokens));
  }
  return {};
}

Result<void> Admission::CheckLength(const PlanState& plan, const SequenceOptions& options) const {
  const uint64_t wanted = std::max(options.reserve_tokens, plan.prompt_tokens);
  if (wanted <= cache_.options().tokens_max) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("open: {} tokens are over the limit of {} (tokens_max)", wanted,
                          cache_.options().tokens_max));
}

Result<std::unique_ptr<Sequence>> Admission::Open(Plan plan, const SequenceOptions& options) {
  if (options.resident_tokens > 0) {
    QUIRE_ASSIGN(const auto opening, BeginOpen(std::move(plan), options));
    return opening->Take();
  }
  PlanState& state = PlanState::Of(plan);
  QUIRE_TRY(CheckLength(state, options));
  const uint64_t wanted = std::max(options.reserve_tokens, state.prompt_tokens);
  if (options.contiguous) QUIRE_TRY(CheckContiguous(state.resident));
  const uint64_t shared = state.resident / cache_.block_tokens();
  const uint64_t blocks_wanted = DivUp(wanted, cache_.block_tokens());
  const bool publish = options.publish && !options.contiguous;
  BlockList list(cache_.classes().count(), cache_.block_tokens(), publish);
  state.location.may_evict = options.on_full != OnFull::kNoEvict;
  const uint64_t reserve = TokensToReserve(state.prompt_tokens, options);
  uint64_t blocks = DivUp(reserve, uint64_t{cache_.block_tokens()});
  QUIRE_TRY(cache_.With([&](State& locked) {
    return CheckCanFit(locked, state.location, reserve, blocks,
                       BytesOfSequence(0, blocks, options));
  }));
  uint64_t tokens_max = cache_.options().tokens_max;
  if (options.on_full == OnFull::kFewer) {
    blocks = FittingBlocks(state, blocks_wanted, options);
    tokens_max = std::min(wanted, blocks * cache_.block_tokens());
  }
  const PerClass<uint64_t> own = cache_.classes().OwnSlots(shared, blocks, options.step_tokens);
  auto taken =
      verbs_.holds.Allocate(state.location, options.contiguous ? PerClass<uint64_t>{} : own,
                            SequenceBytes(shared, blocks, options));
  if (taken && options.contiguous) {
    auto run = verbs_.holds.ExtendRun(state.location, {}, own[0]);
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
    for (uint32_t c = 0; c < cache_.classes().count(); ++c)
      list.SetSlot(c, block, state.slots[c][block]);
    if (block < state.path.size()) list.AddPublished(state.path[block]);
  }
  if (publish) list.AddTokens(state.resident_tokens);
  return std::make_unique<SequenceImpl>(
      verbs_,
      SequenceImpl::Start{
          .location = std::move(state.location),
          .prompt_tokens = state.prompt_tokens,
          .tokens = state.resident,
          .asked = asked,
          .is_exact = state.approximate_tokens == 0 || Planted(Canary::kKeepApproximate),
          .approximate_error = state.approximate_error,
          .blocks = std::move(list),
          .charge = std::move(taken->metadata),
          .lease = std::move(state.lease),
          .arrival = std::move(state.arrival)},
      std::move(taken->slots), blocks, tokens_max, options);
}

}  // namespace cache
}  // namespace quire
