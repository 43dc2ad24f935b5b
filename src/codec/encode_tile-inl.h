// A tile of sixteen tokens, encoded with a lane for each token: lanes never meet, so every target
// gives the bits of token_codec.h.
#include "base/bits.h"
#include "codec/convert-inl.h"
#include "codec/planes.h"
#include "codec/token_codec.h"
#include "codec/transpose-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_ENCODE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_ENCODE_TILE_INL_H_
#undef QUIRE_CODEC_ENCODE_TILE_INL_H_
#else
#define QUIRE_CODEC_ENCODE_TILE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr uint32_t kTileTokens = 16;
constexpr uint32_t kTileDims = 256;  // a multiple of the channels that share bytes

using TileTag = hn::CappedTag<float, kTileTokens>;
using TileVec = hn::Vec<TileTag>;

/// Sixteen tokens of one head of an open block, in f32.
class Tile {
 public:
  Tile(const StreamLayout& open, const std::byte* plane) : open_(open), plane_(plane) {}

  void Begin(uint32_t first_token) {
    first_token_ = first_token;
    loaded_ = kNone;
    bad_tokens_ = 0;
  }

  /// Channels [dim, dim + kTileDims), as far as there are: [dim][token].
  HWY_ATTR float* Values(uint32_t dim) {
    if (loaded_ != dim) Load(dim);
    return values_;
  }
  uint32_t dim() const { return open_.dim; }

  /// From now on the values of these tokens are zeros.
  void Blank(uint32_t bad_tokens) {
    bad_tokens_ = bad_tokens;
    loaded_ = kNone;
  }

 private:
  static constexpr uint32_t kNone = ~0u;

  HWY_ATTR void Load(uint32_t dim) {
    const uint32_t dims = std::min(kTileDims, open_.dim - dim);
    if (open_.inner == InnerAxis::kToken) {
      for (uint32_t d = 0; d < dims; ++d) {
        const uint64_t first = uint64_t{dim + d} * open_.block_tokens + first_token_;
        Widen(open_.codec, plane_ + first * ValueBytes(open_.codec), kTileTokens,
              values_ + uint64_t{d} * kTileTokens);
      }
    } else {
      alignas(64) float rows[kTileTokens * kRowDims];
      for (uint32_t d = 0; d < dims; d += kRowDims) {
        const uint32_t count = std::min(kRowDims, dims - d);
        for (uint32_t t = 0; t < kTileTokens; ++t) {
          const uint64_t first = uint64_t{first_token_ + t} * open_.dim + dim + d;
          Widen(open_.codec, plane_ + first * ValueBytes(open_.codec), count,
                rows + uint64_t{t} * kRowDims);
        }
        Transpose(sizeof(float), reinterpret_cast<const std::byte*>(rows), kRowDims * sizeof(float),
                  reinterpret_cast<std::byte*>(values_ + uint64_t{d} * kTileTokens),
                  kTileTokens * sizeof(float), kTileTokens, count);
      }
    }
    for (uint32_t t = 0; bad_tokens_ >> t != 0; ++t) {
      if ((bad_tokens_ >> t & 1) == 0) continue;
      for (uint32_t d = 0; d < dims; ++d) values_[d * kTileTokens + t] = 0.0f;
    }
    loaded_ = dim;
  }

  HWY_ATTR static void Widen(Codec codec, const std::byte* from, uint32_t count, float* to) {
    Convert(codec, from, Codec::kF32, reinterpret_cast<std::byte*>(to), count);
  }

  static constexpr uint32_t kRowDims = 64;
  const StreamLayout& open_;
  const std::byte* plane_;
  uint32_t first_token_ = 0;
  uint32_t loaded_ = kNone;
  uint32_t bad_tokens_ = 0;  // bit of each
  alignas(64) float values_[kTileDims * kTileTokens];
};

/// Bit i for every lane that is false.
HWY_INLINE uint32_t NotFinite(hn::Mask<TileTag> finite) {
  const TileTag d;
  if (hn::AllTrue(d, finite)) return 0;
  alignas(64) float flags[kTileTokens];
  hn::Store(hn::IfThenElseZero(finite, hn::Set(d, 1.0f)), d, flags);
  uint32_t bits = 0;
  for (uint32_t i = 0; i < hn::Lanes(d); ++i) bits |= flags[i] == 0.0f ? 1u << i : 0u;
  return bits;
}

