// An engine on a store: what an earlier one read is loaded, and no answer changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class StoreTest : public EngineTest {
 protected:
  StoreTest() {
    std::filesystem::remove_all(directory_);
    engine_options_.load = LoadPolicy::kAlways;  // computing takes no time by the tests' clock
    OpenStore();
  }
  ~StoreTest() override {
    End();
    disk_.reset();
    std::filesystem::remove_all(directory_);
  }

  void OpenStore() {
    disk_ = DiskStore::Open({.directory = directory_.string(),
                             .bytes_cap = uint64_t{64} << 20,
                             .commit_interval_us = 20'000,
                             .staging_bytes = 4 << 20})
                .value();
    store_ = disk_.get();
  }
  void End() {
    engine_.reset();
    cache_.reset();
  }
  /// As after a restart of the program, with everything on the disk.
  void Restart(uint64_t blocks) {
    ASSERT_TRUE(disk_->Flush().has_value());
    End();
    disk_.reset();
    OpenStore();
    Make(blocks);
  }
  static Request Of(uint64_t seed, uint64_t tokens = 100) {
    return {.prompt = SomeTokens(tokens, seed), .max_tokens = 6};
  }
  Response Cold(Request request) {
    request.reuse = false;
    return RunOne(request);
  }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("quire_serve_store_" + std::to_string(::getpid()));
  std::unique_ptr<DiskStore> disk_;
};

TEST_F(StoreTest, ALaterEngineLoadsWhatAnEarlierOneRead) {
  Make(64);
  const Response first = RunOne(Of(1));
  EXPECT_EQ(first.loaded_tokens, 0);
  Restart(64);
  const Response second = RunOne(Of(1));
  EXPECT_EQ(second.loaded_tokens, 96);
  EXPECT_EQ(second.reused_tokens, 96);
  EXPECT_EQ(second.computed_tokens, 4);
  EXPECT_EQ(second.logits_digest, first.logits_digest);
  EXPECT_EQ(engine_->stats().loads, 1);
  EXPECT_EQ(engine_->stats().loaded_tokens, 96);
  EXPECT_EQ(RunOne(Of(1)).loaded_tokens, 0);  // it is in memory now
}

TEST_F(StoreTest, WhoBeginsTheSameWaitsForTheLoad) {
  Make(64);
  const Response first = RunOne(Of(1));
  Restart(64);
  const std::vector<Request> requests = {Of(1), Of(1), Of(2), Of(1)};
  const std::vector<Response> responses = Run(requests);
  EXPECT_EQ(engine_->stats().loads, 1);
  for (const size_t i : {0, 1, 3}) {
    EXPECT_EQ(responses[i].logits_digest, first.logits_digest);
    EXPECT_EQ(responses[i].reused_tokens, 96);
  }
  EXPECT_EQ(responses[2].reused_tokens, 0);
}

// A load holds room as a running request does.
TEST_F(StoreTest, LoadsCountAmongTheRunning) {
  Make(64);
  for (uint64_t i = 0; i < 4; ++i) RunOne(Of(i));
  engine_options_.running_max = 2;
  Restart(64);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(engine_->Submit(Of(i)).has_value());
  engine_->Tick();
  EXPECT_EQ(engine_->stats().loads, 2);
  uint64_t most = 0;
  while (engine_->stats().running + engine_->stats().waiting > 0) {
    engine_->Tick();
    most = std::max<uint64_t>(most, engine_->stats().running);
  }
  EXPECT_EQ(engine_->stats().loads, 4);
  EXPECT_LE(most, 2);
}

TEST_F(StoreTest, NeverLoadsWhereItMayNot) {
  Make(64);
  const Response first = RunOne(Of(1));
  engine_options_.load = LoadPolicy::kNever;
  Restart(64);
  const Response second = RunOne(Of(1));
  EXPECT_EQ(second.reused_tokens, 0);
  EXPECT_EQ(second.miss_reason, MissReason::kNotLoaded);
  EXPECT_EQ(second.logits_digest, first.logits_digest);
}

