// Best fit: the shortest free run that is long enough, so that long ones stay whole.
#ifndef QUIRE_POOL_BEST_FIT_H_
#define QUIRE_POOL_BEST_FIT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "pool/placement.h"
#include "quire/identity.h"

namespace quire::pool {

/// The free runs, each as long as it can be, in a search tree ordered by (length, first slot). A
/// run keeps its node in the metadata of its first slot, so nothing is ever allocated; its length
/// also stands at its last slot, where a neighbour that becomes free finds it.
///
/// The tree is a treap: what is a heap in it is a hash of the first slot, so its shape follows from
/// the free runs alone, and its depth is that of a random tree.
///
/// Lifetime: borrows the memory
/// Cost:     O(log of the free runs) expected, for every run taken, grown or given back
/// Source:   Seidel and Aragon, Randomized search trees, Algorithmica 16 (1996)
class BestFit final : public RunPlacer {
 public:
  static uint64_t Bytes(uint32_t slots_max) { return uint64_t{slots_max} * 3 * sizeof(uint32_t); }

  /// Shape: memory [Bytes(slots_max)], zero, aligned to 4
  BestFit(std::byte* memory, uint32_t slots_max);

  void Take(std::span<SlotId> out) override;
  void Put(SlotRun run) override;
  std::optional<SlotRun> TakeRun(uint32_t count) override;
  void TakeAt(SlotRun run) override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  bool Before(uint32_t a, uint32_t b) const {
    return lengths_[a] != lengths_[b] ? lengths_[a] < lengths_[b] : a < b;
  }
  uint32_t FirstOfAtLeast(uint32_t count) const;
  void Link(uint32_t first, uint32_t length);
  uint32_t Unlink(uint32_t first);
  void TakeFront(uint32_t first, uint32_t count);

  const uint32_t slots_max_;
  uint32_t* const lengths_;  // [slots_max]; at a free run's first and last slot its length, else 0
  uint32_t* const left_;     // [slots_max]; at a free run's first slot: the runs before it
  uint32_t* const right_;    // [slots_max]; the runs behind it
  uint32_t root_ = kNone;
};

}  // namespace quire::pool

#endif  // QUIRE_POOL_BEST_FIT_H_
