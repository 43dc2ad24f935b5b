// Codecs that encode in the C interface: what a cache stores in the end, and attention over it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/prng.h"
#include "embed/handles.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kQueryHeads = 4;
constexpr uint32_t kDim = 4;

quire_cache_options Encoding(quire_codec key, quire_codec value) {
  quire_cache_options options = SmallOptions();
  options.codec = key;
  options.value_codec = value;
  return options;
}

quire_cache_codecs CodecsOf(const quire_cache& cache) {
  auto codecs = Sized<quire_cache_codecs>();
  quire_error error{};
  EXPECT_EQ(quire_cache_get_codecs(&cache, &codecs, &error), QUIRE_OK) << Show(error);
  return codecs;
}

TEST(Codecs, AreTheOnesAskedForWhereAllIsThere) {
  quire_cache_options options = Encoding(QUIRE_FP8_E4M3, QUIRE_Q25);
  options.codec_fallback = 1;
  options.residual_tokens = 20;
  options.open_codec = QUIRE_BF16;
  testing::internal::CaptureStderr();
  const CWorld world(options);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  const quire_cache_codecs codecs = CodecsOf(*world.cache);
  EXPECT_EQ(codecs.key, QUIRE_FP8_E4M3);
  EXPECT_EQ(codecs.value, QUIRE_Q25);
  EXPECT_EQ(codecs.open, QUIRE_BF16);
  EXPECT_EQ(codecs.residual_tokens, 20u);
  EXPECT_EQ(codecs.fallbacks, 0u);
}

TEST(Codecs, GiveWayWithOneWarningAndACount) {
  quire_cache_options options = Encoding(QUIRE_FP8_E5M2, QUIRE_INT4);
  options.layout = QUIRE_HEAD_MAJOR;  // which takes no codec that encodes
  options.residual_tokens = 64;
  quire_error error{};
  quire_cache* none = nullptr;
  EXPECT_EQ(quire_cache_create(&options, &none, &error), QUIRE_UNSUPPORTED);
  EXPECT_THAT(error.message, HasSubstr("needs block_major"));

  options.codec_fallback = 1;
  testing::internal::CaptureStderr();
  const CWorld world(options);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warning, HasSubstr("K in f16 instead of fp8_e5m2"));
  EXPECT_THAT(warning, HasSubstr("V in f16 instead of int4"));
  EXPECT_EQ(std::ranges::count(warning, '\n'), 1);
  const quire_cache_codecs codecs = CodecsOf(*world.cache);
  EXPECT_EQ(codecs.key, QUIRE_F16);
  EXPECT_EQ(codecs.value, QUIRE_F16);
  EXPECT_EQ(codecs.open, QUIRE_F16);
  EXPECT_EQ(codecs.residual_tokens, 0u);
  EXPECT_EQ(codecs.fallbacks, 2u);
  // The same count as in the numbers of the cache.
  char text[8192];
  size_t length = 0;
  ASSERT_EQ(quire_cache_stats_json(world.cache.get(), text, sizeof text, &length, &error), QUIRE_OK)
      << Show(error);
  EXPECT_THAT(text, HasSubstr("\"codec_fallbacks\":2"));
  // And inference goes on.
  const auto tokens = cache::SomeTokens(40, 1);
  EXPECT_EQ(CWorld::Gathered(*world.Run(tokens), 1, QUIRE_VALUE), world.Expected(tokens, 1, 1));
}

TEST(Codecs, OlderCallersWithoutTheFieldsGetWhatTheyGot) {
  quire_cache_options options = SmallOptions();
  options.size = offsetof(quire_cache_options, residual_tokens);
  options.residual_tokens = 16;  // beyond what it says it has
  const CWorld world(options);
  const quire_cache_codecs codecs = CodecsOf(*world.cache);
  EXPECT_EQ(codecs.key, QUIRE_F16);
  EXPECT_EQ(codecs.residual_tokens, 0u);
}

TEST(Codecs, OptionsThatMakeNoSenseAreRefused) {
  const auto code_of = [](const quire_cache_options& options) {
    quire_cache* cache = nullptr;
    const quire_code code = quire_cache_create(&options, &cache, nullptr);
    quire_cache_free(cache);
    return code;
  };
  quire_cache_options options = Encoding(QUIRE_INT8, QUIRE_INT8);
  EXPECT_EQ(code_of(options), QUIRE_OK);
  options.open_codec = QUIRE_INT8;
  EXPECT_EQ(code_of(options), QUIRE_UNSUPPORTED);
  options.open_codec = -1;
  EXPECT_EQ(code_of(options), QUIRE_INVALID_ARGUMENT);
  options.open_codec = 0;
  options.residual_tokens = uint64_t{1} << 32;
  EXPECT_EQ(code_of(options), QUIRE_INVALID_ARGUMENT);
  options.residual_tokens = UINT32_MAX;
  EXPECT_EQ(code_of(options), QUIRE_OK);
  options.residual_tokens = 0;
  options.compute = QUIRE_COMPUTE_BF16;
  EXPECT_EQ(code_of(options), QUIRE_OK);
  options.compute = QUIRE_COMPUTE_BF16 + 1;
  EXPECT_EQ(code_of(options), QUIRE_INVALID_ARGUMENT);
  options = SmallOptions();
  options.residual_tokens = 16;
  EXPECT_EQ(code_of(options), QUIRE_UNSUPPORTED);
}

