// Fixed point of sixteen bits (docs/numerics.md): what queries and weights become before they are
// multiplied with integer codes. Sums of such products are exact in 32 bits, so their order
// does not show.
#ifndef QUIRE_ATTENTION_FIXED_H_
#define QUIRE_ATTENTION_FIXED_H_

#include <bit>
#include <cstdint>
#include <limits>

namespace quire::attention {

/// The largest magnitude of a fixed number. With codes of at most 128 the products of 512 channels
/// stay below 2^31.
inline constexpr float kFixedMax = 32767.0f;
/// Rows whose values are all below are zeros.
inline constexpr float kFixedSmallest = 0x1p-100f;
/// Tokens whose weights share a unit.
inline constexpr uint32_t kGroupTokens = 64;

/// What a row's values are multiplied with to be whole, and what 1 is worth afterwards.
struct FixedScale {
  float inverse = 0.0f;
  float unit = 0.0f;
};

/// `largest_bits` are those of the row's largest magnitude; a row with a NaN or an infinity is NaN.
constexpr FixedScale FixedScaleOf(uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return {0.0f, std::numeric_limits<float>::quiet_NaN()};
  const float largest = std::bit_cast<float>(largest_bits);
  if (largest < kFixedSmallest) return {};
  return {kFixedMax / largest, largest * (1.0f / kFixedMax)};
}

/// Bits of a magnitude: they ascend with it, NaN above all.
constexpr uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_FIXED_H_
