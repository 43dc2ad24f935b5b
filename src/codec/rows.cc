#include "codec/streams.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "codec/rotate.h"
#include "codec/scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/rows.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "codec/rotate-inl.h"
#include "codec/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kTileTokens = 8;
constexpr size_t kTileDims = 64;

/// Tokens [token_in_block, + tokens) of channels [dim, dim + dims) of a head's plane.
struct Place {
  uint32_t token_in_block = 0;
  uint32_t tokens = 0;
  uint32_t dim = 0;
  uint32_t dims = 0;
};

// `from` points at the first value; its rows are `row_bytes` apart.
HWY_ATTR void WritePlane(const StreamLayout& stream, const Place& at, Codec dtype,
                         const std::byte* from, int64_t row_bytes, std::byte* plane) {
  const size_t bytes = ValueBytes(stream.codec);
  if (stream.inner == InnerAxis::kDim) {
    for (uint32_t t = 0; t < at.tokens; ++t) {
      Convert(dtype, from + t * row_bytes, stream.codec,
              plane + ((size_t{at.token_in_block} + t) * stream.dim + at.dim) * bytes, at.dims);
    }
    return;
  }
  const size_t from_bytes = ValueBytes(dtype);
  std::byte tile[kTileTokens * kTileDims * 4];  // [token][dim]
  for (uint32_t t = 0; t < at.tokens; t += kTileTokens) {
    const size_t tile_tokens = std::min<size_t>(kTileTokens, at.tokens - t);
    for (size_t d = 0; d < at.dims; d += kTileDims) {
      const size_t tile_dims = std::min<size_t>(kTileDims, at.dims - d);
      for (uint32_t i = 0; i < tile_tokens; ++i) {
        Convert(dtype, from + int64_t{t + i} * row_bytes + d * from_bytes, stream.codec,
                tile + i * kTileDims * bytes, tile_dims);
      }
      Transpose(bytes, tile, kTileDims * bytes,
                plane + ((at.dim + d) * stream.block_tokens + at.token_in_block + t) * bytes,
                stream.block_tokens * bytes, tile_tokens, tile_dims);
    }
  }
}

// Finite values so large that their sums in a rotation could be infinite become 2^116.
HWY_ATTR void LimitValues(float* values, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(d, 0x1p116f);
  const auto max = hn::Set(d, std::numeric_limits<float>::max());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, values + i);
    const auto magnitude = hn::Abs(value);
    const auto too_large = hn::And(hn::Gt(magnitude, limit), hn::Le(magnitude, max));
    hn::StoreU(hn::IfThenElse(too_large, hn::CopySign(limit, value), value), d, values + i);
  }
  for (; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (magnitude > 0x1p116f && std::isfinite(magnitude)) {
      values[i] = std::copysign(0x1p116f, values[i]);
    }
  }
}

// As WritePlane, of all channels, rotated on the way.
HWY_ATTR void WriteRotated(const StreamLayout& stream, const Place& at, Codec dtype,
                           const std::byte* from, int64_t row_bytes, std::byte* plane) {
  const uint32_t whole = RotationDim(stream.dim);
  const uint32_t dims_max = kRotationDimMax / whole * whole;
  alignas(64) float rotated[kTileTokens * kRotationDimMax];  // [token][dims]
  for (uint32_t t = 0; t < at.tokens; t += kTileTokens) {
    const uint32_t tokens = std::min<uint32_t>(kTileTokens, at.tokens - t);
    for (uint32_t d = 0; d < stream.dim; d += dims_max) {
      const uint32_t dims = std::min(dims_max, stream.dim - d);
      for (uint32_t i = 0; i < tokens; ++i) {
        Convert(dtype, from + int64_t{t + i} * row_bytes + uint64_t{d} * ValueBytes(dtype),
                Codec::kF32, reinterpret_cast<std::byte*>(rotated + uint64_t{i} * dims), dims);
      }
      LimitValues(rotated, uint64_t{tokens} * dims);
      RotateBlocks(rotated, uint64_t{tokens} * dims / whole, whole);
      WritePlane(
          stream,
          {.token_in_block = at.token_in_block + t, .tokens = tokens, .dim = d, .dims = dims},
          Codec::kF32, reinterpret_cast<const std::byte*>(rotated), int64_t{dims} * 4, plane);
    }
  }
}

