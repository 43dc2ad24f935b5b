#include "ranks/sequence/subtree.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "model/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ranks/sequence/subtree.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "attention/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::ranks::sequence::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();

// a = Merge(a, b): the operations of attention's MergeStates, whose bits these are.
HWY_INLINE void Merge(const States& own, uint64_t a, uint64_t b) {
  if (own.max()[b] == kEmptyMax) return;
  const uint64_t dim = own.dim;
  float* const out_a = own.out() + a * dim;
  const float* const out_b = own.out() + b * dim;
  if (own.max()[a] == kEmptyMax) {
    own.max()[a] = own.max()[b];
    own.sum()[a] = own.sum()[b];
    std::copy_n(out_b, dim, out_a);
    return;
  }
  const hn::ScalableTag<float> d;
  const auto max_a = hn::Set(d, own.max()[a]);
  const auto max_b = hn::Set(d, own.max()[b]);
  const auto max = hn::Max(max_a, max_b);
  const auto ea = attention::HWY_NAMESPACE::Exp(d, hn::Sub(max_a, max));
  const auto eb = attention::HWY_NAMESPACE::Exp(d, hn::Sub(max_b, max));
  own.max()[a] = std::max(own.max()[a], own.max()[b]);
  own.sum()[a] =
      hn::GetLane(hn::MulAdd(hn::Set(d, own.sum()[a]), ea, hn::Mul(hn::Set(d, own.sum()[b]), eb)));
  uint64_t i = 0;
  for (; i + hn::Lanes(d) <= dim; i += hn::Lanes(d)) {
    const auto scaled = hn::Mul(hn::LoadU(d, out_b + i), eb);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, out_a + i), ea, scaled), d, out_a + i);
  }
  if (i == dim) return;
  const auto rest = hn::FirstN(d, dim - i);
  const auto scaled = hn::Mul(hn::MaskedLoad(rest, d, out_b + i), eb);
  hn::BlendedStore(hn::MulAdd(hn::MaskedLoad(rest, d, out_a + i), ea, scaled), rest, d, out_a + i);
}

// Lane i of the subtree merges with lane i + lanes / 2 first, as lane l does with l + 8.
void MergeVectors(const States& own, uint32_t lanes, uint64_t begin, uint64_t end,
                  const States& merged) {
  for (uint64_t vector = begin; vector < end; ++vector) {
    const uint64_t first = vector * lanes;
    for (uint32_t width = lanes / 2; width > 0; width /= 2) {
      for (uint32_t i = 0; i < width; ++i) Merge(own, first + i, first + i + width);
    }
    merged.max()[vector] = own.max()[first];
    merged.sum()[vector] = own.sum()[first];
    std::copy_n(own.out() + first * own.dim, own.dim, merged.out() + vector * own.dim);
  }
}

}  // namespace quire::ranks::sequence::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::ranks::sequence {
namespace {

HWY_EXPORT(MergeVectors);

}  // namespace

void MergeSubtrees(const States& own, uint32_t lanes, uint64_t begin, uint64_t end,
                   const States& merged) {
  HWY_DYNAMIC_DISPATCH(MergeVectors)(own, lanes, begin, end, merged);
}

}  // namespace quire::ranks::sequence
#endif  // HWY_ONCE
