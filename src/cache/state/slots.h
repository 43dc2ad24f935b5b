// Where the bytes of blocks are: the arenas, the references on slots, and their writers. No keys.
#ifndef QUIRE_CACHE_STATE_SLOTS_H_
#define QUIRE_CACHE_STATE_SLOTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/state/slot_classes.h"
#include "cache/state/slot_writers.h"
#include "pool/pool.h"
#include "quire/attention_types.h"
#include "quire/block_ops.h"
#include "quire/env.h"

namespace quire::cache {

/// The slots of every class. A slot is free, or held one or more times.
///
/// Threads:  data, Checksum, Copy, Zero, references and generation: any, without a lock, of a slot
///           that the caller holds. All else: the caller holds its lock
/// Lifetime: `classes`, and the memory and operations of the options, must outlive it
class Slots {
 public:
  /// Bookkeeping of each slot besides the pool's.
  static constexpr uint64_t kBytesPerSlot = sizeof(SlotWriters::Writer);

  /// On the memory of the options, or on host memory of its own.
  /// Errors: as pool::Pool::Create
  static Result<std::unique_ptr<Slots>> Create(SlotClasses& classes, const CacheOptions& options);
  /// Waits for the operations that it began.
  ~Slots();

  /// "cpu", or the name of its memory.
  std::string_view device() const { return memory_.name(); }
  DeviceMemory& memory() const { return memory_; }
  /// The only object that reads and changes bytes: the host may not be able to.
  BlockOps& ops() const { return ops_; }
  /// An address, to hand to operations and kernels.
  std::byte* data(SlotId slot) const { return PoolOf(slot).data(classes_.Local(slot)); }
  bool host_accessible() const { return memory_.host_accessible(); }
  /// Whether the host can reach all slots, and each is one run.
  bool on_host() const {
    const auto in_pieces = [](const auto& pool) { return pool != nullptr && pool->pieces() > 1; };
    return memory_.host_accessible() && std::ranges::none_of(pools_, in_pieces);
  }
  /// The bytes of a slot, where the host can reach them and they are one run; else empty.
  std::span<std::byte> HostBytes(SlotId slot) const {
    if (!memory_.host_accessible() || PoolOf(slot).pieces() > 1) return {};
    return {data(slot), PoolOf(slot).slot_bytes()};
  }
  /// To the host's memory, pieces one after the other. Shape: host [slot_bytes]
  void CopyOut(SlotId slot, std::byte* host) const {
    ops_.CopyOut(data(slot), PiecesOf(slot), host);
  }
  /// To and from it in sections, with their checksums (BlockOps).
  void CopyOut(SlotId slot, std::span<const SlotSection> sections) const {
    ops_.CopyOut(data(slot), PiecesOf(slot), sections);
  }
  void CopyIn(std::span<const SlotSection> sections, SlotId slot) const {
    ops_.CopyIn(sections, PiecesOf(slot), data(slot));
  }
  /// The arena of a class as kernels see it; the sequences are the caller's.
  BlockTable ArenaOf(uint32_t slot_class) const {
    const pool::Pool& pool = *pools_[slot_class];
    return {.base = pool.data(SlotId(0)), .slot_stride_bytes = pool.slot_stride_bytes()};
  }
  /// The same with one sequence, whose lists are the caller's (BlockTable).
  BlockTable TableOf(uint32_t slot_class, std::span<const uint64_t, 2> indptr,
                     std::span<const uint32_t> slots) const {
    BlockTable table = ArenaOf(slot_class);
    table.sequences = 1;
    table.indptr = indptr.data();
    table.slots = slots.data();
    return table;
  }
  /// The number of a slot in the arena of its class; kNoSlot: none.
  uint32_t NumberInArena(SlotId slot) const {
    return slot.is_none() ? kNoSlot : classes_.Local(slot).number();
  }
  /// CRC32C of all its pieces, one after the other; *crc is there when the operations so far are
  /// done.
  void Checksum(SlotId slot, uint32_t* crc) const {
    ops_.Checksum(data(slot), PiecesOf(slot), crc);
  }
  /// From one slot to another of the same class.
  void Copy(SlotId from, SlotId to) const { ops_.Copy(data(from), data(to), PiecesOf(from)); }
  void Zero(SlotId slot) const { ops_.Zero(data(slot), PiecesOf(slot)); }
  /// The same for a slot without holders, while it cannot be taken. False: it has a holder.
  bool ZeroIfFree(SlotId slot) const {
    return PoolOf(slot).IfFree(classes_.Local(slot), [&] { Zero(slot); });
  }

