#include "codec/rows.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "codec/scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/rows.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "codec/load-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Conversions here must equal float_bits.h in every bit, NaNs included; emulated halves (targets
// without F16C) do not, so those targets take the scalar loops.
#define QUIRE_ROWS_VECTOR (HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON)

constexpr size_t kTileTokens = 8;
constexpr size_t kTileDims = 64;

#if QUIRE_ROWS_VECTOR

// Narrows like F32ToStoredF16 and F32ToBf16.
template <class D>
HWY_INLINE void StoreF16(D d, hn::Vec<D> value, std::byte* to) {
  const hn::RebindToUnsigned<D> du;
  const auto magnitude = hn::Abs(value);
  const auto limit = hn::Set(d, 65504.0f);
  const auto infinity = hn::BitCast(d, hn::Set(du, 0x7f800000u));
  const auto too_large = hn::And(hn::Gt(magnitude, limit), hn::Lt(magnitude, infinity));
  value = hn::IfThenElse(too_large, hn::CopySign(limit, value), value);
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
}

template <class D>
HWY_INLINE void StoreBf16(D d, hn::Vec<D> value, std::byte* to) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  const auto code = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::TruncateTo(d16, code), d16, reinterpret_cast<uint16_t*>(to));
  (void)d;
}

template <class From>
size_t ConvertVectors(const std::byte* from, Codec to_codec, std::byte* to, size_t values) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= values; i += lanes) {
    const auto value = From::Load(d, from + i * From::kBytes);
    if (to_codec == Codec::kF32) {
      hn::StoreU(value, d, reinterpret_cast<float*>(to + i * 4));
    } else if (to_codec == Codec::kF16) {
      StoreF16(d, value, to + i * 2);
    } else {
      StoreBf16(d, value, to + i * 2);
    }
  }
  return i;
}

// Eight rows of eight 16-bit values, by pairs, then pairs of pairs, then halves.
HWY_INLINE void TransposeTile16(const std::byte* from, size_t from_stride, std::byte* to,
                                size_t to_stride) {
  const hn::FixedTag<uint16_t, 8> d;
  const hn::FixedTag<uint32_t, 4> d32;
  const hn::FixedTag<uint64_t, 2> d64;
  hn::Vec<decltype(d)> row[8];
  for (size_t i = 0; i < 8; ++i) {
    row[i] = hn::LoadU(d, reinterpret_cast<const uint16_t*>(from + i * from_stride));
  }
  hn::Vec<decltype(d32)> pair[8];
  for (size_t i = 0; i < 4; ++i) {
    pair[i] = hn::BitCast(d32, hn::InterleaveLower(d, row[2 * i], row[2 * i + 1]));
    pair[i + 4] = hn::BitCast(d32, hn::InterleaveUpper(d, row[2 * i], row[2 * i + 1]));
  }
  // quad[c] holds columns 2c and 2c+1 of rows 0..3; quad[c + 4] those of rows 4..7.
  hn::Vec<decltype(d64)> quad[8];
  for (size_t half = 0; half < 2; ++half) {
    for (size_t upper = 0; upper < 2; ++upper) {
      const auto a = pair[4 * upper + 2 * half];
      const auto b = pair[4 * upper + 2 * half + 1];
      quad[4 * half + 2 * upper] = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
      quad[4 * half + 2 * upper + 1] = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
    }
  }
  for (size_t c = 0; c < 4; ++c) {
    const auto even = hn::InterleaveLower(d64, quad[c], quad[c + 4]);
    const auto odd = hn::InterleaveUpper(d64, quad[c], quad[c + 4]);
    hn::StoreU(hn::BitCast(d, even), d, reinterpret_cast<uint16_t*>(to + 2 * c * to_stride));
    hn::StoreU(hn::BitCast(d, odd), d, reinterpret_cast<uint16_t*>(to + (2 * c + 1) * to_stride));
  }
}

// Four rows of four 32-bit values.
HWY_INLINE void TransposeTile32(const std::byte* from, size_t from_stride, std::byte* to,
                                size_t to_stride) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> d64;
  hn::Vec<decltype(d)> row[4];
  for (size_t i = 0; i < 4; ++i) {
    row[i] = hn::LoadU(d, reinterpret_cast<const uint32_t*>(from + i * from_stride));
  }
  for (size_t upper = 0; upper < 2; ++upper) {
    const auto top = hn::BitCast(d64, upper ? hn::InterleaveUpper(d, row[0], row[1])
                                            : hn::InterleaveLower(d, row[0], row[1]));
    const auto bottom = hn::BitCast(d64, upper ? hn::InterleaveUpper(d, row[2], row[3])
                                               : hn::InterleaveLower(d, row[2], row[3]));
    const auto even = hn::InterleaveLower(d64, top, bottom);
    const auto odd = hn::InterleaveUpper(d64, top, bottom);
    hn::StoreU(hn::BitCast(d, even), d, reinterpret_cast<uint32_t*>(to + 2 * upper * to_stride));
    hn::StoreU(hn::BitCast(d, odd), d,
               reinterpret_cast<uint32_t*>(to + (2 * upper + 1) * to_stride));
  }
}

