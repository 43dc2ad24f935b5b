#include "cache/state/locked_state.h"

#include <array>
#include <new>
#include <utility>

#include "base/bits.h"
#include "base/sync_point.h"
#include "cache/below/store_state.h"
#include "cache/below/write_back.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"
#include "env/clock.h"
#include "evict/policies.h"

namespace quire::cache {

Result<std::unique_ptr<LockedState>> LockedState::Create(CacheOptions options, SlotClasses classes,
                                                         quota::Ledger* shared, StoreState* store) {
  std::unique_ptr<LockedState> made(new LockedState(std::move(options), std::move(classes), store));
  QUIRE_ASSIGN(made->slots_, Slots::Create(made->classes_, made->options_));
  const Capacity& capacity = made->slots_->capacity();
  made->state_.reset(
      new State{.classes = made->classes_,
                .clock = made->clock_,
                .slots = *made->slots_,
                .directory = Directory(made->classes_, made->options_.announce),
                .accounts = Accounts(made->classes_, made->clock_, made->options_.policy,
                                     made->options_.eviction_batch, capacity, shared),
                .has_store = store != nullptr,
                .empty_max = made->classes_.EmptyMax(capacity)});
  if (store != nullptr) {
    QUIRE_ASSIGN(made->shapes_, RecordShapes::Create(made->classes_, made->options_));
    if (!made->slots_->on_host()) QUIRE_TRY(made->MakeStaging());
  }
  MutexLock lock(made->mutex_);
  State& state = *made->state_;
  if (store != nullptr) state.used_below.reserve(kUsedBelowMax);
  return made;
}

LockedState::LockedState(CacheOptions options, SlotClasses classes, StoreState* store)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : SystemClock()),
      classes_(std::move(classes)),
      heeds_priorities_(evict::MakePolicy(options_.policy)->heeds_priorities()),
      store_(store) {}

transfer::Transfers* LockedState::transfers() const {
  return store_ == nullptr ? nullptr : store_->transfers.get();
}

Result<void> LockedState::MakeStaging() {
  constexpr uint64_t kLoadBytes = uint64_t{64} << 20;
  constexpr uint32_t kLoadChunksMin = 4;  // a block may take two
  const uint64_t chunk_bytes =
      std::max(shapes_->sealed().payload_bytes(),
               shapes_->has_twins() ? shapes_->twins().payload_bytes() : 0);
  const auto load_chunks = static_cast<uint32_t>(
      std::clamp<uint64_t>(kLoadBytes / chunk_bytes, kLoadChunksMin, 2ull * kLoadBlocksInFlight));
  HostAllocator* const best = slots_->ops().host_allocator();
  HostAllocator& allocator = best != nullptr ? *best : PlainHostAllocator();
  try {
    write_staging_.emplace(chunk_bytes, kReadingMax, allocator);
    load_staging_.emplace(chunk_bytes, load_chunks, allocator);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace,
                "cache: no memory of the host for blocks on their way to and from the store");
  }
  return {};
}

LockedState::~LockedState() {
  if (state_ == nullptr) return;  // Create failed
  // A device may still read the arenas.
  const std::vector<Fenced> fenced =
      Hold([](State& state) { return std::exchange(state.fenced, {}); });
  for (const Fenced& last : fenced) {
    last.fence->Wait();
    ReleaseSlots(last.slots);
  }
}

uint32_t LockedState::most_touched() const {
  MutexLock lock(mutex_);
  return most_touched_;
}

// A draining slot stays charged and belongs to no block until it is zeroed, so no other call can
// use it. The work that verbs left comes first, because it may release more slots.
void LockedState::Settle() {
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
    // A free slot must be zeroed; after a device failure no operation reads it any more.
    static_cast<void>(slots_->ops().Synchronize());
  }
}

void LockedState::ZeroAll(std::span<const SlotId> slots) const {
  for (const SlotId slot : slots) slots_->Zero(slot);
}

void LockedState::ReleaseSlots(std::span<const SlotId> slots) {
  // Deepest block first, so that a parent becomes evictable after its children.
  ForPieces(slots.size(), [&](size_t begin, size_t end) {
    Hold([&](State& state) {
      for (size_t i = begin; i < end; ++i) ReleaseSlot(state, slots[slots.size() - 1 - i]);
    });
  });
}

void LockedState::ReleaseAfter(std::shared_ptr<Fence> fence, std::vector<SlotId> slots) {
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

// The next call asks the other fences again; no call waits for them.
void LockedState::ReleaseDone() {
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

}  // namespace quire::cache
