// The kernels of devices, run on the host: they equal the scalar judge in every bit.
#include "cuda/attention.h"

#include <gtest/gtest.h>
// gtest before rapidcheck
#include <rapidcheck/gtest.h>

#include "cuda/test_attention.h"

namespace quire::cuda {
namespace {

using attention::MakeShape;
using attention::RandomFloats;
using attention::TestArena;
using attention::TestShape;

class CudaAttention : public DeviceAttentionTest {
 protected:
  void SetUp() override {
    DeviceAttentionTest::SetUp();
    if (device_ != nullptr) backend_ = MakeAttention(*device_);
  }

  std::vector<float> Judge(const AttentionShape& shape, const TestSequence& sequence,
                           uint64_t first_position, uint32_t rows,
                           const std::vector<float>& queries) {
    std::vector<float> out(size_t{rows} * shape.query_heads * shape.value.dim, -7.0f);
    const AttentionTask task = sequence.Task(first_position, rows, queries.data(), out.data());
    attention::Attend(*judge_, shape, sequence.tables(), {&task, 1}, *executor_);
    return out;
  }

  /// Both compute `rows` rows from `first_position` on.
  void ExpectTheJudgesBits(const AttentionShape& shape, const TestSequence& sequence,
                           uint64_t first_position, uint32_t rows) {
    const std::vector<float> queries =
        RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
    const auto want = Judge(shape, sequence, first_position, rows, queries);
    const auto got = Compute(*backend_, shape, sequence, first_position, rows, queries);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
        << "position " << first_position << " rows " << rows;
  }

  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<AttentionBackend> judge_ = MakeJudgeAttention();
};

TEST_F(CudaAttention, EveryCodecAndLengthAroundEveryEdge) {
  for (const Codec codec : kCodecs) {
    SCOPED_TRACE(CodecName(codec));
    const AttentionShape shape = MakeShape({.kv_heads = 2,
                                            .group = 4,
                                            .key_dim = 64,
                                            .value_dim = 64,
                                            .key_codec = codec,
                                            .value_codec = codec,
                                            .rotated = codec == Codec::kNf4});
    TestSequence sequence(shape, 600, false, &prng_);
    for (const uint64_t length : {1, 15, 16, 17, 255, 256, 257, 512, 513, 600}) {
      ExpectTheJudgesBits(shape, sequence, length - 1, 1);
    }
    ExpectTheJudgesBits(shape, sequence, 240, 33);
  }
}

// Real head shapes: groups that fill a tile in part, and that take several.
TEST_F(CudaAttention, RealHeadShapes) {
  const TestShape shapes[] = {{.group = 2, .key_dim = 128, .value_dim = 128},
                              {.group = 7, .key_dim = 64, .value_dim = 64},
                              {.group = 3, .key_dim = 96, .value_dim = 96},
                              {.group = 33, .key_dim = 64, .value_dim = 64},
                              {.group = 1, .key_dim = 192, .value_dim = 128, .block_tokens = 64},
                              {.group = 8, .key_dim = 256, .value_dim = 256, .block_tokens = 256},
                              {.group = 2, .key_dim = 512, .value_dim = 512}};
  for (TestShape test : shapes) {
    for (const Codec codec : {Codec::kBf16, Codec::kInt8, Codec::kNf4, Codec::kQ25}) {
      test.key_codec = test.value_codec = codec;
      const AttentionShape shape = MakeShape(test);
      TestSequence sequence(shape, 300, false, &prng_);
      ExpectTheJudgesBits(shape, sequence, 299, 1);
      ExpectTheJudgesBits(shape, sequence, 290, 9);
    }
  }
}

TEST_F(CudaAttention, WindowsAndSinks) {
  for (const Codec codec : {Codec::kF16, Codec::kInt4}) {
    for (const uint32_t window : {1u, 17u, 256u, 300u}) {
      for (const uint32_t sinks : {0u, 4u, 300u}) {
        const AttentionShape shape = MakeShape({.group = 2,
                                                .key_codec = codec,
                                                .value_codec = codec,
                                                .window_tokens = window,
                                                .sink_tokens = sinks});
        TestSequence sequence(shape, 1300, false, &prng_);
        sequence.DropInvisible(1280);
        SCOPED_TRACE(testing::Message() << "window " << window << " sinks " << sinks);
        ExpectTheJudgesBits(shape, sequence, 1280, 20);
      }
    }
  }
}

// Sequences with a common prefix: it is read once for all, and the bits do not change.
TEST_F(CudaAttention, Cascades) {
  for (const Codec codec : {Codec::kBf16, Codec::kInt8}) {
    const AttentionShape shape = CascadeShape(codec);
    Cascade cascade = MakeCascade(shape);
    std::vector<float> want(cascade.sequences.size() * shape.query_heads * shape.value.dim);
    BatchTables tables;
    const auto judged = TasksOf(cascade, shape, tables, cascade.queries.data(), want.data());
    attention::Attend(*judge_, shape, tables.tables(), judged, *executor_);
    EXPECT_TRUE(SameBits(Compute(*backend_, shape, cascade), want));
  }
}

TEST_F(CudaAttention, APlanServesEveryLayer) {
  for (const Codec codec : {Codec::kBf16, Codec::kInt8}) {
    for (const uint32_t rows : {1, 40}) {
      ExpectPlansAsCalls(*backend_,
                         {.kv_heads = 2,
                          .group = 2,
                          .key_dim = 32,
                          .value_dim = 32,
                          .key_codec = codec,
                          .value_codec = codec},
                         rows);
    }
  }
}

// Ranges of splits one after the other, each from the states that the one before left in their
// place.
TEST_F(CudaAttention, PartsGoOnFromStates) {
  const AttentionShape shape = MakeShape({.kv_heads = 2,
                                          .group = 2,
                                          .key_dim = 32,
                                          .value_dim = 24,
                                          .key_codec = Codec::kInt4,
                                          .value_codec = Codec::kFp8E4m3});
  constexpr uint32_t kRows = 3;
  TestSequence sequence(shape, 5000, false, &prng_);
  std::vector<float> queries =
      RandomFloats(size_t{kRows} * shape.query_heads * shape.key.dim, &prng_);
  const std::vector<float> want = Judge(shape, sequence, 4997, kRows, queries);
  const uint64_t states = uint64_t{kRows} * shape.query_heads * kLanes;
  std::vector<float> kept(states * (2 + shape.value.dim), -1.0f);
  std::vector<float> got(want.size());
  const Mirror arena(*device_, TestArena::Get().base(), TestArena::Get().used_bytes());
  const Mirror asked(*device_, queries.data(), queries.size() * sizeof(float));
  const Mirror between(*device_, kept.data(), kept.size() * sizeof(float));
  Mirror answered(*device_, got.data(), got.size() * sizeof(float));
  auto* const floats = between.there<float>();
  const LaneStates lanes{
      .lanes = kAllLanes, .max = floats, .sum = floats + states, .out = floats + 2 * states};
  for (const uint64_t begin : {0, 3, 18}) {
    AttentionTask task = sequence.Task(4997, kRows, asked.there<float>(), nullptr);
    task.splits = {begin, begin == 0 ? 3u : begin == 3 ? 18u : UINT64_MAX};
    if (begin != 0) task.from = lanes;
    if (begin == 18) {
      task.out = answered.there<float>();
    } else {
      task.to = lanes;
    }
    attention::Attend(*backend_, shape, There(sequence.tables(), arena), {&task, 1}, *executor_);
  }
  answered.Fetch();
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
}

// Any shape, length and cut, as the kernels of the CPU are tested.
RC_GTEST_FIXTURE_PROP(CudaAttention, EqualsTheJudgeInEveryBit, ()) {
  if (device_ == nullptr) return;
  TestShape test;
  test.kv_heads = *rc::gen::inRange(1u, 4u);
  test.group = *rc::gen::element(1u, 1u, 2u, 3u, 4u, 5u, 8u, 17u);
  test.key_dim = *rc::gen::element(1u, 7u, 8u, 16u, 33u, 64u, 80u, 136u);
  test.value_dim = *rc::gen::element(1u, 5u, 8u, 15u, 24u, 40u, 64u, 100u, 160u);
  test.block_tokens = *rc::gen::element(16u, 16u, 32u, 128u, 256u);
  test.key_codec = *rc::gen::elementOf(kCodecs);
  test.value_codec = *rc::gen::elementOf(kCodecs);
  test.open_codec = *rc::gen::element(Codec::kF32, Codec::kF16, Codec::kBf16);
  if (*rc::gen::inRange(0, 3) == 0) {
    test.window_tokens = *rc::gen::element(1u, 17u, 64u, 255u, 256u, 300u);
    test.sink_tokens = *rc::gen::element(0u, 1u, 20u, 300u);
  }
  if (IsIdentity(test.key_codec) && *rc::gen::inRange(0, 4) == 0) {
    test.key_inner = InnerAxis::kDim;
  }
  test.rotated = *rc::gen::inRange(0, 2) == 0;
  test.open_blocks = *rc::gen::element(0u, 0u, 1u, 2u, 8u, 17u);
  const uint64_t first = *rc::gen::element<uint64_t>(0, 16, 256, 512) + *rc::gen::inRange(0, 20);
  const uint32_t rows = *rc::gen::element(1u, 1u, 2u, 5u, 17u);
  const bool two_forms = *rc::gen::inRange(0, 4) == 0;
  prng_ = Prng(*rc::gen::arbitrary<uint64_t>());
  const AttentionShape shape = MakeShape(test);
  TestSequence sequence(shape, first + rows, two_forms, &prng_);
  sequence.DropInvisible(first);
  const std::vector<float> queries =
      RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
  const auto want = Judge(shape, sequence, first, rows, queries);
  const auto got = Compute(*backend_, shape, sequence, first, rows, queries);
  RC_ASSERT(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
}

TEST_F(CudaAttention, SaysWhatItCannotDo) {
  const AttentionShape wide = MakeShape({.key_dim = 520});
  EXPECT_EQ(backend_->Supports(wide).error().code, ErrorCode::kUnsupported);
  AttentionShape encoded = MakeShape({.key_codec = Codec::kInt8, .value_codec = Codec::kInt8});
  encoded.open_key = encoded.key;
  EXPECT_EQ(backend_->Supports(encoded).error().code, ErrorCode::kUnsupported);
  const Result<void> sinks = backend_->Supports(MakeShape({.has_sinks = true}));
  ASSERT_FALSE(sinks.has_value());
  EXPECT_EQ(sinks.error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(sinks.error().message.contains("sink_logits")) << sinks.error().message;
  const Result<void> slopes = backend_->Supports(MakeShape({.has_slopes = true}));
  ASSERT_FALSE(slopes.has_value());
  EXPECT_EQ(slopes.error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(slopes.error().message.contains("alibi_slopes")) << slopes.error().message;
}

}  // namespace
}  // namespace quire::cuda
