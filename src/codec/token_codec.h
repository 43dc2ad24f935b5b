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

/// The f16 code of the smallest f16 that is not below `value`, at most 65504. Needs value >= 0;
/// NaN and infinity become 65504, -0 becomes 0.
constexpr uint16_t F16NotBelow(float value) {
  if (value == 0.0f) return 0;
  if (!(value <= 65504.0f)) return 0x7bff;
  const uint16_t code = F32ToF16(value);
  return F16ToF32(code) < value ? static_cast<uint16_t>(code + 1) : code;
}

/// The factor of one token's codes, as stored, and the numbers that its values are encoded with.
struct TokenScale {
  uint16_t scale = 0;    // f16
  uint16_t mid = 0;      // f16
  float inverse = 0.0f;  // of scale; 0 for scale 0
  float offset = 0.0f;   // mid, widened
};

/// Marks a token with a NaN or an infinity: it reads as NaN, as it would have unencoded.
inline constexpr uint16_t kNanScale = 0x7e00;

namespace internal {

constexpr TokenScale WithInverse(uint16_t scale, uint16_t mid) {
  return {.scale = scale,
          .mid = mid,
          .inverse = scale == 0 ? 0.0f : 1.0f / F16ToF32(scale),
          .offset = F16ToF32(mid)};
}

}  // namespace internal

/// The scale of a token whose values lie within [low, high], for codes within [code_low,
/// code_high], and its mid. The mid is rounded first, the scale then never down: both ends have a
/// code.
constexpr TokenScale ScaleOfRange(float low, float high, float code_low, float code_high) {
  const float step = high / (code_high - code_low) - low / (code_high - code_low);
  const uint16_t mid = F32ToStoredF16(low - step * code_low);
  const float middle = F16ToF32(mid);
  const float above = (high - middle) / code_high;
  const float below = (low - middle) / code_low;
  return internal::WithInverse(F16NotBelow(above > below ? above : below), mid);
}

/// The scale of a token whose largest magnitude is `largest`, for codes up to code_max.
constexpr TokenScale ScaleOfMagnitude(float largest, float code_max) {
  return internal::WithInverse(F16NotBelow(largest / code_max), 0);
}

/// The scale, and mid, of a token whose values lie within [low, high].
template <class Format>
constexpr TokenScale ScaleOf(float low, float high) {
  if constexpr (Format::kHasMids) {
    return ScaleOfRange(low, high, Format::kLow, Format::kHigh);
  } else {
    return ScaleOfMagnitude(std::fabs(std::max(-low, high)), Format::kCodeMax);
  }
}

namespace internal {

constexpr bool IsFinite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u;
}

// Both take the token's values as value_at(channel) and hand its codes to put(number, code), so
// that the host and kernels of devices share them.

/// Codes of pairs of channels: their points are chosen before the scale.
template <typename ValueAt, typename Put>
constexpr TokenScale EncodePairs(InnerAxis inner, uint32_t dim, const ValueAt& value_at,
                                 const Put& put) {
  float sum_of_squares = 0.0f;
  bool finite = true;
  for (uint32_t d = 0; d < dim; ++d) {
    const float value = value_at(d);
    finite = finite && IsFinite(value);
    sum_of_squares += value * value;
  }
  const float inverse = finite ? PairInverse(sum_of_squares, dim) : 0.0f;
  float products = 0.0f;
  float squares = 0.0f;
  for (uint32_t p = 0; p < PairCount(inner, dim); ++p) {
    const ChannelPair pair = PairAt(inner, dim, p);
    const float first = finite ? value_at(pair.first) : 0.0f;
    const float second = finite && pair.second < dim ? value_at(pair.second) : 0.0f;
    const uint8_t code = PairCode(first * inverse, second * inverse);
    put(p, code);
    const float x = Q25::ValueOf(code);
    const float y = Q25::ValueOf(code | kSecondOfPair);
    products += first * x + second * y;
    squares += x * x + y * y;
  }
  return {.scale = finite ? PairScale(products, squares) : kNanScale};
}

template <class Format, typename ValueAt, typename Put>
constexpr TokenScale EncodeValues(uint32_t dim, const ValueAt& value_at, const Put& put) {
  float low = std::numeric_limits<float>::max();
  float high = -low;
  bool finite = true;
  for (uint32_t d = 0; d < dim; ++d) {
    const float value = value_at(d);
    finite = finite && IsFinite(value);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  TokenScale token = finite ? ScaleOf<Format>(low, high) : WithInverse(0, 0);
  for (uint32_t d = 0; d < dim; ++d) {
    const float value = (finite ? value_at(d) : 0.0f) - token.offset;
    put(d, Format::CodeOf(value * token.inverse));
  }
  if (!finite) token.scale = kNanScale;
  return token;
}

}  // namespace internal

/// Encodes one token's values; codes[i] is the code of values[i], or of pair i. A value that is not
/// finite makes the token NaN, with the codes of zeros.
///
/// Shape: codes [CodeCount(codec, inner, values.size())]
inline TokenScale EncodeToken(Codec codec, InnerAxis inner, std::span<const float> values,
                              std::span<uint8_t> codes) {
  const auto dim = static_cast<uint32_t>(values.size());
  const auto value_at = [&](uint32_t d) { return values[d]; };
  const auto put = [&](uint32_t number, uint8_t code) { codes[number] = code; };
  return WithFormat(codec, [&](auto format) {
    if constexpr (format.kLayout == CodeLayout::kPairTiles) {
      return internal::EncodePairs(inner, dim, value_at, put);
    } else {
      return internal::EncodeValues<decltype(format)>(dim, value_at, put);
    }
  });
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_TOKEN_CODEC_H_
