// Softmax attention in f64 over the same stored bytes: what accuracy is measured against. Follows
// no canonical order; its bits mean nothing.
#ifndef QUIRE_ATTENTION_REFERENCE_H_
#define QUIRE_ATTENTION_REFERENCE_H_

#include <vector>

#include "quire/attention.h"

namespace quire::attention {

/// Shape: returns [rows, query_heads, value.dim]
std::vector<double> ReferenceAttention(const AttentionShape& shape, const BlockTables& tables,
                                       const AttentionTask& task);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_REFERENCE_H_