TEST(Codecs, AttentionOverThemEqualsTheJudge) {
  for (const uint64_t residual : {0u, 40u}) {
    quire_cache_options options = Encoding(QUIRE_INT8, QUIRE_NF4);
    options.residual_tokens = residual;
    const CWorld world(options);
    const auto sequence = world.Open(cache::SomeTokens(5, 1));
    const auto history = cache::SomeTokens(133, 1);
    world.Feed(*sequence, std::span(history).first(100));
    const auto attention = MustMake<quire_attention>([](quire_attention** out, quire_error* error) {
      return quire_attention_create(nullptr, out, error);
    });
    quire_error error{};
    for (const uint32_t layer : {0u, 1u}) {
      ASSERT_EQ(world.AppendLayer(*sequence, layer, history, &error), QUIRE_OK) << Show(error);
    }
    const auto rows = static_cast<uint32_t>(history.size() - 100);
    Prng prng(3);
    std::vector<float> queries(rows * kQueryHeads * kDim);
    for (float& q : queries) q = prng.NextFloat(-1.0f, 1.0f);
    std::vector<float> out(queries.size());
    quire_attend_task task{.sequence = sequence.get(),
                           .queries = queries.data(),
                           .out = out.data(),
                           .rows = rows,
                           .first_position = 100};
    auto request = Sized<quire_attend_request>();
    request.layer = 1;
    request.query_heads = kQueryHeads;
    request.scale = 0.5f;
    request.task_count = 1;
    request.tasks = &task;
    ASSERT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_OK) << Show(error);

    const LayerBlocks blocks = sequence->sequence->Blocks(1);
    std::vector<float> judged(out.size());
    const AttentionTask same{
        .queries = queries.data(), .out = judged.data(), .rows = rows, .first_position = 100};
    const Result<void> done =
        MakeJudgeAttention()->Attend({.query_heads = kQueryHeads,
                                      .key = blocks.key,
                                      .value = blocks.value,
                                      .open_key = blocks.open_key,
                                      .open_value = blocks.open_value,
                                      .open_blocks = residual == 0 ? 0u : 3u,
                                      .scale = 0.5f},
                                     blocks.tables, {&same, 1}, *MakeThreadPool(1));
    ASSERT_TRUE(done.has_value());
    EXPECT_EQ(std::memcmp(out.data(), judged.data(), out.size() * sizeof(float)), 0);

    // A row whose own block is encoded only.
    task.first_position = 40;
    task.rows = 1;
    EXPECT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_INVALID_ARGUMENT);
    EXPECT_THAT(error.message, HasSubstr("encoded only"));
    // The same row with those behind it, of which the last reads nothing that is gone.
    task.rows = rows + 60;
    const std::vector<float> before(task.rows * kQueryHeads * kDim, 7.0f);
    std::vector<float> longer = before;
    task.queries = before.data();
    task.out = longer.data();
    EXPECT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_INVALID_ARGUMENT);
    EXPECT_THAT(error.message, HasSubstr("encoded only"));
    EXPECT_EQ(longer, before);
    auto seen = Sized<quire_layer_blocks>();
    EXPECT_EQ(quire_sequence_blocks(sequence.get(), 1, &seen, &error), QUIRE_UNSUPPORTED);
  }
}

TEST(Codecs, BlocksOfWhichOneHalfIsEncodedAreNotShown) {
  for (const auto& [key, value] : {std::pair(QUIRE_INT8, QUIRE_F16), {QUIRE_F16, QUIRE_INT8}}) {
    const CWorld world(Encoding(key, value));
    const auto history = cache::SomeTokens(2 * CWorld::kBlock, 1);
    const auto sequence = world.Open(std::span(history).first(5));
    world.Feed(*sequence, history);
    auto seen = Sized<quire_layer_blocks>();
    quire_error error{};
    EXPECT_EQ(quire_sequence_blocks(sequence.get(), 0, &seen, &error), QUIRE_UNSUPPORTED);
    EXPECT_THAT(error.message, HasSubstr("only quire_attend reads its codes"));
  }
}

// There is room after them, but no open form in it yet.
TEST(Codecs, RowsUpToTheEndOfTheLastBlockNeedNoOther) {
  const CWorld world(Encoding(QUIRE_INT8, QUIRE_NF4));
  const auto history = cache::SomeTokens(7 * CWorld::kBlock, 1);
  const auto sequence = world.Open(std::span(history).first(5));
  quire_error error{};
  ASSERT_EQ(quire_sequence_reserve(sequence.get(), 10 * CWorld::kBlock, &error), QUIRE_OK)
      << Show(error);
  world.Feed(*sequence, std::span(history).first(6 * CWorld::kBlock));
  for (const uint32_t layer : {0u, 1u}) {
    ASSERT_EQ(world.AppendLayer(*sequence, layer, history, &error), QUIRE_OK) << Show(error);
  }
  ASSERT_EQ(sequence->sequence->Blocks(0).open(7), nullptr);
  const auto attention = MustMake<quire_attention>([](quire_attention** out, quire_error* failure) {
    return quire_attention_create(nullptr, out, failure);
  });
  const std::vector<float> queries(CWorld::kBlock * kQueryHeads * kDim, 0.5f);
  std::vector<float> out(queries.size());
  const quire_attend_task task{.sequence = sequence.get(),
                               .queries = queries.data(),
                               .out = out.data(),
                               .rows = CWorld::kBlock,
                               .first_position = 6 * CWorld::kBlock};
  auto request = Sized<quire_attend_request>();
  request.query_heads = kQueryHeads;
  request.task_count = 1;
  request.tasks = &task;
  EXPECT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_OK) << Show(error);
}

}  // namespace
}  // namespace quire::embed