/// Scale and mid of every token of the tile. Tokens that are not finite are blanked.
HWY_ATTR inline void FindScales(Codec codec, Tile& tile, TokenScale* tokens) {
  const TileTag d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto max = hn::Set(d, std::numeric_limits<float>::max());
  alignas(64) float low[kTileTokens];
  alignas(64) float high[kTileTokens];
  for (uint32_t t = 0; t < kTileTokens; ++t) {
    low[t] = std::numeric_limits<float>::max();
    high[t] = -low[t];
  }
  uint32_t bad_tokens = 0;
  for (uint32_t begin = 0; begin < tile.dim(); begin += kTileDims) {
    const uint32_t dims = std::min(kTileDims, tile.dim() - begin);
    const float* values = tile.Values(begin);
    for (uint32_t t = 0; t < kTileTokens; t += lanes) {
      auto lowest = hn::Load(d, low + t);
      auto highest = hn::Load(d, high + t);
      auto finite = hn::Eq(max, max);
      for (uint32_t i = 0; i < dims; ++i) {
        const auto value = hn::Load(d, values + uint64_t{i} * kTileTokens + t);
        finite = hn::And(finite, hn::Le(hn::Abs(value), max));
        lowest = hn::Min(lowest, value);
        highest = hn::Max(highest, value);
      }
      hn::Store(lowest, d, low + t);
      hn::Store(highest, d, high + t);
      bad_tokens |= NotFinite(finite) << t;
    }
  }
  if (bad_tokens != 0) tile.Blank(bad_tokens);
  for (uint32_t t = 0; t < kTileTokens; ++t) {
    if ((bad_tokens >> t & 1) != 0) {
      tokens[t] = {.scale = kNanScale};
    } else if (HasMids(codec)) {
      tokens[t] = ScaleOfRange(low[t], high[t], CodeLow(codec), -1.0f - CodeLow(codec));
    } else {
      tokens[t] = ScaleOfMagnitude(std::fabs(std::max(-low[t], high[t])), CodeMax(codec));
    }
  }
}

template <class Format>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<TileTag>> Fp8Codes(TileVec value, float max) {
  const TileTag d;
  const hn::RebindToUnsigned<TileTag> du;
  const auto magnitude = hn::Min(hn::Abs(value), hn::Set(d, max));
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<Format::kShift>(bits), hn::Set(du, 1u));
  const auto half = hn::Set(du, (1u << (Format::kShift - 1)) - 1u - Format::kBiasBits);
  const auto normal = hn::ShiftRight<Format::kShift>(hn::Add(hn::Add(bits, odd), half));
  const auto small = hn::BitCast(du, hn::Add(magnitude, hn::Set(d, Format::kDenormalMagic)));
  const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, Format::kMinNormal)));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, value)), hn::Set(du, 0x80u));
  return hn::Or(hn::IfThenElse(is_small, small, normal), sign);
}

struct Fp8E4m3Coder {
  static HWY_INLINE auto Codes(TileVec value, TileVec inverse, TileVec) {
    return Fp8Codes<E4m3>(hn::Mul(value, inverse), kFp8E4m3Max);
  }
};

struct Fp8E5m2Coder {
  static HWY_INLINE auto Codes(TileVec value, TileVec inverse, TileVec) {
    return Fp8Codes<E5m2>(hn::Mul(value, inverse), kFp8E5m2Max);
  }
};

template <Codec kCodec>
struct IntCoder {
  static HWY_INLINE auto Codes(TileVec value, TileVec inverse, TileVec offset) {
    const TileTag d;
    const hn::RebindToUnsigned<TileTag> du;
    const auto low = hn::Set(d, CodeLow(kCodec));
    const auto high = hn::Set(d, -1.0f - CodeLow(kCodec));
    const auto scaled = hn::Mul(hn::Sub(value, offset), inverse);
    const auto clamped = hn::Min(hn::Max(scaled, low), high);
    return hn::BitCast(du, hn::Add(clamped, hn::Set(d, CodeMagic(kCodec))));
  }
};

