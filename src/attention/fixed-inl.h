// Queries and weights to fixed point (scalar.h).
#include "attention/scalar.h"
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
#include <bit>
#include <cstring>
#include <numeric>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<Tag>;
using IntVec = hn::Vec<IntTag>;
using Int16Tag = hn::Rebind<int16_t, Tag>;

HWY_INLINE IntVec Magnitude(Vec x) {
  const IntTag di;
  return hn::And(hn::BitCast(di, x), hn::Set(di, 0x7fffffff));
}

/// Adding it rounds a small number to a whole one, to nearest even, whose two's complement is then
/// the low half of the sum's bits.
inline constexpr float kWholeMagic = 0x1.8p23f;
inline constexpr auto kWholeMagicBits = std::bit_cast<uint32_t>(kWholeMagic);

/// kWholeMagic plus numbers of at most kFixedMax, as bits.
HWY_INLINE IntVec ToFixed(Vec x, Vec inverse) {
  const Vec magic = hn::Set(Tag(), kWholeMagic);
  return hn::BitCast(IntTag(), hn::Add(hn::Mul(x, inverse), magic));
}
HWY_INLINE void StoreFixed(IntVec fixed, int16_t* to) {
  const hn::Rebind<uint16_t, Tag> d16;
  const auto low = hn::TruncateTo(d16, hn::BitCast(hn::RebindToUnsigned<IntTag>(), fixed));
  hn::StoreU(hn::BitCast(Int16Tag(), low), Int16Tag(), to);
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
    StoreFixed(ToFixed(hn::LoadU(d, query + i), inverse), to + i);
  }
  if (i < dim) {
    HWY_ALIGN float last[kVecLanes] = {};
    HWY_ALIGN int16_t fixed_last[kVecLanes];
    std::copy(query + i, query + dim, last);
    StoreFixed(ToFixed(hn::Load(d, last), inverse), fixed_last);
    std::copy_n(fixed_last, dim - i, to + i);
  }
  std::fill(to + dim, to + padded, int16_t{0});
  return fixed.unit;
}

/// What the integer codes are worth that queries or weights are multiplied with.
struct IntegerValues {
  float code_unit = 0.0f;
  int32_t bias = 0;  // of their numbers (integer-inl.h)
};

/// Query vectors that kernels take together, from [count, dim] to pairs of channels
/// [stride / 2, count, 2], zeros after the last channel.
inline void FixQueriesTogether(const float* queries, size_t count, size_t dim, size_t stride,
                               const IntegerValues& values, int16_t* to, float* units,
                               int32_t* bias_terms) {
  int16_t fixed[FixedStride(kDimMax)];
  for (size_t i = 0; i < count; ++i) {
    units[i] = FixQuery(queries + i * dim, dim, stride, fixed) * values.code_unit;
    bias_terms[i] = values.bias == 0 ? 0 : -values.bias * std::accumulate(fixed, fixed + dim, 0);
    int16_t* pair = to + 2 * i;
    QUIRE_UNROLL_FEW
    for (size_t d = 0; d < stride; d += 2, pair += 2 * count) {
      std::memcpy(pair, fixed + d, 2 * sizeof(*pair));
    }
  }
}

/// Columns of a split, a bit for each: which there are, and of which a row sees every token.
struct SeenColumns {
  SeenColumns(const VisibleTokens& visible, uint32_t columns) : present(columns) {
    for (uint32_t r = 0; r < visible.count; ++r) {
      const uint32_t first = DivUp(visible.ranges[r].begin, kColumnTokens);
      const uint32_t end = visible.ranges[r].end / kColumnTokens;
      if (first < end) whole |= (1u << end) - (1u << first);
    }
    whole &= present;
  }

  uint32_t present;
  uint32_t whole = 0;
};

/// A bit for each of the columns.
inline uint32_t ColumnBits(const Columns& columns) {
  uint32_t bits = 0;
  for (uint32_t c = 0; c < columns.count; ++c) bits |= 1u << columns.index[c];
  return bits;
}

