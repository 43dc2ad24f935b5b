#include "base/float_bits.h"

#include <gtest/gtest.h>

#include <immintrin.h>

#include <cmath>
#include <limits>

#include "base/prng.h"

namespace quire {
namespace {

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

// The processor's own conversions.
__attribute__((target("f16c"))) float HardwareToF32(uint16_t code) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(code)));
}
__attribute__((target("f16c"))) uint16_t HardwareToF16(float value) {
  const __m128i codes = _mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT);
  return static_cast<uint16_t>(_mm_extract_epi16(codes, 0));
}

// Calls check(f32) for every f32 beside which the f16 result changes: each f16 value, the middle to
// the next, one f32 step to either side, both signs; infinities and NaNs follow from the codes.
template <typename Check>
void ForEachF16Edge(const Check& check) {
  for (uint32_t code = 0; code <= 0x7fff; ++code) {
    const uint32_t value = BitsOf(F16ToF32(static_cast<uint16_t>(code)));
    const uint32_t next = BitsOf(F16ToF32(static_cast<uint16_t>(code + 1)));
    const float middle = (std::bit_cast<float>(value) + std::bit_cast<float>(next)) / 2;
    for (const uint32_t center : {value, BitsOf(middle)}) {
      for (const uint32_t bits : {center - 1, center, center + 1}) {
        check(std::bit_cast<float>(bits));
        check(std::bit_cast<float>(bits ^ 0x80000000u));
      }
    }
  }
  check(65519.996f);
  check(65520.0f);
  check(-65520.0f);
}

TEST(FloatBits, EveryHalfEqualsItsDefinition) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const float got = F16ToF32(static_cast<uint16_t>(code));
    const int exponent = static_cast<int>((code >> 10) & 31);
    const int mantissa = static_cast<int>(code & 0x3ff);
    if (exponent == 31 && mantissa != 0) {
      ASSERT_EQ(BitsOf(got),
                ((code & 0x8000u) << 16) | 0x7fc00000u | (static_cast<uint32_t>(mantissa) << 13));
      continue;
    }
    double want = exponent == 0    ? std::ldexp(mantissa, -24)
                  : exponent == 31 ? std::numeric_limits<double>::infinity()
                                   : std::ldexp(mantissa + 1024, exponent - 25);
    if ((code & 0x8000) != 0) want = -want;
    ASSERT_EQ(BitsOf(got), BitsOf(static_cast<float>(want))) << "code " << code;
  }
}

TEST(FloatBits, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const bool is_nan = (code & 0x7fffu) > 0x7c00u;
    const uint32_t want = is_nan ? code | 0x200u : code;
    ASSERT_EQ(F32ToF16(F16ToF32(static_cast<uint16_t>(code))), want);
  }
}

TEST(FloatBits, HalfEqualsTheProcessor) {
  if (!__builtin_cpu_supports("f16c")) GTEST_SKIP() << "this processor has no F16C";
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const auto half = static_cast<uint16_t>(code);
    ASSERT_EQ(BitsOf(F16ToF32(half)), BitsOf(HardwareToF32(half))) << "code " << code;
  }
  const auto same = [](float value) {
    ASSERT_EQ(F32ToF16(value), HardwareToF16(value)) << "bits " << BitsOf(value);
  };
  ForEachF16Edge(same);
  Prng prng(5);
  for (int i = 0; i < 2'000'000; ++i) {
    same(std::bit_cast<float>(static_cast<uint32_t>(prng.Next64())));
  }
}

TEST(FloatBits, HalfRoundsToTheNearestEven) {
  const auto nearest = [](float value) {
    if (std::isnan(value) || std::fabs(value) >= 65504.0f) return;
    const uint16_t code = F32ToF16(value);
    const double error = std::fabs(static_cast<double>(value) - F16ToF32(code));
    for (const int step : {-1, 1}) {
      const auto neighbour = static_cast<uint16_t>(code + step);
      if ((neighbour & 0x7fff) >= 0x7c00 || (code & 0x7fff) == 0) continue;
      const double other = std::fabs(static_cast<double>(value) - F16ToF32(neighbour));
      ASSERT_LE(error, other) << "bits " << BitsOf(value);
      if (error == other) {
        ASSERT_EQ(code & 1, 0) << "bits " << BitsOf(value);
      }
    }
  };
  ForEachF16Edge(nearest);
}

TEST(FloatBits, HalfAtTheEdges) {
  EXPECT_EQ(F32ToF16(0.0f), 0x0000);
  EXPECT_EQ(F32ToF16(-0.0f), 0x8000);
  EXPECT_EQ(F32ToF16(65504.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(F32ToF16(0x1p-24f), 0x0001);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0x0000);
  EXPECT_EQ(F32ToF16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(F32ToF16(0x1.ffffp-15f), 0x0400);  // a subnormal carries into the normals
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(F32ToF16(std::bit_cast<float>(0x7f800001u)), 0x7e00);
}

TEST(FloatBits, BfloatCodesAreUpperHalves) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const float value = Bf16ToF32(static_cast<uint16_t>(code));
    ASSERT_EQ(BitsOf(value), code << 16);
    const bool is_nan = (code & 0x7fffu) > 0x7f80u;
    ASSERT_EQ(F32ToBf16(value), is_nan ? code | 0x40u : code);
  }
}

TEST(FloatBits, BfloatRoundsToTheNearestEven) {
  for (uint32_t code = 0; code < 0x7f80; ++code) {  // finite, positive; both signs below
    for (const uint32_t tail : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const bool up = tail > 0x8000u || (tail == 0x8000u && (code & 1) != 0);
      const uint32_t want = code + (up ? 1 : 0);
      for (const uint32_t sign : {0u, 0x8000u}) {
        const float value = std::bit_cast<float>((sign << 16) | (code << 16) | tail);
        ASSERT_EQ(F32ToBf16(value), sign | want) << "bits " << BitsOf(value);
      }
    }
  }
  EXPECT_EQ(F32ToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(F32ToBf16(std::bit_cast<float>(0xff800001u)), 0xffc0);
}

static_assert(F32ToF16(1.0f) == 0x3c00 && F16ToF32(0x3c00) == 1.0f);
static_assert(F32ToBf16(1.0f) == 0x3f80 && Bf16ToF32(0x3f80) == 1.0f);

}  // namespace
}  // namespace quire
