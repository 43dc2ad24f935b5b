// Equality of what kernels have as arguments and a public header declares for C++17, which cannot
// have it by default. A member that is added there fails to compile here.
#ifndef QUIRE_CUDA_KERNELS_EQUAL_H_
#define QUIRE_CUDA_KERNELS_EQUAL_H_

#include <tuple>

#include "quire/attention_types.h"

namespace quire {

inline auto MembersOf(const StreamLayout& layout) {
  const auto& [codec, inner, heads, dim, block_tokens, offset, head_stride, scale_offset,
               scale_head_stride, rotated] = layout;
  return std::tie(codec, inner, heads, dim, block_tokens, offset, head_stride, scale_offset,
                  scale_head_stride, rotated);
}
inline bool operator==(const StreamLayout& a, const StreamLayout& b) {
  return MembersOf(a) == MembersOf(b);
}

inline auto MembersOf(const AttentionShape& shape) {
  const auto& [query_heads, key, value, open_key, open_value, open_blocks, scale, window_tokens,
               sink_tokens, sink_logits, alibi_slopes] = shape;
  return std::tie(query_heads, key, value, open_key, open_value, open_blocks, scale, window_tokens,
                  sink_tokens, sink_logits, alibi_slopes);
}
inline bool operator==(const AttentionShape& a, const AttentionShape& b) {
  return MembersOf(a) == MembersOf(b);
}

/// The same arrays, not equal ones.
inline bool operator==(const BlockTable& a, const BlockTable& b) {
  const auto members = [](const BlockTable& table) {
    const auto& [base, slot_stride, sequences, indptr, slots] = table;
    return std::tie(base, slot_stride, sequences, indptr, slots);
  };
  return members(a) == members(b);
}
inline bool operator==(const BlockTables& a, const BlockTables& b) {
  const auto& [a_sealed, a_open] = a;
  const auto& [b_sealed, b_open] = b;
  return a_sealed == b_sealed && a_open == b_open;
}

}  // namespace quire

#endif  // QUIRE_CUDA_KERNELS_EQUAL_H_
