#include "cache/core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "base/sync_point.h"
#include "cache/evict.h"
#include "cache/fallback.h"
#include "cache/leases.h"
#include "cache/mover.h"
#include "cache/sequence_impl.h"
#include "cache/shared_budget.h"
#include "env/clock.h"
#include "evict/policies.h"

namespace quire {

Result<std::unique_ptr<Cache>> Cache::Create(CacheOptions options) {
  return cache::Core::Make(std::move(options));
}

namespace cache {

namespace {

Result<void> CheckCodecs(const NumericProfile& profile) {
  const auto check = [](Codec codec, std::string_view field) -> Result<void> {
    if (CodecName(codec) != "unknown") return {};
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: profile.{}: codec {}", field, static_cast<int>(codec)));
  };
  QUIRE_TRY(check(profile.open_dtype, "open_dtype"));
  for (const CodecRule& rule : profile.codecs) QUIRE_TRY(check(rule.codec, "codecs"));
  return {};
}

Result<void> CheckOptions(const CacheOptions& options) {
  if (options.tokens_max == 0) {
    return Fail(ErrorCode::kInvalidArgument, "cache options: tokens_max is 0");
  }
  if (ArenaLayoutName(options.layout) == "unknown") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: arena layout {}", static_cast<int>(options.layout)));
  }
  if (PlacementName(options.placement) == "unknown") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: placement {}", static_cast<int>(options.placement)));
  }
  if (options.huge_pages && options.layout != ArenaLayout::kBlockMajor) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: huge_pages with layout {}, whose slots share pages",
                            ArenaLayoutName(options.layout)));
  }
  if (options.memory != nullptr && options.huge_pages) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: huge_pages with memory of the caller's (\"{}\"), who "
                            "decides that",
                            options.memory->name()));
  }
  if (options.memory != nullptr && !options.memory->host_accessible() && options.ops == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: the host cannot reach memory \"{}\", and there are no "
                            "ops that can",
                            options.memory->name()));
  }
  if (options.eviction_batch != EvictionBatch::kExact &&
      options.eviction_batch != EvictionBatch::kAdaptive) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("cache options: eviction_batch {}",
                                                         static_cast<int>(options.eviction_batch)));
  }
  if (evict::MakePolicy(options.policy) == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: policy \"{}\" is none of {}", options.policy,
                            fmt::join(evict::PolicyNames(), ", ")));
  }
  QUIRE_TRY(CheckCodecs(options.profile));
  return options.geometry.Validate();
}

}  // namespace

Result<std::unique_ptr<Core>> Core::Make(CacheOptions options) {
  QUIRE_TRY(CheckOptions(options));
  const uint32_t fallbacks = options.fallback_kernels != nullptr ? ApplyFallback(options) : 0;
  options.fallback_kernels = nullptr;  // need not outlive this
  QUIRE_ASSIGN(SlotClasses classes, SlotClasses::Create(options));
  if (options.hot_bytes_max != 0 && options.hot_bytes_max < options.hot_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: hot_bytes_max {} is below hot_bytes {}",
                            options.hot_bytes_max, options.hot_bytes));
  }
  std::unique_ptr<Core> core(new Core(std::move(options), std::move(classes)));
  QUIRE_ASSIGN(core->slots_, Slots::Create(core->classes_, core->options_));
  const Capacity& capacity = core->slots_->capacity();
  SharedBudget* const budget = core->options_.shared_budget;
  quota::Ledger* const shared = budget == nullptr ? nullptr : &budget->state_->ledger;
  core->state_.reset(
      new State{.classes = core->classes_,
                .clock = core->clock_,
                .slots = *core->slots_,
                .directory = Directory(core->classes_),
                .accounts = Accounts(core->classes_, core->clock_, core->options_.policy,
                                     core->options_.eviction_batch, capacity, shared),
                .empty_max = core->classes_.EmptyMax(capacity)});
  if (core->options_.store != nullptr) {
    QUIRE_ASSIGN(core->shapes_, RecordShapes::Create(core->classes_, core->options_));
    core->mover_ = core->options_.store->state_->mover.get();
    core->mover_->Attach(*core);
  }
  MutexLock lock(core->mutex_);
  if (core->mover_ != nullptr) {
    core->state_->has_store = true;
    core->state_->used_below.reserve(kUsedBelowMax);
  }
  core->state_->counters.codec_fallbacks = fallbacks;
  core->state_->directory.AddAccount(kDefaultTenant);
  core->state_->directory.SetGhosts(core->state_->accounts.share());
  return core;
}

