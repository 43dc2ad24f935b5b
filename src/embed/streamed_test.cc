// A context that the budget does not hold, from C: quire_attend gives the bits of one that is all
// in memory, in the life that computed it and in the next.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

class StreamedC : public testing::Test {
 protected:
  static constexpr uint32_t kQueryHeads = 6;
  static constexpr uint32_t kDim = 4;
  static constexpr uint64_t kTokens = 16'000;
  static constexpr uint64_t kStep = 64;

  StreamedC() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_stream_XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    auto options = Sized<quire_attention_options>();
    options.threads = 2;
    attention_ = MustMake<quire_attention>([&](quire_attention** out, quire_error* error) {
      return quire_attention_create(&options, out, error);
    });
    cache_options_.hot_bytes = 900'000;  // and the context takes more than 16,000 * 64
    Prng prng(3);
    for (float& q : queries_) q = prng.NextFloat(-1.0f, 1.0f);
  }
  ~StreamedC() override { std::filesystem::remove_all(directory_); }

  Owned<quire_disk_store> OpenStore() {
    auto options = Sized<quire_disk_store_options>();
    options.directory = directory_.c_str();
    options.bytes_cap = 64 << 20;
    options.commit_interval_us = 2000;
    options.staging_bytes = 4 << 20;
    return MustMake<quire_disk_store>([&](quire_disk_store** out, quire_error* error) {
      return quire_disk_store_open(&options, out, error);
    });
  }
  static quire_sequence_options ToStream() {
    auto options = Sized<quire_sequence_options>();
    options.reserve_tokens = kTokens;
    options.step_tokens = kStep;
    options.resident_tokens = 256;
    options.query_heads = kQueryHeads;
    return options;
  }
  Owned<quire_sequence> Open(const CWorld& world, const quire_sequence_options* options) const {
    return MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
      return quire_open(world.Acquire(prompt_).release(), options, out, error);
    });
  }
  quire_code OpenCode(const CWorld& world, const quire_sequence_options& options) {
    quire_sequence* sequence = nullptr;
    return quire_open(world.Acquire(prompt_).release(), &options, &sequence, &error_);
  }
  void FeedInSteps(const CWorld& world, quire_sequence& sequence) const {
    const std::span<const TokenId> prompt(prompt_);
    for (uint64_t at = quire_sequence_length(&sequence); at < kTokens;) {
      at = std::min(kTokens, at + kStep);
      world.Feed(sequence, prompt.first(at));
    }
  }
  quire_attend_task TaskOf(const quire_sequence& sequence, std::vector<float>& out,
                           uint64_t first_position) const {
    out.assign(queries_.size(), 0.0f);
    return {.sequence = &sequence,
            .queries = queries_.data(),
            .out = out.data(),
            .rows = static_cast<uint32_t>(queries_.size() / (kQueryHeads * kDim)),
            .first_position = first_position};
  }
  quire_code Attend(std::span<const quire_attend_task> tasks, uint32_t layer) {
    auto request = Sized<quire_attend_request>();
    request.layer = layer;
    request.query_heads = kQueryHeads;
    request.tasks = tasks.data();
    request.task_count = static_cast<uint32_t>(tasks.size());
    return quire_attend(attention_.get(), &request, &error_);
  }
  std::vector<float> Attended(const quire_sequence& sequence, uint32_t layer) {
    std::vector<float> out;
    const uint64_t rows = queries_.size() / (kQueryHeads * kDim);
    const quire_attend_task task = TaskOf(sequence, out, kTokens - rows);
    EXPECT_EQ(Attend({&task, 1}, layer), QUIRE_OK) << Show(error_);
    return out;
  }
  static uint64_t Streamed(const quire_sequence& sequence) {
    auto stats = Sized<quire_sequence_stats>();
    EXPECT_EQ(quire_sequence_get_stats(&sequence, &stats, nullptr), QUIRE_OK);
    return stats.tokens_streamed;
  }

  std::string directory_;
  const std::vector<TokenId> prompt_ = cache::SomeTokens(kTokens, 1);
  quire_cache_options cache_options_ = SmallOptions();
  std::vector<float> queries_ = std::vector<float>(size_t{3} * kQueryHeads * kDim);
  Owned<quire_attention> attention_;
  quire_error error_{};
};

