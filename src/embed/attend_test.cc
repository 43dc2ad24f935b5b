// quire_attend gives the bits of the scalar judge for any number of threads, and refuses every task
// that the kernels would take for a bug.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/prng.h"
#include "embed/handles.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

constexpr uint32_t kQueryHeads = 6;
constexpr uint32_t kDim = 4;

Owned<quire_attention> Attention(uint32_t threads) {
  auto options = Sized<quire_attention_options>();
  options.threads = threads;
  return MustMake<quire_attention>([&](quire_attention** out, quire_error* error) {
    return quire_attention_create(&options, out, error);
  });
}

struct Attend : testing::Test {
  Attend() {
    Prng prng(3);
    for (const uint32_t rows : {1u, 20u}) {
      const auto history = cache::SomeTokens(600 + rows, rows);
      sequences.push_back(world.Run(history));
      queries.emplace_back(rows * kQueryHeads * kDim);
      for (float& q : queries.back()) q = static_cast<float>(prng.NextBelow(2001)) / 1000 - 1;
      outs.emplace_back(queries.back().size());
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto rows = static_cast<uint32_t>(queries[i].size() / (kQueryHeads * kDim));
      tasks.push_back({.sequence = sequences[i].get(),
                       .queries = queries[i].data(),
                       .out = outs[i].data(),
                       .rows = rows,
                       .first_position = 600});
    }
    request = Sized<quire_attend_request>();
    request.layer = 1;
    request.query_heads = kQueryHeads;
    request.tasks = tasks.data();
    request.task_count = static_cast<uint32_t>(tasks.size());
  }

  std::vector<std::vector<float>> Judged(float scale) const {
    std::vector<std::vector<float>> judged;
    const auto executor = MakeThreadPool(1);
    for (const quire_attend_task& task : tasks) {
      const LayerBlocks blocks = task.sequence->sequence->Blocks(request.layer);
      judged.emplace_back(task.rows * kQueryHeads * kDim);
      const AttentionTask same{.queries = task.queries,
                               .out = judged.back().data(),
                               .rows = task.rows,
                               .first_position = task.first_position};
      const AttentionShape shape = {.query_heads = kQueryHeads,
                                    .key = blocks.key,
                                    .value = blocks.value,
                                    .scale = scale,
                                    .sink_logits = request.sink_logits,
                                    .alibi_slopes = request.alibi_slopes};
      const Result<void> done =
          MakeJudgeAttention()->Attend(shape, blocks.tables, {&same, 1}, *executor);
      EXPECT_TRUE(done.has_value());
    }
    return judged;
  }

  CWorld world;
  std::vector<Owned<quire_sequence>> sequences;
  std::vector<std::vector<float>> queries;
  std::vector<std::vector<float>> outs;
  std::vector<quire_attend_task> tasks;
  quire_attend_request request{};
};

TEST_F(Attend, EqualsTheJudge) {
  for (const uint32_t threads : {0u, 1u, 3u}) {
    const auto attention = Attention(threads);
    // 0 is 1 / sqrt(4).
    for (const auto& [scale, judged] : {std::pair(0.25f, 0.25f), std::pair(0.0f, 0.5f)}) {
      for (auto& out : outs) std::ranges::fill(out, -1.0f);
      request.scale = scale;
      quire_error error{};
      ASSERT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_OK) << Show(error);
      EXPECT_EQ(outs, Judged(judged)) << threads << " threads";
    }
  }
}

TEST_F(Attend, SinksAndSlopesAreThoseOfTheHeads) {
  const auto attention = Attention(2);
  const std::vector<std::vector<float>> plain = Judged(0.5f);
  const float logits[kQueryHeads] = {2.0f, -1.0f, 0.0f, 5.0f, -3.0f, 1.0f};
  const float slopes[kQueryHeads] = {0.5f, 0.25f, 0.125f, 0.1f, 0.3f, 1.0f};
  for (const auto& [sinks, alibi] : {std::pair<const float*, const float*>(logits, nullptr),
                                     {nullptr, slopes},
                                     {logits, slopes}}) {
    request.sink_logits = sinks;
    request.alibi_slopes = alibi;
    quire_error error{};
    ASSERT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_OK) << Show(error);
    EXPECT_EQ(outs, Judged(0.5f));
    EXPECT_NE(outs, plain);
  }
}

