// Codes of eight bits that stand for floats, on their way from shared memory, where they lie as a
// slot has them, to registers: those of sixteen *lanes*, which have sums of their own, and as many
// *terms* become the first factor of a matrix instruction, whose rows are lanes. Sixteen bits hold
// what they stand for exactly.
#ifndef QUIRE_CUDA_KERNELS_MMA_CODED_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_CODED_INL_H_

#include <cstdint>

#include "codec/formats.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

/// In the place of a codec: numbers of sixteen bits that are multiplied as they are. Rows of them
/// are terms, or lanes.
struct Numbers16 {};
struct RowsOfNumbers16 {};

/// f(format) of codes that stand for floats.
template <typename F>
QUIRE_KERNEL void WithFloats(Codec codec, const F& f) {
  if (codec == Codec::kFp8E4m3) return f(codec::Fp8E4m3());
  f(codec::Fp8E5m2());
}

/// Two codes of eight bits as f16, which holds them exactly.
template <class Format>
QUIRE_KERNEL uint32_t Fp8Pair(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  if constexpr (Format::kCodec == Codec::kFp8E4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
  }
  return pair;
#else
  return Pack16<Codec::kF16>(Format::ValueOf(static_cast<uint8_t>(codes)),
                             Format::ValueOf(static_cast<uint8_t>(codes >> 8)));
#endif
}

/// Two codes as numbers.
template <class Format, Codec kType>
QUIRE_KERNEL uint32_t NumbersOf(uint32_t first, uint32_t second) {
  const uint32_t pair = Fp8Pair<Format>(first | second << 8);
  if constexpr (kType == Codec::kF16) return pair;
  return Pack16<kType>(WidenF16(static_cast<uint16_t>(pair)),
                       WidenF16(static_cast<uint16_t>(pair >> 16)));
}

/// Sixteen terms from `codes` on, a row of bytes each, `stride` apart.
template <class Format, Codec kType, class Thread>
QUIRE_KERNEL Fragment<uint32_t, 4> LoadCodes(const Warp<Thread>& warp, const std::byte* codes,
                                             uint32_t stride) {
  Fragment<uint32_t, 4> rows;
  warp.Lanes([&](uint32_t lane) {
    // A lane and the one eight later, of two neighbouring terms and those eight later.
    const std::byte* const from = codes + lane % 4 * 2 * stride + lane / 4;
    QUIRE_DEVICE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const std::byte* const at = from + i / 2 * 8 * stride + i % 2 * 8;
      rows(lane, i) = NumbersOf<Format, kType>(Load<uint8_t>(at), Load<uint8_t>(at + stride));
    }
  });
  return rows;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_CODED_INL_H_
