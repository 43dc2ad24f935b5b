#include "model/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "model/test_matmul.h"

namespace quire::model {
namespace {

Problem RandomProblem(uint32_t n, uint32_t k, ComputeType type, Prng& prng) {
  return MakeProblem(n, k, type, PanelOrder::kSingles, [&] { return prng.NextFloat(-1.0f, 1.0f); });
}

std::vector<float> Product(const Problem& problem, const std::vector<float>& x, uint32_t rows,
                           ComputeType round, Executor& executor) {
  return ProductOf(Matmul, problem, x, rows, round, executor);
}

// One output in the order of docs/numerics.md.
float Judge(const Problem& problem, const float* x, uint32_t row, ComputeType round) {
  const uint32_t value_bytes = TypeBytes(problem.w.type);
  float sum = 0.0f;
  for (uint32_t k = 0; k < problem.w.k; ++k) {
    const uint64_t at = (uint64_t{row} * problem.w.k + k) * value_bytes;
    sum = std::fma(x[k], LoadValue(problem.w.type, problem.rows.data() + at), sum);
  }
  return RoundValue(round, sum);
}

void ExpectJudge(const Problem& problem, uint32_t rows, ComputeType round, Executor& executor,
                 Prng& prng) {
  const std::vector<float> x = RandomRows(rows, problem.w.k, prng);
  const std::vector<float> y = Product(problem, x, rows, round, executor);
  std::vector<float> judge;
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t n = 0; n < problem.w.n; ++n) {
      judge.push_back(Judge(problem, x.data() + uint64_t{r} * problem.w.k, n, round));
    }
  }
  ASSERT_EQ(std::memcmp(y.data(), judge.data(), y.size() * sizeof(float)), 0)
      << rows << " rows, n " << problem.w.n << ", k " << problem.w.k << ", type "
      << static_cast<int>(problem.w.type) << ", workers " << executor.worker_count();
}

class MatmulTest : public testing::TestWithParam<ComputeType> {};

TEST_P(MatmulTest, EveryRowCountEqualsTheJudge) {
  Prng prng(1);
  const Problem problem = RandomProblem(83, 67, GetParam(), prng);
  const auto one = MakeThreadPool(1);
  const auto three = MakeThreadPool(3);
  for (uint32_t rows = 1; rows <= 70; ++rows) {
    ExpectJudge(problem, rows, ComputeType::kF32, rows % 2 == 0 ? *one : *three, prng);
  }
}

TEST_P(MatmulTest, OddShapesEqualTheJudge) {
  Prng prng(2);
  const auto pool = MakeThreadPool(2);
  for (const uint32_t n : {1u, 15u, 16u, 17u, 48u, 129u, 200u}) {
    for (const uint32_t k : {1u, 2u, 31u, 255u, 256u, 257u, 600u}) {
      const Problem problem = RandomProblem(n, k, GetParam(), prng);
      for (const uint32_t rows : {1u, 5u, 40u}) {
        ExpectJudge(problem, rows, GetParam(), *pool, prng);
      }
    }
  }
}

TEST_P(MatmulTest, ManyRowsCrossBlocks) {
  Prng prng(3);
  const Problem problem = RandomProblem(40, 300, GetParam(), prng);
  for (const uint32_t workers : {1u, 4u}) {  // of several, each has some rows
    const auto pool = MakeThreadPool(workers);
    for (const uint32_t rows : {239u, 241u, 257u, 500u, 513u, 1030u}) {
      ExpectJudge(problem, rows, GetParam(), *pool, prng);
    }
  }
}

TEST_P(MatmulTest, UnpackedRowsAreTheRowsPacked) {
  Prng prng(4);
  const Problem problem = RandomProblem(21, 13, GetParam(), prng);
  std::vector<float> row(13);
  for (uint32_t n = 0; n < 21; ++n) {
    UnpackRow(problem.w, n, row.data());
    for (uint32_t k = 0; k < 13; ++k) {
      const std::byte* at = problem.rows.data() + (n * 13 + k) * TypeBytes(GetParam());
      EXPECT_EQ(row[k], LoadValue(GetParam(), at));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulTest,
                         testing::Values(ComputeType::kF32, ComputeType::kF16, ComputeType::kBf16));

TEST(MatmulTest, OverflowAndNanTravelAsTheJudgeSays) {
  Prng prng(5);
  Problem problem = RandomProblem(16, 3, ComputeType::kF32, prng);
  const std::vector<float> x = {3e38f, 3e38f, 1.0f, 0.0f, -0.0f, 1e-40f};
  const auto pool = MakeThreadPool(1);
  for (const ComputeType round : {ComputeType::kF32, ComputeType::kF16, ComputeType::kBf16}) {
    const std::vector<float> y = Product(problem, x, 2, round, *pool);
    for (uint32_t i = 0; i < 32; ++i) {
      const float judge = Judge(problem, x.data() + i / 16 * 3, i % 16, round);
      EXPECT_EQ(std::memcmp(&y[i], &judge, sizeof(float)), 0) << y[i] << " vs " << judge;
    }
  }
}

}  // namespace
}  // namespace quire::model
