// A tile of sixteen tokens, encoded with a lane for each token: lanes are never combined, so every
// target gives the bits of token_codec.h.
#include "base/bits.h"
#include "codec/formats/fp4-inl.h"
#include "codec/formats/fp8-inl.h"
#include "codec/formats/int-inl.h"
#include "codec/formats/q25-inl.h"
#include "codec/formats/table16-inl.h"
#include "codec/planes.h"
#include "codec/tile-inl.h"
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
#include <cmath>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Scale and mid of every token of the tile. Tokens that are not finite are blanked.
template <class Format>
HWY_ATTR void FindScales(Tile& tile, TokenScale* tokens) {
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
    } else {
      tokens[t] = ScaleOf<Format>(low[t], high[t]);
    }
  }
}

/// Codes of `dims` channels, those of half a byte in the low half; above it may be anything.
template <class Format>
HWY_ATTR void FindCodes(const float* values, uint32_t dims, const TokenScale* tokens,
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
      auto value = hn::Load(d, values + at);
      if constexpr (Format::kHasMids) value = hn::Sub(value, offset);
      const auto code = Codes(Format(), d, hn::Mul(value, inverse));
      hn::StoreU(hn::TruncateTo(d8, code), d8, codes + at);
    }
  }
}

/// to[2 i] = a[i], to[2 i + 1] = b[i] for sixteen codes: a step of bytes.
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

/// A tile of pairs from the codes of at most sixteen terms.
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
  const CodeLayout layout = InfoOf(codec).layout;
  const bool pairs = layout == CodeLayout::kPairTiles;
  const bool bytes = layout == CodeLayout::kByteTiles;
  const uint32_t at_once = pairs ? kPairTileTerms : bytes ? 2 : 4;
  for (uint32_t term = 0; term < count; term += at_once, terms += at_once * stride) {
    if (pairs) {
      StorePairTile(terms, stride, count - term, to);
    } else if (bytes) {
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
