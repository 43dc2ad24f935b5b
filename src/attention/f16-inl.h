// Codes of fp8 to f16, exactly, in scratch of the first-level cache: the cheapest way to f32, as
// f16 in memory becomes f32 in one operation, which codes in a register do not. Kernels then read
// the scratch as if it were f16 (f16_decode-inl.h).
#include "attention/decode-inl.h"
#include "attention/tile-inl.h"
#include "codec/formats/fp8-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_F16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_F16_INL_H_
#undef QUIRE_ATTENTION_F16_INL_H_
#else
#define QUIRE_ATTENTION_F16_INL_H_
#endif

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// Codes that are widened at a time: a vector of f16.
inline constexpr size_t kWidened = 2 * kVecLanes;

/// kCodes codes as f16.
template <class Values, size_t kCodes>
HWY_INLINE void StoreF16(const std::byte* codes, uint16_t* to) {
  const hn::FixedTag<int16_t, kCodes> d16;
  hn::StoreU(Values::LoadF16(d16, codes), d16, reinterpret_cast<int16_t*>(to));
}

/// Where fetching is while codes are widened.
struct CodesAhead {
  const std::byte* far = nullptr;  // as many codes that are wanted some planes later, or null
  size_t near_bytes = 0;           // from codes to those that are widened next

  CodesAhead From(size_t bytes) const {
    return {far == nullptr ? nullptr : far + bytes, near_bytes};
  }
};

/// `count` codes, a multiple of kWidened, one after the other.
template <class Values>
HWY_INLINE void WidenCodes(const std::byte* codes, size_t count, const CodesAhead& ahead,
                           uint16_t* to) {
  size_t i = 0;
  QUIRE_UNROLL_FEW
  for (; i + kLineBytes <= count; i += kLineBytes) {
    if (ahead.far != nullptr) FetchFar(ahead.far + i);
    FetchNear(codes + ahead.near_bytes + i);
    QUIRE_UNROLL
    for (size_t j = 0; j < kLineBytes; j += kWidened) {
      StoreF16<Values, kWidened>(codes + i + j, to + i + j);
    }
  }
  for (; i < count; i += kWidened) StoreF16<Values, kWidened>(codes + i, to + i);
}

/// Channels [begin, end) of a column of K, sixteen f16 values each.
template <class Values>
HWY_INLINE void KeyF16(const std::byte* codes, size_t row_bytes, size_t begin, size_t end,
                       const CodesAhead& ahead, uint16_t* to) {
  constexpr size_t kRows = kWidened / kColumnTokens;
  size_t i = begin;
  if (row_bytes == kColumnTokens) {
    const size_t rows = (end - begin) / kRows * kRows;
    WidenCodes<Values>(codes + begin * kColumnTokens, rows * kColumnTokens,
                       ahead.From(begin * kColumnTokens), to);
    i += rows;
    to += rows * kColumnTokens;
  }
  QUIRE_UNROLL_FEW
  for (; i < end; ++i, to += kColumnTokens) {
    StoreF16<Values, kColumnTokens>(codes + i * row_bytes, to);
  }
}

/// Channels [begin, end) of every token of V, tokens `to_stride` apart.
template <class Values>
HWY_INLINE void ValueF16(const std::byte* codes, size_t row_bytes, uint32_t tokens, size_t begin,
                         size_t end, const CodesAhead& ahead, uint16_t* to, size_t to_stride) {
  if (row_bytes == to_stride) {
    WidenCodes<Values>(codes, tokens * row_bytes, ahead, to);
    return;
  }
  const size_t units = (end - begin) / kWidened * kWidened;
  for (uint32_t t = 0; t < tokens; ++t, codes += row_bytes, to += to_stride) {
    WidenCodes<Values>(codes + begin, units, ahead.From(t * row_bytes), to);
    if (begin + units == end) continue;
    // Beyond the row nothing may be read: +0.
    alignas(32) std::byte last[kWidened] = {};
    std::memcpy(last, codes + begin + units, end - begin - units);
    StoreF16<Values, kWidened>(last, to + units);
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
