// Attention from stored values one at a time: what the judge reads, and the reference in f64.
#ifndef QUIRE_ATTENTION_REFERENCE_H_
#define QUIRE_ATTENTION_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/planes.h"
#include "codec/scalar.h"
#include "codec/token_codec.h"
#include "quire/attention.h"

namespace quire::attention {

/// Code (token, d) of KV head `head` in the block at `slot`, widened exactly; identity codecs: the
/// value.
inline float StoredCode(const StreamLayout& stream, const std::byte* slot, uint32_t head,
                        uint32_t token, uint32_t d) {
  const std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
  if (!IsIdentity(stream.codec)) {
    return codec::CodeValue(stream.codec, codec::LoadCode(stream, plane, token, d));
  }
  return codec::LoadValue(stream.codec, plane,
                          stream.inner == InnerAxis::kToken
                              ? uint64_t{d} * stream.block_tokens + token
                              : uint64_t{token} * stream.dim + d);
}

/// Value of a token = mid + scale * code.
struct StoredScale {
  float scale = 1.0f;
  float mid = 0.0f;
};

/// Needs a codec that encodes.
inline StoredScale LoadScale(const StreamLayout& stream, const std::byte* slot, uint32_t head,
                             uint32_t token) {
  const std::byte* at = slot + codec::ScaleAt(stream, head, token);
  StoredScale found{.scale = codec::LoadValue(Codec::kF16, at, 0)};
  if (codec::HasMids(stream.codec)) {
    found.mid = codec::LoadValue(Codec::kF16, at, stream.block_tokens);
  }
  return found;
}

/// Softmax attention in f64 over the same stored bytes: what accuracy is measured against. Follows
/// no canonical order; its bits mean nothing.
///
/// Shape: returns [rows, query_heads, value.dim]
std::vector<double> ReferenceAttention(const AttentionShape& shape, const BlockTables& tables,
                                       const AttentionTask& task);

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_REFERENCE_H_
