// Tables of sixteen for vectors of any target, and the codes of those that ascend.
#include "codec/formats/table16.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_FORMATS_TABLE16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_FORMATS_TABLE16_INL_H_
#undef QUIRE_CODEC_FORMATS_TABLE16_INL_H_
#else
#define QUIRE_CODEC_FORMATS_TABLE16_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Value `index` of the first kCount of a table, in every lane. kCount is a power of two; the table
/// has as many entries as the largest vector has lanes.
template <size_t kCount, class D>
HWY_INLINE hn::Vec<D> LookUp(D d, const float* table, hn::Vec<hn::RebindToSigned<D>> index) {
  if constexpr (hn::MaxLanes(D()) >= kCount) {
    return hn::TableLookupLanes(hn::LoadU(d, table), hn::IndicesFromVec(d, index));
  } else {
    // Two halves, and the index's highest bit between them.
    const hn::RebindToSigned<D> di;
    const auto half = hn::Set(di, static_cast<int32_t>(kCount / 2));
    const auto rest = hn::AndNot(half, index);
    const auto is_high = hn::RebindMask(d, hn::Eq(hn::And(index, half), half));
    return hn::IfThenElse(is_high, LookUp<kCount / 2>(d, table + kCount / 2, rest),
                          LookUp<kCount / 2>(d, table, rest));
  }
}

/// Thresholds first, first + step, first + 2 step ... of a table that ascends, then zeros.
template <class Format>
constexpr std::array<float, 16> Thresholds(size_t first, size_t step) {
  std::array<float, 16> thresholds{};
  for (size_t i = 0; first + i * step < 16; ++i) {
    thresholds[i] = Format::Threshold(first + i * step);
  }
  return thresholds;
}
template <class Format, size_t kFirst>
inline constexpr auto kThresholds = Thresholds<Format>(kFirst, 2 * kFirst);

/// The number of thresholds reached, bit by bit from the highest: they ascend.
template <const IntegerTable& kTable, int kIntegersPerOne, class D>
HWY_INLINE auto Codes(AscendingTable16<kTable, kIntegersPerOne>, D d, hn::Vec<D> scaled) {
  using Format = AscendingTable16<kTable, kIntegersPerOne>;
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const auto one = hn::Set(di, 1);
  const auto beyond = [&](hn::Vec<D> threshold) HWY_ATTR {
    return hn::IfThenElseZero(hn::RebindMask(di, hn::Ge(scaled, threshold)), one);
  };
  auto code = beyond(hn::Set(d, Format::Threshold(8)));
  code = hn::Add(hn::Add(code, code), beyond(LookUp<2>(d, kThresholds<Format, 4>.data(), code)));
  code = hn::Add(hn::Add(code, code), beyond(LookUp<4>(d, kThresholds<Format, 2>.data(), code)));
  code = hn::Add(hn::Add(code, code), beyond(LookUp<8>(d, kThresholds<Format, 1>.data(), code)));
  return hn::BitCast(du, code);
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
