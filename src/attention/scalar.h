// Arithmetic of docs/numerics.md, one value at a time: Exp, and fixed point of sixteen bits. The
// vector forms with the same bits: math-inl.h, fixed-inl.h.
#ifndef QUIRE_ATTENTION_SCALAR_H_
#define QUIRE_ATTENTION_SCALAR_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quire::attention {

inline constexpr float kExpArgumentMax = 88.0f;   // larger arguments count as this
inline constexpr float kExpArgumentMin = -86.5f;  // smaller ones give +0
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;  // 9 bits, so that n * kLn2High is exact
inline constexpr float kLn2Low = -2.12194440e-4f;
/// Adding this to |x| < 2^22 rounds x to the nearest even integer and leaves it in the low bits.
inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23
/// Coefficients of (e^r - 1 - r) / r^2, of r^5 to r^0 (Cephes expf). No array: device code cannot
/// read the elements of one that the host has.
inline constexpr float kExp5 = 1.9875691500e-4f;
inline constexpr float kExp4 = 1.3981999507e-3f;
inline constexpr float kExp3 = 8.3334519073e-3f;
inline constexpr float kExp2 = 4.1665795894e-2f;
inline constexpr float kExp1 = 1.6666665459e-1f;
inline constexpr float kExp0 = 5.0000001201e-1f;

/// e^x for finite x, relative error < 2e-7; at most e^88, +0 below -86.5.
constexpr float Exp(float x) {
  const float in_range = x > kExpArgumentMax ? kExpArgumentMax : x;
  const float shifted = in_range * kLog2E + kRoundMagic;
  const float n = shifted - kRoundMagic;
  float r = std::fma(n, -kLn2High, in_range);
  r = std::fma(n, -kLn2Low, r);
  float p = std::fma(kExp5, r, kExp4);
  p = std::fma(p, r, kExp3);
  p = std::fma(p, r, kExp2);
  p = std::fma(p, r, kExp1);
  p = std::fma(p, r, kExp0);
  const float y = std::fma(p, r * r, r) + 1.0f;
  // The low bits of `shifted` are n; the bits above them leave at the top.
  const auto scaled =
      std::bit_cast<float>(std::bit_cast<uint32_t>(y) + (std::bit_cast<uint32_t>(shifted) << 23));
  return x < kExpArgumentMin ? 0.0f : scaled;  // chosen at the end: lanes of a device stay together
}

// Fixed point of sixteen bits (docs/numerics.md): what queries and weights become before they are
// multiplied with integer codes. Sums of such products are exact in 32 bits, so their order
// does not show.

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
constexpr uint32_t MagnitudeBits(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_SCALAR_H_
