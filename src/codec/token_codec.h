// Encoding the values of one token and head, in plain loops: what every vector version must equal
// by memcmp. The parts that are done once for a token are the ones those use too.
#ifndef QUIRE_CODEC_TOKEN_CODEC_H_
#define QUIRE_CODEC_TOKEN_CODEC_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "base/check.h"
#include "codec/formats.h"
#include "codec/planes.h"
#include "codec/scalar.h"

namespace quire::codec {

/// What one token's codes are multiplied with, as stored, and what its values are encoded with.
struct TokenScale {
  uint16_t scale = 0;    // f16
  uint16_t mid = 0;      // f16
  float inverse = 0.0f;  // of scale; 0 for scale 0
  float offset = 0.0f;   // mid, widened
};

/// Marks a token with a NaN or an infinity: it reads as NaN, as it would have unencoded.
inline constexpr uint16_t kNanScale = 0x7e00;

namespace internal {

inline TokenScale WithInverse(uint16_t scale, uint16_t mid) {
  return {.scale = scale,
          .mid = mid,
          .inverse = scale == 0 ? 0.0f : 1.0f / F16ToF32(scale),
          .offset = F16ToF32(mid)};
}

}  // namespace internal

/// The scale of a token whose values lie within [low, high], for codes within [code_low,
/// code_high], and its mid. The mid is rounded first, the scale then never down: both ends have a
/// code.
inline TokenScale ScaleOfRange(float low, float high, float code_low, float code_high) {
  const float step = high / (code_high - code_low) - low / (code_high - code_low);
  const uint16_t mid = F32ToStoredF16(low - step * code_low);
  const float middle = F16ToF32(mid);
  const float above = (high - middle) / code_high;
  const float below = (low - middle) / code_low;
  return internal::WithInverse(F16NotBelow(above > below ? above : below), mid);
}

/// The scale of a token whose largest magnitude is `largest`, for codes up to code_max.
inline TokenScale ScaleOfMagnitude(float largest, float code_max) {
  return internal::WithInverse(F16NotBelow(largest / code_max), 0);
}

/// The largest magnitude of a codec's codes; codecs without mids.
constexpr float CodeMax(Codec codec) {
  switch (codec) {
    case Codec::kFp8E4m3: return kFp8E4m3Max;
    case Codec::kFp8E5m2: return kFp8E5m2Max;
    case Codec::kFp4: return 6.0f;
    default: return 1.0f;
  }
}

/// Smallest code of the codecs with mids; the largest is -1 - this.
constexpr float CodeLow(Codec codec) { return codec == Codec::kInt8 ? -128.0f : -8.0f; }

/// Adding it rounds a float below 2^22 to an integer, nearest even, in the lowest bits.
inline constexpr float kRoundMagic = 0x1.8p23f;

/// From here on, code i of nf4 is nearer than code i - 1: halfway, in f32.
constexpr float Nf4Threshold(size_t i) { return (kNf4Table[i - 1] + kNf4Table[i]) * 0.5f; }

/// E2M1 of a scaled value, nearest even, saturating.
constexpr uint8_t F32ToFp4(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 31;
  float magnitude = value < 0 ? -value : value;
  magnitude = magnitude < 6.0f ? magnitude : 6.0f;
  // Steps of 0.5 below 2, of 1 below 4, of 2 above.
  const float magic = magnitude < 2.0f ? 0x1p22f : magnitude < 4.0f ? 0x1p23f : 0x1p24f;
  const uint32_t first = magnitude < 2.0f ? 0 : magnitude < 4.0f ? 2 : 4;
  const uint32_t steps = std::bit_cast<uint32_t>(magnitude + magic) & 15u;
  return static_cast<uint8_t>(sign << 3 | (steps + first));
}

/// Added to a scaled value of int8 or int4 it leaves the code in the lowest bits.
constexpr float CodeMagic(Codec codec) {
  return kRoundMagic + (codec == Codec::kInt4 ? static_cast<float>(kInt4Bias) : 0.0f);
}

/// Code of a value scaled by `inverse`: of a whole byte, or in the low half of one.
inline uint8_t CodeOf(Codec codec, float value, const TokenScale& token) {
  switch (codec) {
    case Codec::kFp8E4m3: return F32ToFp8E4m3(value * token.inverse);
    case Codec::kFp8E5m2: return F32ToFp8E5m2(value * token.inverse);
    case Codec::kFp4: return F32ToFp4(value * token.inverse);
    case Codec::kInt8:
    case Codec::kInt4: {
      const float low = CodeLow(codec);
      const float scaled = (value - token.offset) * token.inverse;
      const float clamped = std::min(std::max(scaled, low), -1.0f - low);
      const auto code = static_cast<uint8_t>(std::bit_cast<uint32_t>(clamped + CodeMagic(codec)));
      return codec == Codec::kInt8 ? code : code & 15u;
    }
    case Codec::kNf4: {
      const float scaled = value * token.inverse;
      uint8_t code = 0;
      for (size_t i = 1; i < 16; ++i) code += scaled >= Nf4Threshold(i) ? 1 : 0;
      return code;
    }
    default: QUIRE_CHECK(false); return 0;
  }
}

/// The integer a code stands for.
inline int32_t IntegerOf(Codec codec, uint8_t code) {
  switch (codec) {
    case Codec::kInt8: return static_cast<int8_t>(code);
    case Codec::kInt4: return code - kInt4Bias;
    case Codec::kNf4: return kNf4Integers[code];
    case Codec::kFp4: return kFp4Integers[code];
    case Codec::kQ25: {
      const auto& points = (code & kSecondOfPair) != 0 ? kPairSecondIntegers : kPairFirstIntegers;
      const int32_t value = points[code % kPairPoints];
      return (code & kPairNegated) != 0 ? -value : value;
    }
    default: QUIRE_CHECK(false); return 0;
  }
}

/// The code's value before scale and mid.
inline float CodeValue(Codec codec, uint8_t code) {
  switch (codec) {
    case Codec::kFp8E4m3: return Fp8E4m3ToF32(code);
    case Codec::kFp8E5m2: return Fp8E5m2ToF32(code);
    case Codec::kNf4: return kNf4Table[code];
    case Codec::kFp4: return kFp4Table[code];
    case Codec::kQ25: return static_cast<float>(IntegerOf(codec, code)) / kPairDivisor;
    default: return static_cast<float>(IntegerOf(codec, code));
  }
}

/// Half the squared length of a point: what its product with a value must exceed to be near.
constexpr float PairCost(size_t i) {
  return 0.5f * (kPairFirst[i] * kPairFirst[i] + kPairSecond[i] * kPairSecond[i]);
}

/// The nearest point of two scaled values, the first of equally near ones.
inline uint8_t PairCode(float first, float second) {
  float best = -std::numeric_limits<float>::max();
  uint32_t code = 0;
  for (uint32_t i = 0; i < kPairPoints; ++i) {
    const float product = first * kPairFirst[i] + second * kPairSecond[i];
    const float gain = std::fabs(product) - PairCost(i);
    if (!(gain > best)) continue;
    best = gain;
    code = i | std::bit_cast<uint32_t>(product) >> 31 << 4;
  }
  return static_cast<uint8_t>(code);
}

/// Scales a token's pairs before their points are chosen, so that the values have variance 1.
inline float PairInverse(float sum_of_squares, uint32_t dim) {
  const float inverse = 1.0f / std::sqrt(sum_of_squares / static_cast<float>(dim));
  return inverse <= std::numeric_limits<float>::max() ? inverse : 0.0f;
}

/// The scale of least squared error once the points are chosen: products of values and points over
/// the points' squares.
inline uint16_t PairScale(float products, float squares) {
  const float scale = products / squares;
  return F32ToStoredF16(scale <= 65504.0f ? std::max(scale, 0.0f) : 65504.0f);
}

/// Encodes one token's values in q25; codes[p] is that of pair p. As EncodeToken otherwise.
inline uint16_t EncodePairs(InnerAxis inner, std::span<const float> values,
                            std::span<uint8_t> codes) {
  const auto dim = static_cast<uint32_t>(values.size());
  float sum_of_squares = 0.0f;
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    sum_of_squares += value * value;
  }
  const float inverse = finite ? PairInverse(sum_of_squares, dim) : 0.0f;
  float products = 0.0f;
  float squares = 0.0f;
  for (uint32_t p = 0; p < PairCount(inner, dim); ++p) {
    const ChannelPair pair = PairAt(inner, dim, p);
    const float first = finite ? values[pair.first] : 0.0f;
    const float second = finite && pair.second < dim ? values[pair.second] : 0.0f;
    codes[p] = PairCode(first * inverse, second * inverse);
    const float x = CodeValue(Codec::kQ25, codes[p]);
    const float y = CodeValue(Codec::kQ25, codes[p] | kSecondOfPair);
    products += first * x + second * y;
    squares += x * x + y * y;
  }
  return finite ? PairScale(products, squares) : kNanScale;
}

/// Encodes one token's values; codes[i] is the code of values[i]. Not for q25. A value that is not
/// finite makes the token NaN, with the codes of zeros.
inline TokenScale EncodeToken(Codec codec, std::span<const float> values,
                              std::span<uint8_t> codes) {
  float low = std::numeric_limits<float>::max();
  float high = -low;
  float largest = 0.0f;
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    low = std::min(low, value);
    high = std::max(high, value);
    largest = std::max(largest, std::fabs(value));
  }
  TokenScale token = !finite ? internal::WithInverse(0, 0)
                     : HasMids(codec)
                         ? ScaleOfRange(low, high, CodeLow(codec), -1.0f - CodeLow(codec))
                         : ScaleOfMagnitude(largest, CodeMax(codec));
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = CodeOf(codec, finite ? values[i] : 0.0f, token);
  }
  if (!finite) token.scale = kNanScale;
  return token;
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_TOKEN_CODEC_H_
