// Codes of sixteen tokens out of their planes (planes.h), and to f32: what token_codec.h says of
// one value, for vectors of any target.
#include "codec/formats.h"
#include "codec/formats/fp8-inl.h"
#include "codec/planes.h"
#include "codec/transpose-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_CODEC_DECODE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_DECODE_TILE_INL_H_
#undef QUIRE_CODEC_DECODE_TILE_INL_H_
#else
#define QUIRE_CODEC_DECODE_TILE_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "codec/token_codec.h"

HWY_BEFORE_NAMESPACE();
namespace quire::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Channels that are decoded at a time: whole tiles of every codec.
inline constexpr uint32_t kDecodeDims = 128;
/// Tokens likewise.
inline constexpr uint32_t kDecodeTokens = kTileLanes;

/// Integers, or codes of a byte that are none.
using CodeRows = uint8_t[kDecodeTokens][kDecodeDims];
using CodeColumns = uint8_t[kDecodeDims][kDecodeTokens];

#if HWY_TARGET != HWY_SCALAR

using ByteTag = hn::FixedTag<uint8_t, 16>;
using ByteVec = hn::Vec<ByteTag>;

HWY_INLINE ByteVec LoadBytes(const void* from) {
  return hn::LoadU(ByteTag(), static_cast<const uint8_t*>(from));
}

/// The two terms of a step, sixteen lanes each, of bytes that lie as PositionInTile says.
template <class Format>
HWY_INLINE void StepTerms(const std::byte* step, ByteVec* terms) {
  constexpr bool kBytes = Format::kLayout == CodeLayout::kByteTiles;
  alignas(16) static constexpr uint8_t kDealBytes[16] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                         1, 3, 5, 7, 9, 11, 13, 15};
  alignas(16) static constexpr uint8_t kDealNibbles[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                           2, 6, 10, 14, 3, 7, 11, 15};
  // Lanes of one term that are neighbours once the bytes are dealt.
  const hn::Repartition<std::conditional_t<kBytes, uint64_t, uint32_t>, ByteTag> d;
  const ByteVec deal = LoadBytes(kBytes ? kDealBytes : kDealNibbles);
  const auto lower = hn::BitCast(d, hn::TableLookupBytes(LoadBytes(step), deal));
  const auto upper = hn::BitCast(d, hn::TableLookupBytes(LoadBytes(step + kStepBytes / 2), deal));
  terms[0] = hn::BitCast(ByteTag(), hn::InterleaveLower(d, lower, upper));
  terms[1] = hn::BitCast(ByteTag(), hn::InterleaveUpper(d, lower, upper));
}

HWY_INLINE ByteVec LowNibbles(ByteVec bytes) {
  return hn::And(bytes, hn::Set(ByteTag(), uint8_t{15}));
}
HWY_INLINE ByteVec HighNibbles(ByteVec bytes) {
  const hn::Repartition<uint16_t, ByteTag> d16;
  return LowNibbles(hn::BitCast(ByteTag(), hn::ShiftRight<4>(hn::BitCast(d16, bytes))));
}

/// The integers of codes of half a byte.
template <class Format>
HWY_INLINE ByteVec Integers(ByteVec codes) {
  if constexpr (requires { Format::kIntegers; }) {
    return hn::TableLookupBytes(LoadBytes(Format::kIntegers.data()), codes);
  } else {
    return hn::Sub(codes, hn::Set(ByteTag(), uint8_t{Format::kBias}));
  }
}

/// Sixteen lanes of every term of a tile, at least of `terms`: rows(term) says where they go. Of
/// pairs rows(pair, second).
template <class Format, class Rows>
HWY_INLINE void UnpackTile(const std::byte* tile, uint32_t terms, const Rows& rows) {
  const ByteTag d;
  if constexpr (Format::kLayout == CodeLayout::kByteTiles) {
    for (uint32_t term = 0; term < terms; term += 2, tile += kStepBytes) {
      ByteVec pair[2];
      StepTerms<Format>(tile, pair);
      for (uint32_t i = 0; i < 2; ++i) hn::StoreU(pair[i], d, rows(term + i));
    }
  } else if constexpr (Format::kLayout == CodeLayout::kNibbleTiles) {
    for (uint32_t term = 0; term < terms; term += 4, tile += kStepBytes) {
      ByteVec pair[2];
      StepTerms<Format>(tile, pair);
      for (uint32_t i = 0; i < 2; ++i) {
        hn::StoreU(Integers<Format>(LowNibbles(pair[i])), d, rows(term + i));
        hn::StoreU(Integers<Format>(HighNibbles(pair[i])), d, rows(term + i + 2));
      }
    }
  } else {
    for (uint32_t term = 0; term < terms; term += kPairTileTerms, tile += kPairTileBytes) {
      ByteVec signs[2];
      StepTerms<Format>(tile + uint64_t{4} * kStepBytes, signs);
      for (uint32_t step = 0; step < 4; ++step) {
        ByteVec pair[2];
        StepTerms<Format>(tile + uint64_t{step} * kStepBytes, pair);
        for (uint32_t half = 0; half < 2; ++half) {
          const auto sign_bit = hn::Set(d, static_cast<uint8_t>(1u << (2 * step + half)));
          for (uint32_t i = 0; i < 2; ++i) {
            const ByteVec codes = half == 0 ? LowNibbles(pair[i]) : HighNibbles(pair[i]);
            const auto negated =
                hn::VecFromMask(d, hn::Ne(hn::And(signs[i], sign_bit), hn::Zero(d)));
            const auto store = [&](const IntegerTable& table, bool second) HWY_ATTR {
              const ByteVec point = hn::TableLookupBytes(LoadBytes(table.data()), codes);
              hn::StoreU(hn::Sub(hn::Xor(point, negated), negated), d,
                         rows(term + step * 4 + half * 2 + i, second));
            };
            store(kPairFirstIntegers, false);
            store(kPairSecondIntegers, true);
          }
        }
      }
    }
  }
}

