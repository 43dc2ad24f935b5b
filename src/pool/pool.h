// Slots of one class: where a block's bytes lie, how many hold them, which are free. Knows no keys.
#ifndef QUIRE_POOL_POOL_H_
#define QUIRE_POOL_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "env/reservation.h"
#include "pool/placement.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/identity.h"
#include "quire/stats.h"

namespace quire::pool {

struct PoolOptions {
  std::string name;         // for messages: "sealed", "open"
  uint64_t slot_bytes = 0;  // of one block
  uint32_t slots = 0;       // at first; 0: slots_max
  uint32_t slots_max = 0;
  // A slot may be several pieces of equal size, each in an array of its own over all slots.
  uint32_t pieces = 1;  // divides slot_bytes
  Placement placement = Placement::kFreeList;
};

/// An arena of equal slots with reference counts and generations.
///
///   1. Create reserves address space for slots_max slots and commits that of the first `slots`; no
///      page is touched.
///   2. Allocate hands out slots with one reference each, Retain adds one, Release drops one.
///   3. The last Release frees the slot and moves its generation; its address never changes.
///   4. Trim gives the pages of freed slots back to the system.
///   5. CommitSlots and SetSlots make it grow; SetSlots, the release of slots in use beyond the
///      end, and GiveBackTail make it shrink. No slot moves.
///
/// The placement decides which slots it hands out. All but kFreeList also hand out runs:
/// consecutive slots, so that data(run.first) is one array. The pool does not remember runs: each
/// slot of one is counted, released and freed like any other, alone or with the rest.
///
/// Threads:  any; takes its lock (rank 30) and calls nothing that takes another while it is held.
///           data() and slot_bytes() take none
/// Lifetime: the memory must outlive it. It may go while slots are in use; their bytes go with it
/// Source:   SPEC M1, M3, M4, S2
class Pool {
 public:
  /// Slots of one piece begin on page boundaries, so that Trim can give each one back alone.
  static constexpr uint64_t kSlotAlignment = 4096;
  /// Bookkeeping beside the slots, resident only for slots that were used. A budget
  /// charges a slot's pages and this, rounded up to bytes.
  static constexpr uint64_t MetadataBytesPerSlot(Placement placement) {
    switch (placement) {
      case Placement::kFirstFit:
      case Placement::kBuddy: return sizeof(Slot) + 1;
      case Placement::kBestFit: return sizeof(Slot) + 3 * sizeof(uint32_t);
      case Placement::kFreeList: break;
    }
    return sizeof(Slot) + sizeof(uint32_t);
  }
  /// The same of the free list.
  static constexpr uint64_t kMetadataBytesPerSlot = 16;

  /// Errors: kInvalidArgument slot_bytes or slots_max is 0, slots_max does not leave "none" free or
  ///         is below slots, or pieces does not divide slot_bytes; kNoSpace the address space
  ///         cannot be reserved or committed
  static Result<std::unique_ptr<Pool>> Create(PoolOptions options, DeviceMemory& memory);

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Takes out.size() slots, each with one reference, or none: false changes nothing, `out`
  /// included. The bytes of a slot are whatever its last user left.
  ///
  /// Cost: the placement's per slot, no allocation
  [[nodiscard]] bool Allocate(std::span<SlotId> out);
  /// Adds a reference. A free slot is a bug.
  void Retain(SlotId slot);
  /// Drops a reference; true if it was the last and the slot is free now. A free slot is a bug.
  bool Release(SlotId slot);

  /// Takes `count` consecutive slots, each with one reference, or none.
  ///
  /// Errors: kUnsupported the placement has no runs; kInvalidArgument count is 0;
  ///         kNoSpace as many slots may be free, but no placement for this run
  [[nodiscard]] Result<SlotRun> AllocateRun(uint32_t count);
  /// Makes a run longer where it is, or leaves it as it is; what to do then, say to copy it to a
  /// longer run, is the caller's to decide. The new slots have one reference each.
  ///
  /// Errors: kUnsupported the placement has no runs; kInvalidArgument count < run.count;
  ///         kNoSpace a slot behind the run is in use, or there are no more
  [[nodiscard]] Result<void> GrowRun(SlotRun& run, uint32_t count);
  /// Drops a reference of every slot behind the first `count` ones, and these from the run. Returns
  /// how many slots are free now. Needs count <= run.count; a free slot is a bug.
  uint32_t ShrinkRun(SlotRun& run, uint32_t count);
  /// Drops a reference of every slot and returns how many are free now. A free slot is a bug.
  uint32_t ReleaseRun(SlotRun run);

  /// 0: free.
  uint32_t references(SlotId slot) const;
  /// Calls `use`, unless the slot is held, while it cannot be taken nor lose its memory.
  /// False: it is held, or has no memory.
  ///
  /// Threads: `use` is called with the lock held
  template <typename Use>
  bool IfFree(SlotId slot, const Use& use) {
    MutexLock lock(mutex_);
    CheckInRange(slot);
    if (slot.number() >= committed_ || slots_[slot.number()].references > 0) return false;
    use();
    return true;
  }
  /// How often the slot was freed or renewed (modulo 2^32): a late answer for an older number is
  /// not for the slot's present user.
  uint32_t generation(SlotId slot) const;
  /// Moves the generation of a slot in use, whose bytes will be others. A free slot is a bug.
  void Renew(SlotId slot);
  uint32_t free_count() const;