/// Value `index` of the first kCount of a table, in every lane. kCount is a power of two.
template <size_t kCount>
HWY_INLINE TileVec LookUp(const float* table, hn::Vec<hn::RebindToSigned<TileTag>> index) {
  const TileTag d;
  if constexpr (hn::MaxLanes(d) >= kCount) {
    return hn::TableLookupLanes(hn::LoadU(d, table), hn::IndicesFromVec(d, index));
  } else {
    // Two halves, and the index's highest bit between them.
    const hn::RebindToSigned<TileTag> di;
    const auto half = hn::Set(di, static_cast<int32_t>(kCount / 2));
    const auto rest = hn::AndNot(half, index);
    const auto is_high = hn::RebindMask(d, hn::Eq(hn::And(index, half), half));
    return hn::IfThenElse(is_high, LookUp<kCount / 2>(table + kCount / 2, rest),
                          LookUp<kCount / 2>(table, rest));
  }
}

/// Thresholds first, first + step, first + 2 step ... of nf4, then zeros.
constexpr std::array<float, kTileTokens> Nf4Thresholds(size_t first, size_t step) {
  std::array<float, kTileTokens> thresholds{};
  for (size_t i = 0; first + i * step < 16; ++i) thresholds[i] = Nf4Threshold(first + i * step);
  return thresholds;
}
inline constexpr auto kNf4Second = Nf4Thresholds(4, 8);
inline constexpr auto kNf4Third = Nf4Thresholds(2, 4);
inline constexpr auto kNf4Fourth = Nf4Thresholds(1, 2);

struct Nf4Coder {
  // The number of thresholds reached, bit by bit from the highest: they ascend.
  static HWY_INLINE auto Codes(TileVec value, TileVec inverse, TileVec) {
    const TileTag d;
    const hn::RebindToSigned<TileTag> di;
    const hn::RebindToUnsigned<TileTag> du;
    const auto scaled = hn::Mul(value, inverse);
    const auto one = hn::Set(di, 1);
    const auto beyond = [&](TileVec threshold) HWY_ATTR {
      return hn::IfThenElseZero(hn::RebindMask(di, hn::Ge(scaled, threshold)), one);
    };
    auto code = beyond(hn::Set(d, Nf4Threshold(8)));
    code = hn::Add(hn::Add(code, code), beyond(LookUp<2>(kNf4Second.data(), code)));
    code = hn::Add(hn::Add(code, code), beyond(LookUp<4>(kNf4Third.data(), code)));
    code = hn::Add(hn::Add(code, code), beyond(LookUp<8>(kNf4Fourth.data(), code)));
    return hn::BitCast(du, code);
  }
};

struct Fp4Coder {
  static HWY_INLINE auto Codes(TileVec value, TileVec inverse, TileVec) {
    const TileTag d;
    const hn::RebindToUnsigned<TileTag> du;
    const auto scaled = hn::Mul(value, inverse);
    const auto magnitude = hn::Min(hn::Abs(scaled), hn::Set(d, 6.0f));
    const auto below_2 = hn::Lt(magnitude, hn::Set(d, 2.0f));
    const auto below_4 = hn::Lt(magnitude, hn::Set(d, 4.0f));
    const auto magic =
        hn::IfThenElse(below_2, hn::Set(d, 0x1p22f),
                       hn::IfThenElse(below_4, hn::Set(d, 0x1p23f), hn::Set(d, 0x1p24f)));
    const auto first = hn::IfThenElse(
        hn::RebindMask(du, below_2), hn::Zero(du),
        hn::IfThenElse(hn::RebindMask(du, below_4), hn::Set(du, 2u), hn::Set(du, 4u)));
    const auto steps = hn::And(hn::BitCast(du, hn::Add(magnitude, magic)), hn::Set(du, 15u));
    const auto sign = hn::ShiftLeft<3>(hn::ShiftRight<31>(hn::BitCast(du, scaled)));
    return hn::Or(hn::Add(steps, first), sign);
  }
};

