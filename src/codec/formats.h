// What the codes of docs/codecs.md stand for, one at a time: the judge of every vector version.
#ifndef QUIRE_CODEC_FORMATS_H_
#define QUIRE_CODEC_FORMATS_H_

#include <array>
#include <bit>
#include <cstdint>

#include "base/float_bits.h"
#include "quire/geometry.h"

namespace quire::codec {

/// Codecs whose values are mid + scale * code; the others have no mid.
constexpr bool HasMids(Codec codec) { return codec == Codec::kInt8 || codec == Codec::kInt4; }

/// Bits of an 8-bit float with `kMantissaBits`, as f32 has them.
template <int kMantissaBits, int kBias>
struct Fp8Format {
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kBiasBits = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr float kMinNormal =
      std::bit_cast<float>(static_cast<uint32_t>(128 - kBias) << 23);
  /// Added to a magnitude below kMinNormal it leaves the code in the lowest bits, rounded.
  static constexpr float kDenormalMagic = kMinNormal * static_cast<float>(1 << kShift);
};
using E4m3 = Fp8Format<3, 7>;
using E5m2 = Fp8Format<2, 15>;

inline constexpr float kFp8E4m3Max = 448.0f;
inline constexpr float kFp8E5m2Max = 57344.0f;

/// OCP E4M3 ("e4m3fn": no infinity, one NaN of either sign).
constexpr float Fp8E4m3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t bits = code & 0x7fu;
  if (bits == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  const float magnitude = bits < 8 ? static_cast<float>(bits) * 0x1p-9f
                                   : std::bit_cast<float>((bits << 20) + E4m3::kBiasBits);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// OCP E5M2: the upper half of an f16.
constexpr float Fp8E5m2ToF32(uint8_t code) { return F16ToF32(static_cast<uint16_t>(code << 8)); }

namespace internal {

template <class Format>
constexpr uint8_t Fp8Magnitude(float magnitude) {
  if (magnitude < Format::kMinNormal) {
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(magnitude + Format::kDenormalMagic));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t odd = (bits >> Format::kShift) & 1u;
  const uint32_t half = (1u << (Format::kShift - 1)) - 1u;
  return static_cast<uint8_t>((bits - Format::kBiasBits + half + odd) >> Format::kShift);
}

template <class Format>
constexpr uint8_t F32ToFp8(float value, float max, uint8_t nan) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (magnitude != magnitude) return static_cast<uint8_t>(sign | nan);
  return static_cast<uint8_t>(sign | Fp8Magnitude<Format>(magnitude < max ? magnitude : max));
}

}  // namespace internal

/// Nearest even; everything beyond the largest value, infinities too, becomes that value.
constexpr uint8_t F32ToFp8E4m3(float value) {
  return internal::F32ToFp8<E4m3>(value, kFp8E4m3Max, 0x7f);
}
constexpr uint8_t F32ToFp8E5m2(float value) {
  return internal::F32ToFp8<E5m2>(value, kFp8E5m2Max, 0x7e);
}

namespace internal {

/// Tables hold f16, so that kernels may widen codes by way of f16.
template <size_t kCount>
constexpr std::array<float, kCount> InF16(std::array<float, kCount> values) {
  for (float& value : values) value = F16ToF32(F32ToF16(value));
  return values;
}

}  // namespace internal

/// Values of the codes 0..15 of the 4-bit codecs.
inline constexpr std::array<float, 16> kInt4Table = {0,  1,  2,  3,  4,  5,  6,  7,
                                                     -8, -7, -6, -5, -4, -3, -2, -1};

/// Quantiles of a normal distribution within -1..1, zero among them, rounded to f16. Source: QLoRA,
/// arXiv 2305.14314, appendix E.
inline constexpr std::array<float, 16> kNf4Table = internal::InF16<16>(
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f});

/// OCP E2M1.
inline constexpr std::array<float, 16> kFp4Table = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                    4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                    -2.0f, -3.0f, -4.0f, -6.0f};

/// Two channels share a code of `q25`: the low four bits choose a point of the plane, the fifth
/// negates both coordinates. The 32 points are those of least squared error for two independent
/// normal values of variance 1 (Lloyd's algorithm, symmetric about the origin; 12.5 dB), rounded to
/// f16.
inline constexpr uint32_t kPairPoints = 16;
inline constexpr std::array<float, kPairPoints> kPairFirst = internal::InF16<kPairPoints>(
    {0.0973f, 0.5926f, 0.6282f, 0.0674f, 1.2927f, 0.7706f, 0.5534f, 1.2866f, 1.2079f, 0.1768f,
     1.7588f, 2.2168f, 2.1080f, 0.8836f, 1.4144f, 0.3542f});
inline constexpr std::array<float, kPairPoints> kPairSecond = internal::InF16<kPairPoints>(
    {0.2357f, -0.2756f, 0.4625f, -0.7981f, 0.1224f, -1.0462f, 1.2386f, -0.5671f, 0.8614f, -1.4959f,
     -1.3806f, -0.3076f, 0.7885f, -2.0714f, 1.7700f, 2.2531f});
inline constexpr uint8_t kPairNegated = 16;
/// Not stored: says that the second coordinate is meant where a code stands for one value.
inline constexpr uint8_t kSecondOfPair = 32;

/// The f16 code of the smallest f16 that is not below `value`, at most 65504. Needs value >= 0;
/// NaN and infinity become 65504, -0 becomes 0.
constexpr uint16_t F16NotBelow(float value) {
  if (value == 0.0f) return 0;
  if (!(value <= 65504.0f)) return 0x7bff;
  const uint16_t code = F32ToF16(value);
  return F16ToF32(code) < value ? static_cast<uint16_t>(code + 1) : code;
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_H_
