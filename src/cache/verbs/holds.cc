#include "cache/verbs/holds.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/sync_point.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"
#include "cache/verbs/room.h"

namespace quire {

Lease::Lease(cache::Holds* holds, std::vector<SlotId> slots)
    : holds_(holds), slots_(std::move(slots)) {}

Lease::Lease(Lease&& other) noexcept
    : holds_(std::exchange(other.holds_, nullptr)), slots_(std::exchange(other.slots_, {})) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    Release();
    holds_ = std::exchange(other.holds_, nullptr);
    slots_ = std::exchange(other.slots_, {});
  }
  return *this;
}

Lease::~Lease() { Release(); }

void Lease::Release(std::shared_ptr<Fence> fence) {
  if (slots_.empty()) return;
  holds_->cache().ReleaseAfter(std::move(fence), std::exchange(slots_, {}));
}

namespace cache {

OwnedSlots& OwnedSlots::operator=(OwnedSlots&& other) noexcept {
  if (this != &other) {
    Release();
    cache_ = std::exchange(other.cache_, nullptr);
    slots_ = std::move(other.slots_);
  }
  return *this;
}

void OwnedSlots::Add(OwnedSlots&& more) {
  for (uint32_t c = 0; c < kClassesMax; ++c) {
    slots_[c].reserve(slots_[c].size() + more.slots_[c].size());
  }
  for (uint32_t c = 0; c < kClassesMax; ++c) {
    slots_[c].insert(slots_[c].end(), more.slots_[c].begin(), more.slots_[c].end());
  }
  if (cache_ == nullptr) cache_ = more.cache_;
  more.Disown();
}

OwnedSlots OwnedSlots::Take(const PerClass<uint64_t>& counts) {
  PerClass<std::vector<SlotId>> taken;
  for (uint32_t c = 0; c < kClassesMax; ++c) {
    const auto count = static_cast<ptrdiff_t>(std::min<uint64_t>(counts[c], slots_[c].size()));
    taken[c].assign(slots_[c].end() - count, slots_[c].end());
  }
  for (uint32_t c = 0; c < kClassesMax; ++c) slots_[c].resize(slots_[c].size() - taken[c].size());
  OwnedSlots made;
  made.cache_ = cache_;
  made.slots_ = std::move(taken);
  return made;
}

void OwnedSlots::Release() {
  LockedState* const cache = std::exchange(cache_, nullptr);
  if (cache == nullptr) return;
  for (const std::vector<SlotId>& slots : slots_) cache->ReleaseSlots(slots);
}

MetadataCharge& MetadataCharge::operator=(MetadataCharge&& other) noexcept {
  if (this != &other) {
    Refund();
    cache_ = other.cache_;
    tenant_ = other.tenant_;
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

MetadataCharge MetadataCharge::Split(uint64_t bytes) {
  if (cache_ == nullptr) return {};
  const uint64_t taken = std::min(bytes, bytes_);
  bytes_ -= taken;
  return {*cache_, tenant_, taken};
}

void MetadataCharge::Add(MetadataCharge more) {
  if (bytes_ == 0) {
    *this = std::move(more);
    return;
  }
  bytes_ += std::exchange(more.bytes_, 0);
}

void MetadataCharge::Refund() {
  if (const uint64_t bytes = std::exchange(bytes_, 0); bytes > 0) {
    cache_->With([&](State& state) {
      state.accounts.charges().Refund(tenant_, bytes);
      state.sequence_bytes -= bytes;
    });
  }
}

Result<Holds::Allocation> Holds::Allocate(const PublishLocation& location,
                                          const PerClass<uint64_t>& counts,
                                          uint64_t metadata_bytes) {
  const uint64_t bytes =
      CheckedAdd(cache_.classes().Charge(counts), metadata_bytes).value_or(UINT64_MAX);
  if (bytes == 0) return Allocation();
  PerClass<std::vector<SlotId>> slots;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) slots[c].resize(counts[c]);
  std::vector<SlotId> to_zero;
  std::optional<CapacityWanted> wanted;
  while (true) {
    // A large eviction takes several holds, and other calls run between them: each hold checks
    // again whether there is room for all of it.
    const Result<bool> taken = cache_.With([&](State& state) -> Result<bool> {
      if (!wanted && cache::LetTimePass(state)) return false;
      auto room = state.accounts.CheckCapacity(location.asker(), bytes);
      if (room && !wanted) wanted = WantCapacity(state, location.asker(), bytes);
      if (room && !FreeCapacity(state, location.asker(), *wanted)) return false;
      if (room) room = TakeSlots(state, location, metadata_bytes, slots, to_zero);
      if (room) return true;
      CountRefusal(state, location, counts, room.error());
      return std::unexpected(std::move(room).error());
    });
    if (!taken) return std::unexpected(taken.error());
    if (*taken) break;
    MutexLock until_read(cache_.reading_mutex());  // waits for the blocks that are being read now
  }
  cache_.ZeroAll(to_zero);
  return Allocation{OwnedSlots(cache_, std::move(slots)),
                    MetadataCharge(cache_, location.tenant, metadata_bytes)};
}

Result<OwnedSlots> Holds::ExtendRun(const PublishLocation& location, std::span<const SlotId> run,
                                    uint64_t count) {
  if (count == 0) return OwnedSlots();
  PerClass<std::vector<SlotId>> added;
  std::vector<SlotId> to_zero;
  QUIRE_TRY(cache_.With(
      [&](State& state) { return TakeRun(state, location, run, count, added, to_zero); }));
  cache_.ZeroAll(to_zero);
  return OwnedSlots(cache_, std::move(added));
}

Lease Holds::Share(std::vector<SlotId> slots) {
  LockedState::ForPieces(slots.size(), [&](size_t begin, size_t end) {
    cache_.With([&](State& state) {
      for (size_t i = begin; i < end; ++i) HoldSlot(state, slots[i]);
    });
  });
  return MakeLease(std::move(slots));
}

namespace {

// Tells policies of a use, and returns how to resume it in another hold of the lock: between holds
// it is suspended.
std::unique_ptr<evict::Policy::Use> BeginUse(LockedState& cache, const PublishLocation& location,
                                             const PathUse& use) {
  std::unique_ptr<evict::Policy::Use> paused;
  UseProgress progress;
  bool begun = false;
  while (!begun) {
    AtSyncPoint("end of use: before more of it is taken in");
    cache.With([&](State& state) {
      // Each key costs about as much as a record.
      uint64_t keys_left = kRecordsPerHold;
      begun = state.accounts.BeginUse(location.tenant, location.epoch, use, progress, keys_left);
      state.directory.touched().Count(static_cast<uint32_t>(kRecordsPerHold - keys_left));
      if (begun) paused = state.accounts.order().PauseUse(state.account_of(location));
    });
  }
  return paused;
}

}  // namespace

void Holds::EndUse(const PublishLocation& location, std::span<const BlockId> path, PathUse use,
                   std::span<const SlotId> slots) {
  std::vector<uint64_t> keys;
  keys.reserve(path.size());
  LockedState::ForPieces(path.size(), [&](size_t begin, size_t end) {
    cache_.With([&](State& state) {
      for (size_t i = begin; i < end; ++i) {
        keys.push_back(PolicyKey(state.directory.at(path[i]).key));
      }
    });
  });
  use.keys = keys;
  std::unique_ptr<evict::Policy::Use> paused;
  bool is_under_way = !path.empty();
  if (is_under_way) paused = BeginUse(cache_, location, use);
  size_t released = 0;
  do {
    const size_t end = std::min(released + kBlocksPerHold, slots.size());
    cache_.With([&](State& state) {
      EvictionOrder& order = state.accounts.order();
      const TenantId account = state.account_of(location);
      if (is_under_way) order.ResumeUse(account, std::move(paused));
      for (; released < end; ++released) {
        ReleaseSlot(state, slots[slots.size() - 1 - released]);
      }
      if (released < slots.size()) {
        paused = order.PauseUse(account);
        is_under_way = true;
      } else {
        order.EndUse(account);
      }
    });
  } while (released < slots.size());
}

void Holds::EndUse(const PublishLocation& location, std::span<const BlockId> path,
                   const PathUse& use, Lease& lease, bool zeroes) {
  if (lease.slots_.empty()) return;
  lease.holds_->EndUse(location, path, use, lease.slots_);
  if (zeroes) lease.holds_->ZeroIfFree(lease.slots_);
  Disarm(lease);
}

void Holds::ZeroIfFree(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) cache_.slots().ZeroIfFree(slot);
  static_cast<void>(cache_.slots().ops().Synchronize());
}

std::optional<Lease> Holds::HoldAgain(std::span<const SlotId> slots,
                                      std::span<const uint32_t> generations) {
  const auto is_as_it_was = [&](const State& state, size_t i) {
    // The same generation: the slot was not freed in between.
    if (state.slots.generation(slots[i]) != generations[i]) return false;
    const BlockId block = state.directory.InSlot(slots[i]);
    return block.is_none() || BlockStateOf(state, block) == BlockState::kGood;
  };
  Lease lease(this, {});
  lease.slots_.reserve(slots.size());
  // Checks first: a lease for a moment would make the block the most recent, and a failed view must
  // change nothing.
  bool all = true;
  LockedState::ForPieces(slots.size(), [&](size_t begin, size_t end) {
    cache_.With([&](const State& state) {
      for (size_t i = begin; all && i < end; ++i) all = is_as_it_was(state, i);
    });
  });
  struct DropAtEnd {
    ~DropAtEnd() {
      if (!leased.is_none()) cache.With([&](State& state) { DropLease(state, leased); });
    }
    LockedState& cache;
    BlockId leased{};  // the lease that moves towards the first slot inside the window
  } way{.cache = cache_};
  while (all && lease.slots_.size() < slots.size()) {
    cache_.With([&](State& state) {
      for (uint32_t left = kBlocksPerHold; left > 0; --left) {
        const size_t i = lease.slots_.size();
        if (i == slots.size()) return;
        all = is_as_it_was(state, i);
        if (!all || !LeaseTowards(state, state.directory.InSlot(slots[i]), way.leased)) return;
        HoldSlot(state, slots[i]);
        lease.slots_.push_back(slots[i]);
      }
    });
    AtSyncPoint("view: some slots are held");
  }
  if (!all) return std::nullopt;
  return lease;
}

bool Holds::RenewIfAlone(SlotId slot) {
  return cache_.With([&](State& state) {
    if (state.slots.references(slot) != 1) return false;
    state.slots.Renew(slot);
    return true;
  });
}

void Holds::Retain(std::span<const BlockId> blocks, uint8_t priority, uint64_t until_us) {
  LockedState::ForPieces(blocks.size(), [&](size_t begin, size_t end) {
    cache_.With([&](State& state) {
      for (size_t i = begin; i < end; ++i)
        state.accounts.order().Retain(blocks[i], priority, until_us);
    });
  });
}

}  // namespace cache
}  // namespace quire
