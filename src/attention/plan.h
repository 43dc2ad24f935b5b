// How one call of attention is cut into items of work. The cut never shows in the bits: rows are
// independent, and an item owns whole subtrees of the lane tree.
#ifndef QUIRE_ATTENTION_PLAN_H_
#define QUIRE_ATTENTION_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/kernels.h"
#include "quire/attention.h"

namespace quire::attention {

struct Plan {
  // What items point to. Layers with the same tables and tasks run one plan, each with its shape.
  AttentionShape shape;
  BlockTables tables;
  std::vector<AttentionTask> tasks;

  std::vector<Item> first_items;  // of cascades: their shared splits; run before all others
  std::vector<Item> items;
  uint32_t queries_max = 0;  // query vectors of the largest item
  bool expands = false;      // some item has several rows
  uint32_t tiles = 0;        // tiles that are cut into subtrees
  uint64_t subtree_states =
      0;  // states that subtrees leave behind; those of one tile are neighbours

  // The states that first items leave, from which the items of the same sequences continue: a row
  // for each task in a cascade. The caller that runs the plan lends the memory.
  LaneStates cascade_states{.lanes = kAllLanes};
  uint32_t cascade_rows = 0;

  // What first items point to besides.
  std::vector<const AttentionTask*> sequences;
  std::vector<AttentionTask> shared_tasks;
};

/// Fills `plan` (its memory is reused) for `workers` workers. Items point into `plan`.
///
/// Cost: O(rows of all tasks); no memory that grows with the context
void MakePlan(const AttentionShape& shape, const BlockTables& tables,
              std::span<const AttentionTask> tasks, uint32_t workers, Plan* plan);

/// The splits that a task asks for, none behind that of its last row. Needs a row.
inline SplitRange SplitsOf(const AttentionTask& task) {
  const uint64_t end = (task.first_position + task.rows - 1) / kSplitTokens + 1;
  return {.begin = std::min(task.splits.begin, end), .end = std::min(task.splits.end, end)};
}

/// Whether the tasks of a valid shape name existing blocks: afterwards every block that a row sees
/// in the splits it asks for has a slot in the form in which the row reads it.
///
/// Errors: as AttentionBackend::Attend says
/// Cost:   O(blocks seen)
Result<void> ValidateTasks(const AttentionShape& shape, const BlockTables& tables,
                           std::span<const AttentionTask> tasks);

/// Sequences whose blocks are the same slots in the first `splits` splits.
struct Cascade {
  std::vector<uint32_t> tasks;  // indices, at least two
  uint64_t splits = 0;          // at least one; all of them sealed for every task
};

/// Cascades without a common task, so that much reading is saved: greedily, a task with those that
/// share most with it. Which are found never shows in a bit. Under a window there are none: what
/// sequences see differs.
///
/// Cost: O(tasks^2 + slots compared)
std::vector<Cascade> FindCascades(const AttentionShape& shape, const BlockTable& sealed,
                                  std::span<const AttentionTask> tasks);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_PLAN_H_
