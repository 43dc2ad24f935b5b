// Exp in scalar and vector form. The vector side is compiled for every target, like the kernels.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/scalar.h"

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/math_test.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "attention/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

// count must be a multiple of 16.
void ExpOfArray(const float* from, float* to, size_t count) {
  const hn::CappedTag<float, 16> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(Exp(d, hn::LoadU(d, from + i)), d, to + i);
  }
}

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::attention {
namespace {

HWY_EXPORT(ExpOfArray);

TEST(Exp, ExactAndSaturatedValues) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(std::bit_cast<uint32_t>(Exp(-86.6f)), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(Exp(-std::numeric_limits<float>::infinity())), 0u);
  EXPECT_GT(Exp(-86.5f), std::numeric_limits<float>::min());  // never subnormal
  EXPECT_EQ(Exp(1e30f), Exp(88.0f));
  EXPECT_TRUE(std::isfinite(Exp(88.0f)));
  EXPECT_EQ(Exp(std::numeric_limits<float>::denorm_min()), 1.0f);
}

TEST(Exp, RelativeErrorIsBelowTheBound) {
  double worst = 0;
  for (float x = -86.5f; x <= 88.0f; x += 0.00037f) {
    const double want = std::exp(double{x});
    worst = std::max(worst, std::fabs(Exp(x) - want) / want);
  }
  EXPECT_LT(worst, 2e-7);
  EXPECT_GT(worst, 1e-9);  // the comparison saw something
}

// Every 331st of all 2^32 bit patterns that is not a NaN: 13 million.
TEST(Exp, VectorsEqualScalarsInEveryBit) {
  const bool has_fma = (hwy::SupportedTargets() & ~int64_t{HWY_SSSE3 | HWY_SSE4}) != HWY_EMU128;
  if (!has_fma) GTEST_SKIP() << "this processor has no fused multiply-add";
  std::vector<float> from;
  std::vector<float> to(1024);
  uint64_t compared = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 331) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isnan(x)) from.push_back(x);
    if (from.size() < to.size()) continue;
    HWY_DYNAMIC_DISPATCH(ExpOfArray)(from.data(), to.data(), from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      const float want = Exp(from[i]);
      ASSERT_EQ(std::memcmp(&to[i], &want, sizeof(float)), 0) << from[i];
    }
    compared += from.size();
    from.clear();
  }
  EXPECT_GT(compared, 12'000'000u);
}

}  // namespace
}  // namespace quire::attention
#endif  // HWY_ONCE
