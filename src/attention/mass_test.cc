#include "attention/mass.h"

#include <gtest/gtest.h>

#include <numeric>

#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

/// The same in double, one row after the other, from stored codes.
std::vector<double> NaiveMass(const AttentionShape& shape, const AttentionTask& task,
                              uint64_t blocks) {
  std::vector<double> mass(blocks);
  const uint32_t group = shape.query_heads / shape.key.heads;
  const uint32_t block_tokens = shape.key.block_tokens;
  for (uint32_t row = 0; row < task.rows; ++row) {
    for (uint32_t head = 0; head < shape.query_heads; ++head) {
      std::vector<double> weights;
      for (uint64_t t = 0; t <= task.first_position + row; ++t) {
        double score = 0;
        for (uint32_t d = 0; d < shape.key.dim; ++d) {
          const float q =
              task.queries[(size_t{row} * shape.query_heads + head) * shape.key.dim + d];
          score += double{q} * StoredCode(shape.key, task.sealed[t / block_tokens], head / group,
                                          static_cast<uint32_t>(t % block_tokens), d);
        }
        weights.push_back(std::exp(score * shape.scale));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t t = 0; t < weights.size(); ++t) mass[t / block_tokens] += weights[t] / sum;
    }
  }
  return mass;
}

TEST(MassTest, EqualsSoftmaxByHand) {
  const AttentionShape shape =
      MakeShape({.kv_heads = 2, .group = 3, .key_dim = 20, .block_tokens = 32});
  Prng prng(3);
  TestSequence sequence(shape, 150, false, &prng);
  const auto executor = MakeThreadPool(1);
  for (const auto& [first, rows] : {std::pair{0u, 1u}, {0u, 150u}, {100u, 9u}, {149u, 1u}}) {
    const auto queries = RandomFloats(size_t{rows} * 6 * 20, &prng);
    const AttentionTask task = sequence.Task(first, rows, queries.data(), nullptr);
    std::vector<double> mass(5);
    AddAttentionMass(shape, task, *executor, mass);
    const std::vector<double> want = NaiveMass(shape, task, 5);
    for (size_t b = 0; b < mass.size(); ++b) {
      EXPECT_NEAR(mass[b], want[b], 1e-4 * rows) << "rows " << rows << " block " << b;
    }
    EXPECT_NEAR(std::accumulate(mass.begin(), mass.end(), 0.0), 6.0 * rows, 1e-6 * rows);
  }
}

TEST(MassTest, ThreadsDoNotShow) {
  const AttentionShape shape = MakeShape({.group = 2, .key_dim = 24});
  Prng prng(4);
  TestSequence sequence(shape, 200, false, &prng);
  const auto queries = RandomFloats(size_t{70} * 2 * 24, &prng);
  const AttentionTask task = sequence.Task(130, 70, queries.data(), nullptr);
  std::vector<double> one(13);
  std::vector<double> four(13);
  AddAttentionMass(shape, task, *MakeThreadPool(1), one);
  AddAttentionMass(shape, task, *MakeThreadPool(4), four);
  EXPECT_EQ(one, four);
}

TEST(MassTest, ReadsEncodedBlocksAndTheOpenOne) {
  // The two tokens of the open block hold other values, so only proportions of the rest compare.
  Prng prng(5);
  const auto queries = RandomFloats(24, &prng);
  std::vector<std::vector<double>> masses;
  for (const Codec codec : {Codec::kF32, Codec::kInt8}) {
    const AttentionShape shape = MakeShape(
        {.key_dim = 24, .key_codec = codec, .value_codec = codec, .open_codec = Codec::kF32});
    TestSequence sequence(shape, 100, false, [&](int, uint32_t, uint64_t token, uint32_t d) {
      return 0.1f * static_cast<float>((token * 7 + d * 3) % 11);
    });
    const AttentionTask task = sequence.Task(97, 1, queries.data(), nullptr);
    masses.emplace_back(7);
    AddAttentionMass(shape, task, *MakeThreadPool(1), masses.back());
  }
  for (std::vector<double>& mass : masses) {
    EXPECT_GT(mass[6], 0.0);
    EXPECT_NEAR(std::accumulate(mass.begin(), mass.end(), 0.0), 1.0, 1e-6);
    const double rest = 1.0 - mass[6];
    for (double& share : mass) share /= rest;
  }
  for (size_t b = 0; b < 6; ++b) EXPECT_NEAR(masses[0][b], masses[1][b], 0.01) << b;
}

}  // namespace
}  // namespace quire::attention