#endif  // QUIRE_ROWS_VECTOR

// Converts `values` contiguous values; equal codecs are copied bit for bit.
void Convert(Codec from_codec, const std::byte* from, Codec to_codec, std::byte* to,
             size_t values) {
  if (from_codec == to_codec) {
    std::memcpy(to, from, values * ValueBytes(to_codec));
    return;
  }
  size_t i = 0;
#if QUIRE_ROWS_VECTOR
  switch (from_codec) {
    case Codec::kF32: i = ConvertVectors<F32Values>(from, to_codec, to, values); break;
    case Codec::kF16: i = ConvertVectors<F16Values>(from, to_codec, to, values); break;
    case Codec::kBf16: i = ConvertVectors<Bf16Values>(from, to_codec, to, values); break;
    default: break;
  }
#endif
  for (; i < values; ++i) StoreValue(to_codec, LoadValue(from_codec, from, i), to, i);
}

// to[column][row] = from[row][column] for values of `value_bytes` (2 or 4). Strides in bytes.
void Transpose(size_t value_bytes, const std::byte* from, size_t from_stride, std::byte* to,
               size_t to_stride, size_t rows, size_t columns) {
  size_t whole_rows = 0;
  size_t whole_columns = 0;
#if QUIRE_ROWS_VECTOR
  const size_t tile = value_bytes == 2 ? 8 : 4;
  whole_rows = rows / tile * tile;
  whole_columns = columns / tile * tile;
  for (size_t r = 0; r < whole_rows; r += tile) {
    for (size_t c = 0; c < whole_columns; c += tile) {
      const std::byte* tile_from = from + r * from_stride + c * value_bytes;
      std::byte* tile_to = to + c * to_stride + r * value_bytes;
      if (value_bytes == 2) {
        TransposeTile16(tile_from, from_stride, tile_to, to_stride);
      } else {
        TransposeTile32(tile_from, from_stride, tile_to, to_stride);
      }
    }
  }
#endif
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) {
      std::memcpy(to + c * to_stride + r * value_bytes, from + r * from_stride + c * value_bytes,
                  value_bytes);
    }
  }
}

void WriteRowsOfTarget(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                       uint32_t tokens, uint32_t token_in_block, std::byte* slot) {
  const size_t bytes = ValueBytes(stream.codec);
  const auto* data = static_cast<const std::byte*>(rows.data);
  const auto row_bytes = static_cast<int64_t>(ValueBytes(rows.dtype));
  for (uint32_t head = 0; head < stream.heads; ++head) {
    std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
    const auto row = [&](uint32_t token) {
      return data + ((int64_t{row_begin} + token) * rows.token_stride + head * rows.head_stride) *
                        row_bytes;
    };
    if (stream.inner == InnerAxis::kDim) {
      for (uint32_t t = 0; t < tokens; ++t) {
        Convert(rows.dtype, row(t), stream.codec,
                plane + (size_t{token_in_block} + t) * stream.dim * bytes, stream.dim);
      }
      continue;
    }
    std::byte tile[kTileTokens * kTileDims * 4];  // [token][dim]
    for (uint32_t t = 0; t < tokens; t += kTileTokens) {
      const size_t tile_tokens = std::min<size_t>(kTileTokens, tokens - t);
      for (size_t d = 0; d < stream.dim; d += kTileDims) {
        const size_t tile_dims = std::min<size_t>(kTileDims, stream.dim - d);
        for (uint32_t i = 0; i < tile_tokens; ++i) {
          Convert(rows.dtype, row(t + i) + d * row_bytes, stream.codec,
                  tile + i * kTileDims * bytes, tile_dims);
        }
        Transpose(bytes, tile, kTileDims * bytes,
                  plane + (d * stream.block_tokens + token_in_block + t) * bytes,
                  stream.block_tokens * bytes, tile_tokens, tile_dims);
      }
    }
  }
}

void ReadRowsOfTarget(const StreamLayout& stream, const std::byte* slot, uint32_t token_in_block,
                      uint32_t tokens, float* out, int64_t out_head_stride) {
  const size_t bytes = ValueBytes(stream.codec);
  for (uint32_t head = 0; head < stream.heads; ++head) {
    const std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
    float* to = out + head * out_head_stride;
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
  HWY_DYNAMIC_DISPATCH(WriteRowsOfTarget)(stream, rows, row_begin, tokens, token_in_block, slot);
}

void ReadRows(const StreamLayout& stream, const std::byte* slot, uint32_t token_in_block,
              uint32_t tokens, float* out, int64_t out_head_stride) {
  QUIRE_CHECK(uint64_t{token_in_block} + tokens <= stream.block_tokens);
  HWY_DYNAMIC_DISPATCH(ReadRowsOfTarget)(stream, slot, token_in_block, tokens, out,
                                         out_head_stride);
}

}  // namespace quire::codec
#endif  // HWY_ONCE