TEST_F(Attend, NothingToDoIsDone) {
  const auto attention = Attention(1);
  request.task_count = 0;
  EXPECT_EQ(quire_attend(attention.get(), &request, nullptr), QUIRE_OK);
  request.task_count = 1;
  tasks[0].rows = 0;
  tasks[0].queries = nullptr;
  tasks[0].out = nullptr;
  EXPECT_EQ(quire_attend(attention.get(), &request, nullptr), QUIRE_OK);
}

/// Both layers see themselves, the token before and the first one.
struct Windowed {
  Windowed() {
    options.layers = options.kv_heads = options.head_dim = 0;
    options.group_count = 1;
    options.groups = &group;
  }
  const uint32_t layers[2] = {0, 1};
  const quire_stream streams[2] = {{.role = QUIRE_KEY, .heads = 2, .dim = kDim},
                                   {.role = QUIRE_VALUE, .heads = 2, .dim = kDim}};
  const quire_layer_group group = {.kind = QUIRE_WINDOW,
                                   .window_tokens = 2,
                                   .sink_tokens = 1,
                                   .layer_count = 2,
                                   .layers = layers,
                                   .stream_count = 2,
                                   .streams = streams};
  quire_cache_options options = SmallOptions();
};

TEST_F(Attend, WindowsOfTheGeometryHold) {
  const Windowed windowed;
  const CWorld windows(windowed.options);
  const auto history = cache::SomeTokens(100, 1);
  const auto sequence = windows.Run(history);
  // A query of zeros weighs what it sees alike: the first token and the last two.
  const std::vector<float> zeros(kQueryHeads * kDim);
  std::vector<float> out(zeros.size());
  tasks = {{.sequence = sequence.get(),
            .queries = zeros.data(),
            .out = out.data(),
            .rows = 1,
            .first_position = 99}};
  request.tasks = tasks.data();
  request.task_count = 1;
  const auto attention = Attention(1);
  quire_error error{};
  ASSERT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_OK) << Show(error);
  const auto value = windows.model.Rows(history, 0, 1, {StreamRole::kValue, 2, kDim});
  for (uint32_t i = 0; i < out.size(); ++i) {
    const size_t column = i / kDim / (kQueryHeads / 2) * kDim + i % kDim;
    const float sum = value[column] + value[98 * 8 + column] + value[99 * 8 + column];
    EXPECT_NEAR(out[i], sum / 3, 1e-4) << i;
  }
}

TEST_F(Attend, WhatAWindowHasPassedIsRefusedEverywhere) {
  const Windowed windowed;
  const CWorld windows(windowed.options);
  const auto sequence = windows.Run(cache::SomeTokens(112, 1));
  ASSERT_EQ(quire_sequence_reserve(sequence.get(), 300, nullptr), QUIRE_OK);
  auto blocks = Sized<quire_layer_blocks>();
  ASSERT_EQ(quire_sequence_blocks(sequence.get(), 0, &blocks, nullptr), QUIRE_OK);
  ASSERT_EQ(blocks.sealed[2], nullptr);  // tokens [32, 48) are no longer seen
  ASSERT_EQ(blocks.slots[2], QUIRE_NO_SLOT);

  tasks.resize(1);
  tasks[0].sequence = sequence.get();
  request.tasks = tasks.data();
  request.task_count = 1;
  quire_error error{};
  const auto attention = Attention(1);
  ASSERT_EQ(blocks.sealed[5], nullptr);
  ASSERT_NE(blocks.sealed[6], nullptr);  // tokens [96, 112)
  ASSERT_EQ(blocks.sealed[7], nullptr);  // not written yet
  // 48 still sees token 47, and 96 sees 95.
  for (const uint64_t position : {33, 47, 48, 96}) {
    tasks[0].first_position = position;
    EXPECT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.message).find("window has passed"), std::string::npos);
  }
  for (const uint64_t position : {97, 111}) {
    tasks[0].first_position = position;
    EXPECT_EQ(quire_attend(attention.get(), &request, &error), QUIRE_OK) << Show(error);
  }
  const auto view = windows.View(*sequence, 0, QUIRE_KEY);
  auto tensor = Sized<quire_tensor>();
  DLManagedTensorVersioned* shared = nullptr;
  EXPECT_EQ(quire_view_tensor(view.get(), 2, &tensor, &error), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_view_dlpack(view.get(), 2, &shared, &error), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_view_tensor(view.get(), 6, &tensor, &error), QUIRE_OK);
  float out[8];
  EXPECT_EQ(quire_sequence_gather(sequence.get(), 0, QUIRE_KEY, 40, 41, out, 8, &error),
            QUIRE_NOT_FOUND);
}

