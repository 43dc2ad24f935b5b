// Which free slots an allocation gets: the strategies' names, and the interface the pool knows them
// by. Counts and locks are the pool's.
#ifndef QUIRE_POOL_PLACEMENT_H_
#define QUIRE_POOL_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "quire/geometry.h"
#include "quire/identity.h"

namespace quire::pool {

/// `count` consecutive slots.
struct SlotRun {
  SlotId first;
  uint32_t count = 0;

  /// The slot number `index` of the run.
  SlotId slot(uint32_t index) const { return SlotId(first.number() + index); }

  bool operator==(const SlotRun&) const = default;
};

class RunPlacer;

/// Knows which slots are free, and nothing else about them. At first all are.
///
/// Threads: none
class Placer {
 public:
  Placer() = default;
  virtual ~Placer() = default;
  Placer(const Placer&) = delete;
  Placer& operator=(const Placer&) = delete;

  /// Needs as many free slots.
  virtual void Take(std::span<SlotId> out) = 0;
  /// Needs slots that are taken, in one call or in several.
  virtual void Put(SlotRun run) = 0;
  /// Slots [from, to), behind all others, are there and free.
  virtual void AddTail(uint32_t from, uint32_t to) = 0;
  /// Takes every free slot from `end` on, for as long as it is not added again. Those that are in
  /// use there must not be put back.
  ///
  /// Shape: runs: all free runs, each as long as it can be, that have a slot from `end` on
  virtual void DropTail(uint32_t end, std::span<const SlotRun> runs) = 0;
  /// Itself when it can take runs.
  virtual RunPlacer* runs() { return nullptr; }
};

/// A Placer that can also take runs of consecutive slots.
class RunPlacer : public Placer {
 public:
  /// Nothing: no free slots do. Needs count > 0.
  virtual std::optional<SlotRun> TakeRun(uint32_t count) = 0;
  /// Takes these slots. Needs free ones, behind a slot that is taken or before all others.
  virtual void TakeAt(SlotRun run) = 0;

  void AddTail(uint32_t from, uint32_t to) final {
    Put({.first = SlotId(from), .count = to - from});
  }
  void DropTail(uint32_t end, std::span<const SlotRun> runs) final {
    for (const SlotRun run : runs) {
      TakeAt(run);
      const uint32_t first = run.first.number();
      if (first < end) Put({.first = run.first, .count = end - first});
    }
  }
  RunPlacer* runs() final { return this; }
};

/// Bytes a placer keeps of `slots_max` slots.
uint64_t PlacerBytes(Placement placement, uint32_t slots_max);

/// All slots are free. Touches a few pages of `memory`, whatever slots_max is, and later only what
/// belongs to slots that are used.
///
/// Shape:    memory [PlacerBytes], zero, aligned to 8
/// Lifetime: borrows `memory`
std::unique_ptr<Placer> MakePlacer(Placement placement, std::byte* memory, uint32_t slots_max);

}  // namespace quire::pool

#endif  // QUIRE_POOL_PLACEMENT_H_
