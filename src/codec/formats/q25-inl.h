// q25 for vectors of any target: the pairs of sixteen tokens.
#include "codec/formats/q25.h"
#include "codec/formats/table16-inl.h"
#include "codec/tile-inl.h"
#include "codec/token_codec.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_FORMATS_Q25_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_FORMATS_Q25_INL_H_
#undef QUIRE_CODEC_FORMATS_Q25_INL_H_
#else
#define QUIRE_CODEC_FORMATS_Q25_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Chooses the points of a tile's pairs and their scales, as q25.h does for one pair. `pairs` is
/// [pair][token].
class PairCoder {
 public:
  HWY_ATTR PairCoder(const StreamLayout& sealed, Tile& tile) : sealed_(sealed), tile_(tile) {
    alignas(64) float sums[kTileTokens] = {};
    uint32_t bad_tokens = SumSquares(sums);
    if (bad_tokens != 0) tile_.Blank(bad_tokens);
    bad_tokens_ = bad_tokens;
    for (uint32_t t = 0; t < kTileTokens; ++t) {
      const bool bad = (bad_tokens >> t & 1) != 0;
      inverses_[t] = bad ? 0.0f : PairInverse(sums[t], sealed.dim);
    }
  }

  /// Codes of the pairs among channels [dim, dim + dims).
  HWY_ATTR void Codes(uint32_t dim, uint32_t dims, uint8_t* pairs) {
    const float* values = tile_.Values(dim);
    for (uint32_t p = 0; p < PairCount(sealed_.inner, dims); ++p) {
      const ChannelPair pair = PairAt(sealed_.inner, dims, p);
      const float* second =
          pair.second < dims ? values + uint64_t{pair.second} * kTileTokens : kZeros;
      CodesOfPair(values + uint64_t{pair.first} * kTileTokens, second,
                  pairs + uint64_t{p} * kTileTokens);
    }
  }

  /// After the last codes.
  void Scales(TokenScale* tokens) const {
    for (uint32_t t = 0; t < kTileTokens; ++t) {
      const bool bad = (bad_tokens_ >> t & 1) != 0;
      tokens[t] = {.scale = bad ? kNanScale : PairScale(products_[t], squares_[t])};
    }
  }

 private:
  HWY_ATTR uint32_t SumSquares(float* sums) {
    const TileTag d;
    const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
    const auto max = hn::Set(d, std::numeric_limits<float>::max());
    uint32_t bad_tokens = 0;
    for (uint32_t begin = 0; begin < sealed_.dim; begin += kTileDims) {
      const uint32_t dims = std::min(kTileDims, sealed_.dim - begin);
      const float* values = tile_.Values(begin);
      for (uint32_t t = 0; t < kTileTokens; t += lanes) {
        auto sum = hn::Load(d, sums + t);
        auto finite = hn::Eq(max, max);
        for (uint32_t i = 0; i < dims; ++i) {
          const auto value = hn::Load(d, values + uint64_t{i} * kTileTokens + t);
          finite = hn::And(finite, hn::Le(hn::Abs(value), max));
          sum = hn::Add(sum, hn::Mul(value, value));
        }
        hn::Store(sum, d, sums + t);
        bad_tokens |= NotFinite(finite) << t;
      }
    }
    return bad_tokens;
  }

  HWY_ATTR void CodesOfPair(const float* firsts, const float* seconds, uint8_t* codes) {
    const TileTag d;
    const hn::RebindToSigned<TileTag> di;
    const hn::RebindToUnsigned<TileTag> du;
    const hn::Rebind<uint8_t, TileTag> d8;
    const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
    for (uint32_t t = 0; t < kTileTokens; t += lanes) {
      const auto inverse = hn::Load(d, inverses_ + t);
      const auto first = hn::Load(d, firsts + t);
      const auto second = hn::Load(d, seconds + t);
      const auto a = hn::Mul(first, inverse);
      const auto b = hn::Mul(second, inverse);
      auto best = hn::Set(d, -std::numeric_limits<float>::max());
      auto index = hn::Zero(di);
      for (uint32_t i = 0; i < kPairPoints; ++i) {
        const auto product =
            hn::Add(hn::Mul(a, hn::Set(d, kPairFirst[i])), hn::Mul(b, hn::Set(d, kPairSecond[i])));
        const auto gain = hn::Sub(hn::Abs(product), hn::Set(d, kPairCosts[i]));
        const auto better = hn::RebindMask(di, hn::Gt(gain, best));
        best = hn::Max(best, gain);
        index = hn::IfThenElse(better, hn::Set(di, static_cast<int32_t>(i)), index);
      }
      auto x = LookUp<16>(d, kPairFirst.data(), index);
      auto y = LookUp<16>(d, kPairSecond.data(), index);
      // The best point's product once more, for its sign.
      const auto product_of_best = hn::Add(hn::Mul(a, x), hn::Mul(b, y));
      const auto sign = hn::And(hn::BitCast(du, product_of_best), hn::Set(du, 0x80000000u));
      const auto code = hn::Or(hn::BitCast(du, index), hn::ShiftRight<27>(sign));
      x = hn::Xor(x, hn::BitCast(d, sign));
      y = hn::Xor(y, hn::BitCast(d, sign));
      hn::StoreU(hn::TruncateTo(d8, code), d8, codes + t);
      const auto product = hn::Add(hn::Mul(first, x), hn::Mul(second, y));
      const auto square = hn::Add(hn::Mul(x, x), hn::Mul(y, y));
      hn::Store(hn::Add(hn::Load(d, products_ + t), product), d, products_ + t);
      hn::Store(hn::Add(hn::Load(d, squares_ + t), square), d, squares_ + t);
    }
  }

  alignas(64) static constexpr float kZeros[kTileTokens] = {};
  const StreamLayout& sealed_;
  Tile& tile_;
  uint32_t bad_tokens_ = 0;
  alignas(64) float inverses_[kTileTokens];
  alignas(64) float products_[kTileTokens] = {};
  alignas(64) float squares_[kTileTokens] = {};
};

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