  /// Holders: sequences, leases and pins, and for a published block the index. 0: free.
  uint32_t references(SlotId slot) const { return PoolOf(slot).references(classes_.Local(slot)); }
  void Retain(SlotId slot) { PoolOf(slot).Retain(classes_.Local(slot)); }
  /// True: it is free now.
  bool Release(SlotId slot) { return PoolOf(slot).Release(classes_.Local(slot)); }
  uint32_t generation(SlotId slot) const { return PoolOf(slot).generation(classes_.Local(slot)); }
  /// Moves its generation: other bytes will be written to it.
  void Renew(SlotId slot) { PoolOf(slot).Renew(classes_.Local(slot)); }

  /// Takes as many slots of each class as the lists are long, with one reference each, and fills
  /// the lists. The budget pays for them, so they are available. First `reserve(end)` is called,
  /// for ids below `end`. If it throws, or with std::bad_alloc, nothing changes.
  template <typename Reserve>
  void Take(PerClass<std::vector<SlotId>>& slots, const Reserve& reserve) {
    TakeFree(slots);
    Keep(slots, reserve);
  }
  /// `count` consecutive slots of the only class, put into `added[0]`, which has memory for them:
  /// those that follow `run`, or any if that is empty.
  /// Errors: as Pool::AllocateRun and GrowRun
  template <typename Reserve>
  Result<void> TakeRun(std::span<const SlotId> run, uint32_t count,
                       PerClass<std::vector<SlotId>>& added, const Reserve& reserve) {
    QUIRE_TRY(TakeFreeRun(run, count, added[0]));
    Keep(added, reserve);
    return {};
  }

  /// The writers of the slots.
  SlotWriters& writers() { return writers_; }
  const SlotWriters& writers() const { return writers_; }

  const Capacity& capacity() const { return capacity_; }
  /// Whether it is beyond the end of its arena, where no slots are handed out any more.
  bool IsBeyondEnd(SlotId slot) const {
    return classes_.Local(slot).number() >= capacity_.slots[classes_.ClassOf(slot)];
  }
  /// Makes the memory of a larger capacity usable. Called without the lock, one call at a time.
  /// Errors: kNoSpace; nothing changes then
  Result<void> Commit(const Capacity& to);
  /// From now on a capacity's slots are handed out.
  void SetCapacity(const Capacity& to);
  /// Slots in use beyond what a capacity has.
  std::vector<SlotId> UsedBeyond(const Capacity& capacity) const;
  /// Takes a slot below the end for the bytes of one beyond it: same writer, one reference.
  SlotId TakeFor(SlotId beyond);
  /// After a shrink, when no slot is in use beyond the end: forgets the writers there.
  void ForgetWritersBeyondEnd();
  /// Gives the memory beyond the end back, when the operations there are done. Called without the
  /// lock, one call at a time.
  void GiveBackTail();
  /// Gives the pages of free slots back. Any thread, without a lock. Returns their bytes.
  uint64_t Trim();

  const pool::Pool& pool(uint32_t slot_class) const { return *pools_[slot_class]; }

 private:
  Slots(const SlotClasses& classes, const CacheOptions& options, const Capacity& capacity);

  pool::Pool& PoolOf(SlotId slot) const { return *pools_[classes_.ClassOf(slot)]; }
  SlotPieces PiecesOf(SlotId slot) const;
  void TakeFree(PerClass<std::vector<SlotId>>& slots);
  Result<void> TakeFreeRun(std::span<const SlotId> run, uint32_t count, std::vector<SlotId>& added);
  // If memory runs out in `reserve`, the slots go back.
  template <typename Reserve>
  void Keep(const PerClass<std::vector<SlotId>>& slots, const Reserve& reserve) {
    uint32_t end = writers_.end();
    for (const std::vector<SlotId>& of_class : slots) {
      for (const SlotId slot : of_class) end = std::max(end, slot.number() + 1);
    }
    try {
      writers_.Reserve(end);
      reserve(end);
    } catch (...) {
      for (const std::vector<SlotId>& of_class : slots) {
        for (const SlotId slot : of_class) Release(slot);
      }
      throw;
    }
  }

  const SlotClasses& classes_;
  const std::unique_ptr<DeviceMemory> own_memory_;  // none: the options name one
  DeviceMemory& memory_;
  BlockOps& ops_;
  PerClass<std::unique_ptr<pool::Pool>> pools_{};  // null beyond the class count
  Capacity capacity_;
  SlotWriters writers_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_SLOTS_H_
