// Shared by the kernels: tags, unrolling, and where the columns of a split lie.
#include "attention/kernels.h"
#include "base/unroll.h"
#include "codec/load-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_TILE_INL_H_
#undef QUIRE_ATTENTION_TILE_INL_H_
#else
#define QUIRE_ATTENTION_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace cn = quire::codec::HWY_NAMESPACE;

/// At most the sixteen lanes of the partial sums; 8 on AVX2, 16 on AVX-512.
using Tag = hn::CappedTag<float, kColumnTokens>;
using Vec = hn::Vec<Tag>;
inline constexpr size_t kVecLanes = hn::MaxLanes(Tag());
inline constexpr size_t kVecsPerColumn = kColumnTokens / kVecLanes;

/// Columns of one split that some query sees and that are laid out alike. Pointers are those of the
/// item's first KV head.
struct Columns {
  uint32_t count = 0;
  uint32_t index[kColumnsPerSplit];  // which column of the split, ascending
  // Integer codes lie in tiles; others [key.dim][16 tokens], a block's row apart, and
  // [16 tokens][value.dim], contiguous.
  const std::byte* key[kColumnsPerSplit];
  const std::byte* value[kColumnsPerSplit];
  // Codecs that encode: f16 scales of the 16 tokens, their mids a block's scales further.
  const std::byte* key_scale[kColumnsPerSplit];
  const std::byte* value_scale[kColumnsPerSplit];
};

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
