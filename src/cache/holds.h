// Slots for callers: taken, held, used and given back.
#ifndef QUIRE_CACHE_HOLDS_H_
#define QUIRE_CACHE_HOLDS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/locked_state.h"
#include "cache/metadata_charge.h"
#include "cache/owned_slots.h"
#include "quire/sequence.h"

namespace quire::cache {

/// What sequences, plans, views and loads hold, they hold through this.
///
/// Threads: any
class Holds {
 public:
  explicit Holds(LockedState& cache) : cache_(cache) {}

  LockedState& cache() { return cache_; }
  /// Slots with one reference each, of every class, and bytes for a sequence's bookkeeping, charged
  /// to the place's tenant: all or nothing. If it may, it evicts what nobody holds where that makes
  /// it fit, and only then.
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
  /// Another holder for each slot, published or private.
  Lease Share(std::vector<SlotId> slots);
  /// What another lease holds, once more.
  Lease Share(const Lease& lease) { return Share(std::vector<SlotId>(lease.slots_)); }
  /// A lease on what the caller holds.
  Lease MakeLease(std::vector<SlotId> held_slots) { return Lease(this, std::move(held_slots)); }
  /// Empties a lease whose holds someone else has taken over.
  static void Disarm(Lease& lease) { lease.slots_.clear(); }
  /// A use of a path ends: drops a hold of each slot, as LockedState::ReleaseSlots does. Policies
  /// take what that makes evictable for used by it, and nothing else.
  void EndUse(const PublishLocation& location, std::span<const BlockId> path, PathUse use,
              std::span<const SlotId> slots);
  /// The same of what a lease holds, if anything.
  static void EndUse(const PublishLocation& location, std::span<const BlockId> path,
                     const PathUse& use, Lease& lease);
  /// Holds slots again that the caller had let go of. Nothing: one has another generation, or its
  /// block is not to be handed out any more.
  ///
  /// Shape: generations [slots]
  std::optional<Lease> HoldAgain(std::span<const SlotId> slots,
                                 std::span<const uint32_t> generations);
  /// Moves the generation of a slot that the caller alone holds, who may then write other bytes to
  /// it. False: others hold it too.
  bool RenewIfAlone(SlotId slot);
  /// Blocks that the caller holds are wanted so much until then; see Sequence::Retain.
  void Retain(std::span<const BlockId> blocks, uint8_t priority, uint64_t until_us);

 private:
  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_HOLDS_H_
