// What the kernels share: tags, unrolling, where the columns of a split lie.
#include "attention/kernels.h"
#include "codec/load-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_TILE_INL_H_
#undef QUIRE_ATTENTION_TILE_INL_H_
#else
#define QUIRE_ATTENTION_TILE_INL_H_
#endif

// Register tiles are arrays of vectors: unless every loop over them is unrolled they live in memory
// (g++ 12 does not do it by itself at -O2).
#undef QUIRE_UNROLL
#undef QUIRE_UNROLL_FEW
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#define QUIRE_UNROLL_FEW _Pragma("clang loop unroll_count(4)")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 32")
#define QUIRE_UNROLL_FEW _Pragma("GCC unroll 4")
#endif

// A lambda with the body of a loop: called, its sums would live in memory.
#undef QUIRE_INLINE
#define QUIRE_INLINE HWY_ATTR __attribute__((always_inline))

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
  // Whole-number codes lie in tiles; others [key.dim][16 tokens], a block's row apart, and
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
