#include "model/importance_observer.h"

#include <algorithm>

#include "attention/importance.h"
#include "base/bits.h"

namespace quire::model {

void ImportanceObserver::OnAttention(uint32_t, const AttentionShape& shape,
                                     const BlockTables& tables, const AttentionTask& task,
                                     Executor& executor) {
  const uint64_t end = task.first_position + task.rows;
  if (end <= from_) return;
  AttentionTask counted = task;
  const uint64_t skipped = from_ - std::min(from_, task.first_position);
  counted.queries += skipped * shape.query_heads * shape.key.dim;
  counted.first_position += skipped;
  counted.rows -= static_cast<uint32_t>(skipped);
  importance_.resize(std::max<size_t>(importance_.size(), DivUp(end, shape.key.block_tokens)));
  attention::AddImportance(shape, tables, counted, executor, importance_);
}

}  // namespace quire::model
