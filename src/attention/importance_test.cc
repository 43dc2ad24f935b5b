#include "attention/importance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "attention/test_sequence.h"
#include "codec/rotate.h"

namespace quire::attention {
namespace {

struct Naive {
  std::vector<double> importance;  // [blocks]
  double size_max = 0;             // of scale * sum over d of |q * k|: what errors of a score go by
};

/// One value of K as a row reads it: blocks that are written whole sealed, others open.
std::vector<float> KeyRow(const AttentionShape& shape, const BlockTables& tables,
                          const AttentionTask& task, uint32_t head, uint64_t token) {
  const uint64_t block = token / shape.key.block_tokens;
  const auto in_block = static_cast<uint32_t>(token % shape.key.block_tokens);
  const bool whole = (block + 1) * shape.key.block_tokens <= task.first_position + task.rows;
  const StreamLayout& stream = whole ? shape.key : OpenKey(shape);
  const std::byte* slot = (whole ? tables.sealed : tables.open).BlockAt(task.sequence, block);
  StoredScale scale;
  if (!IsIdentity(stream.codec)) scale = LoadScale(stream, slot, head, in_block);
  std::vector<float> row;
  for (uint32_t d = 0; d < stream.dim; ++d) {
    row.push_back(scale.mid + scale.scale * StoredCode(stream, slot, head, in_block, d));
  }
  if (stream.rotated) codec::Rotate(row.data(), 1, stream.dim);  // its own inverse
  return row;
}

/// Softmax in double, one row after the other.
Naive NaiveImportance(const AttentionShape& shape, const BlockTables& tables,
                      const AttentionTask& task, uint64_t blocks) {
  Naive naive{.importance = std::vector<double>(blocks)};
  const uint32_t group = shape.query_heads / shape.key.heads;
  const uint32_t block_tokens = shape.key.block_tokens;
  for (uint32_t row = 0; row < task.rows; ++row) {
    for (uint32_t head = 0; head < shape.query_heads; ++head) {
      std::vector<double> weights;
      for (uint64_t t = 0; t <= task.first_position + row; ++t) {
        const std::vector<float> key = KeyRow(shape, tables, task, head / group, t);
        double score = 0;
        double size = 0;
        for (uint32_t d = 0; d < shape.key.dim; ++d) {
          const float q =
              task.queries[(size_t{row} * shape.query_heads + head) * shape.key.dim + d];
          score += double{q} * key[d];
          size += std::abs(double{q} * key[d]);
        }
        weights.push_back(std::exp(score * shape.scale));
        naive.size_max = std::max(naive.size_max, size * shape.scale);
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t t = 0; t < weights.size(); ++t)
        naive.importance[t / block_tokens] += weights[t] / sum;
    }
  }
  return naive;
}

/// What sums and products in f32 can make of a block's importance. A score of n products errs by n
/// roundings of its size at most, and of a value read (multiplied, added, rotated) by few more; a
/// weight errs by as much, relatively, and by the rounding of exp; weight and sum err alike.
double BoundOf(const AttentionShape& shape, const AttentionTask& task, const Naive& naive) {
  constexpr double kRounding = 0x1p-24;
  const double of_score = (shape.key.dim + 16) * kRounding * naive.size_max + 4 * kRounding;
  return 2 * of_score * task.rows * shape.query_heads;
}

void ExpectNaive(const AttentionShape& shape, const BlockTables& tables, const AttentionTask& task,
                 uint64_t blocks) {
  std::vector<double> importance(blocks);
  AddImportance(shape, tables, task, *MakeThreadPool(1), importance);
  const Naive naive = NaiveImportance(shape, tables, task, blocks);
  const double bound = BoundOf(shape, task, naive);
  EXPECT_LT(bound, 2e-3 * task.rows * shape.query_heads);  // it says something
  for (size_t b = 0; b < blocks; ++b) {
    EXPECT_NEAR(importance[b], naive.importance[b], bound)
        << "rows " << task.rows << " block " << b;
  }
  const double all = task.rows * shape.query_heads;
  EXPECT_NEAR(std::accumulate(importance.begin(), importance.end(), 0.0), all, 1e-6 * all);
}

TEST(ImportanceTest, EqualsSoftmaxByHand) {
  const AttentionShape shape =
      MakeShape({.kv_heads = 2, .group = 3, .key_dim = 20, .block_tokens = 32});
  Prng prng(3);
  TestSequence sequence(shape, 150, false, &prng);
  for (const auto& [first, rows] : {std::pair{0u, 1u}, {0u, 150u}, {100u, 9u}, {149u, 1u}}) {
    const auto queries = RandomFloats(size_t{rows} * 6 * 20, &prng);
    ExpectNaive(shape, sequence.tables(), sequence.Task(first, rows, queries.data(), nullptr), 5);
  }
}

TEST(ImportanceTest, ThreadsDoNotShow) {
  const AttentionShape shape = MakeShape({.group = 2, .key_dim = 24});
  Prng prng(4);
  TestSequence sequence(shape, 200, false, &prng);
  const auto queries = RandomFloats(size_t{70} * 2 * 24, &prng);
  const AttentionTask task = sequence.Task(130, 70, queries.data(), nullptr);
  std::vector<double> one(13);
  std::vector<double> four(13);
  AddImportance(shape, sequence.tables(), task, *MakeThreadPool(1), one);
  AddImportance(shape, sequence.tables(), task, *MakeThreadPool(4), four);
  EXPECT_EQ(one, four);
}

TEST(ImportanceTest, ReadsEncodedBlocksAndTheOpenOne) {
  for (const Codec codec : kCodecs) {
    if (IsIdentity(codec)) continue;
    for (const bool rotated : {false, true}) {
      SCOPED_TRACE(std::string(CodecName(codec)) + (rotated ? " rotated" : ""));
      // The open form of a block holds other values, by 0.5.
      const AttentionShape shape = MakeShape({.kv_heads = 2,
                                              .group = 3,
                                              .key_dim = 64,
                                              .block_tokens = 32,
                                              .key_codec = codec,
                                              .value_codec = codec,
                                              .rotated = rotated,
                                              .open_codec = Codec::kF32});
      Prng prng(5);
      TestSequence sequence(shape, 150, false, &prng);
      // In the first block, into the middle of one, to the end of one, and in the open one.
      for (const auto& [first, rows] :
           {std::pair{0u, 5u}, {40u, 60u}, {120u, 8u}, {127u, 1u}, {128u, 22u}}) {
        const auto queries = RandomFloats(size_t{rows} * 6 * 64, &prng);
        ExpectNaive(shape, sequence.tables(), sequence.Task(first, rows, queries.data(), nullptr),
                    5);
      }
    }
  }
}

}  // namespace
}  // namespace quire::attention
