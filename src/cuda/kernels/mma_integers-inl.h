// Codes that stand for integers, as integer matrix instructions take them: sums are exact, so they
// are those of docs/numerics.md section 2. Codes lie in shared memory as a slot has them
// (codec/planes.h): sixteen *lanes*, which have sums of their own, are rows of the first factor,
// *terms* are summed. The second factor are numbers of sixteen bits, as a signed high and an
// unsigned low byte.
#ifndef QUIRE_CUDA_KERNELS_MMA_INTEGERS_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_INTEGERS_INL_H_

#include <cstdint>
#include <type_traits>

#include "attention/scalar.h"
#include "codec/formats.h"
#include "codec/planes.h"
#include "cuda/kernels/formats-inl.h"
#include "cuda/kernels/integers-inl.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// f(format) of codes that stand for integers.
template <typename F>
QUIRE_KERNEL void WithIntegers(Codec codec, const F& f) {
  Any::With(codec, [&](auto format) {
    if constexpr (kIsInteger<decltype(format)>) f(format);
  });
}

/// The place of a channel of K among thirty-two terms of an instruction. A lane of a warp has four
/// terms of the first sixteen, and four of the others; of pairs it has four with both coordinates.
QUIRE_KERNEL uint32_t TermOf(Codec codec, uint32_t channel) {
  if (codec != Codec::kQ25) return channel;
  const uint32_t in_step = channel % kIntegerStep;
  return channel - in_step + in_step / 4 % 2 * 16 + in_step / 8 * 4 + in_step % 4;
}

// First factors. A word has four terms: of lane l those from l % 4 * 4 on, words 0 and 1 of rows
// l / 4 and l / 4 + 8, words 2 and 3 of those rows sixteen terms later.

/// Four terms of row r, and of row r + 8.
struct RowPair {
  uint32_t first = 0;
  uint32_t second = 0;
};

/// Of a word of half bytes.
QUIRE_KERNEL RowPair RowsOf(const HalfWords& words) {
  return {Permute(words.low, words.high, 0x5140u), Permute(words.low, words.high, 0x7362u)};
}

template <class Format>
inline constexpr uint32_t kShiftOf = std::is_same_v<Format, codec::Int4> ? 4 : 0;
/// The integers of eight half bytes, times 1 << kShiftOf.
template <class Format>
QUIRE_KERNEL RowPair IntegersOf(uint32_t word) {
  if constexpr (std::is_same_v<Format, codec::Int4>) {
    // As the upper half of a byte, a code less 8 is that of 16 times its integer.
    const uint32_t low = (word << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
    const uint32_t high = (word & 0xf0f0f0f0u) ^ 0x80808080u;
    return {Permute(low, high, 0x6420u), Permute(low, high, 0x7531u)};
  } else {
    return RowsOf(LookUpBoth<kTableOf<Format>>(word));
  }
}

/// Thirty-two channels of sixteen tokens of K from `channel` on; `column` are all of their codes.
template <class Format, class Thread>
QUIRE_KERNEL Fragment<uint32_t, 4> LoadKeyIntegers(const Warp<Thread>& warp,
                                                   const std::byte* column, uint32_t channel) {
  using Layout = codec::CodeLayout;
  if constexpr (Format::kLayout == Layout::kByteTiles) {
    const std::byte* const from = column + channel / 2 * codec::kStepBytes;
    return LoadMatrices<true>([&](uint32_t lane) {
      const uint32_t step = lane / 16 * 8 + lane % 8;  // of two terms
      return reinterpret_cast<const uint16_t*>(from + step * codec::kStepBytes + lane / 8 % 2 * 16);
    });
  } else {
    Fragment<uint32_t, 4> rows;
    warp.Lanes([&](uint32_t lane) {
      const uint32_t at = lane % 4 * codec::kStepBytes + lane / 4 * 4;
      if constexpr (Format::kLayout == Layout::kNibbleTiles) {
        const std::byte* const from = column + channel / 4 * codec::kStepBytes + at;
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
          const auto word = Load<uint32_t>(from + i * 4 * codec::kStepBytes);
          const RowPair two = IntegersOf<Format>(word);
          rows(lane, i * 2) = two.first;
          rows(lane, i * 2 + 1) = two.second;
        }
      } else if constexpr (Format::kLayout == Layout::kPairTiles) {
        const std::byte* const tile = column + channel / kIntegerStep * codec::kPairTileBytes;
        const auto word = Load<uint32_t>(tile + at);
        const uint32_t signs =
            Load<uint32_t>(tile + 4 * codec::kStepBytes + lane / 4 * 4) >> lane % 4 * 2;
        const HalfWords negated = SignsOf(signs);
        const RowPair first = RowsOf(CoordinatesOf<codec::kPairFirstIntegers>(word, negated));
        const RowPair second = RowsOf(CoordinatesOf<codec::kPairSecondIntegers>(word, negated));
        // Channels are two first coordinates, then the second ones of the same pairs.
        rows(lane, 0) = Permute(first.first, second.first, 0x5410u);
        rows(lane, 1) = Permute(first.second, second.second, 0x5410u);
        rows(lane, 2) = Permute(first.first, second.first, 0x7632u);
        rows(lane, 3) = Permute(first.second, second.second, 0x7632u);
      }
    });
    return rows;
  }
}