template <class Coder>
HWY_ATTR void CodesOf(const float* values, uint32_t dims, const TokenScale* tokens,
                      uint8_t* codes) {
  const TileTag d;
  const hn::Rebind<uint8_t, TileTag> d8;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  alignas(64) float inverses[kTileTokens];
  alignas(64) float offsets[kTileTokens];
  for (uint32_t t = 0; t < kTileTokens; ++t) {
    inverses[t] = tokens[t].inverse;
    offsets[t] = tokens[t].offset;
  }
  for (uint32_t t = 0; t < kTileTokens; t += lanes) {
    const auto inverse = hn::Load(d, inverses + t);
    const auto offset = hn::Load(d, offsets + t);
    for (uint32_t i = 0; i < dims; ++i) {
      const uint32_t at = i * kTileTokens + t;
      const auto code = Coder::Codes(hn::Load(d, values + at), inverse, offset);
      hn::StoreU(hn::TruncateTo(d8, code), d8, codes + at);
    }
  }
}

/// Codes of `dims` channels, those of half a byte in the low half; above it may be anything.
HWY_ATTR inline void FindCodes(Codec codec, const float* values, uint32_t dims,
                               const TokenScale* tokens, uint8_t* codes) {
  switch (codec) {
    case Codec::kFp8E4m3: return CodesOf<Fp8E4m3Coder>(values, dims, tokens, codes);
    case Codec::kFp8E5m2: return CodesOf<Fp8E5m2Coder>(values, dims, tokens, codes);
    case Codec::kInt8: return CodesOf<IntCoder<Codec::kInt8>>(values, dims, tokens, codes);
    case Codec::kInt4: return CodesOf<IntCoder<Codec::kInt4>>(values, dims, tokens, codes);
    case Codec::kNf4: return CodesOf<Nf4Coder>(values, dims, tokens, codes);
    case Codec::kFp4: return CodesOf<Fp4Coder>(values, dims, tokens, codes);
    default: QUIRE_CHECK(false);
  }
}

/// Chooses the points of a tile's pairs and their scales (token_codec.h). `pairs` is [pair][token].
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
        const auto gain = hn::Sub(hn::Abs(product), hn::Set(d, PairCost(i)));
        const auto better = hn::RebindMask(di, hn::Gt(gain, best));
        best = hn::Max(best, gain);
        index = hn::IfThenElse(better, hn::Set(di, static_cast<int32_t>(i)), index);
      }
      auto x = LookUp<16>(kPairFirst.data(), index);
      auto y = LookUp<16>(kPairSecond.data(), index);
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

/// to[2 i] = a[i], to[2 i + 1] = b[i] for sixteen codes: a step of int8.
HWY_INLINE void StoreByteStep(const uint8_t* a, const uint8_t* b, std::byte* step) {
  auto* const to = reinterpret_cast<uint8_t*>(step);
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<uint8_t, kTileLanes> d;
  const auto of_a = hn::LoadU(d, a);
  const auto of_b = hn::LoadU(d, b);
  hn::StoreU(hn::InterleaveLower(d, of_a, of_b), d, to);
  hn::StoreU(hn::InterleaveUpper(d, of_a, of_b), d, to + kTileLanes);
#else
  for (size_t i = 0; i < kTileLanes; ++i) {
    to[2 * i] = a[i];
    to[2 * i + 1] = b[i];
  }
#endif
}

/// a[0] a[8] b[0] b[8] a[1] a[9] ...: how PositionInTile has two terms of sixteen lanes.
HWY_INLINE void Deal(const uint8_t* a, const uint8_t* b, uint8_t* to) {
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<uint8_t, kTileLanes> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const auto as_f16 = [d, d16](const uint8_t* from) HWY_ATTR {
    const auto all = hn::LoadU(d, from);
    return hn::BitCast(d16, hn::InterleaveLower(d, all, hn::ShiftRightBytes<8>(d, all)));
  };
  const auto of_a = as_f16(a);
  const auto of_b = as_f16(b);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d16, of_a, of_b)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d16, of_a, of_b)), d, to + kTileLanes);
#else
  for (size_t i = 0; i < kTileLanes / 2; ++i) {
    to[4 * i] = a[i];
    to[4 * i + 1] = a[i + 8];
    to[4 * i + 2] = b[i];
    to[4 * i + 3] = b[i + 8];
  }
#endif
}

