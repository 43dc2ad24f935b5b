#include "attention/shape.h"

#include <fmt/format.h>

#include "base/bits.h"
#include "codec/scalar.h"

namespace quire::attention {
namespace {

Result<void> ValidateStream(std::string_view name, const StreamLayout& stream) {
  const auto bad = [&](const std::string& what) -> Result<void> {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("attention shape: {}.{}", name, what));
  };
  if (stream.codec != Codec::kF32 && stream.codec != Codec::kF16 && stream.codec != Codec::kBf16) {
    return bad(fmt::format("codec is {}", static_cast<int>(stream.codec)));
  }
  if (stream.inner != InnerAxis::kToken && stream.inner != InnerAxis::kDim) {
    return bad(fmt::format("inner is {}", static_cast<int>(stream.inner)));
  }
  if (stream.heads == 0) return bad("heads is 0");
  if (stream.dim == 0) return bad("dim is 0");
  if (!IsPow2(stream.block_tokens) || stream.block_tokens < kBlockTokensMin ||
      stream.block_tokens > kBlockTokensMax) {
    return bad(fmt::format("block_tokens is {}, must be a power of two in {}..{}",
                           stream.block_tokens, kBlockTokensMin, kBlockTokensMax));
  }
  const uint64_t plane_bytes =
      uint64_t{stream.dim} * stream.block_tokens * codec::ValueBytes(stream.codec);
  if (stream.heads > 1 && stream.head_stride_bytes < plane_bytes) {
    return bad(fmt::format("head_stride_bytes is {}, a plane has {} bytes",
                           stream.head_stride_bytes, plane_bytes));
  }
  return {};
}

}  // namespace

Result<void> ValidateShape(const AttentionShape& shape) {
  QUIRE_TRY(ValidateStream("key", shape.key));
  QUIRE_TRY(ValidateStream("value", shape.value));
  const auto bad = [&](const std::string& what) -> Result<void> {
    return Fail(ErrorCode::kInvalidArgument, "attention shape: " + what);
  };
  if (shape.query_heads == 0 || shape.query_heads % shape.key.heads != 0) {
    return bad(fmt::format("query_heads is {}, not a multiple of key.heads {}", shape.query_heads,
                           shape.key.heads));
  }
  if (shape.value.heads != shape.key.heads) {
    return bad(fmt::format("value.heads is {}, key.heads {}", shape.value.heads, shape.key.heads));
  }
  if (shape.value.block_tokens != shape.key.block_tokens) {
    return bad(fmt::format("value.block_tokens is {}, key.block_tokens {}",
                           shape.value.block_tokens, shape.key.block_tokens));
  }
  if (shape.sink_tokens != 0 && shape.window_tokens == 0) {
    return bad(fmt::format("sink_tokens is {} without a window", shape.sink_tokens));
  }
  return {};
}

}  // namespace quire::attention
