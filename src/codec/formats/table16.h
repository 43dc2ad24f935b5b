// Formats whose sixteen codes stand for the integers of a table: nf4, fp4, and any other of half a
// byte. One that ascends needs no code of its own, only its table and its names.
#ifndef QUIRE_CODEC_FORMATS_TABLE16_H_
#define QUIRE_CODEC_FORMATS_TABLE16_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/formats/format.h"

namespace quire::codec {

/// Integers of sixteen codes, or of the points of a plane.
using IntegerTable = std::array<int8_t, 16>;

constexpr std::array<float, 16> Divided(const IntegerTable& integers, float divisor) {
  std::array<float, 16> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(integers[i]) / divisor;
  return values;
}

/// Values are the table's integers, kIntegersPerOne of which make 1.
template <const IntegerTable& kTable, int kIntegersPerOne>
struct Table16 {
  static constexpr CodeLayout kLayout = CodeLayout::kNibbleTiles;
  static constexpr bool kHasMids = false;
  static constexpr const IntegerTable& kIntegers = kTable;
  static constexpr float kDivisor = kIntegersPerOne;
  static constexpr int32_t kBias = -*std::ranges::min_element(kTable);
  static constexpr auto kValues = Divided(kTable, kDivisor);
  static constexpr float kCodeMax = std::max(-*std::ranges::min_element(kValues),  //
                                             *std::ranges::max_element(kValues));
  // Attention leaves two of them joined in sixteen bits (attention/integer-inl.h).
  static_assert(*std::ranges::max_element(kTable) + kBias < 128, "with the bias more than 7 bits");

  // Copies of their own: device code has no table of the host's.
  static constexpr int32_t IntegerOf(uint8_t code) {
    constexpr IntegerTable kOwn = kTable;
    return kOwn[code];
  }
  static constexpr float ValueOf(uint8_t code) {
    constexpr std::array<float, 16> kOwn = kValues;
    return kOwn[code];
  }
};

/// A table that ascends.
template <const IntegerTable& kTable, int kIntegersPerOne>
struct AscendingTable16 : Table16<kTable, kIntegersPerOne> {
  static_assert(std::ranges::is_sorted(kTable));

  /// From here on, code i is nearer than code i - 1: halfway, in f32.
  static constexpr float Threshold(size_t i) {
    constexpr std::array<float, 16> kNumbers = Table16<kTable, kIntegersPerOne>::kValues;
    return (kNumbers[i - 1] + kNumbers[i]) * 0.5f;
  }

  static constexpr uint8_t CodeOf(float scaled) {
    uint8_t code = 0;
    for (size_t i = 1; i < 16; ++i) code += scaled >= Threshold(i) ? 1 : 0;
    return code;
  }
};

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_TABLE16_H_
