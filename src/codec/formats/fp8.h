// fp8: eight bits of a float, E4M3 and E5M2 of OCP, with a scale for each token.
#ifndef QUIRE_CODEC_FORMATS_FP8_H_
#define QUIRE_CODEC_FORMATS_FP8_H_

#include <bit>
#include <cstdint>

#include "base/float_bits.h"
#include "codec/formats/format.h"

namespace quire::codec {

/// Bits of an 8-bit float with so many bits of mantissa, as f32 has them.
template <int kMantissaBits, int kExponentBias>
struct Fp8Bits {
  static constexpr CodeLayout kLayout = CodeLayout::kBytes;
  static constexpr bool kHasMids = false;

  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kBiasBits = static_cast<uint32_t>(127 - kExponentBias) << 23;
  static constexpr float kMinNormal =
      std::bit_cast<float>(static_cast<uint32_t>(128 - kExponentBias) << 23);
  /// Added to a magnitude below kMinNormal it leaves the code in the lowest bits, rounded.
  static constexpr float kDenormalMagic = kMinNormal * static_cast<float>(1 << kShift);
  /// The code is an f16 but for a shift, and for the bias: its value is so many times that f16's.
  static constexpr int kF16Shift = 10 - kMantissaBits;
  static constexpr float kF16Unit = static_cast<float>(1 << (15 - kExponentBias));

  /// Nearest even. Everything beyond the largest value, infinities too, becomes that value.
  static constexpr uint8_t CodeOf(float value, float max, uint8_t nan) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
    const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
    if (magnitude != magnitude) return static_cast<uint8_t>(sign | nan);
    return static_cast<uint8_t>(sign | CodeOfMagnitude(magnitude < max ? magnitude : max));
  }

 private:
  static constexpr uint8_t CodeOfMagnitude(float magnitude) {
    if (magnitude < kMinNormal) {
      return static_cast<uint8_t>(std::bit_cast<uint32_t>(magnitude + kDenormalMagic));
    }
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    const uint32_t odd = (bits >> kShift) & 1u;
    const uint32_t half = (1u << (kShift - 1)) - 1u;
    return static_cast<uint8_t>((bits - kBiasBits + half + odd) >> kShift);
  }
};

/// OCP E4M3 ("e4m3fn": no infinity, one NaN of either sign).
struct Fp8E4m3 : Fp8Bits<3, 7> {
  static constexpr Codec kCodec = Codec::kFp8E4m3;
  static constexpr std::string_view kName = "fp8_e4m3";
  static constexpr float kCodeMax = 448.0f;
  static constexpr bool kHasInfinity = false;

  static constexpr uint8_t CodeOf(float scaled) { return Fp8Bits::CodeOf(scaled, kCodeMax, 0x7f); }
  static constexpr float ValueOf(uint8_t code) {
    const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
    const uint32_t bits = code & 0x7fu;
    if (bits == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
    const float magnitude = bits < 8 ? static_cast<float>(bits) * 0x1p-9f
                                     : std::bit_cast<float>((bits << 20) + kBiasBits);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
};

/// OCP E5M2: the upper half of an f16.
struct Fp8E5m2 : Fp8Bits<2, 15> {
  static constexpr Codec kCodec = Codec::kFp8E5m2;
  static constexpr std::string_view kName = "fp8_e5m2";
  static constexpr float kCodeMax = 57344.0f;
  static constexpr bool kHasInfinity = true;

  static constexpr uint8_t CodeOf(float scaled) { return Fp8Bits::CodeOf(scaled, kCodeMax, 0x7e); }
  static constexpr float ValueOf(uint8_t code) {
    return F16ToF32(static_cast<uint16_t>(code << 8));
  }
};

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_FP8_H_
