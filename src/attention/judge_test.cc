// The judge against the f64 reference and against sums small enough to check by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "attention/reference.h"
#include "attention/scalar.h"
#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

std::vector<float> Judge(const AttentionShape& shape, const TestSequence& sequence,
                         uint64_t first_position, uint32_t rows,
                         const std::vector<float>& queries) {
  std::vector<float> out(size_t{rows} * shape.query_heads * shape.value.dim);
  const AttentionTask task = sequence.Task(first_position, rows, queries.data(), out.data());
  Attend(*MakeJudgeAttention(), shape, sequence.tables(), {&task, 1}, *MakeThreadPool(1));
  return out;
}

TEST(Judge, OneTokenIsItsValue) {
  const AttentionShape shape = MakeShape({.kv_heads = 2, .group = 2, .value_dim = 3});
  TestSequence sequence(shape, 1, false, [](int, uint32_t head, uint64_t, uint32_t d) {
    return static_cast<float>(10 * head + d);
  });
  const std::vector<float> queries(shape.query_heads * shape.key.dim, 1.0f);
  EXPECT_EQ(Judge(shape, sequence, 0, 1, queries),
            (std::vector<float>{0, 1, 2, 0, 1, 2, 10, 11, 12, 10, 11, 12}));
}

TEST(Judge, TwoTokensByHand) {
  AttentionShape shape = MakeShape(
      {.key_dim = 1, .value_dim = 1, .key_codec = Codec::kF32, .value_codec = Codec::kF32});
  shape.scale = 0.5f;
  TestSequence sequence(shape, 2, false, [](int stream, uint32_t, uint64_t t, uint32_t) {
    return stream == 0 ? (t == 0 ? 3.0f : 1.0f) : (t == 0 ? 5.0f : 7.0f);
  });
  // Scores 0.5 * 2 * {3, 1} = {3, 1}; weights {1, e^-2}.
  const float e = Exp(-2.0f);
  const float out = std::fma(e, 7.0f, 5.0f) / (1.0f + e);
  EXPECT_EQ(Judge(shape, sequence, 1, 1, {2.0f}), std::vector<float>{out});
}

// A sink takes its share of the weights, and has no value.
TEST(Judge, ASinkByHand) {
  AttentionShape shape = MakeShape(
      {.key_dim = 1, .value_dim = 1, .key_codec = Codec::kF32, .value_codec = Codec::kF32});
  shape.scale = 1.0f;
  TestSequence sequence(shape, 1, false, [](int stream, uint32_t, uint64_t, uint32_t) {
    return stream == 0 ? 1 : 5;
  });
  for (const auto& [logit, token, sink] :
       {std::tuple{-1.0f, 1.0f, Exp(-3.0f)}, {4.0f, Exp(-2.0f), 1.0f}}) {
    shape.sink_logits = &logit;
    // The token's score is 2: weights {token, sink}.
    EXPECT_EQ(Judge(shape, sequence, 0, 1, {2.0f}),
              std::vector<float>{5.0f * token / std::fma(1.0f, token, sink)});
  }
  const float none = -std::numeric_limits<float>::infinity();
  shape.sink_logits = &none;
  EXPECT_EQ(Judge(shape, sequence, 0, 1, {2.0f}), std::vector<float>{5.0f});
}

TEST(Judge, ASlopeByHand) {
  AttentionShape shape = MakeShape(
      {.key_dim = 1, .value_dim = 1, .key_codec = Codec::kF32, .value_codec = Codec::kF32});
  shape.scale = 1.0f;
  const float slope = 0.25f;
  shape.alibi_slopes = &slope;
  // Every score is 2 before; values are the tokens' numbers.
  TestSequence sequence(shape, 3, false, [](int stream, uint32_t, uint64_t t, uint32_t) {
    return stream == 0 ? 1.0f : static_cast<float>(t);
  });
  const float e1 = Exp(-0.25f);
  const float e0 = Exp(-0.5f);
  const float sum = (e0 + 1.0f) + e1;  // Tree16
  EXPECT_EQ(Judge(shape, sequence, 2, 1, {2.0f}), std::vector<float>{(e1 + 2.0f) / sum});
}