Core::Core(CacheOptions options, SlotClasses classes)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : SystemClock()),
      classes_(std::move(classes)),
      heeds_priorities_(evict::MakePolicy(options_.policy)->heeds_priorities()) {}

Core::~Core() {
  QUIRE_CHECK_MSG(sequence_count_ == 0, "a sequence outlives its cache");
  if (mover_ != nullptr) mover_->Detach(*this);
  if (state_ == nullptr) return;  // Make failed
  // A device may still read the arenas.
  const std::vector<Fenced> fenced =
      Hold([](State& state) { return std::exchange(state.fenced, {}); });
  for (const Fenced& last : fenced) {
    last.fence->Wait();
    ReleaseSlots(last.slots);
  }
}

uint64_t Core::block_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t group = 0; group < classes_.group_count(); ++group)
    bytes += classes_.slot_bytes(group);
  return bytes;
}

void Core::AddSequence(const SequenceImpl& sequence) {
  MutexLock lock(sequences_mutex_);
  sequences_.emplace(sequence.id(), &sequence);
  ++sequence_count_;
}

void Core::RemoveSequence(SequenceId id) {
  MutexLock lock(sequences_mutex_);
  sequences_.erase(id);
  --sequence_count_;
}

uint32_t Core::most_touched() const {
  MutexLock lock(mutex_);
  return most_touched_;
}

// What is drained stays charged and is nobody's until it is zeroed, so nothing can happen to it
// meanwhile. What verbs left to do comes first: that may let go of more.
void Core::Settle() {
  for (bool more = true, any = true; more;) {
    AtSyncPoint("settle: before more is done");
    more = HoldOnce([](State& state) { return SettleSome(state); }, any);
  }
  constexpr size_t kSlotsPerHold = 64;
  std::array<SlotId, kSlotsPerHold> slots{};
  size_t count = 0;
  while (true) {
    {
      MutexLock lock(mutex_);
      for (size_t i = 0; i < count; ++i) EndDraining(*state_, slots[i]);
      std::vector<SlotId>& draining = state_->draining;
      count = std::min(draining.size(), kSlotsPerHold);
      std::copy_n(draining.end() - static_cast<int64_t>(count), count, slots.begin());
      draining.resize(draining.size() - count);
    }
    if (count == 0) return;
    AtSyncPoint("drain: before slots are zeroed");
    ZeroAll(std::span(slots).first(count));
    slots_->ops().Synchronize();  // free means that nothing is left of them
  }
}

void Core::ZeroAll(std::span<const SlotId> slots) const {
  for (const SlotId slot : slots) slots_->Zero(slot);
}

void Core::HoldSlots(std::span<const SlotId> slots) {
  ForPieces(slots.size(), [&](size_t begin, size_t end) {
    With([&](State& state) {
      for (size_t i = begin; i < end; ++i) HoldSlot(state, slots[i]);
    });
  });
}

void Core::ReleaseSlots(std::span<const SlotId> slots) {
  // Deepest block first, so that a parent becomes evictable after its children.
  ForPieces(slots.size(), [&](size_t begin, size_t end) {
    Hold([&](State& state) {
      for (size_t i = begin; i < end; ++i) ReleaseSlot(state, slots[slots.size() - 1 - i]);
    });
  });
}

