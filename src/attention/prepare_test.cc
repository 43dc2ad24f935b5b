// A plan that is prepared once and run for several layers gives each the bits of a call of its own.
#include <gtest/gtest.h>

#include <cstring>

#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

/// Two layers of sequences, of which the second begins with the blocks of the first; what each asks
/// for are the last rows.
class Layers {
 public:
  explicit Layers(const TestShape& test, std::vector<uint32_t> rows) : rows_(std::move(rows)) {
    const AttentionShape first = MakeShape(test);
    shapes_ = {first, LayerAfter(first)};
    // Sinks and slopes are those of a layer, and may be missing in some.
    if (test.has_sinks) {
      shapes_[0].sink_logits = nullptr;
      shapes_[1].sink_logits = TestSinkLogits() + 7;
    }
    if (test.has_slopes) shapes_[1].alibi_slopes = TestSlopes() + 7;
    for (const uint32_t rows_of_one : rows_) {
      // Slots end where the last layer does.
      sequences_.push_back(std::make_unique<TestSequence>(shapes_[1], kTokens, false, &prng_));
      sequences_.back()->AddLayer(shapes_[0], &prng_);
      queries_.push_back(
          RandomFloats(size_t{rows_of_one} * first.query_heads * first.key.dim, &prng_));
    }
    for (size_t i = 1; i < sequences_.size(); ++i) {
      sequences_[i]->ShareFirst(*sequences_[0], 2 * kSplitTokens / first.key.block_tokens);
    }
    for (const auto& sequence : sequences_) {
      QUIRE_CHECK(joined_.Add(sequence->tables()).has_value());
    }
  }

  const AttentionShape& shape(size_t layer) const { return shapes_[layer]; }
  BlockTables tables() const { return joined_.tables(); }

  std::vector<AttentionTask> Tasks(std::vector<float>* out) const {
    size_t floats = 0;
    for (const uint32_t rows : rows_) floats += Outputs(rows);
    out->assign(floats, -7.0f);
    std::vector<AttentionTask> tasks;
    floats = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      tasks.push_back(sequences_[i]->Task(kTokens - rows_[i], rows_[i], queries_[i].data(),
                                          out->data() + floats));
      tasks.back().sequence = static_cast<uint32_t>(i);
      floats += Outputs(rows_[i]);
    }
    return tasks;
  }

 private:
  static constexpr uint64_t kTokens = 700;

  size_t Outputs(uint32_t rows) const {
    return size_t{rows} * shapes_[0].query_heads * shapes_[0].value.dim;
  }

  Prng prng_{3};
  std::vector<uint32_t> rows_;
  std::vector<AttentionShape> shapes_;
  std::vector<std::unique_ptr<TestSequence>> sequences_;
  std::vector<std::vector<float>> queries_;
  BatchTables joined_;
};

bool SameFloats(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<std::unique_ptr<AttentionBackend>> Backends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends = AllTargets();
  backends.push_back(MakeJudgeAttention());  // which has no plans of its own
  return backends;
}

void ExpectSameAsCalls(const TestShape& test, const std::vector<uint32_t>& rows) {
  const Layers layers(test, rows);
  const auto executor = MakeThreadPool(2);
  for (const auto& backend : Backends()) {
    SCOPED_TRACE(backend->target());
    std::vector<float> want[2];
    for (size_t layer = 0; layer < 2; ++layer) {
      Attend(*backend, layers.shape(layer), layers.tables(), layers.Tasks(&want[layer]), *executor);
    }
    EXPECT_FALSE(SameFloats(want[0], want[1]));
    std::vector<float> got;
    const auto plan =
        backend->Prepare(layers.shape(0), layers.tables(), layers.Tasks(&got), *executor);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    for (const size_t layer : {0, 1, 0}) {
      std::ranges::fill(got, -7.0f);
      const Result<void> done = (*plan)->Run(layers.shape(layer), *executor);
      ASSERT_TRUE(done.has_value()) << done.error().message;
      EXPECT_TRUE(SameFloats(want[layer], got)) << layer;
    }
  }
}

TEST(PrepareTest, OneRow) { ExpectSameAsCalls({.kv_heads = 2, .group = 2}, {1}); }

TEST(PrepareTest, SequencesThatShareTheirFirstSplits) {
  ExpectSameAsCalls({.kv_heads = 2, .group = 2}, {1, 1, 1});
}

TEST(PrepareTest, ChunksBesideRowsInTwoForms) {
  ExpectSameAsCalls({.kv_heads = 2,
                     .group = 2,
                     .key_dim = 32,
                     .value_dim = 32,
                     .key_codec = Codec::kInt8,
                     .value_codec = Codec::kInt4,
                     .rotated = true,
                     .open_blocks = 1},
                    {40, 1, 300});
}

