#include "model/mass_observer.h"

#include <algorithm>

#include "attention/mass.h"
#include "base/bits.h"

namespace quire::model {

void MassObserver::OnAttention(uint32_t, const AttentionShape& shape, const BlockTables& tables,
                               const AttentionTask& task, Executor& executor) {
  const uint64_t end = task.first_position + task.rows;
  if (end <= from_) return;
  AttentionTask counted = task;
  const uint64_t skipped = from_ - std::min(from_, task.first_position);
  counted.queries += skipped * shape.query_heads * shape.key.dim;
  counted.first_position += skipped;
  counted.rows -= static_cast<uint32_t>(skipped);
  mass_.resize(std::max<size_t>(mass_.size(), DivUp(end, shape.key.block_tokens)));
  attention::AddAttentionMass(shape, tables, counted, executor, mass_);
}

}  // namespace quire::model