TEST_F(StoreTest, ARequestThatIsCancelledWhileItLoadsLeavesNothingBehind) {
  Make(64);
  RunOne(Of(1));
  Restart(64);
  const uint64_t used = cache_->stats().hot_bytes_used;
  const RequestId id = engine_->Submit(Of(1)).value();
  engine_->Tick();
  ASSERT_EQ(engine_->stats().loads, 1);
  engine_->Cancel(id);
  engine_->Tick();
  while (cache_->Evict(100) > 0) {
  }
  EXPECT_EQ(cache_->stats().hot_bytes_used, used);
}

// Far more is asked for than memory holds, so that blocks go and come back all the time.
TEST_F(StoreTest, ASmallCacheOnAStoreGivesTheAnswersOfALargeOne) {
  constexpr uint64_t kPrompts = 8;
  std::vector<Response> cold;
  Make(200);
  for (uint64_t i = 0; i < kPrompts; ++i) cold.push_back(Cold(Of(i)));
  End();
  Make(24);
  uint64_t loaded = 0;
  for (uint64_t round = 0; round < 4; ++round) {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < kPrompts; ++i) requests.push_back(Of((i * 3 + round) % kPrompts));
    const std::vector<Response> responses = Run(requests);
    for (uint64_t i = 0; i < kPrompts; ++i) {
      EXPECT_EQ(responses[i].logits_digest, cold[(i * 3 + round) % kPrompts].logits_digest);
      loaded += responses[i].loaded_tokens;
    }
    ASSERT_TRUE(disk_->Flush().has_value());
  }
  EXPECT_GT(loaded, 0);
}

TEST_F(StoreTest, MeasuredCostDecidesAndNoAnswerChanges) {
  engine_options_.load = LoadPolicy::kAuto;
  Make(64);
  const Response first = RunOne(Of(1));
  Restart(64);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(RunOne(Of(1)).logits_digest, first.logits_digest);
    while (cache_->Evict(100) > 0) {
    }
  }
}

// With windows, what is loaded takes more room at once than what is computed step by step.
TEST_F(StoreTest, WhatHasNoRoomToBeLoadedIsComputed) {
  model::ModelConfig config = model::SmallConfig();
  config.layers = 1;
  config.window_tokens = 24;
  config.window_layers = {0};
  model_ =
      model::Model::Create(config, model::RandomTensors(config, ComputeType::kF32, 7), {}).value();
  CacheOptions options{.geometry = model::GeometryOf(config),
                       .profile = NumericProfile::Uniform(Codec::kF32, kBlockTokens),
                       .hot_bytes = uint64_t{1} << 26,
                       .tokens_max = 4096,
                       .clock = &clock_,
                       .store = store_};
  const uint64_t charge =
      options.hot_bytes / Cache::Create(options).value()->stats().sealed.slots_max;
  executor_ = MakeThreadPool(1);
  attention_ = MakeCpuAttention().value();
  engine_options_.chunk_tokens_min = engine_options_.chunk_tokens_max = 16;
  engine_options_.outside_retry_us = 1000;
  options.hot_bytes = charge * 5;
  cache_ = Cache::Create(options).value();
  engine_ = MakeEngine(*cache_);
  const Request request = Of(1, /*tokens=*/180);
  const Response first = RunOne(request);
  ASSERT_EQ(first.finish, Finish::kLength) << first.error.message;
  ASSERT_TRUE(disk_->Flush().has_value());
  while (cache_->Evict(100) > 0) {
  }
  TestClient client(*engine_);
  const RequestId again = client.Submit(request);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!client.AllEnded() && std::chrono::steady_clock::now() < end) {
    if (!engine_->Tick().worked) engine_->AwaitChange(1000);
    client.TakeAll();
  }
  ASSERT_TRUE(client.AllEnded()) << "it waits for room that never comes";
  EXPECT_EQ(client.Of(again).response->finish, Finish::kLength);
  EXPECT_EQ(client.Of(again).response->logits_digest, first.logits_digest);
}

}  // namespace
}  // namespace quire::serve
