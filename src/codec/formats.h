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

/// Codecs whose codes stand for integers of at most 8 bits, in a unit of their own: attention
/// multiplies those, and sums are exact (docs/numerics.md).
constexpr bool HasIntegerCodes(Codec codec) {
  return codec == Codec::kInt8 || codec == Codec::kInt4 || codec == Codec::kNf4 ||
         codec == Codec::kFp4 || codec == Codec::kQ25;
}

/// What integers are divided by to give the code's value.
inline constexpr float kNf4Divisor = 63.0f;
inline constexpr float kFp4Divisor = 2.0f;
inline constexpr float kPairDivisor = 56.0f;

/// The value of integer 1, before scale and mid.
constexpr float IntegerUnit(Codec codec) {
  switch (codec) {
    case Codec::kNf4: return 1.0f / kNf4Divisor;
    case Codec::kFp4: return 1.0f / kFp4Divisor;
    case Codec::kQ25: return 1.0f / kPairDivisor;
    default: return 1.0f;
  }
}

/// Whole numbers of a 4-bit code, or of the points of a plane.
using IntegerTable = std::array<int8_t, 16>;

namespace internal {

constexpr std::array<float, 16> Divided(const IntegerTable& whole, float divisor) {
  std::array<float, 16> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(whole[i]) / divisor;
  return values;
}

}  // namespace internal

/// Codes of int4 are this much larger than what they stand for.
inline constexpr int32_t kInt4Bias = 8;

/// Quantiles of a normal distribution within -1..1, zero among them, rounded to 63rds: seven bits
/// are what attention can leave joined (attention/integer-inl.h). Source: QLoRA, arXiv 2305.14314,
/// appendix E.
inline constexpr IntegerTable kNf4Integers = {-63, -44, -33, -25, -18, -12, -6, 0,
                                              5,   10,  16,  21,  28,  35,  46, 63};
inline constexpr auto kNf4Table = internal::Divided(kNf4Integers, kNf4Divisor);

/// OCP E2M1, in halves.
inline constexpr IntegerTable kFp4Integers = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr auto kFp4Table = internal::Divided(kFp4Integers, kFp4Divisor);

/// Two channels share a code of `q25`: the low four bits choose a point of the plane, the fifth
/// negates both coordinates. The 32 points are those of least squared error for two independent
/// normal values of variance 1 (Lloyd's algorithm, symmetric about the origin; 12.5 dB), rounded to
/// odd 56ths: half of 127 more than such a number has seven bits, and that of its negative has them
/// inverted.
inline constexpr uint32_t kPairPoints = 16;
inline constexpr IntegerTable kPairFirstIntegers = {5,  33, 35, 5,   71,  43, 31, 73,
                                                    69, 11, 99, 123, 119, 49, 79, 19};
inline constexpr IntegerTable kPairSecondIntegers = {13, -15, 25,  -45, 7,  -59,  69, -33,
                                                     47, -85, -77, -17, 43, -115, 99, 127};
inline constexpr auto kPairFirst = internal::Divided(kPairFirstIntegers, kPairDivisor);
inline constexpr auto kPairSecond = internal::Divided(kPairSecondIntegers, kPairDivisor);
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
