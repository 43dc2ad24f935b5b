// Codes of fp8 to f16, exactly, in scratch of the first-level cache: the cheapest way to f32, as f16
// in memory becomes f32 in one operation, which codes in a register do not. Kernels then read the
// scratch as if it were f16 (halves_decode-inl.h).
#include "attention/encoded-inl.h"
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_HALVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_HALVES_INL_H_
#undef QUIRE_ATTENTION_HALVES_INL_H_
#else
#define QUIRE_ATTENTION_HALVES_INL_H_
#endif

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Codes that are widened at a time: a vector of f16.
inline constexpr size_t kWidened = 2 * kVecLanes;

/// kCodes codes as f16.
template <class Values, size_t kCodes>
HWY_INLINE void StoreHalves(const std::byte* codes, uint16_t* to) {
  const hn::FixedTag<int16_t, kCodes> d16;
  hn::StoreU(Values::LoadHalves(d16, codes), d16, reinterpret_cast<int16_t*>(to));
}

/// Channels [begin, end) of a column of K, sixteen halves each.
template <class Values>
HWY_INLINE void KeyHalves(const std::byte* codes, size_t row_bytes, size_t begin, size_t end,
                          uint16_t* to) {
  constexpr size_t kRows = kWidened / kColumnTokens;
  size_t i = begin;
  if (row_bytes == kColumnTokens) {
    QUIRE_UNROLL_FEW
    for (; i + kRows <= end; i += kRows, to += kWidened) {
      StoreHalves<Values, kWidened>(codes + i * row_bytes, to);
    }
  }
  QUIRE_UNROLL_FEW
  for (; i < end; ++i, to += kColumnTokens) {
    StoreHalves<Values, kColumnTokens>(codes + i * row_bytes, to);
  }
}

/// Channels [begin, end) of every token of V, tokens `to_stride` apart.
template <class Values>
HWY_INLINE void ValueHalves(const std::byte* codes, size_t row_bytes, uint32_t tokens, size_t begin,
                            size_t end, uint16_t* to, size_t to_stride) {
  const size_t units_end = begin + (end - begin) / kWidened * kWidened;
  for (uint32_t t = 0; t < tokens; ++t, codes += row_bytes, to += to_stride) {
    QUIRE_UNROLL_FEW
    for (size_t i = begin; i < units_end; i += kWidened) {
      StoreHalves<Values, kWidened>(codes + i, to + (i - begin));
    }
    if (units_end == end) continue;
    // Beyond the row nothing may be read: +0.
    alignas(32) std::byte last[kWidened] = {};
    std::memcpy(last, codes + units_end, end - units_end);
    StoreHalves<Values, kWidened>(last, to + (units_end - begin));
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
