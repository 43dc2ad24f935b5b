// int8 and int4: values are mid + scale * integer, so both ends of a token's range have a code.
#ifndef QUIRE_CODEC_FORMATS_INT_H_
#define QUIRE_CODEC_FORMATS_INT_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "codec/formats/format.h"

namespace quire::codec {

/// Integers of `kBits` bits, stored with `kBiasOfCodes` added.
template <int kBits, int kBiasOfCodes>
struct IntBits {
  static constexpr bool kHasMids = true;
  static constexpr float kDivisor = 1.0f;
  static constexpr int32_t kBias = kBiasOfCodes;
  static constexpr float kLow = -static_cast<float>(1 << (kBits - 1));
  static constexpr float kHigh = -1.0f - kLow;
  /// Added to a scaled value it leaves the code in the lowest bits, rounded to nearest even.
  static constexpr float kMagic = 0x1.8p23f + static_cast<float>(kBias);

  static constexpr uint8_t CodeOf(float scaled) {
    // Values of their own: device code has no address of the host's constants.
    constexpr float kOwnLow = kLow;
    constexpr float kOwnHigh = kHigh;
    const float clamped = std::min(std::max(scaled, kOwnLow), kOwnHigh);
    return std::bit_cast<uint32_t>(clamped + kMagic) & ((1u << kBits) - 1u);
  }
};

struct Int8 : IntBits<8, 0> {
  static constexpr Codec kCodec = Codec::kInt8;
  static constexpr std::string_view kName = "int8";
  static constexpr CodeLayout kLayout = CodeLayout::kByteTiles;

  static constexpr int32_t IntegerOf(uint8_t code) { return static_cast<int8_t>(code); }
  static constexpr float ValueOf(uint8_t code) { return static_cast<float>(IntegerOf(code)); }
};

struct Int4 : IntBits<4, 8> {
  static constexpr Codec kCodec = Codec::kInt4;
  static constexpr std::string_view kName = "int4";
  static constexpr CodeLayout kLayout = CodeLayout::kNibbleTiles;

  static constexpr int32_t IntegerOf(uint8_t code) { return code - kBias; }
  static constexpr float ValueOf(uint8_t code) { return static_cast<float>(IntegerOf(code)); }
};

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_INT_H_