/// Where the weights of one query vector go.
struct FixedRow {
  int16_t* codes = nullptr;       // [kSplitTokens]
  float* units = nullptr;         // of every group, times the codes' unit
  int32_t* bias_terms = nullptr;  // of every group, if bias is not 0: -bias * sum of its codes
  float* mid_sum = nullptr;       // grows by what the tokens are worth by mids
};

/// Weights of one query vector for the tokens of `seen`: what softmax left in `weights` times the
/// scales, in fixed point. Tokens that the query does not see weigh nothing. Each step is taken for
/// all groups before the next one, which would wait for it.
template <bool kMids>
void FixWeights(const VisibleTokens& visible, const SeenColumns& seen, const HeadScales& scales,
                const IntegerValues& values, const float* weights, const FixedRow& to) {
  const Tag d;
  const IntTag di;
  constexpr uint32_t kGroups = kSplitTokens / kGroupTokens;
  constexpr uint32_t kAllOfGroup = (1u << kColumnsPerGroup) - 1;
  alignas(64) float scaled[kSplitTokens];
  Vec of_mids[kVecsPerColumn];
  QUIRE_UNROLL
  for (size_t v = 0; v < kVecsPerColumn; ++v) of_mids[v] = hn::Zero(d);
  uint32_t largest_bits[kGroups];
  for (uint32_t g = 0; g < kGroups; ++g) {
    IntVec largest = hn::Zero(di);
    const auto weigh = [&]<bool kAll>() QUIRE_INLINE {
      QUIRE_UNROLL
      for (uint32_t c = 0; c < kColumnsPerGroup; ++c) {
        const uint32_t index = g * kColumnsPerGroup + c;
        const bool present = kAll || (seen.present >> index & 1) != 0;
        QUIRE_UNROLL
        for (size_t v = 0; v < kVecsPerColumn; ++v) {
          const uint32_t t = index * kColumnTokens + static_cast<uint32_t>(v * kVecLanes);
          if (!present) {
            hn::Store(hn::Zero(d), d, scaled + t);
            continue;
          }
          Vec e = hn::Load(d, weights + t);
          Vec mid = kMids ? hn::Load(d, scales.mid + t) : hn::Zero(d);
          Vec weight = hn::Mul(e, hn::Load(d, scales.scale + t));
          if (!kAll && (seen.whole >> index & 1) == 0) {
            const auto lanes = VisibleLanes(visible, t);
            e = hn::IfThenElseZero(lanes, e);
            mid = hn::IfThenElseZero(lanes, mid);
            weight = hn::IfThenElseZero(lanes, weight);
          }
          if (kMids) of_mids[v] = hn::MulAdd(e, mid, of_mids[v]);
          largest = hn::Max(largest, Magnitude(weight));
          hn::Store(weight, d, scaled + t);
        }
      }
    };
    if ((seen.whole >> (g * kColumnsPerGroup) & kAllOfGroup) == kAllOfGroup) {
      weigh.template operator()<true>();
    } else {
      weigh.template operator()<false>();
    }
    largest_bits[g] = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  }
  for (uint32_t g = 0; g < kGroups; ++g) {
    const FixedScale scale = FixedScaleOf(largest_bits[g]);
    to.units[g] = scale.unit * values.code_unit;
    const Vec inverse = hn::Set(d, scale.inverse);
    const size_t first = g * kGroupTokens;
    IntVec total = hn::Zero(di);
    QUIRE_UNROLL
    for (size_t i = 0; i < kGroupTokens; i += kVecLanes) {
      const IntVec fixed = ToFixed(hn::Load(d, scaled + first + i), inverse);
      total = hn::Add(total, fixed);
      StoreFixed(fixed, to.codes + first + i);
    }
    if (values.bias == 0) continue;
    // Without a sign, because of a row with a NaN the sum may be any number.
    const auto sum = static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, total)));
    const uint32_t codes_sum = sum - kGroupTokens * kWholeMagicBits;
    to.bias_terms[g] = static_cast<int32_t>(-static_cast<uint32_t>(values.bias) * codes_sum);
  }
  if (kMids) *to.mid_sum += SumOfColumn(of_mids);
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
