// What the kernels share: tags, unrolling, prefetching.
#include "attention/kernels.h"
#include "codec/load-inl.h"
#include "hwy/cache_control.h"
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
#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 32")
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
inline constexpr size_t kLineBytes = 64;

/// Asks for one cache line. The address may be anything.
HWY_INLINE void PrefetchLine(const std::byte* line) { hwy::Prefetch(line); }

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
