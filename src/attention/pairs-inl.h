// K and V of q25 (docs/codecs.md) to panels of f32: two channels share a code of four bits and the
// bit that negates both.
#include "attention/encoded-inl.h"
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_PAIRS_INL_H_
#undef QUIRE_ATTENTION_PAIRS_INL_H_
#else
#define QUIRE_ATTENTION_PAIRS_INL_H_
#endif

#include "codec/formats.h"
#include "codec/planes.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

struct PairFirst {
  static constexpr const float* kTable = codec::kPairFirst.data();
};
struct PairSecond {
  static constexpr const float* kTable = codec::kPairSecond.data();
};

/// Sixteen codes: the low or high halves of bytes, and a bit each.
struct SixteenPairs {
  SixteenPairs(const std::byte* low_bytes, const std::byte* sign_bytes, bool in_high)
      : codes(low_bytes), signs(sign_bytes), high(in_high) {}

  /// Vector v of the first, or the second, coordinates.
  template <class Table>
  HWY_INLINE Vec Load(size_t v) const {
    const hn::RebindToUnsigned<Tag> du;
    const hn::Rebind<uint8_t, Tag> d8;
    const auto* from = reinterpret_cast<const uint8_t*>(codes) + v * kVecLanes;
    const auto bytes = hn::PromoteTo(du, hn::LoadU(d8, from));
    const Vec point = Lookup<Table>(high ? hn::ShiftRight<4>(bytes) : bytes);
    return hn::Xor(point, hn::IfThenElseZero(Negated(v), hn::Set(Tag(), -0.0f)));
  }

  HWY_INLINE hn::Mask<Tag> Negated(size_t v) const {
    if constexpr (kVecLanes >= 8) {
      const auto* bits = reinterpret_cast<const uint8_t*>(signs) + v * (kVecLanes / 8);
      return hn::LoadMaskBits(Tag(), bits);
    } else {
      const hn::RebindToUnsigned<Tag> du;
      const auto of_vector = static_cast<uint32_t>(signs[v * kVecLanes / 8]) >> v * kVecLanes % 8;
      const auto lane_bit = hn::Shl(hn::Set(du, 1), hn::Iota(du, 0));
      return hn::RebindMask(Tag(), hn::Eq(hn::And(hn::Set(du, of_vector), lane_bit), lane_bit));
    }
  }

  const std::byte* codes;
  const std::byte* signs;  // bit i: of pair or token i
  bool high;
};

/// One column of K to [dim][16]: `codes` and `signs` are the column's first.
inline void ExpandKeyPairs(const std::byte* codes, const std::byte* signs, uint32_t block_tokens,
                           uint32_t dim, float* to) {
  const Tag d;
  for (uint32_t pair = 0; pair < codec::PairCount(dim); ++pair) {
    const SixteenPairs tokens(codes + size_t{pair / 2} * block_tokens,
                              signs + size_t{pair} * block_tokens / 8, pair % 2 != 0);
    float* first = to + size_t{2} * pair * kColumnTokens;
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecsPerColumn; ++v) {
      hn::Store(tokens.Load<PairFirst>(v), d, first + v * kVecLanes);
      if (2 * pair + 1 == dim) continue;
      hn::Store(tokens.Load<PairSecond>(v), d, first + kColumnTokens + v * kVecLanes);
    }
  }
}

/// The last channels of a token, fewer than a group, one by one.
inline void LoadLastPairs(const std::byte* codes, const std::byte* signs, bool high,
                          uint32_t channels, float* to) {
  const uint32_t half = (channels + 1) / 2;
  for (uint32_t channel = 0; channel < channels; ++channel) {
    const uint32_t pair = channel % half;
    const auto byte = static_cast<uint8_t>(codes[pair]);
    const auto sign = static_cast<uint8_t>(signs[pair / 8]) >> (pair % 8) & 1;
    const float* table = channel < half ? PairFirst::kTable : PairSecond::kTable;
    const float point = table[high ? byte >> 4 : byte & 15];
    to[channel] = sign != 0 ? -point : point;
  }
}

/// One column of V to its 16 token rows of every panel, as ExpandValue. Sixteen pairs are the
/// channels of two panels.
inline void ExpandValuePairs(const std::byte* codes, const std::byte* signs, uint32_t dim,
                             float* panels) {
  const Tag d;
  const size_t row_bytes = codec::PairRowBytes(dim);
  const size_t sign_bytes = (codec::PairCount(dim) + 7) / 8;
  constexpr size_t kPanel = size_t{kSplitTokens} * kPanelDims;
  for (uint32_t t = 0; t < kColumnTokens; ++t) {
    float* to = panels + t * kPanelDims;
    for (uint32_t i = 0; i < dim; i += kNibbleGroup, to += 2 * kPanel) {
      const uint32_t run = i / kNibbleGroup;  // of sixteen pairs
      const std::byte* low = codes + t * row_bytes + run / 2 * 16;
      const std::byte* sign = signs + t * sign_bytes + run * 2;
      if (i + kNibbleGroup > dim) {
        float last[kNibbleGroup];
        LoadLastPairs(low, sign, run % 2 != 0, dim - i, last);
        for (uint32_t c = 0; c < dim - i; ++c)
          to[c / kPanelDims * kPanel + c % kPanelDims] = last[c];
        continue;
      }
      const SixteenPairs pairs(low, sign, run % 2 != 0);
      QUIRE_UNROLL
      for (size_t v = 0; v < kVecsPerColumn; ++v) {
        hn::Store(pairs.Load<PairFirst>(v), d, to + v * kVecLanes);
        hn::Store(pairs.Load<PairSecond>(v), d, to + kPanel + v * kVecLanes);
      }
    }
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
