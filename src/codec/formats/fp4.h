// fp4: E2M1 of OCP, with a scale for each token.
#ifndef QUIRE_CODEC_FORMATS_FP4_H_
#define QUIRE_CODEC_FORMATS_FP4_H_

#include <bit>
#include <cstdint>

#include "codec/formats/table16.h"

namespace quire::codec {

/// Twice the values: the fourth bit is the sign.
inline constexpr IntegerTable kFp4Integers = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};

struct Fp4 : Table16<kFp4Integers, 2> {
  static constexpr Codec kCodec = Codec::kFp4;
  static constexpr std::string_view kName = "fp4";

  /// Nearest even, saturating.
  static constexpr uint8_t CodeOf(float scaled) {
    const uint32_t sign = std::bit_cast<uint32_t>(scaled) >> 31;
    float magnitude = scaled < 0 ? -scaled : scaled;
    magnitude = magnitude < kCodeMax ? magnitude : kCodeMax;
    // Steps of 0.5 below 2, of 1 below 4, of 2 above.
    const float magic = magnitude < 2.0f ? 0x1p22f : magnitude < 4.0f ? 0x1p23f : 0x1p24f;
    const uint32_t first = magnitude < 2.0f ? 0 : magnitude < 4.0f ? 2 : 4;
    const uint32_t steps = std::bit_cast<uint32_t>(magnitude + magic) & 15u;
    return static_cast<uint8_t>(sign << 3 | (steps + first));
  }
};

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_FP4_H_