TEST(Judge, StaysWithinAHairOfTheReference) {
  Prng prng(3);
  const TestShape shapes[] = {
      {.kv_heads = 2, .group = 3, .key_dim = 20, .value_dim = 12, .key_codec = Codec::kBf16},
      {.group = 2, .block_tokens = 64, .window_tokens = 70, .sink_tokens = 3},
      {.key_dim = 24, .key_codec = Codec::kF32, .value_codec = Codec::kF32, .rotated = true},
      {.group = 2,
       .key_dim = 24,
       .value_dim = 40,
       .key_codec = Codec::kInt8,
       .value_codec = Codec::kInt4,
       .rotated = true},
      {.key_codec = Codec::kFp8E4m3, .value_codec = Codec::kNf4, .rotated = true},
      {.key_codec = Codec::kFp4, .value_codec = Codec::kFp8E5m2},
      {.key_dim = 24, .value_dim = 72, .key_codec = Codec::kQ25, .value_codec = Codec::kQ25},
      {.kv_heads = 2, .group = 3, .has_sinks = true, .has_slopes = true},
      {.group = 6,
       .key_codec = Codec::kInt8,
       .value_codec = Codec::kInt8,
       .window_tokens = 70,
       .sink_tokens = 3,
       .has_sinks = true,
       .has_slopes = true}};
  for (const TestShape& test : shapes) {
    for (const bool two_forms : {false, true}) {
      const AttentionShape shape = MakeShape(test);
      TestSequence sequence(shape, 700, two_forms, &prng);
      const std::vector<float> queries = RandomFloats(4 * shape.query_heads * shape.key.dim, &prng);
      const std::vector<float> got = Judge(shape, sequence, 696, 4, queries);
      std::vector<float> unused(got.size());
      const std::vector<double> want = ReferenceAttention(
          shape, sequence.tables(), sequence.Task(696, 4, queries.data(), unused.data()));
      // Sixteen bits of a query and of weights are worth about 3e-5 of the output.
      const bool fixed =
          codec::HasIntegerCodes(test.key_codec) || codec::HasIntegerCodes(test.value_codec);
      const double tolerance = fixed ? 5e-6 : 1e-6;
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
    }
  }
}

// The largest fixed query times the largest code, in every channel that kernels take.
TEST(Judge, SumsOfIntegersStayBelow32Bits) {
  const AttentionShape shape =
      MakeShape({.key_dim = 512, .key_codec = Codec::kInt8, .value_codec = Codec::kInt8});
  TestSequence sequence(shape, 33, false, [](int stream, uint32_t, uint64_t token, uint32_t d) {
    if (stream == 1) return token % 2 == 0 ? 1.0f : -1.0f;
    return d == 0 ? 1.0f - 1e-3f * static_cast<float>(token) : -1.0f;
  });
  const std::vector<float> queries(shape.key.dim, -1.0f);
  const std::vector<float> got = Judge(shape, sequence, 32, 1, queries);
  std::vector<float> unused(got.size());
  const std::vector<double> want = ReferenceAttention(
      shape, sequence.tables(), sequence.Task(32, 1, queries.data(), unused.data()));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << i;
}

// MLA keeps one latent per token, channel-contiguous, that serves as K and as V.
TEST(Judge, ReadsALatentAsKeyAndValue) {
  const AttentionShape plain = MakeShape({.group = 4, .key_dim = 16, .value_dim = 16});
  AttentionShape latent = plain;
  latent.value.offset_bytes = latent.key.offset_bytes;
  latent.key.inner = InnerAxis::kDim;
  const ValueOf same = [](int, uint32_t, uint64_t t, uint32_t d) {
    return std::sin(static_cast<float>(t * 16 + d));
  };
  Prng prng(4);
  const std::vector<float> queries = RandomFloats(plain.query_heads * plain.key.dim, &prng);
  EXPECT_EQ(Judge(latent, TestSequence(latent, 40, false, same), 39, 1, queries),
            Judge(plain, TestSequence(plain, 40, false, same), 39, 1, queries));
}

}  // namespace
}  // namespace quire::attention
