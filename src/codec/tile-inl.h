// Sixteen tokens of an open block in f32, with a lane for each token: what encoding reads.
#include "codec/convert-inl.h"
#include "codec/transpose-inl.h"
#include "hwy/highway.h"
#include "quire/attention.h"

#if defined(QUIRE_CODEC_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_CODEC_TILE_INL_H_
#undef QUIRE_CODEC_TILE_INL_H_
#else
#define QUIRE_CODEC_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

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

}  // namespace quire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