/// The integers of channels [begin, begin + dims) of the column of codes at `column`; `begin` is a
/// multiple of kDecodeDims. Rows of pairs beyond `dims` are written too.
template <class Format>
void UnpackIntegers(InnerAxis inner, const std::byte* column, uint32_t begin, uint32_t dims,
                    CodeColumns& columns, CodeRows& rows) {
  constexpr bool kPairs = Format::kLayout == CodeLayout::kPairTiles;
  if (inner == InnerAxis::kToken) {
    const std::byte* tile = column + TileBytes(Format::kCodec, kPairs ? begin / 2 : begin);
    if constexpr (kPairs) {
      UnpackTile<Format>(tile, PairCount(inner, dims), [&](uint32_t pair, bool second) {
        return columns[PairAt(inner, kDecodeDims, pair).first + (second ? 2 : 0)];
      });
    } else {
      UnpackTile<Format>(tile, dims, [&](uint32_t term) { return columns[term]; });
    }
    TransposeCodes(columns[0], dims, rows[0], kDecodeDims);
    return;
  }
  constexpr uint32_t kChannels = kPairs ? 2 * kTileLanes : kTileLanes;
  const uint64_t tile_bytes = TileBytes(Format::kCodec, kTileLanes);
  const std::byte* tile = column + begin / kChannels * tile_bytes;
  for (uint32_t d = 0; d < dims; d += kChannels, tile += tile_bytes) {
    if constexpr (kPairs) {
      UnpackTile<Format>(tile, kDecodeTokens, [&](uint32_t token, bool second) {
        return rows[token] + d + (second ? kTileLanes : 0);
      });
    } else {
      UnpackTile<Format>(tile, kDecodeTokens, [&](uint32_t token) { return rows[token] + d; });
    }
  }
}

/// The same of codes that are no integers: the codes.
inline void UnpackBytes(const StreamLayout& sealed, const std::byte* plane, uint32_t first,
                        uint32_t begin, uint32_t dims, CodeColumns& columns, CodeRows& rows) {
  if (sealed.inner == InnerAxis::kToken) {
    for (uint32_t d = 0; d < dims; ++d) {
      std::memcpy(columns[d], plane + uint64_t{begin + d} * sealed.block_tokens + first,
                  kDecodeTokens);
    }
    TransposeCodes(columns[0], dims, rows[0], kDecodeDims);
    return;
  }
  for (uint32_t t = 0; t < kDecodeTokens; ++t) {
    std::memcpy(rows[t], plane + uint64_t{first + t} * sealed.dim + begin, dims);
  }
}

inline void Unpack(const StreamLayout& sealed, const std::byte* plane, uint32_t first,
                   uint32_t begin, uint32_t dims, CodeColumns& columns, CodeRows& rows) {
  const InnerAxis inner = sealed.inner;
  const std::byte* column =
      plane + first / kTileLanes * ColumnBytes(sealed.codec, inner, sealed.dim);
  WithFormat(sealed.codec, [&](auto format) HWY_ATTR {
    if constexpr (format.kLayout == CodeLayout::kBytes) {
      UnpackBytes(sealed, plane, first, begin, dims, columns, rows);
    } else {
      UnpackIntegers<decltype(format)>(inner, column, begin, dims, columns, rows);
    }
  });
}

/// What codes of a row stand for, before scale and mid.
template <class Format, class D>
HWY_INLINE hn::Vec<D> ValuesOf(D d, const uint8_t* codes) {
  if constexpr (Format::kLayout == CodeLayout::kBytes) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint8_t, D> d8;
    return Fp8ToF32<Format>(d, hn::PromoteTo(du, hn::LoadU(d8, codes)));
  } else {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<int8_t, D> d8;
    const auto integers = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
    const auto value = hn::ConvertTo(d, integers);
    return Format::kDivisor == 1.0f ? value : hn::Div(value, hn::Set(d, Format::kDivisor));
  }
}

/// out[i] = mid + scale * code i. A row has room for whole vectors; out has not.
template <class Format>
void ScaleRow(const uint8_t* codes, uint32_t dims, float scale, float mid, float* out) {
  const hn::CappedTag<float, 16> d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto value_at = [&](uint32_t i) HWY_ATTR {
    const auto product = hn::Mul(hn::Set(d, scale), ValuesOf<Format>(d, codes + i));
    return hn::Add(hn::Set(d, mid), product);
  };
  uint32_t i = 0;
  for (; i + lanes <= dims; i += lanes) hn::StoreU(value_at(i), d, out + i);
  if (i == dims) return;
  HWY_ALIGN float last[16];
  hn::Store(value_at(i), d, last);
  std::copy_n(last, dims - i, out + i);
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
