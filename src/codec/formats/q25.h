// q25: two channels share a code of five bits, with a scale for each token.
#ifndef QUIRE_CODEC_FORMATS_Q25_H_
#define QUIRE_CODEC_FORMATS_Q25_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "codec/formats/table16.h"
#include "codec/scalar.h"

namespace quire::codec {

/// The points of the plane: the low four bits of a code choose one, the fifth negates both
/// coordinates. The 32 points are those of least squared error for two independent normal values of
/// variance 1 (Lloyd's algorithm, symmetric about the origin; 12.5 dB), rounded to odd 56ths: half
/// of 127 more than such a number has seven bits, and that of its negative has them inverted.
inline constexpr uint32_t kPairPoints = 16;
inline constexpr IntegerTable kPairFirstIntegers = {5,  33, 35, 5,   71,  43, 31, 73,
                                                    69, 11, 99, 123, 119, 49, 79, 19};
inline constexpr IntegerTable kPairSecondIntegers = {13, -15, 25,  -45, 7,  -59,  69, -33,
                                                     47, -85, -77, -17, 43, -115, 99, 127};
inline constexpr uint8_t kPairNegated = 16;
/// Not stored: says that the second coordinate is meant where a code stands for one value.
inline constexpr uint8_t kSecondOfPair = 32;

struct Q25 {
  static constexpr Codec kCodec = Codec::kQ25;
  static constexpr std::string_view kName = "q25";
  static constexpr CodeLayout kLayout = CodeLayout::kPairTiles;
  static constexpr bool kHasMids = false;
  static constexpr float kDivisor = 56.0f;
  static constexpr int32_t kBias = 127;

  static constexpr int32_t IntegerOf(uint8_t code) {
    constexpr IntegerTable kFirst = kPairFirstIntegers;
    constexpr IntegerTable kSecond = kPairSecondIntegers;
    const uint32_t point = code % kPairPoints;
    const int32_t value = (code & kSecondOfPair) != 0 ? kSecond[point] : kFirst[point];
    return (code & kPairNegated) != 0 ? -value : value;
  }
  static constexpr float ValueOf(uint8_t code) {
    return static_cast<float>(IntegerOf(code)) / kDivisor;
  }
};
inline constexpr auto kPairFirst = Divided(kPairFirstIntegers, Q25::kDivisor);
inline constexpr auto kPairSecond = Divided(kPairSecondIntegers, Q25::kDivisor);

/// Pairs of channels that share a code.
constexpr uint32_t PairCount(InnerAxis inner, uint32_t dim) {
  const uint32_t channels = inner == InnerAxis::kToken ? 4 : 2 * kTileLanes;
  return dim / channels * (channels / 2) + std::min(dim % channels, channels / 2);
}

/// The channels of a pair; `second` is dim where there is but one.
struct ChannelPair {
  uint32_t first = 0;
  uint32_t second = 0;
};

constexpr ChannelPair PairAt(InnerAxis inner, uint32_t dim, uint32_t pair) {
  const uint32_t apart = inner == InnerAxis::kToken ? 2 : kTileLanes;
  const uint32_t first = pair / apart * 2 * apart + pair % apart;
  return {first, std::min(first + apart, dim)};
}

/// The pair of a channel, and whether it is the second of it.
struct PairMember {
  uint32_t pair = 0;
  bool second = false;
};

constexpr PairMember PairOf(InnerAxis inner, uint32_t channel) {
  const uint32_t apart = inner == InnerAxis::kToken ? 2 : kTileLanes;
  return {channel / (2 * apart) * apart + channel % apart, channel / apart % 2 != 0};
}

/// Half the squared length of each point: what its product with a value must exceed to be near.
inline constexpr auto kPairCosts = [] {
  std::array<float, kPairPoints> costs{};
  for (uint32_t i = 0; i < kPairPoints; ++i) {
    costs[i] = 0.5f * (kPairFirst[i] * kPairFirst[i] + kPairSecond[i] * kPairSecond[i]);
  }
  return costs;
}();

/// The nearest point of two scaled values, the first of equally near ones.
constexpr uint8_t PairCode(float first, float second) {
  constexpr auto kFirst = kPairFirst;
  constexpr auto kSecond = kPairSecond;
  constexpr auto kCosts = kPairCosts;
  float best = -std::numeric_limits<float>::max();
  uint32_t code = 0;
  for (uint32_t i = 0; i < kPairPoints; ++i) {
    const float product = first * kFirst[i] + second * kSecond[i];
    const float gain = std::fabs(product) - kCosts[i];
    if (!(gain > best)) continue;
    best = gain;
    code = i | std::bit_cast<uint32_t>(product) >> 31 << 4;
  }
  return static_cast<uint8_t>(code);
}

/// Scales a token's pairs before their points are chosen, so that the values have variance 1.
constexpr float PairInverse(float sum_of_squares, uint32_t dim) {
  const float inverse = 1.0f / std::sqrt(sum_of_squares / static_cast<float>(dim));
  return inverse <= std::numeric_limits<float>::max() ? inverse : 0.0f;
}

/// The scale of least squared error once the points are chosen: products of values and points over
/// the points' squares.
constexpr uint16_t PairScale(float products, float squares) {
  const float scale = products / squares;
  return F32ToStoredF16(scale <= 65504.0f ? std::max(scale, 0.0f) : 65504.0f);
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_Q25_H_
