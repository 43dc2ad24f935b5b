// Tiles of values and of codes, turned over.
#include "codec/convert-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_TRANSPOSE_INL_H_
#undef QUIRE_CODEC_TRANSPOSE_INL_H_
#else
#define QUIRE_CODEC_TRANSPOSE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if QUIRE_CODEC_VECTOR

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

#endif  // QUIRE_CODEC_VECTOR

// to[column][row] = from[row][column] for values of `value_bytes` (2 or 4). Strides in bytes.
HWY_ATTR inline void Transpose(size_t value_bytes, const std::byte* from, size_t from_stride,
                               std::byte* to, size_t to_stride, size_t rows, size_t columns) {
  size_t whole_rows = 0;
  size_t whole_columns = 0;
#if QUIRE_CODEC_VECTOR
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

// to[t][d] = from[d][t] for sixteen t and codes of a byte. Reads whole groups of sixteen d, of
// which the last may be beyond `dims`; their codes are written too.
HWY_ATTR inline void TransposeCodes(const uint8_t* from, size_t dims, uint8_t* to,
                                    size_t to_stride) {
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<uint8_t, 16> d;
  for (size_t begin = 0; begin < dims; begin += 16) {
    hn::Vec<decltype(d)> row[16];
    hn::Vec<decltype(d)> next[16];
    for (size_t i = 0; i < 16; ++i) row[i] = hn::Load(d, from + (begin + i) * 16);
    // Four times the rows are dealt like two halves of a pack of cards.
    for (size_t round = 0; round < 4; ++round) {
      for (size_t i = 0; i < 8; ++i) {
        next[2 * i] = hn::InterleaveLower(d, row[i], row[i + 8]);
        next[2 * i + 1] = hn::InterleaveUpper(d, row[i], row[i + 8]);
      }
      for (size_t i = 0; i < 16; ++i) row[i] = next[i];
    }
    for (size_t i = 0; i < 16; ++i) hn::StoreU(row[i], d, to + i * to_stride + begin);
  }
#else
  for (size_t d = 0; d < dims; ++d) {
    for (size_t t = 0; t < 16; ++t) to[t * to_stride + d] = from[d * 16 + t];
  }
#endif
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
