// References on slots for callers: taken, shared, used and dropped.
#ifndef QUIRE_CACHE_VERBS_HOLDS_H_
#define QUIRE_CACHE_VERBS_HOLDS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/sequence/reach.h"
#include "cache/state/locked_state.h"
#include "quire/identity.h"
#include "quire/sequence.h"

namespace quire::cache {

/// Bytes charged to the budget and to a tenant, given back at the end. Move-only.
///
/// Threads:  one at a time; its end takes the cache lock
/// Lifetime: the cache must outlive it
class MetadataCharge {
 public:
  MetadataCharge() = default;
  MetadataCharge(LockedState& cache, TenantId tenant, uint64_t bytes)
      : cache_(&cache), tenant_(tenant), bytes_(bytes) {}
  MetadataCharge(MetadataCharge&& other) noexcept
      : cache_(other.cache_), tenant_(other.tenant_), bytes_(std::exchange(other.bytes_, 0)) {}
  MetadataCharge& operator=(MetadataCharge&& other) noexcept;
  MetadataCharge(const MetadataCharge&) = delete;
  MetadataCharge& operator=(const MetadataCharge&) = delete;
  ~MetadataCharge() { Refund(); }

  uint64_t bytes() const { return bytes_; }
  /// Takes `bytes` out, at most all of them.
  MetadataCharge Split(uint64_t bytes);
  /// Joins one of the same cache and tenant.
  void Add(MetadataCharge more);

 private:
  void Refund();

  LockedState* cache_ = nullptr;
  TenantId tenant_{};
  uint64_t bytes_ = 0;
};

/// Move-only holder of slots of every class, one reference each. Code that puts them into lists of
/// its own calls Disown once nothing can fail any more: an exception before that drops the
/// references.
///
/// Threads:  one at a time
/// Lifetime: the cache must outlive it
class OwnedSlots {
 public:
  OwnedSlots() = default;
  OwnedSlots(LockedState& cache, PerClass<std::vector<SlotId>> slots)
      : cache_(&cache), slots_(std::move(slots)) {}
  OwnedSlots(OwnedSlots&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), slots_(std::move(other.slots_)) {}
  OwnedSlots& operator=(OwnedSlots&& other) noexcept;
  OwnedSlots(const OwnedSlots&) = delete;
  OwnedSlots& operator=(const OwnedSlots&) = delete;
  ~OwnedSlots() { Release(); }

  LockedState* cache() const { return cache_; }  // null: disowned
  const std::vector<SlotId>& operator[](uint32_t slot_class) const { return slots_[slot_class]; }
  const PerClass<std::vector<SlotId>>& all() const { return slots_; }

  /// Takes over the slots of another holder of the same cache. Nothing changes if memory runs out.
  void Add(OwnedSlots&& more);
  /// Takes the last `counts` slots of each class out, at most all. Nothing changes if memory runs
  /// out.
  OwnedSlots Take(const PerClass<uint64_t>& counts);
  /// Drops the reference of every slot.
  void Release();
  /// Another object owns the references now.
  void Disown() noexcept { cache_ = nullptr; }

 private:
  LockedState* cache_ = nullptr;  // null: disowned
  PerClass<std::vector<SlotId>> slots_{};
};

/// Sequences, plans, views and loads take and drop their references through this.
///
/// Threads: any
class Holds {
 public:
  explicit Holds(LockedState& cache) : cache_(cache) {}

  LockedState& cache() { return cache_; }
  /// Slots with one reference each, of every class, and bytes for a sequence's bookkeeping, charged
  /// to the location's tenant: all or nothing. If the location allows it, evicts unleased blocks
  /// where that makes it fit, and only then.
  struct Allocation {
    OwnedSlots slots;
    MetadataCharge metadata;
  };
  Result<Allocation> Allocate(const PublishLocation& location, const PerClass<uint64_t>& counts,
                              uint64_t metadata_bytes);
  /// `count` slots that follow those of `run`, or any consecutive ones if that is empty. Takes free
  /// slots only. Needs a cache that can hold contiguous sequences.
  Result<OwnedSlots> ExtendRun(const PublishLocation& location, std::span<const SlotId> run,
                               uint64_t count);
  /// Adds a reference to each slot, published or private.
  Lease Share(std::vector<SlotId> slots);
  /// Another lease on the slots of a lease.
  Lease Share(const Lease& lease) { return Share(std::vector<SlotId>(lease.slots_)); }
  /// A lease that takes over references of the caller.
  Lease MakeLease(std::vector<SlotId> held_slots) { return Lease(this, std::move(held_slots)); }
  /// Empties a lease whose references were taken over.
  static void Disarm(Lease& lease) { lease.slots_.clear(); }
  /// A use of a path ends: drops a reference of each slot, as LockedState::ReleaseSlots does.
  /// Policies attribute the blocks that become evictable to this use, and no others.
  void EndUse(const PublishLocation& location, std::span<const BlockId> path, PathUse use,
              std::span<const SlotId> slots);
  /// The same for the slots of a lease, if it has any. `zeroes`: those that are free then.
  static void EndUse(const PublishLocation& location, std::span<const BlockId> path,
                     const PathUse& use, Lease& lease, bool zeroes = false);
  /// Zeroes those without a holder: what a load did not bring whole may be another member's of a
  /// domain, which was erased since.
  void ZeroIfFree(std::span<const SlotId> slots);
  /// Adds references to slots that the caller had released. Nothing: a slot has another generation,
  /// or its block is not to be handed out any more.
  ///
  /// Shape: generations [slots]
  std::optional<Lease> HoldAgain(std::span<const SlotId> slots,
                                 std::span<const uint32_t> generations);
  /// Moves the generation of a slot that only the caller holds, so that the caller may write other
  /// bytes to it. False: it has other holders.
  bool RenewIfAlone(SlotId slot);
  /// Sets the priority of blocks that the caller holds; see Sequence::Retain.
  void Retain(std::span<const BlockId> blocks, uint8_t priority, uint64_t until_us);

 private:
  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_HOLDS_H_
