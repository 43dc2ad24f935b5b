// Codes of sixteen tokens out of their planes (planes.h), and to f32: what token_codec.h says of
// one value, for vectors of any target.
#include "codec/formats.h"
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

/// Whole numbers, or fp8 codes.
using CodeRows = uint8_t[kDecodeTokens][kDecodeDims];
using CodeColumns = uint8_t[kDecodeDims][kDecodeTokens];

#if HWY_TARGET != HWY_SCALAR

using ByteTag = hn::FixedTag<uint8_t, 16>;
using ByteVec = hn::Vec<ByteTag>;

HWY_INLINE ByteVec LoadBytes(const void* from) {
  return hn::LoadU(ByteTag(), static_cast<const uint8_t*>(from));
}

/// The two terms of a step, sixteen lanes each, of bytes that lie as PositionInTile says.
template <Codec kCodec>
HWY_INLINE void StepTerms(const std::byte* step, ByteVec* terms) {
  constexpr bool kBytes = kCodec == Codec::kInt8;
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

/// Whole numbers of codes of half a byte.
template <Codec kCodec>
HWY_INLINE ByteVec Integers(ByteVec codes) {
  if constexpr (kCodec == Codec::kInt4) {
    return hn::Sub(codes, hn::Set(ByteTag(), uint8_t{kInt4Bias}));
  } else {
    const IntegerTable& table = kCodec == Codec::kNf4 ? kNf4Integers : kFp4Integers;
    return hn::TableLookupBytes(LoadBytes(table.data()), codes);
  }
}

/// Sixteen lanes of every term of a tile, at least of `terms`: rows(term) says where they go. In
/// q25, whose terms are pairs, rows(pair, second).
template <Codec kCodec, class Rows>
HWY_INLINE void UnpackTile(const std::byte* tile, uint32_t terms, const Rows& rows) {
  const ByteTag d;
  if constexpr (kCodec == Codec::kInt8) {
    for (uint32_t term = 0; term < terms; term += 2, tile += kStepBytes) {
      ByteVec pair[2];
      StepTerms<kCodec>(tile, pair);
      for (uint32_t i = 0; i < 2; ++i) hn::StoreU(pair[i], d, rows(term + i));
    }
  } else if constexpr (kCodec != Codec::kQ25) {
    for (uint32_t term = 0; term < terms; term += 4, tile += kStepBytes) {
      ByteVec pair[2];
      StepTerms<kCodec>(tile, pair);
      for (uint32_t i = 0; i < 2; ++i) {
        hn::StoreU(Integers<kCodec>(LowNibbles(pair[i])), d, rows(term + i));
        hn::StoreU(Integers<kCodec>(HighNibbles(pair[i])), d, rows(term + i + 2));
      }
    }
  } else {
    for (uint32_t term = 0; term < terms; term += kPairTileTerms, tile += kPairTileBytes) {
      ByteVec signs[2];
      StepTerms<kCodec>(tile + uint64_t{4} * kStepBytes, signs);
      for (uint32_t step = 0; step < 4; ++step) {
        ByteVec pair[2];
        StepTerms<kCodec>(tile + uint64_t{step} * kStepBytes, pair);
        for (uint32_t half = 0; half < 2; ++half) {
          const auto sign_bit = hn::Set(d, static_cast<uint8_t>(1u << (2 * step + half)));
          for (uint32_t i = 0; i < 2; ++i) {
            const ByteVec codes = half == 0 ? LowNibbles(pair[i]) : HighNibbles(pair[i]);
            const auto negated =
                hn::VecFromMask(d, hn::Ne(hn::And(signs[i], sign_bit), hn::Zero(d)));
            const auto store = [&](const IntegerTable& table, bool second) HWY_ATTR {
              const ByteVec whole = hn::TableLookupBytes(LoadBytes(table.data()), codes);
              hn::StoreU(hn::Sub(hn::Xor(whole, negated), negated), d,
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

/// Whole numbers of channels [begin, begin + dims) of the column of codes at `column`; `begin` is a
/// multiple of kDecodeDims. Rows of q25 beyond `dims` are written too.
template <Codec kCodec>
void UnpackIntegers(InnerAxis inner, const std::byte* column, uint32_t begin, uint32_t dims,
                    CodeColumns& columns, CodeRows& rows) {
  constexpr bool kPairs = kCodec == Codec::kQ25;
  if (inner == InnerAxis::kToken) {
    const std::byte* tile = column + TileBytes(kCodec, kPairs ? begin / 2 : begin);
    if constexpr (kPairs) {
      UnpackTile<kCodec>(tile, PairCount(inner, dims), [&](uint32_t pair, bool second) {
        return columns[PairAt(inner, kDecodeDims, pair).first + (second ? 2 : 0)];
      });
    } else {
      UnpackTile<kCodec>(tile, dims, [&](uint32_t term) { return columns[term]; });
    }
    TransposeCodes(columns[0], dims, rows[0], kDecodeDims);
    return;
  }
  constexpr uint32_t kChannels = kPairs ? 2 * kTileLanes : kTileLanes;
  const uint64_t tile_bytes = TileBytes(kCodec, kTileLanes);
  const std::byte* tile = column + begin / kChannels * tile_bytes;
  for (uint32_t d = 0; d < dims; d += kChannels, tile += tile_bytes) {
    if constexpr (kPairs) {
      UnpackTile<kCodec>(tile, kDecodeTokens, [&](uint32_t token, bool second) {
        return rows[token] + d + (second ? kTileLanes : 0);
      });
    } else {
      UnpackTile<kCodec>(tile, kDecodeTokens, [&](uint32_t token) { return rows[token] + d; });
    }
  }
}

/// The same of fp8: its codes.
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
  switch (sealed.codec) {
    case Codec::kInt8:
      return UnpackIntegers<Codec::kInt8>(inner, column, begin, dims, columns, rows);
    case Codec::kInt4:
      return UnpackIntegers<Codec::kInt4>(inner, column, begin, dims, columns, rows);
    case Codec::kNf4: return UnpackIntegers<Codec::kNf4>(inner, column, begin, dims, columns, rows);
    case Codec::kFp4: return UnpackIntegers<Codec::kFp4>(inner, column, begin, dims, columns, rows);
    case Codec::kQ25: return UnpackIntegers<Codec::kQ25>(inner, column, begin, dims, columns, rows);
    default: return UnpackBytes(sealed, plane, first, begin, dims, columns, rows);
  }
}

/// fp8 codes to f32.
template <class Format, bool kHasInfinity, class D>
HWY_INLINE hn::Vec<D> Fp8ToF32(D d, hn::Vec<hn::RebindToUnsigned<D>> code) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::And(code, hn::Set(du, 0x7fu));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80u)));
  const auto normal =
      hn::Add(hn::ShiftLeft<Format::kShift>(magnitude), hn::Set(du, Format::kBiasBits));
  // The smallest codes count steps of the smallest one.
  constexpr uint32_t kSteps = 1u << (23 - Format::kShift);
  const auto steps = hn::ConvertTo(d, hn::BitCast(di, magnitude));
  const auto small = hn::Mul(steps, hn::Set(d, Format::kMinNormal / kSteps));
  const auto is_small = hn::Lt(magnitude, hn::Set(du, kSteps));
  auto bits = hn::IfThenElse(is_small, hn::BitCast(du, small), normal);
  // All ones, in the exponent or altogether, are no numbers.
  const auto largest = hn::Set(du, kHasInfinity ? 0x7bu : 0x7eu);
  const auto special = hn::Or(hn::ShiftLeft<Format::kShift>(magnitude), hn::Set(du, 0x7f800000u));
  const auto nan = kHasInfinity ? special : hn::Set(du, 0x7fc00000u);
  bits = hn::IfThenElse(hn::Gt(magnitude, largest), nan, bits);
  return hn::BitCast(d, hn::Or(bits, sign));
}

/// What codes of a row stand for, before scale and mid.
template <Codec kCodec, class D>
HWY_INLINE hn::Vec<D> ValuesOf(D d, const uint8_t* codes) {
  if constexpr (kCodec == Codec::kFp8E4m3 || kCodec == Codec::kFp8E5m2) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint8_t, D> d8;
    const auto wide = hn::PromoteTo(du, hn::LoadU(d8, codes));
    if constexpr (kCodec == Codec::kFp8E4m3) return Fp8ToF32<E4m3, false>(d, wide);
    return Fp8ToF32<E5m2, true>(d, wide);
  } else {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<int8_t, D> d8;
    const auto whole = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
    const auto value = hn::ConvertTo(d, whole);
    constexpr float kDivisor = kCodec == Codec::kNf4   ? kNf4Divisor
                               : kCodec == Codec::kFp4 ? kFp4Divisor
                               : kCodec == Codec::kQ25 ? kPairDivisor
                                                       : 1.0f;
    return kDivisor == 1.0f ? value : hn::Div(value, hn::Set(d, kDivisor));
  }
}

/// out[i] = mid + scale * code i. A row has room for whole vectors; out has not.
template <Codec kCodec>
void ScaleRow(const uint8_t* codes, uint32_t dims, float scale, float mid, float* out) {
  const hn::CappedTag<float, 16> d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto value_at = [&](uint32_t i) HWY_ATTR {
    const auto product = hn::Mul(hn::Set(d, scale), ValuesOf<kCodec>(d, codes + i));
    return hn::Add(hn::Set(d, mid), product);
  };
  uint32_t i = 0;
  for (; i + lanes <= dims; i += lanes) hn::StoreU(value_at(i), d, out + i);
  if (i == dims) return;
  HWY_ALIGN float last[16];
  hn::Store(value_at(i), d, last);
  std::copy_n(last, dims - i, out + i);
}

inline void ScaleRowOf(Codec codec, const uint8_t* codes, uint32_t dims, float scale, float mid,
                       float* out) {
  switch (codec) {
    case Codec::kFp8E4m3: return ScaleRow<Codec::kFp8E4m3>(codes, dims, scale, mid, out);
    case Codec::kFp8E5m2: return ScaleRow<Codec::kFp8E5m2>(codes, dims, scale, mid, out);
    case Codec::kInt8: return ScaleRow<Codec::kInt8>(codes, dims, scale, mid, out);
    case Codec::kInt4: return ScaleRow<Codec::kInt4>(codes, dims, scale, mid, out);
    case Codec::kNf4: return ScaleRow<Codec::kNf4>(codes, dims, scale, mid, out);
    case Codec::kFp4: return ScaleRow<Codec::kFp4>(codes, dims, scale, mid, out);
    case Codec::kQ25: return ScaleRow<Codec::kQ25>(codes, dims, scale, mid, out);
    default: QUIRE_CHECK(false);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