TEST_F(StreamedC, HasTheBitsOfAContextInMemory) {
  quire_cache_options large = SmallOptions();
  large.hot_bytes = 16 << 20;
  const CWorld whole(large);
  const auto judge = Open(whole, nullptr);
  whole.Feed(*judge, prompt_);
  EXPECT_EQ(Streamed(*judge), 0);
  for (const bool first_life : {true, false}) {
    const auto store = OpenStore();
    cache_options_.disk_store = store.get();
    const CWorld world(cache_options_);
    if (first_life) {
      quire_sequence* refused = nullptr;
      EXPECT_EQ(quire_open(world.Acquire(prompt_).release(), nullptr, &refused, &error_),
                QUIRE_TOO_LARGE);
    }
    const auto options = ToStream();
    const auto sequence = Open(world, &options);
    const uint64_t found = quire_sequence_length(sequence.get());
    EXPECT_EQ(found > kTokens / 2, !first_life) << found;
    FeedInSteps(world, *sequence);
    EXPECT_GT(Streamed(*sequence), kTokens - 1000);
    for (const uint32_t layer : {0u, 1u, 0u}) {
      EXPECT_EQ(Attended(*sequence, layer), Attended(*judge, layer)) << layer;
    }
    EXPECT_EQ(quire_disk_store_flush(store.get(), &error_), QUIRE_OK) << Show(error_);
  }
}

TEST_F(StreamedC, ABatchMayHaveSequencesThatStreamAndOthers) {
  const auto store = OpenStore();
  cache_options_.disk_store = store.get();
  cache_options_.hot_bytes = 1 << 20;
  const CWorld world(cache_options_);
  const auto options = ToStream();
  const auto streams = Open(world, &options);
  FeedInSteps(world, *streams);
  const auto history = cache::SomeTokens(500, 2);
  const auto small = world.Run(history);
  std::vector<float> alone;
  const quire_attend_task small_alone = TaskOf(*small, alone, 490);
  ASSERT_EQ(Attend({&small_alone, 1}, 1), QUIRE_OK) << Show(error_);
  std::vector<float> one;
  std::vector<float> other;
  const quire_attend_task both[] = {TaskOf(*small, one, 490), TaskOf(*streams, other, kTokens - 3)};
  ASSERT_EQ(Attend(both, 1), QUIRE_OK) << Show(error_);
  EXPECT_EQ(one, alone);
  EXPECT_EQ(other, Attended(*streams, 1));
}

TEST_F(StreamedC, WhatCannotBeIsRefused) {
  const auto store = OpenStore();
  cache_options_.disk_store = store.get();
  const CWorld world(cache_options_);
  auto options = ToStream();
  options.query_heads = 0;
  EXPECT_EQ(OpenCode(world, options), QUIRE_INVALID_ARGUMENT);
  options = ToStream();
  options.private_blocks = 1;
  EXPECT_EQ(OpenCode(world, options), QUIRE_UNSUPPORTED);
  EXPECT_EQ(OpenCode(CWorld(), ToStream()), QUIRE_UNSUPPORTED);  // no store

  options = ToStream();
  const auto sequence = Open(world, &options);
  FeedInSteps(world, *sequence);
  std::vector<float> one;
  std::vector<float> other;
  const quire_attend_task twice[] = {TaskOf(*sequence, one, kTokens - 3),
                                     TaskOf(*sequence, other, kTokens - 3)};
  EXPECT_EQ(Attend(twice, 0), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("two tasks"), std::string::npos) << Show(error_);
  const quire_attend_task before = TaskOf(*sequence, one, 100);
  EXPECT_EQ(Attend({&before, 1}, 0), QUIRE_INVALID_ARGUMENT) << Show(error_);
  const auto rows = kStep + 1;
  queries_.assign(rows * kQueryHeads * kDim, 0.5f);
  const quire_attend_task wide = TaskOf(*sequence, one, kTokens - rows);
  EXPECT_EQ(Attend({&wide, 1}, 0), QUIRE_NO_SPACE) << Show(error_);
  EXPECT_EQ(quire_sequence_length(sequence.get()), kTokens);
}

}  // namespace
}  // namespace quire::embed
