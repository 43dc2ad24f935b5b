// How much attention queries pay to each block: decides which blocks a sequence can drop.
#ifndef QUIRE_ATTENTION_IMPORTANCE_H_
#define QUIRE_ATTENTION_IMPORTANCE_H_

#include <cstdint>
#include <span>

#include "quire/attention.h"
#include "quire/env.h"

namespace quire::attention {

/// Adds to importance[b] the softmax weights that the rows of `task` give to the tokens of block b,
/// summed over rows and query heads: a row adds query_heads in all. Plain loops over widened K: an
/// estimate, not canonical bits, but the same for every number of threads.
///
/// Shape: importance [blocks up to the last row's], at least; a shape without a window, sink logits
///        and slopes
/// Cost:  O(rows * tokens * query_heads * key.dim); scratch of a few rows' scores per worker
/// Source: H2O, arXiv 2306.14048 (all rows); SnapKV, arXiv 2404.14469 (the last rows)
void AddImportance(const AttentionShape& shape, const BlockTables& tables,
                   const AttentionTask& task, Executor& executor, std::span<double> importance);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_IMPORTANCE_H_