TEST(PrepareTest, Windows) {
  ExpectSameAsCalls({.kv_heads = 1, .group = 3, .window_tokens = 70, .sink_tokens = 5}, {1, 33});
}

TEST(PrepareTest, LayersWithSinksAndSlopesOfTheirOwn) {
  ExpectSameAsCalls({.kv_heads = 2, .group = 3, .has_sinks = true, .has_slopes = true},
                    {1, 40, 1, 1});
}

// Two plans at once, whose items need scratch of different sizes.
TEST(PrepareTest, PlansTakeTurns) {
  const Layers small({.kv_heads = 1}, {1});
  const Layers large({.kv_heads = 4, .group = 4, .key_dim = 64, .value_dim = 64}, {90, 1, 1});
  const auto executor = MakeThreadPool(2);
  for (const auto& backend : Backends()) {
    std::vector<std::unique_ptr<AttentionPlan>> plans;
    std::vector<float> got[2];
    std::vector<float> want[2];
    const Layers* const both[] = {&small, &large};
    for (size_t i = 0; i < 2; ++i) {
      Attend(*backend, both[i]->shape(1), both[i]->tables(), both[i]->Tasks(&want[i]), *executor);
      auto plan = backend->Prepare(both[i]->shape(0), both[i]->tables(), both[i]->Tasks(&got[i]),
                                   *executor);
      ASSERT_TRUE(plan.has_value());
      plans.push_back(*std::move(plan));
    }
    for (const size_t i : {0, 1, 0, 1}) {
      std::ranges::fill(got[i], -7.0f);
      ASSERT_TRUE(plans[i]->Run(both[i]->shape(1), *executor).has_value());
      EXPECT_TRUE(SameFloats(want[i], got[i]));
    }
  }
}

TEST(PrepareTest, AShapeOfAnotherContentIsRefused) {
  const Layers layers({.kv_heads = 2, .group = 2}, {1});
  const auto executor = MakeThreadPool(1);
  const auto change = [&](const std::function<void(AttentionShape&)>& edit) {
    AttentionShape shape = layers.shape(1);
    edit(shape);
    return shape;
  };
  const AttentionShape others[] = {
      change([](AttentionShape& shape) { shape.query_heads *= 2; }),
      change([](AttentionShape& shape) { shape.key.codec = Codec::kBf16; }),
      change([](AttentionShape& shape) { shape.value.dim = 8; }),
      change([](AttentionShape& shape) { shape.window_tokens = 64; }),
      change([](AttentionShape& shape) { shape.scale *= 2; }),
      change([](AttentionShape& shape) { shape.open_blocks = 1; }),
      // Blocks that a row reads open lie elsewhere than sealed ones: rows were cut as if they did
      // not.
      change([](AttentionShape& shape) {
        shape.open_key = shape.key;
        shape.open_key.offset_bytes += 64;
        shape.open_key.scale_offset_bytes += 64;
        shape.open_value = shape.value;
      }),
  };
  for (const auto& backend : Backends()) {
    std::vector<float> out;
    const std::vector<AttentionTask> tasks = layers.Tasks(&out);
    const auto plan = backend->Prepare(layers.shape(0), layers.tables(), tasks, *executor);
    ASSERT_TRUE(plan.has_value());
    for (const AttentionShape& other : others) {
      const Result<void> done = (*plan)->Run(other, *executor);
      ASSERT_FALSE(done.has_value());
      EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
      EXPECT_TRUE(done.error().message.contains("planned")) << done.error().message;
    }
    EXPECT_TRUE(std::ranges::all_of(out, [](float value) { return value == -7.0f; }));
    // Places that are out of range are refused as by a call.
    AttentionShape broken = layers.shape(1);
    broken.key.head_stride_bytes = 1;
    EXPECT_FALSE((*plan)->Run(broken, *executor).has_value());
    EXPECT_TRUE((*plan)->Run(layers.shape(1), *executor).has_value());
  }
}

TEST(PrepareTest, TasksAreCheckedAsByACall) {
  const Layers layers({.kv_heads = 2, .group = 2}, {1});
  const auto executor = MakeThreadPool(1);
  std::vector<float> out;
  std::vector<AttentionTask> tasks = layers.Tasks(&out);
  tasks[0].sequence = 9;
  for (const auto& backend : Backends()) {
    Result<void> done;
    auto plan = backend->Prepare(layers.shape(0), layers.tables(), tasks, *executor);
    if (!plan) done = std::unexpected(plan.error());
    if (plan) done = (*plan)->Run(layers.shape(0), *executor);
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quire::attention
