// Queries and weights to fixed point (fixed.h).
#include "attention/fixed.h"
#include "attention/scales-inl.h"
#include "attention/softmax-inl.h"
#include "attention/tile-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_FIXED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_FIXED_INL_H_
#undef QUIRE_ATTENTION_FIXED_INL_H_
#else
#define QUIRE_ATTENTION_FIXED_INL_H_
#endif

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<Tag>;
using IntVec = hn::Vec<IntTag>;
using Int16Tag = hn::Rebind<int16_t, Tag>;

HWY_INLINE IntVec Magnitude(Vec x) {
  const IntTag di;
  return hn::And(hn::BitCast(di, x), hn::Set(di, 0x7fffffff));
}

HWY_INLINE void StoreFixed(Vec x, Vec inverse, int16_t* to) {
  hn::StoreU(hn::DemoteTo(Int16Tag(), hn::NearestInt(hn::Mul(x, inverse))), Int16Tag(), to);
}

/// One query vector; zeros up to `padded`. Returns its unit.
inline float FixQuery(const float* query, size_t dim, size_t padded, int16_t* to) {
  const Tag d;
  const IntTag di;
  IntVec largest = hn::Zero(di);
  size_t i = 0;
  for (; i + kVecLanes <= dim; i += kVecLanes) {
    largest = hn::Max(largest, Magnitude(hn::LoadU(d, query + i)));
  }
  auto bits = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  for (size_t j = i; j < dim; ++j) bits = std::max(bits, MagnitudeBits(query[j]));
  const FixedScale fixed = FixedScaleOf(bits);
  const Vec inverse = hn::Set(d, fixed.inverse);
  for (i = 0; i + kVecLanes <= dim; i += kVecLanes) {
    StoreFixed(hn::LoadU(d, query + i), inverse, to + i);
  }
  if (i < dim) {
    HWY_ALIGN float last[kVecLanes] = {};
    HWY_ALIGN int16_t fixed_last[kVecLanes];
    std::copy(query + i, query + dim, last);
    StoreFixed(hn::Load(d, last), inverse, fixed_last);
    std::copy_n(fixed_last, dim - i, to + i);
  }
  std::fill(to + dim, to + padded, int16_t{0});
  return fixed.unit;
}

/// Weights of one query vector for the tokens of `columns`: what softmax left in `weights` times
/// the scales, in fixed point [kSplitTokens], a unit for every group (times `code_unit`). Tokens
/// that the query does not see weigh nothing. With mids adds to `mid_sum` what the tokens are worth
/// by them.
inline void FixWeights(const VisibleTokens& visible, const Columns& columns,
                       const HeadScales& scales, bool mids, float code_unit, float* weights,
                       int16_t* fixed, float* units, float* mid_sum) {
  const Tag d;
  const IntTag di;
  constexpr uint32_t kGroups = kSplitTokens / kGroupTokens;
  constexpr uint32_t kColumnsPerGroup = kGroupTokens / kColumnTokens;
  IntVec largest[kGroups];
  for (IntVec& of_group : largest) of_group = hn::Zero(di);
  Vec of_mids[kVecsPerColumn];
  QUIRE_UNROLL
  for (size_t v = 0; v < kVecsPerColumn; ++v) of_mids[v] = hn::Zero(d);
  uint32_t present = 0;
  for (uint32_t c = 0; c < columns.count; ++c) {
    const uint32_t index = columns.index[c];
    const uint32_t first = index * kColumnTokens;
    const bool sees_all = SeesColumn(visible, first);
    present |= 1u << index;
    QUIRE_UNROLL
    for (size_t v = 0; v < kVecsPerColumn; ++v) {
      const uint32_t t = first + static_cast<uint32_t>(v * kVecLanes);
      Vec e = hn::Load(d, weights + t);
      Vec weight = hn::Mul(e, hn::Load(d, scales.scale + t));
      Vec mid = mids ? hn::Load(d, scales.mid + t) : hn::Zero(d);
      if (!sees_all) {
        const auto seen = VisibleLanes(visible, t);
        e = hn::IfThenElseZero(seen, e);
        weight = hn::IfThenElseZero(seen, weight);
        mid = hn::IfThenElseZero(seen, mid);
      }
      of_mids[v] = hn::MulAdd(e, mid, of_mids[v]);
      hn::Store(weight, d, weights + t);
      IntVec& of_group = largest[index / kColumnsPerGroup];
      of_group = hn::Max(of_group, Magnitude(weight));
    }
  }
  for (uint32_t g = 0; g < kGroups; ++g) {
    const FixedScale scale =
        FixedScaleOf(static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest[g]))));
    units[g] = scale.unit * code_unit;
    const Vec inverse = hn::Set(d, scale.inverse);
    for (uint32_t index = g * kColumnsPerGroup; index < (g + 1) * kColumnsPerGroup; ++index) {
      const bool here = (present >> index & 1) != 0;
      QUIRE_UNROLL
      for (size_t v = 0; v < kVecsPerColumn; ++v) {
        const size_t t = index * kColumnTokens + v * kVecLanes;
        StoreFixed(here ? hn::Load(d, weights + t) : hn::Zero(d), inverse, fixed + t);
      }
    }
  }
  if (mids) *mid_sum += SumOfColumn(of_mids);
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