/// Sixteen channels of V, of thirty-two tokens; `columns` are the codes of sixteen tokens each,
/// `apart` bytes, of all channels that were brought.
template <class Format, class Thread>
QUIRE_KERNEL Fragment<uint32_t, 4> LoadValueIntegers(const Warp<Thread>& warp,
                                                     const std::byte* columns, uint32_t apart,
                                                     uint32_t step) {
  using Layout = codec::CodeLayout;
  constexpr bool kPairs = Format::kLayout == Layout::kPairTiles;
  constexpr auto kTileBytes = static_cast<uint32_t>(codec::TileBytes(Format::kLayout, kMmaStep));
  const std::byte* const from = columns + (kPairs ? step / 2 : step) * kTileBytes;
  if constexpr (Format::kLayout == Layout::kByteTiles) {
    return LoadMatrices<true>([&](uint32_t lane) {
      return reinterpret_cast<const uint16_t*>(from + lane / 16 * apart +
                                               lane % 8 * codec::kStepBytes + lane / 8 % 2 * 16);
    });
  } else {
    Fragment<uint32_t, 4> rows;
    warp.Lanes([&](uint32_t lane) {
      const uint32_t at = lane % 4 * codec::kStepBytes + lane / 4 * 4;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        const std::byte* const tile = from + i * apart;
        const auto word = Load<uint32_t>(tile + at);
        RowPair two;
        if constexpr (Format::kLayout == Layout::kNibbleTiles) {
          two = IntegersOf<Format>(word);
        } else if constexpr (Format::kLayout == Layout::kPairTiles) {
          const uint32_t signs =
              Load<uint32_t>(tile + 4 * codec::kStepBytes + lane / 4 * 4) >> lane % 4 * 2;
          const HalfWords negated = SignsOf(signs);
          two = RowsOf(step % 2 == 0 ? CoordinatesOf<codec::kPairFirstIntegers>(word, negated)
                                     : CoordinatesOf<codec::kPairSecondIntegers>(word, negated));
        }
        rows(lane, i * 2) = two.first;
        rows(lane, i * 2 + 1) = two.second;
      }
    });
    return rows;
  }
}

// Second factors: numbers of sixteen bits. Of four of them, a word of high and one of low bytes.

struct HighLowBytes {
  uint32_t high = 0;
  uint32_t low = 0;
};
QUIRE_KERNEL HighLowBytes BytesOf(int32_t a, int32_t b, int32_t c, int32_t d) {
  const uint32_t ab = PairOf16(a, b);
  const uint32_t cd = PairOf16(c, d);
  return {Permute(ab, cd, 0x7531u), Permute(ab, cd, 0x6420u)};
}

/// Fixed of docs/numerics.md section 2.
QUIRE_KERNEL int32_t FixedOf(float value, const attention::FixedScale& scale) {
  return scale.inverse != 0.0f ? NearestEven(value * scale.inverse) : 0;
}

