// Codes of K and V that lie in shared memory as a slot has them (codec/planes.h), on their way to
// registers: those of sixteen *lanes*, which have sums of their own, and as many *terms* become the
// first factor of a matrix instruction, whose rows are lanes. Sixteen bits hold what they stand for
// exactly.
#ifndef QUIRE_CUDA_KERNELS_MMA_CODED_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_CODED_INL_H_

#include <cstdint>
#include <type_traits>

#include "codec/formats.h"
#include "codec/planes.h"
#include "cuda/kernels/formats-inl.h"
#include "cuda/kernels/integers-inl.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_codes-inl.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// In the place of a codec: numbers of sixteen bits that are multiplied as they are. Rows of them
/// are terms, or lanes.
struct Numbers16 {};
struct RowsOfNumbers16 {};

/// f(format) of codes that become numbers in registers; pairs do not.
template <typename F>
QUIRE_KERNEL void WithCodes(Codec codec, const F& f) {
  Any::With(codec, [&](auto format) {
    using Format = decltype(format);
    if constexpr (kEncodes<Format> && Format::kLayout != codec::CodeLayout::kPairTiles) f(format);
  });
}

/// Of sixteen tokens, for each channel.
template <class Format>
inline constexpr uint32_t kChannelBytes =
    Format::kLayout == codec::CodeLayout::kNibbleTiles ? kMmaStep / 2 : kMmaStep;

/// first - second, exactly: both are numbers of sixteen bits, two to a word, and so are the
/// differences.
template <Codec kType>
QUIRE_KERNEL uint32_t Subtract16(uint32_t first, uint32_t second) {
#if defined(__CUDA_ARCH__)
  uint32_t difference;
  if constexpr (kType == Codec::kF16) {
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(first), "r"(second));
  } else {
    // -1 times the second; a subtraction of its own is there from sm_90 on.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(difference)
        : "r"(second), "r"(0xbf80bf80u), "r"(first));
  }
  return difference;
#else
  return Pack16<kType>(Widen16<kType>(first & 0xffffu) - Widen16<kType>(second & 0xffffu),
                       Widen16<kType>(first >> 16) - Widen16<kType>(second >> 16));
#endif
}

/// Two signed bytes as numbers: those that `selector` takes of `bytes`, each below a byte of the
/// exponent. With it the low bits of a byte stand in a number that is known but for them.
template <Codec kType>
QUIRE_KERNEL uint32_t NumbersOfBytes(uint32_t bytes, uint32_t selector) {
  if constexpr (kType == Codec::kF16) {
    // 1024 + 128 + the byte.
    return Subtract16<kType>(Permute(bytes ^ 0x80808080u, 0x64646464u, selector), 0x64806480u);
  } else {
    // 128 + its low seven bits, less 128, or 256 of a byte below zero.
    const uint32_t both = Permute(bytes, 0x43434343u, selector);
    return Subtract16<kType>(both & 0xff7fff7fu, both & 0xff80ff80u);
  }
}

/// Two codes of eight bits as numbers.
template <class Format, Codec kType>
QUIRE_KERNEL uint32_t NumbersOfFp8(uint32_t first, uint32_t second) {
  const uint32_t pair = Fp8Pair<Format>(first | second << 8);
  if constexpr (kType == Codec::kF16) return pair;
  return Pack16<kType>(WidenF16(static_cast<uint16_t>(pair)),
                       WidenF16(static_cast<uint16_t>(pair >> 16)));
}

/// Sixteen terms from `term` on. Codes of eight bits that lie in no tile have a row of bytes for
/// each term, `stride` apart.
template <class Format, Codec kType, class Thread>
QUIRE_KERNEL Fragment<uint32_t, 4> LoadCodes(const Warp<Thread>& warp, const std::byte* codes,
                                             uint32_t term, uint32_t stride) {
  using Layout = codec::CodeLayout;
  Fragment<uint32_t, 4> rows;
  warp.Lanes([&](uint32_t lane) {
    const uint32_t row = lane / 4;   // and the one eight later
    const uint32_t pair = lane % 4;  // of terms, and the one four later
    if constexpr (Format::kLayout == Layout::kBytes) {
      const std::byte* const from = codes + (term + pair * 2) * stride + row;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const std::byte* const at = from + i / 2 * 8 * stride + i % 2 * 8;
        rows(lane, i) = NumbersOfFp8<Format, kType>(Load<uint8_t>(at), Load<uint8_t>(at + stride));
      }
    } else if constexpr (Format::kLayout == Layout::kByteTiles) {
      const std::byte* const from = codes + (term / 2 + pair) * codec::kStepBytes + row * 2;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t at = i / 2 * 4 * codec::kStepBytes + i % 2 * 16;
        rows(lane, i) = NumbersOfBytes<kType>(Load<uint16_t>(from + at), 0x4140u);
      }
    } else {
      const std::byte* const from = codes + (term / 4 + pair / 2) * codec::kStepBytes + row * 4;
      QUIRE_DEVICE_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t four =
            Load<uint32_t>(from + i * 2 * codec::kStepBytes) >> pair % 2 * 4 & 0x0f0f0f0fu;
        if constexpr (std::is_same_v<Format, codec::Int4>) {
          // 1024 or 128 plus the code, less as much and 8.
          constexpr uint32_t kOne = kType == Codec::kF16 ? 0x64006400u : 0x43004300u;
          rows(lane, i * 2) = Subtract16<kType>((four & 0x000f000fu) | kOne, kOne + 0x00080008u);
          rows(lane, i * 2 + 1) =
              Subtract16<kType>((four >> 8 & 0x000f000fu) | kOne, kOne + 0x00080008u);
        } else {
          const uint32_t integers = NibbleIntegers<Format>(four);
          rows(lane, i * 2) = NumbersOfBytes<kType>(integers, 0x4240u);
          rows(lane, i * 2 + 1) = NumbersOfBytes<kType>(integers, 0x4341u);
        }
      }
    }
  });
  return rows;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_CODED_INL_H_
