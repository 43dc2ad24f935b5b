// Attention of a device in tests: sequences of the host's, mirrored there.
#ifndef QUIRE_CUDA_TEST_ATTENTION_H_
#define QUIRE_CUDA_TEST_ATTENTION_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "attention/test_sequence.h"
#include "cuda/attention.h"
#include "cuda/test_device.h"

namespace quire::cuda {

class DeviceAttentionTest : public testing::Test {
 protected:
  using AttentionShape = quire::AttentionShape;
  using TestSequence = attention::TestSequence;

  void SetUp() override { NeedDevice(device_.get()); }

  /// Tables of the host with slots that the device has.
  static BlockTables There(BlockTables tables, const Mirror& arena) {
    tables.sealed.base = tables.open.base = arena.there();
    return tables;
  }

  /// What `backend` computes for rows from `first_position` on, in one call.
  /// Shape: queries and result [rows, query_heads, dim]
  std::vector<float> Compute(AttentionBackend& backend, const AttentionShape& shape,
                             const TestSequence& sequence, uint64_t first_position, uint32_t rows,
                             std::vector<float> queries) {
    std::vector<float> out(size_t{rows} * shape.query_heads * shape.value.dim, -7.0f);
    const Mirror arena(*device_, attention::TestArena::Get().base(),
                       attention::TestArena::Get().used_bytes());
    const Mirror asked(*device_, queries.data(), queries.size() * sizeof(float));
    Mirror answered(*device_, out.data(), out.size() * sizeof(float));
    const AttentionTask task =
        sequence.Task(first_position, rows, asked.there<float>(), answered.there<float>());
    attention::Attend(backend, shape, There(sequence.tables(), arena), {&task, 1}, *executor_);
    answered.Fetch();
    return out;
  }

  /// Whether a plan that is prepared once gives each of two layers the bits of a call, and the next
  /// plan, which reuses its memory, gives other bits.
  void ExpectPlansAsCalls(AttentionBackend& backend, const attention::TestShape& test,
                          uint32_t rows) {
    constexpr uint64_t kTokens = 700;
    const AttentionShape first = attention::MakeShape(test);
    const AttentionShape layers[] = {first, attention::LayerAfter(first)};
    TestSequence sequence(layers[1], kTokens, false, &prng_);
    sequence.AddLayer(layers[0], &prng_);
    const size_t query_floats = size_t{rows} * first.query_heads * first.key.dim;
    const size_t out_floats = size_t{rows} * first.query_heads * first.value.dim;
    for (const uint64_t at : {kTokens - rows, uint64_t{100}}) {
      std::vector<float> queries = attention::RandomFloats(query_floats, &prng_);
      const std::vector<float> want[] = {Compute(backend, layers[0], sequence, at, rows, queries),
                                         Compute(backend, layers[1], sequence, at, rows, queries)};
      EXPECT_FALSE(SameBits(want[0], want[1]));
      std::vector<float> out(out_floats, -7.0f);
      const Mirror arena(*device_, attention::TestArena::Get().base(),
                         attention::TestArena::Get().used_bytes());
      const Mirror asked(*device_, queries.data(), queries.size() * sizeof(float));
      Mirror answered(*device_, out.data(), out.size() * sizeof(float));
      const AttentionTask task =
          sequence.Task(at, rows, asked.there<float>(), answered.there<float>());
      const auto plan =
          backend.Prepare(layers[0], There(sequence.tables(), arena), {&task, 1}, *executor_);
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      for (const size_t layer : {0, 1, 0}) {
        const Result<void> done = (*plan)->Run(layers[layer], *executor_);
        ASSERT_TRUE(done.has_value()) << done.error().message;
        answered.Fetch();
        EXPECT_TRUE(SameBits(out, want[layer])) << layer;
      }
      AttentionShape other = layers[1];
      other.scale *= 2;
      EXPECT_EQ((*plan)->Run(other, *executor_).error().code, ErrorCode::kInvalidArgument);
    }
  }

  /// Sequences with a common prefix, and for each a row of queries at its last token.
  struct Cascade {
    std::vector<std::unique_ptr<TestSequence>> sequences{};
    std::vector<float> queries{};  // [sequences, query_heads, key.dim]
  };
  static AttentionShape CascadeShape(Codec codec) {
    return attention::MakeShape({.kv_heads = 2,
                                 .group = 4,
                                 .key_dim = 32,
                                 .value_dim = 32,
                                 .key_codec = codec,
                                 .value_codec = codec});
  }
  Cascade MakeCascade(const AttentionShape& shape) {
    constexpr uint32_t kSequences = 7;
    Cascade cascade;
    for (uint32_t i = 0; i < kSequences; ++i) {
      cascade.sequences.push_back(
          std::make_unique<TestSequence>(shape, 700 + 31 * i, false, &prng_));
      if (i > 0) cascade.sequences[i]->ShareFirst(*cascade.sequences[0], 2 * kSplitTokens / 16);
    }
    const size_t floats = size_t{shape.query_heads} * shape.key.dim;
    cascade.queries = attention::RandomFloats(kSequences * floats, &prng_);
    return cascade;
  }
  /// The tasks of one call, for queries [sequences, query_heads, key.dim] and results likewise.
  static std::vector<AttentionTask> TasksOf(const Cascade& cascade, const AttentionShape& shape,
                                            BatchTables& tables, const float* queries, float* out) {
    std::vector<AttentionTask> tasks;
    for (uint32_t i = 0; i < cascade.sequences.size(); ++i) {
      const TestSequence& sequence = *cascade.sequences[i];
      EXPECT_TRUE(tables.Add(sequence.tables()).has_value());
      tasks.push_back(sequence.Task(sequence.tokens() - 1, 1,
                                    queries + size_t{i} * shape.query_heads * shape.key.dim,
                                    out + size_t{i} * shape.query_heads * shape.value.dim));
      tasks.back().sequence = i;
    }
    return tasks;
  }
  /// What `backend` computes for all of them in one call.
  std::vector<float> Compute(AttentionBackend& backend, const AttentionShape& shape,
                             Cascade& cascade) {
    std::vector<float> out(cascade.sequences.size() * shape.query_heads * shape.value.dim, -7.0f);
    const Mirror arena(*device_, attention::TestArena::Get().base(),
                       attention::TestArena::Get().used_bytes());
    const Mirror asked(*device_, cascade.queries.data(), cascade.queries.size() * sizeof(float));
    Mirror answered(*device_, out.data(), out.size() * sizeof(float));
    BatchTables tables;
    const auto tasks =
        TasksOf(cascade, shape, tables, asked.there<float>(), answered.there<float>());
    attention::Attend(backend, shape, There(tables.tables(), arena), tasks, *executor_);
    answered.Fetch();
    return out;
  }

  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  std::unique_ptr<Device> device_ = MakeTestDevice();
  std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
  Prng prng_{17};
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_TEST_ATTENTION_H_