/// Eight columns of thirty-two numbers as second factors, high bytes and then low ones. row_of(row,
/// low) is where the bytes of a column begin.
template <typename RowOf>
QUIRE_KERNEL Fragment<uint32_t, 4> LoadNumbers(const RowOf& row_of) {
  return LoadMatrices<false>([&](uint32_t lane) {
    return reinterpret_cast<const uint16_t*>(row_of(lane % 8, lane / 16 != 0) + lane / 8 % 2 * 16);
  });
}

#if !defined(__CUDACC__)
template <bool kSigned, uint32_t kCount>
void EmulateMultiplyIntegers(Fragment<int32_t, kCount>& sums, uint32_t at,
                             const Fragment<uint32_t, 4>& a, const Fragment<uint32_t, 4>& b,
                             uint32_t b_at) {
  int32_t rows[16][kIntegerStep];
  int32_t columns[8][kIntegerStep];
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t byte = 0; byte < 4; ++byte) {
        const uint32_t term = i / 2 * 16 + lane % 4 * 4 + byte;
        rows[lane / 4 + i % 2 * 8][term] = static_cast<int8_t>(a(lane, i) >> byte * 8);
        if (i >= 2) continue;
        const auto number = static_cast<uint8_t>(b(lane, b_at + i) >> byte * 8);
        columns[lane / 4][i * 16 + lane % 4 * 4 + byte] =
            kSigned ? static_cast<int8_t>(number) : number;
      }
    }
  }
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t k = 0; k < kIntegerStep; ++k) {
        sums(lane, at + i) += rows[lane / 4 + i / 2 * 8][k] * columns[lane % 4 * 2 + i % 2][k];
      }
    }
  }
}
#endif

/// sums [at, at + 4) += a times the bytes of b, whose two words begin at b_at.
template <bool kSigned, uint32_t kCount>
QUIRE_KERNEL void MultiplyBytes(Fragment<int32_t, kCount>& sums, uint32_t at,
                                const Fragment<uint32_t, 4>& a, const Fragment<uint32_t, 4>& b,
                                uint32_t b_at) {
#if defined(__CUDA_ARCH__)
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sums(0, at)), "+r"(sums(0, at + 1)), "+r"(sums(0, at + 2)), "+r"(sums(0, at + 3))
        : "r"(a(0, 0)), "r"(a(0, 1)), "r"(a(0, 2)), "r"(a(0, 3)), "r"(b(0, b_at)),
          "r"(b(0, b_at + 1)));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sums(0, at)), "+r"(sums(0, at + 1)), "+r"(sums(0, at + 2)), "+r"(sums(0, at + 3))
        : "r"(a(0, 0)), "r"(a(0, 1)), "r"(a(0, 2)), "r"(a(0, 3)), "r"(b(0, b_at)),
          "r"(b(0, b_at + 1)));
  }
#elif !defined(__CUDACC__)
  EmulateMultiplyIntegers<kSigned>(sums, at, a, b, b_at);
#endif
}

/// Sums of a lane's codes with numbers, which are exact.
template <class Format, uint32_t kCount>
class IntegerSums {
 public:
  QUIRE_KERNEL explicit IntegerSums(const auto& warp) {
    warp.Lanes([&](uint32_t lane) {
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) high_(lane, i) = low_(lane, i) = 0;
    });
  }

  /// Sums [at, at + 4) take in codes times numbers, as LoadNumbers has them.
  QUIRE_KERNEL void Add(uint32_t at, const Fragment<uint32_t, 4>& codes,
                        const Fragment<uint32_t, 4>& numbers) {
    MultiplyBytes<true>(high_, at, codes, numbers, 0);
    MultiplyBytes<false>(low_, at, codes, numbers, 2);
  }
  QUIRE_KERNEL float At(uint32_t lane, uint32_t i) const {
    return static_cast<float>((high_(lane, i) * 256 + low_(lane, i)) >> kShiftOf<Format>);
  }

 private:
  Fragment<int32_t, kCount> high_;
  Fragment<int32_t, kCount> low_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_INTEGERS_INL_H_
