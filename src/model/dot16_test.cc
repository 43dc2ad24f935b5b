// The products of the classes dot16 beside their order in plain loops (docs/numerics.md section 6).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bits.h"
#include "base/float_bits.h"
#include "model/arithmetic.h"
#include "model/matmul.h"
#include "model/matmul_amx.h"
#include "model/test_matmul.h"

namespace quire::model {
namespace {

// A number below the least normal one becomes a zero of its sign.
float Flush(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// fma of inputs without subnormals, whose result has none either: what would be below the least
// normal number if exponents had no end becomes zero.
float FlushingFma(float a, float b, float c) {
  constexpr double kLeastRounded = 0x1p-126 - 0x1p-151;  // rounds to 2^-126
  a = Flush(a);
  b = Flush(b);
  c = Flush(c);
  const double nearly = std::fma(double{a}, double{b}, double{c});  // exact near 2^-126
  if (std::abs(nearly) < kLeastRounded) return std::copysign(0.0f, static_cast<float>(nearly));
  return std::fma(a, b, c);
}

float JudgeOfAmx(const std::vector<float>& x, const std::vector<float>& w) {
  float sum = 0.0f;
  for (size_t step = 0; step < x.size(); step += kPairsStep) {
    float even = 0.0f;
    float odd = 0.0f;
    for (size_t i = step; i < step + kPairsStep; i += 2) {
      even = FlushingFma(x[i], w[i], even);
      odd = FlushingFma(x[i + 1], w[i + 1], odd);
    }
    sum = FlushingFma(1.0f, FlushingFma(1.0f, even, odd), sum);
  }
  return sum;
}

float JudgeOfAvx512(const std::vector<float>& x, const std::vector<float>& w) {
  float sum = 0.0f;
  for (size_t i = 0; i < x.size(); i += 2) {
    sum = FlushingFma(x[i + 1], w[i + 1], sum);
    sum = FlushingFma(x[i], w[i], sum);
  }
  return sum;
}

// A NaN is a NaN: which one is the instruction's.
bool SameValue(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

class Dot16Test : public testing::TestWithParam<Arithmetic> {
 protected:
  void SetUp() override {
    if (!IsUsable(GetParam())) {
      GTEST_SKIP() << "this processor has no " << ArithmeticName(GetParam());
    }
  }

  template <typename Value>
  static Problem Pairs(uint32_t n, uint32_t k, const Value& value) {
    return MakeProblem(n, k, ComputeType::kBf16, PanelOrder::kPairs, value);
  }

  static std::vector<float> Multiplied(const Problem& problem, const std::vector<float>& x,
                                       uint32_t rows, ComputeType round, Executor& executor) {
    const auto matmul = GetParam() == Arithmetic::kDot16Amx ? MatmulAmx : Matmul;
    return ProductOf(matmul, problem, x, rows, round, executor);
  }

  // Row n of the matrix, and a row of x, filled up with zeros.
  static std::vector<float> RowOf(const Problem& problem, uint32_t n) {
    std::vector<float> row(RoundUp(problem.w.k, kPairsStep));
    UnpackRow(problem.w, n, row.data());
    return row;
  }
  static std::vector<float> RowOf(const Problem& problem, const std::vector<float>& x, uint32_t r) {
    std::vector<float> row(RoundUp(problem.w.k, kPairsStep));
    std::copy_n(x.data() + uint64_t{r} * problem.w.k, problem.w.k, row.data());
    return row;
  }

  static float Judge(const std::vector<float>& x, const std::vector<float>& w, ComputeType round) {
    return RoundValue(round,
                      GetParam() == Arithmetic::kDot16Amx ? JudgeOfAmx(x, w) : JudgeOfAvx512(x, w));
  }

  template <typename Value>
  void ExpectJudge(const Problem& problem, uint32_t rows, ComputeType round, Executor& executor,
                   const Value& value) {
    std::vector<float> x(uint64_t{rows} * problem.w.k);
    for (float& each : x) each = RoundValue(ComputeType::kBf16, value());
    const std::vector<float> y = Multiplied(problem, x, rows, round, executor);
    std::vector<std::vector<float>> weights;
    for (uint32_t n = 0; n < problem.w.n; ++n) weights.push_back(RowOf(problem, n));
    for (uint32_t r = 0; r < rows; ++r) {
      const std::vector<float> row = RowOf(problem, x, r);
      for (uint32_t n = 0; n < problem.w.n; ++n) {
        const float judge = Judge(row, weights[n], round);
        const float got = y[uint64_t{r} * problem.w.n + n];
        ASSERT_TRUE(SameValue(got, judge))
            << "row " << r << " of " << rows << ", output " << n << " of " << problem.w.n << ", k "
            << problem.w.k << ", workers " << executor.worker_count() << ": " << got << ", not "
            << judge;
      }
    }
  }
};

TEST_P(Dot16Test, EveryRowCountEqualsTheJudge) {
  Prng prng(1);
  const auto value = [&] { return prng.NextFloat(-1.0f, 1.0f); };
  const Problem problem = Pairs(83, 67, value);
  const auto one = MakeThreadPool(1);
  const auto three = MakeThreadPool(3);
  for (uint32_t rows = 1; rows <= 70; ++rows) {
    ExpectJudge(problem, rows, rows % 3 == 0 ? ComputeType::kF32 : ComputeType::kBf16,
                rows % 2 == 0 ? *one : *three, value);
  }
}

TEST_P(Dot16Test, OddShapesEqualTheJudge) {
  Prng prng(2);
  const auto value = [&] { return prng.NextFloat(-1.0f, 1.0f); };
  const auto pool = MakeThreadPool(2);
  for (const uint32_t n : {1u, 15u, 16u, 17u, 48u, 129u, 200u}) {
    for (const uint32_t k : {1u, 2u, 31u, 32u, 33u, 256u, 511u, 512u, 513u, 1100u}) {
      const Problem problem = Pairs(n, k, value);
      for (const uint32_t rows : {1u, 5u, 40u}) {
        ExpectJudge(problem, rows, ComputeType::kBf16, *pool, value);
      }
    }
  }
}

TEST_P(Dot16Test, ManyRowsCrossBlocks) {
  Prng prng(3);
  const auto value = [&] { return prng.NextFloat(-1.0f, 1.0f); };
  const Problem problem = Pairs(40, 600, value);
  for (const uint32_t workers : {1u, 4u}) {  // of several, each has some rows
    const auto pool = MakeThreadPool(workers);
    for (const uint32_t rows : {239u, 241u, 257u, 500u, 513u, 1030u}) {
      ExpectJudge(problem, rows, ComputeType::kBf16, *pool, value);
    }
  }
}

// What makes instructions differ: products around the least normal number, subnormal inputs, terms
// of any size, sums that cancel, infinities and NaNs.
TEST_P(Dot16Test, ValuesOfEveryKindEqualTheJudge) {
  Prng prng(4);
  const auto pool = MakeThreadPool(1);
  const auto number = [&](uint32_t exponent) {
    return std::bit_cast<float>(static_cast<uint32_t>(prng.NextBelow(2)) << 31 | exponent << 23 |
                                static_cast<uint32_t>(prng.NextBelow(128)) << 16);
  };
  const auto between = [&](uint32_t low, uint32_t high) {
    return number(low + static_cast<uint32_t>(prng.NextBelow(high - low + 1)));
  };
  const std::array kinds = {
      std::pair<uint32_t, uint32_t>(58, 68),    // products around the least normal number
      std::pair<uint32_t, uint32_t>(0, 2),      // subnormal
      std::pair<uint32_t, uint32_t>(126, 127),  // sums that cancel
      std::pair<uint32_t, uint32_t>(90, 160),   // far apart
      std::pair<uint32_t, uint32_t>(188, 192),  // beyond the largest
      std::pair<uint32_t, uint32_t>(0, 254),    // any
      std::pair<uint32_t, uint32_t>(0, 255)};   // infinities and NaNs too
  for (const auto& [low, high] : kinds) {
    for (int round = 0; round < 30; ++round) {
      const auto value = [&] { return between(low, high); };
      const uint32_t k = 2 + 31 * static_cast<uint32_t>(round);
      ExpectJudge(Pairs(37, k, value), 5, ComputeType::kF32, *pool, value);
    }
  }
  // One part of the sum at the least normal number, the other so small that where it is rounded
  // decides.
  const auto near = [&] {
    constexpr std::array kSmall = {0x1p-126f, 0x1p-76f, 0x1p-75f, 0x1.8p-76f, 0x1p-77f, 0x1p-40f};
    const float small = kSmall[prng.NextBelow(kSmall.size())];
    return prng.NextBelow(4) == 0 ? 1.0f : prng.NextBelow(2) == 0 ? small : -small;
  };
  for (int round = 0; round < 100; ++round) {
    ExpectJudge(Pairs(64, 4, near), 8, ComputeType::kF32, *pool, near);
  }
}

TEST_P(Dot16Test, ARowHasTheSameBitsInAnyCompany) {
  Prng prng(5);
  const auto value = [&] { return prng.NextFloat(-1.0f, 1.0f); };
  const Problem problem = Pairs(100, 256, value);
  const auto pool = MakeThreadPool(2);
  std::vector<float> x(500 * 256);
  for (float& each : x) each = RoundValue(ComputeType::kBf16, value());
  const std::vector<float> all = Multiplied(problem, x, 500, ComputeType::kF32, *pool);
  for (const uint32_t row : {0u, 17u, 255u, 256u, 499u}) {
    const std::vector<float> own(x.begin() + row * 256, x.begin() + (row + 1) * 256);
    const std::vector<float> alone = Multiplied(problem, own, 1, ComputeType::kF32, *pool);
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + row * 100, 400), 0) << row;
  }
}

// As many roundings as fma32 has, or fewer.
TEST_P(Dot16Test, SumsAreCloseToThoseInF64) {
  Prng prng(6);
  const auto value = [&] { return prng.NextFloat(-1.0f, 1.0f); };
  constexpr uint32_t kDepth = 4096;
  const Problem problem = Pairs(64, kDepth, value);
  const auto pool = MakeThreadPool(2);
  std::vector<float> x(8 * kDepth);
  for (float& each : x) each = RoundValue(ComputeType::kBf16, value());
  const std::vector<float> y = Multiplied(problem, x, 8, ComputeType::kF32, *pool);
  for (uint32_t r = 0; r < 8; ++r) {
    const std::vector<float> row = RowOf(problem, x, r);
    for (uint32_t n = 0; n < 64; ++n) {
      const std::vector<float> weights = RowOf(problem, n);
      double sum = 0;
      double size = 0;
      for (uint32_t i = 0; i < kDepth; ++i) {
        sum += double{row[i]} * double{weights[i]};
        size += std::abs(double{row[i]} * double{weights[i]});
      }
      EXPECT_LT(std::abs(double{y[r * 64 + n]} - sum), 1e-6 * size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Classes, Dot16Test,
                         testing::Values(Arithmetic::kDot16Amx, Arithmetic::kDot16Avx512),
                         [](const auto& tested) {
                           return tested.param == Arithmetic::kDot16Amx ? "amx" : "avx512";
                         });

TEST(PairsTest, UnpackedRowsAreTheRowsPacked) {
  Prng prng(7);
  for (const uint32_t k : {1u, 13u, 32u, 64u, 70u}) {
    const Problem problem = MakeProblem(21, k, ComputeType::kBf16, PanelOrder::kPairs,
                                        [&] { return prng.NextFloat(-1.0f, 1.0f); });
    EXPECT_EQ(PackedBytes(21, k, ComputeType::kBf16, PanelOrder::kPairs),
              32 * RoundUp(k, kPairsStep) * 2);
    std::vector<float> row(k);
    for (uint32_t n = 0; n < 21; ++n) {
      UnpackRow(problem.w, n, row.data());
      for (uint32_t i = 0; i < k; ++i) {
        EXPECT_EQ(row[i], LoadValue(ComputeType::kBf16, problem.rows.data() + (n * k + i) * 2));
      }
    }
    // All that is no value is zero: columns after the last, and k up to a whole step.
    const auto* const halves = reinterpret_cast<const uint16_t*>(problem.w.panels);
    const uint64_t panel = PanelBytes(problem.w) / 2;
    for (uint32_t n = 0; n < 32; ++n) {
      for (uint32_t i = n < 21 ? k : 0; i < RoundUp(k, kPairsStep); ++i) {
        EXPECT_EQ(halves[n / 16 * panel + (i / 2 * 16 + n % 16) * 2 + i % 2], 0) << n << " " << i;
      }
    }
  }
}

TEST(ArithmeticTest, NamesAreChosenOrRefusedWithWhatToDo) {
  EXPECT_EQ(ChooseArithmetic("fma32").value(), Arithmetic::kFma32);
  const auto wrong = ChooseArithmetic("tf32");
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(wrong.error().message.find("dot16-avx512"), std::string::npos);
  for (const Arithmetic arithmetic : kArithmeticClasses) {
    const auto chosen = ChooseArithmetic(ArithmeticName(arithmetic));
    ASSERT_EQ(chosen.has_value(), IsUsable(arithmetic)) << ArithmeticName(arithmetic);
    if (chosen) {
      EXPECT_EQ(*chosen, arithmetic);
    } else {
      EXPECT_EQ(chosen.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(chosen.error().message.find("--arithmetic fma32"), std::string::npos);
    }
  }
  const auto best = ChooseArithmetic("dot16");
  EXPECT_EQ(best.has_value(),
            IsUsable(Arithmetic::kDot16Amx) || IsUsable(Arithmetic::kDot16Avx512));
  if (best) {
    EXPECT_EQ(*best == Arithmetic::kDot16Amx, IsUsable(Arithmetic::kDot16Amx));
  }
}

}  // namespace
}  // namespace quire::model
