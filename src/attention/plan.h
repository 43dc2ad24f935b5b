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
  uint32_t tiles = 0;        // tiles that are cut into subtrees
  uint64_t subtree_states =
      0;  // states that subtrees leave behind; those of one tile are neighbours

  // What first items leave behind and the items of the same sequences go on from: a row for each
  // task in a cascade. Whoever runs the plan lends the memory.
  LaneStates cascade_states{.lanes = kAllLanes};
  uint32_t cascade_rows = 0;

  // What first items point to.
  std::vector<const AttentionTask*> sequences;
  std::vector<AttentionTask> shared_tasks;
};

/// Fills `plan` (its memory is reused) for `workers` workers. Items point into what is passed and
/// into `plan`.
///
/// Cost: O(rows of all tasks); no memory that grows with the context
void MakePlan(const AttentionShape& shape, const BlockTables& tables,
              std::span<const AttentionTask> tasks, uint32_t workers, Plan* plan);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_PLAN_H_
