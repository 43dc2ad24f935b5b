// Codes of fp8 to f16, exactly, in scratch of the first-level cache: for vectors of eight lanes the
// cheapest way to f32. fp8 is f16 but for a shift, and f16 in memory becomes f32 in one operation,
// which codes in a register do not. Kernels then read the scratch as if it were f16
// (halves_decode-inl.h).
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
#include <type_traits>

// The only target with vectors of eight lanes.
#if HWY_TARGET == HWY_AVX2

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Eight f16: half a channel's tokens in a column of K, eight channels of a token of V.
inline constexpr size_t kPieceLanes = 8;

/// What halves are multiplied with to be the values: E4M3 has one bit of exponent less, and one of
/// mantissa more.
template <class Values>
inline constexpr float kHalfUnit = std::is_same_v<Values, Fp8E4m3Values> ? 256.0f : 1.0f;

/// Sixteen codes as f16.
template <class Values>
HWY_INLINE void StoreHalves(const std::byte* codes, uint16_t* to) {
  constexpr bool kE4m3 = std::is_same_v<Values, Fp8E4m3Values>;
  const hn::FixedTag<int16_t, 16> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
  auto bits = hn::ShiftLeft<kE4m3 ? 7 : 8>(wide);
  if constexpr (kE4m3) bits = hn::And(bits, hn::Set(d16, static_cast<int16_t>(0xbfff)));
  hn::StoreU(bits, d16, reinterpret_cast<int16_t*>(to));
}

/// Channels [begin, end) of a column of K, sixteen halves each.
template <class Values>
HWY_INLINE void KeyHalves(const std::byte* codes, size_t row_bytes, size_t begin, size_t end,
                          uint16_t* to) {
  QUIRE_UNROLL_FEW
  for (size_t i = begin; i < end; ++i, to += kColumnTokens) {
    StoreHalves<Values>(codes + i * row_bytes, to);
  }
}

/// Channels [begin, end) of every token of V, tokens `to_stride` apart.
template <class Values>
HWY_INLINE void ValueHalves(const std::byte* codes, size_t row_bytes, uint32_t tokens, size_t begin,
                            size_t end, uint16_t* to, size_t to_stride) {
  constexpr size_t kUnit = 16;
  const size_t units_end = begin + (end - begin) / kUnit * kUnit;
  for (uint32_t t = 0; t < tokens; ++t, codes += row_bytes, to += to_stride) {
    QUIRE_UNROLL_FEW
    for (size_t i = begin; i < units_end; i += kUnit) {
      StoreHalves<Values>(codes + i, to + (i - begin));
    }
    if (units_end == end) continue;
    // Beyond the row nothing may be read: +0.
    alignas(16) std::byte last[kUnit] = {};
    std::memcpy(last, codes + units_end, end - units_end);
    StoreHalves<Values>(last, to + (units_end - begin));
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2

#endif  // include guard
