// What a call of attention must be given before kernels may trust it.
#ifndef QUIRE_ATTENTION_TASKS_H_
#define QUIRE_ATTENTION_TASKS_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "quire/attention.h"

namespace quire::attention {

/// The splits that a task asks for, none behind that of its last row. Needs a row.
inline SplitRange SplitsOf(const AttentionTask& task) {
  const uint64_t end = (task.first_position + task.rows - 1) / kSplitTokens + 1;
  return {.begin = std::min(task.splits.begin, end), .end = std::min(task.splits.end, end)};
}

/// Whether the tasks of a valid shape name what is there: afterwards every block that a row sees
/// in the splits it asks for has a slot in the form in which the row reads it.
///
/// Errors: as AttentionBackend::Attend says
/// Cost:   O(blocks seen)
Result<void> ValidateTasks(const AttentionShape& shape, const BlockTables& tables,
                           std::span<const AttentionTask> tasks);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_TASKS_H_
