#include "attention/shape.h"

#include <fmt/format.h>

#include <tuple>

#include "base/bits.h"
#include "codec/planes.h"
#include "quire/geometry.h"

namespace quire::attention {
namespace {

/// `inner` is what the planes of codecs that encode have.
Result<void> ValidateStream(std::string_view name, const StreamLayout& stream, InnerAxis inner) {
  const auto bad = [&](const std::string& what) -> Result<void> {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("attention shape: {}.{}", name, what));
  };
  if (codec::InfoOf(stream.codec).layout == codec::CodeLayout::kNone) {
    return bad(fmt::format("codec is {}", static_cast<int>(stream.codec)));
  }
  if (stream.inner != InnerAxis::kToken && stream.inner != InnerAxis::kDim) {
    return bad(fmt::format("inner is {}", static_cast<int>(stream.inner)));
  }
  if (!IsIdentity(stream.codec) && stream.inner != inner) {
    return bad(fmt::format("inner is {}, planes of codec {} have {}",
                           static_cast<int>(stream.inner), CodecName(stream.codec),
                           static_cast<int>(inner)));
  }
  if (stream.heads == 0) return bad("heads is 0");
  if (stream.dim == 0) return bad("dim is 0");
  if (!IsPow2(stream.block_tokens) || stream.block_tokens < kBlockTokensMin ||
      stream.block_tokens > kBlockTokensMax) {
    return bad(fmt::format("block_tokens is {}, must be a power of two in {}..{}",
                           stream.block_tokens, kBlockTokensMin, kBlockTokensMax));
  }
  const uint64_t plane_bytes =
      codec::PlaneBytes(stream.codec, stream.inner, stream.dim, stream.block_tokens);
  const uint64_t scale_bytes = codec::ScaleBytes(stream.codec, stream.block_tokens);
  if (stream.heads > 1 && stream.head_stride_bytes < plane_bytes) {
    return bad(fmt::format("head_stride_bytes is {}, a plane has {} bytes",
                           stream.head_stride_bytes, plane_bytes));
  }
  if (IsIdentity(stream.codec)) return {};
  const uint64_t codes_end =
      stream.offset_bytes + (stream.heads - 1) * stream.head_stride_bytes + plane_bytes;
  if (stream.scale_offset_bytes < codes_end) {
    return bad(fmt::format("scale_offset_bytes is {}, codes end at {}", stream.scale_offset_bytes,
                           codes_end));
  }
  if (stream.heads > 1 && stream.scale_head_stride_bytes < scale_bytes) {
    return bad(fmt::format("scale_head_stride_bytes is {}, a head has {} bytes of scales",
                           stream.scale_head_stride_bytes, scale_bytes));
  }
  return {};
}

/// The open form holds the same rows as the sealed one.
Result<void> ValidateOpen(std::string_view name, const StreamLayout& open,
                          const StreamLayout& sealed, InnerAxis inner) {
  QUIRE_TRY(ValidateStream(name, open, inner));
  if (!IsIdentity(open.codec) && open.codec != sealed.codec) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("attention shape: {}.codec is {}, that of sealed blocks {}", name,
                            CodecName(open.codec), CodecName(sealed.codec)));
  }
  if (open.heads == sealed.heads && open.dim == sealed.dim &&
      open.block_tokens == sealed.block_tokens && open.rotated == sealed.rotated) {
    return {};
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("attention shape: {} has {} heads, dim {}, {} tokens and rotated {}, "
                          "sealed blocks {}, {}, {} and {}",
                          name, open.heads, open.dim, open.block_tokens, open.rotated, sealed.heads,
                          sealed.dim, sealed.block_tokens, sealed.rotated));
}

/// The fields of a stream that do not depend on its place.
auto ContentOf(const StreamLayout& stream) {
  return std::tuple(stream.codec, stream.inner, stream.heads, stream.dim, stream.block_tokens,
                    stream.rotated);
}

auto ContentOf(const AttentionShape& shape) {
  return std::tuple(shape.query_heads, ContentOf(shape.key), ContentOf(shape.value),
                    ContentOf(OpenKey(shape)), ContentOf(OpenValue(shape)), shape.open_blocks,
                    shape.scale, shape.window_tokens, shape.sink_tokens, HasOpenForm(shape));
}

bool SameLayout(const StreamLayout& a, const StreamLayout& b) {
  return a.codec == b.codec && a.inner == b.inner && a.offset_bytes == b.offset_bytes &&
         a.head_stride_bytes == b.head_stride_bytes &&
         (IsIdentity(a.codec) || (a.scale_offset_bytes == b.scale_offset_bytes &&
                                  a.scale_head_stride_bytes == b.scale_head_stride_bytes));
}

}  // namespace

bool HasOpenForm(const AttentionShape& shape) {
  return !SameLayout(OpenKey(shape), shape.key) || !SameLayout(OpenValue(shape), shape.value);
}

Result<void> CheckPlanned(const AttentionShape& planned, const AttentionShape& shape) {
  if (ContentOf(planned) == ContentOf(shape)) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "attention shape: differs from the one planned for in more than where its streams "
              "lie; prepare a plan for this layer too");
}

Result<void> ValidateShape(const AttentionShape& shape) {
  QUIRE_TRY(ValidateStream("key", shape.key, InnerAxis::kToken));
  QUIRE_TRY(ValidateStream("value", shape.value, InnerAxis::kDim));
  QUIRE_TRY(ValidateOpen("open_key", OpenKey(shape), shape.key, InnerAxis::kToken));
  QUIRE_TRY(ValidateOpen("open_value", OpenValue(shape), shape.value, InnerAxis::kDim));
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