void Core::ReleaseAfter(std::shared_ptr<Fence> fence, std::vector<SlotId> slots) {
  if (fence == nullptr || fence->IsDone()) return ReleaseSlots(slots);
  try {
    Hold([&](State& state) {
      Fenced& last = state.fenced.emplace_back();  // nothing fails from here on
      last.fence = std::move(fence);
      last.slots = std::move(slots);
      ++fences_;
    });
  } catch (const std::bad_alloc&) {
    fence->Wait();
    ReleaseSlots(slots);
  }
}

// Those that are not done are asked again by the next call; nobody waits for them.
void Core::ReleaseDone() {
  while (true) {
    Fenced done;
    Hold([&](State& state) {
      const auto found = std::ranges::find_if(
          state.fenced, [](const Fenced& fenced) { return fenced.fence->IsDone(); });
      if (found == state.fenced.end()) return;
      done = std::move(*found);
      state.fenced.erase(found);
      --fences_;
    });
    if (done.fence == nullptr) return;
    ReleaseSlots(done.slots);
  }
}

// What policies are told goes on over the pieces: between them they hear nothing of this use.
void Core::EndUse(const PublishLocation& location, std::span<const BlockId> path, PathUse use,
                  std::span<const SlotId> slots) {
  std::vector<uint64_t> keys;
  keys.reserve(path.size());
  ForPieces(path.size(), [&](size_t begin, size_t end) {
    With([&](State& state) {
      for (size_t i = begin; i < end; ++i) {
        keys.push_back(PolicyKey(state.directory.at(path[i]).key));
      }
    });
  });
  use.keys = keys;
  std::unique_ptr<evict::Policy::Use> paused;
  size_t released = 0;
  do {
    const size_t end = std::min(released + kBlocksPerHold, slots.size());
    With([&](State& state) {
      Accounts& accounts = state.accounts;
      if (released > 0) {
        accounts.ResumeUse(location.tenant, std::move(paused));
      } else if (!path.empty()) {
        accounts.BeginUse(location.tenant, location.epoch, use);
      }
      for (; released < end; ++released) {
        ReleaseSlot(state, slots[slots.size() - 1 - released]);
      }
      if (released < slots.size()) {
        paused = accounts.PauseUse(location.tenant);
      } else {
        accounts.EndUse(location.tenant);
      }
    });
  } while (released < slots.size());
}

void Core::EndPlan(PlanState* plan) {
  if (plan == nullptr || plan->lease.slots_.empty()) return;
  const PathUse use = {
      .prompt_tokens = plan->prompt_tokens, .hit_blocks = plan->path.size(), .user = User::kPlan};
  plan->lease.core_->EndUse(plan->location, plan->path, use, plan->lease.slots_);
  Disarm(plan->lease);
}

bool Core::RenewIfAlone(SlotId slot) {
  return With([&](State& state) {
    if (state.slots.references(slot) != 1) return false;
    state.slots.Renew(slot);
    return true;
  });
}

void Core::Retain(std::span<const BlockId> blocks, uint8_t priority, uint64_t until_us) {
  ForPieces(blocks.size(), [&](size_t begin, size_t end) {
    With([&](State& state) {
      for (size_t i = begin; i < end; ++i) state.accounts.Retain(blocks[i], priority, until_us);
    });
  });
}

uint64_t Core::Evict(uint64_t blocks) {
  uint64_t evicted = 0;
  bool more = true;
  while (more && evicted < blocks) {
    With([&](State& state) {
      if (cache::LetTimePass(state)) return;
      const uint64_t end = std::min<uint64_t>(blocks, evicted + kBlocksPerHold);
      while (evicted < end && state.directory.MayGoOn() && (more = EvictOldest(state))) ++evicted;
    });
  }
  return evicted;
}

uint64_t Core::Trim() {
  {
    MutexLock one_at_a_time(resize_mutex_);
    MoveTail();  // what a shrink had to leave where it was
  }
  return slots_->Trim();
}

