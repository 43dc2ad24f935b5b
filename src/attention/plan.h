// How one call of attention is cut into items of work. The cut never shows in the bits: rows are
// independent, and an item owns whole subtrees of the lane tree.
#ifndef QUIRE_ATTENTION_PLAN_H_
#define QUIRE_ATTENTION_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "attention/kernels.h"
#include "quire/attention.h"

namespace quire::attention {

struct Plan {
  std::vector<Item> first_items;  // of cascades: what they share; before all others
  std::vector<Item> items;
  uint32_t queries_max = 0;  // query vectors of the largest item
  bool expands = false;      // some item has several rows
  uint32_t tiles = 0;        // tiles that are cut into parts
  uint64_t part_states = 0;  // states that parts leave behind; those of one tile are neighbours
  uint32_t cascaded = 0;     // tasks in cascades; first items leave states of so many sequences

  // What first items point to.
  std::vector<const AttentionTask*> sequences;
  std::vector<AttentionTask> shared_tasks;

  /// Lends the items of cascades their lane states, LaneFloats for every sequence and lane.
  void SetLaneMemory(float* memory);
};

/// Fills `plan` (its memory is reused) for `workers` workers.
///
/// Cost: O(rows of all tasks); no memory that grows with the context
void MakePlan(const AttentionShape& shape, std::span<const AttentionTask> tasks, uint32_t workers,
              Plan* plan);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_PLAN_H_
