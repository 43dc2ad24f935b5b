// Attention of the class mma16: near the reference in f64, and the same bits for every division of
// the work.
#include <gtest/gtest.h>
// gtest before rapidcheck
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/reference.h"
#include "cuda/test_attention.h"

namespace quire::cuda {
namespace {

using attention::MakeShape;
using attention::RandomFloats;
using attention::TestArena;
using attention::TestShape;

// The accuracy that attention promises against the reference on the same stored bytes
// (docs/spec.md, P6).
constexpr double kErrorMax = 1e-4;

double ErrorOf(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

class MmaAttention : public DeviceAttentionTest {
 protected:
  void SetUp() override {
    DeviceAttentionTest::SetUp();
    if (device_ == nullptr) return;
    folding_ = MakeAttention(*device_, {.arithmetic = Arithmetic::kMma16, .folded_tiles_min = 1});
    const auto leaving = [&](uint32_t lane_blocks_wanted) {
      return MakeAttention(*device_, {.arithmetic = Arithmetic::kMma16,
                                      .folded_tiles_min = UINT32_MAX,
                                      .lane_blocks_wanted = lane_blocks_wanted});
    };
    leaving_ = leaving(UINT32_MAX);
    by_lanes_ = leaving(1);
  }

  /// Rows in calls of `chunk` each.
  std::vector<float> InChunks(AttentionBackend& backend, const AttentionShape& shape,
                              const TestSequence& sequence, uint64_t first, uint32_t rows,
                              const std::vector<float>& queries, uint32_t chunk) {
    const size_t floats = size_t{shape.query_heads} * shape.key.dim;
    std::vector<float> all;
    for (uint32_t row = 0; row < rows; row += chunk) {
      const uint32_t some = std::min(chunk, rows - row);
      const auto begin = queries.begin() + static_cast<ptrdiff_t>(row * floats);
      const auto part = Compute(backend, shape, sequence, first + row, some,
                                {begin, begin + static_cast<ptrdiff_t>(some * floats)});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  /// Rows in one call and one by one have the same bits, and are near the reference.
  void ExpectRight(const AttentionShape& shape, const TestSequence& sequence, uint64_t first,
                   uint32_t rows) {
    SCOPED_TRACE(testing::Message() << "position " << first << " rows " << rows);
    const std::vector<float> queries =
        RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
    const auto got = Compute(*folding_, shape, sequence, first, rows, queries);
    const AttentionTask task = sequence.Task(first, rows, queries.data(), nullptr);
    EXPECT_LT(ErrorOf(got, attention::ReferenceAttention(shape, sequence.tables(), task)),
              kErrorMax);
    EXPECT_TRUE(SameBits(Compute(*leaving_, shape, sequence, first, rows, queries), got));
    EXPECT_TRUE(SameBits(Compute(*by_lanes_, shape, sequence, first, rows, queries), got));
    if (rows == 1) return;
    EXPECT_TRUE(SameBits(InChunks(*folding_, shape, sequence, first, rows, queries, 1), got));
  }

  std::unique_ptr<AttentionBackend> folding_;
  std::unique_ptr<AttentionBackend> leaving_;
  std::unique_ptr<AttentionBackend> by_lanes_;
};

const std::vector<Codec> kCodecsOf16 = {Codec::kF16,     Codec::kBf16, Codec::kFp8E4m3,
                                        Codec::kFp8E5m2, Codec::kInt8, Codec::kInt4,
                                        Codec::kNf4,     Codec::kFp4,  Codec::kQ25};

TEST_F(MmaAttention, EveryCodecAndLengthAroundEveryEdge) {
  for (const Codec codec : kCodecsOf16) {
    SCOPED_TRACE(CodecName(codec));
    const AttentionShape shape = MakeShape({.kv_heads = 2,
                                            .group = 4,
                                            .key_dim = 32,
                                            .value_dim = 32,
                                            .key_codec = codec,
                                            .value_codec = codec,
                                            .rotated = codec == Codec::kNf4});
    TestSequence sequence(shape, 600, false, &prng_);
    for (const uint64_t length : {1, 15, 16, 17, 255, 257, 600}) {
      ExpectRight(shape, sequence, length - 1, 1);
    }
    ExpectRight(shape, sequence, 247, 18);
  }
}

// Every group size, heads that fill tiles in part, channels of several groups.
TEST_F(MmaAttention, HeadShapes) {
  std::vector<TestShape> shapes = {{.group = 20, .key_dim = 32, .value_dim = 16},
                                   {.group = 3, .key_dim = 96, .value_dim = 80},
                                   {.group = 1, .key_dim = 192, .value_dim = 128},
                                   {.group = 2, .key_dim = 256, .value_dim = 256}};
  for (uint32_t group = 1; group <= 8; ++group) {
    shapes.push_back({.kv_heads = 2, .group = group, .key_dim = 16, .value_dim = 32});
  }
  for (TestShape test : shapes) {
    for (const Codec codec : {Codec::kBf16, Codec::kInt8, Codec::kQ25}) {
      SCOPED_TRACE(testing::Message()
                   << CodecName(codec) << " group " << test.group << " dim " << test.key_dim);
      test.key_codec = test.value_codec = codec;
      const AttentionShape shape = MakeShape(test);
      TestSequence sequence(shape, 270, false, &prng_);
      ExpectRight(shape, sequence, 250, test.group <= 4 ? 19 : 5);
    }
  }
}

TEST_F(MmaAttention, BlockSizesAndLayouts) {
  for (const uint32_t block_tokens : {16u, 32u, 64u, 256u}) {
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      const AttentionShape shape = MakeShape({.group = 3,
                                              .key_dim = 32,
                                              .value_dim = 48,
                                              .block_tokens = block_tokens,
                                              .key_codec = Codec::kF16,
                                              .value_codec = Codec::kBf16,
                                              .key_inner = inner});
      TestSequence sequence(shape, 275, false, &prng_);
      ExpectRight(shape, sequence, 268, 7);
    }
  }
}

TEST_F(MmaAttention, WindowsAndSinks) {
  for (const Codec codec : {Codec::kF16, Codec::kInt4}) {
    for (const uint32_t window : {1u, 17u, 300u}) {
      for (const uint32_t sinks : {0u, 4u, 300u}) {
        SCOPED_TRACE(testing::Message() << "window " << window << " sinks " << sinks);
        const AttentionShape shape = MakeShape({.group = 2,
                                                .key_codec = codec,
                                                .value_codec = codec,
                                                .window_tokens = window,
                                                .sink_tokens = sinks});
        TestSequence sequence(shape, 1300, false, &prng_);
        sequence.DropInvisible(1280);
        ExpectRight(shape, sequence, 1280, 9);
      }
    }
  }
}

// Sealed and open forms that hold different values, in types that differ too.
TEST_F(MmaAttention, OpenBlocks) {
  for (const auto& [key, value, open] : {std::tuple{Codec::kInt8, Codec::kInt8, Codec::kF16},
                                         {Codec::kNf4, Codec::kFp8E4m3, Codec::kBf16},
                                         {Codec::kF16, Codec::kInt4, Codec::kBf16},
                                         {Codec::kF16, Codec::kF16, Codec::kF16}}) {
    for (const uint32_t open_blocks : {0u, 1u, 20u}) {
      SCOPED_TRACE(testing::Message() << CodecName(key) << " " << CodecName(value) << " open "
                                      << CodecName(open) << " " << open_blocks);
      const AttentionShape shape = MakeShape({.group = 2,
                                              .key_dim = 32,
                                              .value_dim = 32,
                                              .key_codec = key,
                                              .value_codec = value,
                                              .open_codec = open,
                                              .open_blocks = open_blocks});
      TestSequence sequence(shape, 330, true, &prng_);
      sequence.DropInvisible(310);
      ExpectRight(shape, sequence, 310, 11);
    }
  }
}

// Cases that a fold must keep apart: more splits than lanes, tiles of several rows of several
// heads.
TEST_F(MmaAttention, LongContexts) {
  AttentionShape shape = MakeShape({.kv_heads = 1,
                                    .group = 4,
                                    .key_dim = 16,
                                    .value_dim = 16,
                                    .block_tokens = 64,
                                    .key_codec = Codec::kBf16,
                                    .value_codec = Codec::kBf16,
                                    .rotated = true});
  TestSequence sequence(shape, 10'000, false, &prng_);
  ExpectRight(shape, sequence, 9'970, 7);
  shape.window_tokens = 2'000;  // sinks by lanes, then the window
  shape.sink_tokens = 5'000;
  ExpectRight(shape, sequence, 9'970, 7);
}

// The error does not grow with the context (docs/spec.md, P6).
TEST_F(MmaAttention, ErrorAt32kTokens) {
  const AttentionShape shape = MakeShape({.key_dim = 128, .value_dim = 128, .block_tokens = 256});
  TestSequence sequence(shape, 32'768, false, &prng_);
  ExpectRight(shape, sequence, 32'767, 1);
}

// Queries that sixteen bits hold exactly take one product each, others two: rows that share a tile
// with the others have the same bits.
TEST_F(MmaAttention, ExactQueriesBesideOthers) {
  const AttentionShape shape = MakeShape({.group = 4, .key_dim = 64, .value_dim = 64});
  TestSequence sequence(shape, 300, false, &prng_);
  constexpr uint32_t kRows = 16;
  std::vector<float> queries =
      RandomFloats(size_t{kRows} * shape.query_heads * shape.key.dim, &prng_);
  const size_t row_floats = size_t{shape.query_heads} * shape.key.dim;
  for (size_t i = 0; i < queries.size(); ++i) {
    if (i / row_floats % 2 == 0) queries[i] = std::round(queries[i] * 64.0f) / 64.0f;
  }
  const auto got = Compute(*folding_, shape, sequence, 284, kRows, queries);
  EXPECT_TRUE(SameBits(InChunks(*folding_, shape, sequence, 284, kRows, queries, 1), got));
}

// Sequences with a common prefix, whose splits are computed for all of them at once.
TEST_F(MmaAttention, Cascades) {
  for (const Codec codec : {Codec::kBf16, Codec::kInt8}) {
    const AttentionShape shape = CascadeShape(codec);
    Cascade cascade = MakeCascade(shape);
    const auto floats = static_cast<ptrdiff_t>(cascade.queries.size() / cascade.sequences.size());
    std::vector<float> want;
    for (ptrdiff_t i = 0; const auto& sequence : cascade.sequences) {
      const auto queries = cascade.queries.begin() + i++ * floats;
      const auto alone = Compute(*folding_, shape, *sequence, sequence->tokens() - 1, 1,
                                 {queries, queries + floats});
      want.insert(want.end(), alone.begin(), alone.end());
    }
    EXPECT_TRUE(SameBits(Compute(*folding_, shape, cascade), want));
    EXPECT_TRUE(SameBits(Compute(*by_lanes_, shape, cascade), want));
  }
}

TEST_F(MmaAttention, APlanServesEveryLayer) {
  for (AttentionBackend* const backend : {folding_.get(), leaving_.get(), by_lanes_.get()}) {
    for (const Codec codec : {Codec::kBf16, Codec::kInt8}) {
      ExpectPlansAsCalls(*backend,
                         {.kv_heads = 2,
                          .group = 2,
                          .key_dim = 32,
                          .value_dim = 32,
                          .key_codec = codec,
                          .value_codec = codec,
                          .open_codec = Codec::kBf16},
                         40);
    }
  }
}

// Products of codes that stand for integers are exact, so splits that are read sealed have the bits
// of the class fma32 where the exponentials are the same.
TEST_F(MmaAttention, CodesOfIntegersHaveTheBitsOfFma32) {
  if (device_->target() != "host") GTEST_SKIP() << device_->target() << " has its own exponential";
  const auto exact = MakeAttention(*device_, {});
  constexpr uint32_t kRows = 5;
  constexpr uint64_t kSplits = 3;
  for (const auto& [key, value] : {std::pair{Codec::kNf4, Codec::kInt8},
                                   {Codec::kFp4, Codec::kInt4},
                                   {Codec::kQ25, Codec::kNf4},
                                   {Codec::kFp4, Codec::kQ25}}) {
    for (const uint32_t group : {1u, 4u}) {
      SCOPED_TRACE(testing::Message() << CodecName(key) << " " << CodecName(value) << " " << group);
      const AttentionShape shape = MakeShape({.kv_heads = 2,
                                              .group = group,
                                              .key_dim = 80,
                                              .value_dim = group == 1 ? 176u : 48u,
                                              .key_codec = key,
                                              .value_codec = value,
                                              .rotated = key == Codec::kNf4});
      TestSequence sequence(shape, kSplits * kSplitTokens + 20, false, &prng_);
      std::vector<float> queries =
          RandomFloats(size_t{kRows} * shape.query_heads * shape.key.dim, &prng_);
      const Mirror arena(*device_, TestArena::Get().base(), TestArena::Get().used_bytes());
      const Mirror asked(*device_, queries.data(), queries.size() * sizeof(float));
      const uint64_t states = uint64_t{kRows} * shape.query_heads * kLanes;
      const auto states_of = [&](AttentionBackend& backend) {
        std::vector<float> kept(states * (2 + shape.value.dim), 0.0f);
        Mirror there(*device_, kept.data(), kept.size() * sizeof(float));
        auto* const floats = there.there<float>();
        AttentionTask task =
            sequence.Task(kSplits * kSplitTokens + 7, kRows, asked.there<float>(), nullptr);
        task.splits = {0, kSplits};
        task.to = {
            .lanes = kAllLanes, .max = floats, .sum = floats + states, .out = floats + 2 * states};
        attention::Attend(backend, shape, There(sequence.tables(), arena), {&task, 1}, *executor_);
        there.Fetch();
        return kept;
      };
      const auto got = states_of(*leaving_);
      EXPECT_TRUE(SameBits(got, states_of(*exact)));
      EXPECT_NE(std::count_if(got.begin(), got.end(), [](float x) { return x != 0.0f; }), 0);
    }
  }
}

// Ranges of splits, one after the other, of sets of lanes that are merged at last.
TEST_F(MmaAttention, PartsAreTheWhole) {
  const AttentionShape shape = MakeShape({.kv_heads = 2,
                                          .group = 2,
                                          .key_dim = 32,
                                          .value_dim = 48,
                                          .key_codec = Codec::kInt4,
                                          .value_codec = Codec::kFp8E4m3});
  constexpr uint32_t kRows = 9;
  constexpr uint64_t kFirst = 5'000;
  TestSequence sequence(shape, kFirst + kRows, false, &prng_);
  std::vector<float> queries =
      RandomFloats(size_t{kRows} * shape.query_heads * shape.key.dim, &prng_);
  const auto want = Compute(*folding_, shape, sequence, kFirst, kRows, queries);
  const Mirror arena(*device_, TestArena::Get().base(), TestArena::Get().used_bytes());
  const Mirror asked(*device_, queries.data(), queries.size() * sizeof(float));
  const uint64_t vectors = uint64_t{kRows} * shape.query_heads;
  const uint64_t vector_floats = 2 + shape.value.dim;
  const auto states_in = [&](float* floats, LaneSet lanes) {
    const uint64_t states = vectors * LaneCount(lanes);
    return LaneStates{
        .lanes = lanes, .max = floats, .sum = floats + states, .out = floats + 2 * states};
  };
  constexpr LaneSet kSets[] = {0x5555, 0xaaaa};
  std::vector<float> kept[2];
  for (uint32_t set = 0; set < 2; ++set) {
    kept[set].assign(vectors * vector_floats * LaneCount(kSets[set]), -1.0f);
    Mirror between(*device_, kept[set].data(), kept[set].size() * sizeof(float));
    const LaneStates lanes = states_in(between.there<float>(), kSets[set]);
    for (const uint64_t begin : {0, 3, 17}) {
      AttentionTask task = sequence.Task(kFirst, kRows, asked.there<float>(), nullptr);
      task.splits = {begin, begin == 0 ? 3u : begin == 3 ? 17u : UINT64_MAX};
      if (begin != 0) task.from = lanes;
      task.to = lanes;
      attention::Attend(*folding_, shape, There(sequence.tables(), arena), {&task, 1}, *executor_);
    }
    between.Fetch();
  }
  std::vector<float> merged(vectors * vector_floats * kLanes);
  const LaneStates all = states_in(merged.data(), kAllLanes);
  ASSERT_TRUE(MergeLanes(shape, kRows, states_in(kept[0].data(), kSets[0]),
                         states_in(kept[1].data(), kSets[1]), all)
                  .has_value());
  const Mirror from(*device_, merged.data(), merged.size() * sizeof(float));
  std::vector<float> got(want.size());
  Mirror answered(*device_, got.data(), got.size() * sizeof(float));
  AttentionTask last = sequence.Task(kFirst, kRows, nullptr, answered.there<float>());
  last.splits = {0, 0};
  last.from = states_in(from.there<float>(), kAllLanes);
  attention::Attend(*folding_, shape, There(sequence.tables(), arena), {&last, 1}, *executor_);
  answered.Fetch();
  EXPECT_TRUE(SameBits(got, want));
}

// Any shape, length and cut.
RC_GTEST_FIXTURE_PROP(MmaAttention, NearTheReferenceHoweverItIsCut, ()) {
  if (device_ == nullptr) return;
  TestShape test;
  test.kv_heads = *rc::gen::inRange(1u, 3u);
  test.group = *rc::gen::element(1u, 2u, 3u, 4u, 5u, 8u, 17u);
  test.key_dim = *rc::gen::element(16u, 32u, 48u, 80u, 144u);
  test.value_dim = *rc::gen::element(16u, 32u, 48u, 80u, 144u);
  test.block_tokens = *rc::gen::element(16u, 16u, 32u, 128u, 256u);
  test.key_codec = *rc::gen::elementOf(kCodecsOf16);
  test.value_codec = *rc::gen::elementOf(kCodecsOf16);
  test.open_codec = *rc::gen::element(Codec::kF16, Codec::kBf16);
  if (*rc::gen::inRange(0, 3) == 0) {
    test.window_tokens = *rc::gen::element(1u, 17u, 64u, 255u, 256u, 300u);
    test.sink_tokens = *rc::gen::element(0u, 1u, 20u, 300u);
  }
  if (IsIdentity(test.key_codec) && *rc::gen::inRange(0, 4) == 0) {
    test.key_inner = InnerAxis::kDim;
  }
  test.rotated = *rc::gen::inRange(0, 2) == 0;
  test.open_blocks = *rc::gen::element(0u, 0u, 1u, 2u, 8u);
  const uint64_t first = *rc::gen::element<uint64_t>(0, 16, 256, 512) + *rc::gen::inRange(0, 20);
  const uint32_t rows = *rc::gen::element(1u, 2u, 5u, 17u);
  const uint32_t chunk = *rc::gen::inRange(1u, 6u);
  const bool two_forms = *rc::gen::inRange(0, 4) == 0;
  prng_ = Prng(*rc::gen::arbitrary<uint64_t>());
  const AttentionShape shape = MakeShape(test);
  TestSequence sequence(shape, first + rows, two_forms, &prng_);
  sequence.DropInvisible(first);
  const std::vector<float> queries =
      RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
  const auto got = Compute(*folding_, shape, sequence, first, rows, queries);
  RC_ASSERT(SameBits(InChunks(*leaving_, shape, sequence, first, rows, queries, chunk), got));
  RC_ASSERT(SameBits(InChunks(*by_lanes_, shape, sequence, first, rows, queries, chunk), got));
  const AttentionTask task = sequence.Task(first, rows, queries.data(), nullptr);
  RC_ASSERT(ErrorOf(got, attention::ReferenceAttention(shape, sequence.tables(), task)) <
            kErrorMax);
}

TEST_F(MmaAttention, SaysWhatItCannotDo) {
  for (const TestShape& test :
       {TestShape{.key_dim = 24}, TestShape{.value_dim = 272}, TestShape{.key_codec = Codec::kF32},
        TestShape{.key_codec = Codec::kInt8, .open_codec = Codec::kF32}}) {
    const Result<void> done = folding_->Supports(MakeShape(test));
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(done.error().message.find("--arithmetic fma32"), std::string::npos);
  }
}

TEST(Arithmetic, ClassesAreNamedByWhatDecidesTheirBits) {
  EXPECT_EQ(ArithmeticClass(Arithmetic::kFma32, "sm_90"), "fma32");
  EXPECT_EQ(ArithmeticClass(Arithmetic::kMma16, "sm_90"), "mma16.2-sm90");
  EXPECT_EQ(ArithmeticClass(Arithmetic::kMma16, "sm_86"), "mma16.2-sm86");
  EXPECT_EQ(ArithmeticClass(Arithmetic::kMma16, "host"), "mma16.2-emulated");
  EXPECT_EQ(ParseArithmetic("mma16"), Arithmetic::kMma16);
  EXPECT_FALSE(ParseArithmetic("mma8").has_value());
}

}  // namespace
}  // namespace quire::cuda