  /// First byte of a slot's first piece.
  std::byte* data(SlotId slot) const {
    CheckInRange(slot);
    return arena_.base() + slot.number() * slot_stride_bytes_;
  }
  uint64_t slot_bytes() const { return options_.slot_bytes; }
  /// From one slot to the next: of one piece slot_bytes() rounded up to kSlotAlignment, of several
  /// the bytes of a piece, so that consecutive slots are one array in each.
  uint64_t slot_stride_bytes() const { return slot_stride_bytes_; }
  /// From one piece of a slot to the next.
  uint64_t piece_stride_bytes() const { return piece_stride_bytes_; }
  uint32_t pieces() const { return options_.pieces; }

  /// Makes the memory of slots [0, slots) usable. They are handed out after SetSlots.
  ///
  /// Errors:  kInvalidArgument slots > slots_max; kNoSpace the memory refuses. Nothing changes then
  /// Threads: this, SetSlots and GiveBackTail: one caller at a time
  Result<void> CommitSlots(uint32_t slots);
  /// From now on slots [0, slots) are handed out, and no others; the peak begins anew. Those in use
  /// beyond stay so until they are released. More than are committed, or more than before while
  /// some beyond are in use, is a bug.
  ///
  /// Cost: O(freed slots), or of a placement with runs O(slots added or dropped)
  void SetSlots(uint32_t slots);
  /// Slots in use from `first` on, ascending.
  ///
  /// Cost: O(highest slot ever used - first)
  std::vector<SlotId> UsedFrom(uint32_t first) const;
  /// Gives the memory beyond the last SetSlots back to the system. Returns its bytes, resident or
  /// not. A slot in use there is a bug. `settle`, if any, is called once these slots cannot be
  /// taken, and before their memory goes: when it returns no operation works on them either.
  uint64_t GiveBackTail(const std::function<void()>& settle = {});

  /// Gives the pages of all free slots back that were handed out since the last Trim. Returns these
  /// slots' bytes: as much as they could hold, resident or not.
  ///
  /// `settle`, if any, is called again and again, without the lock: when it returns no operation
  /// works on slots that were free before. Slots that are handed out or freed meanwhile stay as
  /// they are.
  ///
  /// Threads: lets go of the lock again and again, so that no call waits for more than some 16 MiB
  /// Cost:    O(highest slot ever used), and the system's time to drop the pages
  uint64_t Trim(const std::function<void()>& settle = {});

  SlotClassStats stats() const;
  /// Whatever the placement is, which may not find a place in a run that is long enough (kBuddy).
  ///
  /// Cost: O(highest slot ever used) under the lock: for people, not for every request
  FreeRuns free_runs() const;

  /// Rows of `columns` slots after the number of their first one: '.' for a free slot, else what
  /// `mark` says. Beyond 64 rows, equal rows in sequence become one with their count: "  x12".
  ///
  /// Threads: `mark` is called without the lock, so it may take others; the counts it gets are
  ///          those of one moment
  std::string Map(const std::function<char(SlotId, uint32_t references)>& mark,
                  uint32_t columns = 64) const;

 private:
  struct Slot {
    uint32_t references;
    uint32_t generation;
    uint32_t may_be_resident;  // handed out since the last Trim
  };
  struct Freed {  // a slot, as it was when it was looked at
    uint32_t slot = 0;
    uint32_t generation = 0;
  };

  Pool(PoolOptions options, std::unique_ptr<DeviceMemory> own_memory, Reservation arena,
       Reservation metadata);

  void CheckInRange(SlotId slot) const {
    QUIRE_CHECK_MSG(slot.number() < options_.slots_max, DescribeBug(slot, "out of range"));
  }
  Slot& Used(SlotId slot) QUIRE_REQUIRES(mutex_);
  void MarkTaken(SlotId slot) QUIRE_REQUIRES(mutex_);
  void CountTaken(uint32_t slots) QUIRE_REQUIRES(mutex_);
  void CheckRun(SlotRun run) QUIRE_REQUIRES(mutex_);
  std::unexpected<Error> NoRuns() const;
  std::string DescribeBug(SlotId slot, const char* what) const;
  std::optional<std::span<const Freed>> FindFreed(uint32_t& cursor, std::span<Freed> memory) const;
  uint64_t TrimSome(std::span<const Freed> freed, size_t& next);
  void MarkFree(SlotRun run) QUIRE_REQUIRES(mutex_);
  std::vector<SlotRun> FreeRunsBeyond(uint32_t end) const QUIRE_REQUIRES(mutex_);
  void Decommit(uint32_t from, uint32_t to, uint32_t pieces);

  const PoolOptions options_;
  const uint64_t slot_stride_bytes_;
  const uint64_t piece_stride_bytes_;
  // Host memory for the metadata when the arena's is not accessible from the host.
  const std::unique_ptr<DeviceMemory> own_memory_;
  const Reservation arena_;     // [pieces][slots_max][slot_stride_bytes]
  const Reservation metadata_;  // Slot [slots_max], then the placer's

  mutable Mutex mutex_{LockRank::kPool};
  Slot* const slots_ QUIRE_PT_GUARDED_BY(mutex_);  // [slots_max], zero until first use
  const std::unique_ptr<Placer> placer_ QUIRE_PT_GUARDED_BY(mutex_);
  uint32_t slots_now_ QUIRE_GUARDED_BY(mutex_);      // those from here on are not handed out
  uint32_t committed_ QUIRE_GUARDED_BY(mutex_) = 0;  // slots whose memory may be used
  uint32_t free_count_ QUIRE_GUARDED_BY(mutex_);     // of slots below slots_now_
  uint32_t used_ QUIRE_GUARDED_BY(mutex_) = 0;       // of all slots
  uint32_t used_end_ QUIRE_GUARDED_BY(mutex_) = 0;   // the slots from here on were never handed out
  uint32_t used_peak_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::pool

#endif  // QUIRE_POOL_POOL_H_