/// A step of codes of half a byte: four terms, `stride` codes apart, the first `count` of which
/// there are.
HWY_INLINE void StoreNibbleStep(const uint8_t* terms, size_t stride, uint32_t count,
                                std::byte* step) {
  alignas(64) static constexpr uint8_t kNoCodes[kTileLanes] = {};
  const auto term = [=](uint32_t i) { return i < count ? terms + i * stride : kNoCodes; };
  alignas(64) uint8_t both[2][kTileLanes];
  for (uint32_t j = 0; j < 2; ++j) {
    const uint8_t* low = term(j);
    const uint8_t* high = term(j + 2);
    for (size_t i = 0; i < kTileLanes; ++i) {
      both[j][i] = static_cast<uint8_t>((low[i] & 15u) | high[i] << 4);
    }
  }
  Deal(both[0], both[1], reinterpret_cast<uint8_t*>(step));
}

/// A tile of q25 from the codes of at most sixteen terms.
HWY_INLINE void StorePairTile(const uint8_t* terms, size_t stride, uint32_t count,
                              std::byte* tile) {
  alignas(64) uint8_t bits[2][kTileLanes] = {};  // of the even terms, of the odd ones
  for (uint32_t term = 0; term < std::min(count, kPairTileTerms); ++term) {
    for (size_t i = 0; i < kTileLanes; ++i) {
      const uint32_t negated = terms[term * stride + i] >> 4 & 1u;
      bits[term % 2][i] = static_cast<uint8_t>(bits[term % 2][i] | negated << term / 2);
    }
  }
  for (uint32_t step = 0; step < 4; ++step) {
    const uint32_t first = 4 * step;
    StoreNibbleStep(terms + first * stride, stride, count - std::min(count, first),
                    tile + uint64_t{step} * kStepBytes);
  }
  Deal(bits[0], bits[1], reinterpret_cast<uint8_t*>(tile) + uint64_t{4} * kStepBytes);
}

/// Codes of sixteen lanes and `count` terms, `stride` codes apart, as tiles of integers.
HWY_INLINE void StoreTiles(Codec codec, const uint8_t* terms, size_t stride, uint32_t count,
                           std::byte* to) {
  alignas(64) static constexpr uint8_t kNoCodes[kTileLanes] = {};
  const uint32_t at_once = codec == Codec::kQ25 ? kPairTileTerms : codec == Codec::kInt8 ? 2 : 4;
  for (uint32_t term = 0; term < count; term += at_once, terms += at_once * stride) {
    if (codec == Codec::kQ25) {
      StorePairTile(terms, stride, count - term, to);
    } else if (codec == Codec::kInt8) {
      StoreByteStep(terms, term + 1 < count ? terms + stride : kNoCodes, to);
    } else {
      StoreNibbleStep(terms, stride, count - term, to);
    }
    to += TileBytes(codec, at_once);
  }
}

/// Into a plane of K: the codes [code][token] of the tokens from `first` on, codes of channels, or
/// of pairs, from `begin` on.
HWY_ATTR inline void StoreColumns(const StreamLayout& sealed, const uint8_t* codes, uint32_t first,
                                  uint32_t begin, uint32_t count, std::byte* plane) {
  if (HasIntegerCodes(sealed.codec)) {
    std::byte* const tile = plane + PositionOf(sealed, first, begin).byte;
    return StoreTiles(sealed.codec, codes, kTileTokens, count, tile);
  }
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(plane + PositionOf(sealed, first, begin + i).byte,
                codes + uint64_t{i} * kTileTokens, kTileTokens);
  }
}

/// Into a plane of V.
HWY_ATTR inline void StoreRows(const StreamLayout& sealed, const uint8_t* codes, uint32_t first,
                               uint32_t begin, uint32_t count, std::byte* plane) {
  alignas(64) uint8_t rows[kTileTokens * kTileDims];  // [token][code]
  TransposeCodes(codes, count, rows, kTileDims);
  for (uint32_t t = 0; t < kTileTokens; ++t) {
    uint8_t* const row = rows + uint64_t{t} * kTileDims;
    if (!HasIntegerCodes(sealed.codec)) {
      std::memcpy(plane + PositionOf(sealed, first + t, begin).byte, row, count);
    } else {
      std::fill(row + count, row + RoundUp(count, kTileLanes), uint8_t{0});
    }
  }
  if (!HasIntegerCodes(sealed.codec)) return;
  for (uint32_t i = 0; i < count; i += kTileLanes) {
    StoreTiles(sealed.codec, rows + i, kTileDims, kTileTokens,
               plane + PositionOf(sealed, first, begin + i).byte);
  }
}

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
