// Which single rows of a call share their first splits: these are then read once for all of them.
#ifndef QUIRE_ATTENTION_CASCADE_H_
#define QUIRE_ATTENTION_CASCADE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention.h"

namespace quire::attention {

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

#endif  // QUIRE_ATTENTION_CASCADE_H_