TEST_F(Attend, RefusesWhatTheKernelsCannotCheck) {
  const auto attention = Attention(1);
  const CWorld other;
  const auto stranger = other.Run(cache::SomeTokens(700, 1));
  const quire_attend_request good = request;
  const std::vector<quire_attend_task> good_tasks = tasks;
  const auto refused = [&](quire_code code, const std::string& words,
                           const std::function<void()>& change) {
    request = good;
    tasks = good_tasks;
    request.tasks = tasks.data();
    change();
    for (auto& out : outs) std::ranges::fill(out, 77.0f);
    quire_error error{};
    EXPECT_EQ(quire_attend(attention.get(), &request, &error), code) << words;
    EXPECT_NE(std::string(error.message).find(words), std::string::npos) << error.message;
    for (const auto& out : outs) {
      EXPECT_EQ(out, std::vector<float>(out.size(), 77.0f)) << words;
    }
  };
  const auto invalid = [&](const std::string& words, const std::function<void()>& change) {
    refused(QUIRE_INVALID_ARGUMENT, words, change);
  };
  invalid("request->size", [&] { request.size = 3; });
  invalid("request->tasks is NULL", [&] { request.tasks = nullptr; });
  invalid("request->tasks has", [&] { request.task_count = UINT32_MAX; });
  invalid("layer 2", [&] { request.layer = 2; });
  invalid("query_heads is 0", [&] { request.query_heads = 0; });
  invalid("query_heads is 5", [&] { request.query_heads = 5; });
  // A multiple of the KV heads, but no caller has arrays for so many.
  refused(QUIRE_UNSUPPORTED, "query_heads is 4294967294",
          [&] { request.query_heads = UINT32_MAX - 1; });
  invalid("tasks[0].sequence is NULL", [&] { tasks[0].sequence = nullptr; });
  invalid("tasks[1].sequence is NULL", [&] { tasks[1].sequence = nullptr; });
  invalid("tasks[1].sequence is of another cache", [&] { tasks[1].sequence = stranger.get(); });
  invalid("tasks[1].queries is NULL", [&] { tasks[1].queries = nullptr; });
  invalid("tasks[1].out is NULL", [&] { tasks[1].out = nullptr; });
  invalid("tasks[0].rows: 1 from position 601", [&] { tasks[0].first_position = 601; });
  invalid("tasks[1].rows: 21 from position 600", [&] { tasks[1].rows = 21; });
  invalid("tasks[1].rows", [&] { tasks[1].first_position = UINT64_MAX; });
  invalid("tasks[1].rows", [&] { tasks[1].rows = UINT32_MAX; });
}

TEST_F(Attend, ThreadsAreLimited) {
  auto options = Sized<quire_attention_options>();
  options.threads = 1025;
  quire_attention* attention = nullptr;
  quire_error error{};
  EXPECT_EQ(quire_attention_create(&options, &attention, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "options->threads is 1025, at most 1024");
  options.size = 0;
  EXPECT_EQ(quire_attention_create(&options, &attention, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(attention, nullptr);
}

}  // namespace
}  // namespace quire::embed