void WriteRowsOfTarget(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                       uint32_t tokens, uint32_t token_in_block, std::byte* slot) {
  const auto* data = static_cast<const std::byte*>(rows.data);
  const auto value_bytes = static_cast<int64_t>(ValueBytes(rows.dtype));
  const Place at{.token_in_block = token_in_block, .tokens = tokens, .dim = 0, .dims = stream.dim};
  for (uint32_t head = 0; head < stream.heads; ++head) {
    std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
    const std::byte* from =
        data + (int64_t{row_begin} * rows.token_stride + head * rows.head_stride) * value_bytes;
    const int64_t row_bytes = rows.token_stride * value_bytes;
    if (stream.rotated) {
      WriteRotated(stream, at, rows.dtype, from, row_bytes, plane);
    } else {
      WritePlane(stream, at, rows.dtype, from, row_bytes, plane);
    }
  }
}

void ReadRowsOfTarget(const StreamLayout& stream, const std::byte* slot, uint32_t token_in_block,
                      uint32_t tokens, float* out, int64_t out_head_stride) {
  const size_t bytes = ValueBytes(stream.codec);
  for (uint32_t head = 0; head < stream.heads; ++head) {
    const std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
    float* to = out + head * out_head_stride;
    if (!IsIdentity(stream.codec)) {
      DecodeRows(stream, slot, head, token_in_block, tokens, to);
      continue;
    }
    if (stream.inner == InnerAxis::kDim) {  // the tokens of a head are one contiguous run
      Convert(stream.codec, plane + size_t{token_in_block} * stream.dim * bytes, Codec::kF32,
              reinterpret_cast<std::byte*>(to), size_t{tokens} * stream.dim);
      continue;
    }
    std::byte tile[kTileTokens * kTileDims * 4];  // [token][dim]
    for (size_t t = 0; t < tokens; t += kTileTokens) {
      const size_t tile_tokens = std::min<size_t>(kTileTokens, tokens - t);
      for (size_t d = 0; d < stream.dim; d += kTileDims) {
        const size_t tile_dims = std::min<size_t>(kTileDims, stream.dim - d);
        Transpose(bytes, plane + (d * stream.block_tokens + token_in_block + t) * bytes,
                  stream.block_tokens * bytes, tile, kTileDims * bytes, tile_dims, tile_tokens);
        for (size_t i = 0; i < tile_tokens; ++i) {
          Convert(stream.codec, tile + i * kTileDims * bytes, Codec::kF32,
                  reinterpret_cast<std::byte*>(to + (t + i) * stream.dim + d), tile_dims);
        }
      }
    }
  }
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::codec {

HWY_EXPORT(WriteRowsOfTarget);
HWY_EXPORT(ReadRowsOfTarget);

void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
               uint32_t tokens, uint32_t token_in_block, std::byte* slot) {
  QUIRE_CHECK(uint64_t{token_in_block} + tokens <= stream.block_tokens);
  if (tokens == 0) return;  // then there may be no data to point at
  HWY_DYNAMIC_DISPATCH(WriteRowsOfTarget)(stream, rows, row_begin, tokens, token_in_block, slot);
}

void ReadRows(const StreamLayout& stream, const std::byte* slot, uint32_t token_in_block,
              uint32_t tokens, float* out, int64_t out_head_stride) {
  QUIRE_CHECK(uint64_t{token_in_block} + tokens <= stream.block_tokens);
  if (tokens == 0) return;
  HWY_DYNAMIC_DISPATCH(ReadRowsOfTarget)(stream, slot, token_in_block, tokens, out,
                                         out_head_stride);
  if (!stream.rotated) return;
  for (uint32_t head = 0; head < stream.heads; ++head) {
    Rotate(out + head * out_head_stride, tokens, stream.dim);
  }
}

}  // namespace quire::codec
#endif  // HWY_ONCE