CacheStats Core::stats() const {
  MutexLock lock(mutex_);
  const State& state = *state_;
  CacheStats stats = state.counters;
  const quota::Ledger& ledger = state.accounts.ledger();
  stats.hot_bytes_limit = state.slots.capacity().hot_bytes;
  stats.hot_bytes_used = ledger.used_bytes();
  stats.hot_bytes_peak = ledger.peak_bytes();
  stats.sealed = state.slots.stats(0);
  const uint32_t groups = classes_.group_count();
  const bool encodes = classes_.count() > groups;
  if (groups > 1) stats.sealed_second = state.slots.stats(1);
  if (encodes) stats.open = state.slots.stats(classes_.OpenClassOf(0));
  if (encodes && groups > 1) stats.open_second = state.slots.stats(classes_.OpenClassOf(1));
  // A block that moves is counted where it was until it has moved.
  const PerClass<SlotClassStats*> of_class = {
      &stats.sealed, groups > 1 ? &stats.sealed_second : &stats.open,
      groups > 1 ? &stats.open : nullptr, groups > 1 ? &stats.open_second : nullptr};
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    if (!state.reading.to[c].is_none()) --of_class[c]->slots_used;
  }
  stats.published_blocks = state.directory.size();
  state.accounts.ForEach([&](TenantId tenant) {
    stats.evictable_blocks += state.accounts.listed_whole(tenant);
    stats.passed_blocks += state.accounts.listed_slots(tenant);
    stats.pinned_blocks += state.accounts.pinned_blocks(tenant);
  });
  stats.hollow_blocks = state.directory.empty_count();
  stats.twin_slots = state.directory.twin_slots();
  stats.stored_blocks = state.directory.stored();
  stats.unwritten_blocks = state.directory.queued();
  stats.sequence_bytes = state.sequence_bytes;
  stats.sequences = sequence_count_;
  return stats;
}

std::string Core::BlockMap() const {
  // The marks are taken first: the pool's lock is held while it asks for them.
  PerClass<std::vector<char>> marks;
  bool more = true;
  for (uint32_t begin = 0; more; begin += kBlocksPerHold) {
    MutexLock lock(mutex_);
    const State& state = *state_;
    const uint32_t end = std::min(state.directory.ids_end(), begin + kBlocksPerHold);
    more = end < state.directory.ids_end();
    for (uint32_t i = begin; i < end; ++i) {
      if (!state.directory.contains(BlockId(i))) continue;
      const BlockRecord& record = state.directory.at(BlockId(i));
      for (uint32_t c = 0; c < classes_.count(); ++c) {
        if (record.slots[c].is_none()) continue;
        const uint32_t slot = classes_.Local(record.slots[c]).number();
        if (slot >= marks[c].size()) marks[c].resize(slot + 1, 'p');
        const bool unheld =
            state.slots.references(record.slots[c]) == 1 && classes_.reach(c).windowed();
        marks[c][slot] = record.leases == 0 ? 's' : unheld ? 'w' : 'S';
      }
    }
  }
  std::string map;
  for (uint32_t c = 0; c < classes_.count(); ++c) {
    const uint32_t group = classes_.GroupOf(c);
    if (classes_.count() > 1) {
      const std::string layers =
          !classes_.reach(group).windowed()
              ? std::string("full attention")
              : fmt::format("a window of {} tokens", layout().group(group).window_tokens);
      map += fmt::format("{} slots, layers with {}:\n", classes_.is_sealed(c) ? "sealed" : "open",
                         layers);
    }
    map += slots_->pool(c).Map([&](SlotId slot, uint32_t) {
      const std::vector<char>& of_class = marks[c];
      return slot.number() < of_class.size() ? of_class[slot.number()] : 'p';
    });
  }
  return map;
}

void Core::Watch(HoldWatch* watch) {
  MutexLock lock(mutex_);
  watch_ = watch;
}

void Core::CheckDirectory() const {
  MutexLock lock(mutex_);
  state_->directory.CheckInvariants();
}

}  // namespace cache
}  // namespace quire
