// What a request may ask for where room is short, and what it does to others.
#include <gtest/gtest.h>

#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class EngineOnFullTest : public EngineTest {};

TEST_F(EngineOnFullTest, FewerEndsWhereItsRoomEndsAndTakesNone) {
  Make(6);
  // Four blocks for the first; two are left, for 20 tokens and 12 more.
  const std::vector<Request> requests = {
      {.prompt = SomeTokens(40, 1), .max_tokens = 24},
      {.prompt = SomeTokens(20, 2), .max_tokens = 60, .on_full = OnFull::kFewer}};
  const std::vector<Response> responses = Run(requests);
  EXPECT_EQ(responses[0].finish, Finish::kLength) << responses[0].error.message;
  EXPECT_EQ(responses[0].preemptions, 0);
  EXPECT_EQ(responses[1].finish, Finish::kNoSpace) << responses[1].error.message;
  EXPECT_EQ(responses[1].tokens.size(), 13);  // the last one has no K and V
  EXPECT_EQ(engine_->stats().preemptions, 0);
  const Response alone = RunOne({.prompt = SomeTokens(20, 2), .max_tokens = 13});
  EXPECT_EQ(responses[1].tokens, alone.tokens);
  EXPECT_EQ(responses[1].logits_digest, alone.logits_digest);
}

TEST_F(EngineOnFullTest, WhoMayNotEvictTakesFromNobodyAndHoldsNobodyUp) {
  Make(6);
  TestClient client(*engine_);
  const RequestId low =
      client.Submit({.prompt = SomeTokens(40, 1), .max_tokens = 20, .priority = 10});
  engine_->Tick();
  const RequestId free_only = client.Submit(
      {.prompt = SomeTokens(40, 2), .max_tokens = 20, .on_full = OnFull::kNoEvict, .priority = 90});
  const RequestId behind = client.Submit({.prompt = SomeTokens(10, 3), .max_tokens = 4});
  engine_->Tick();
  client.TakeAll();
  ASSERT_TRUE(client.Of(free_only).response.has_value());
  EXPECT_EQ(client.Of(free_only).response->finish, Finish::kFailed);
  EXPECT_EQ(client.Of(free_only).response->error.code, ErrorCode::kNoSpace);
  EXPECT_EQ(engine_->stats().running, 2);
  client.Finish();
  EXPECT_EQ(client.Of(low).response->finish, Finish::kLength);
  EXPECT_EQ(client.Of(low).response->preemptions, 0);
  EXPECT_EQ(client.Of(behind).response->finish, Finish::kLength);
}

// A request whose events are not taken is preempted again and again, and each time it is read anew
// it draws a token.
TEST_F(EngineOnFullTest, PreemptionsDoNotFillTheQueueOfWhoDoesNotRead) {
  engine_options_.events_max = 8;
  engine_options_.outside_retry_us = 1;
  Make(64, /*chunk_tokens=*/64);
  const RequestId id =
      engine_->Submit({.prompt = SomeTokens(20, 1), .max_tokens = 40, .priority = 10}).value();
  for (int i = 0; i < 60; ++i) {
    engine_->Tick();
    clock_.Advance(10);
    engine_->GiveWay();
  }
  EXPECT_GT(engine_->stats().preemptions, 2);
  uint64_t events = 0;
  while (engine_->Next(id)) ++events;
  EXPECT_GE(events, engine_options_.events_max - Task::kEventsOfAStep);
  EXPECT_LE(events, engine_options_.events_max);
  TestClient client(*engine_);
  const RequestId other = client.Submit({.prompt = SomeTokens(20, 1), .max_tokens = 40});
  client.Finish();
  EXPECT_EQ(client.Of(other).response->finish, Finish::kLength);
}

// A request that has ended is still among those that run when another one gives way.
TEST_F(EngineOnFullTest, OneEndsWhileAnotherGivesWay) {
  engine_options_.outside_retry_us = 1000;
  Make(16);
  TestClient client(*engine_);
  const RequestId first = client.Submit({.prompt = SomeTokens(20, 1), .max_tokens = 40});
  const RequestId second = client.Submit({.prompt = SomeTokens(20, 2), .max_tokens = 20});
  for (int i = 0; i < 3; ++i) engine_->Tick();
  ASSERT_EQ(engine_->stats().running, 2);
  ASSERT_TRUE(engine_->Cancel(first));
  engine_->GiveWay();
  engine_->Tick();
  clock_.Advance(1000);
  client.Finish();
  EXPECT_EQ(client.Of(first).response->finish, Finish::kCancelled);
  EXPECT_EQ(client.Of(second).response->finish, Finish::kLength);
  EXPECT_EQ(client.Of(second).response->preemptions, 1);
}

// The one that gave way waits for its reader; the next one may have its place.
TEST_F(EngineOnFullTest, WhoIsNotReadGivesItsPlaceToTheNext) {
  engine_options_.events_max = 8;
  engine_options_.running_max = 1;
  engine_options_.outside_retry_us = 1000;
  Make(16);
  ASSERT_TRUE(engine_->Submit({.prompt = SomeTokens(20, 1), .max_tokens = 40}).has_value());
  for (int i = 0; i < 20; ++i) engine_->Tick();
  TestClient client(*engine_);
  const RequestId next = client.Submit({.prompt = SomeTokens(20, 2), .max_tokens = 4});
  engine_->Tick();
  engine_->GiveWay();
  EXPECT_EQ(engine_->Tick().wait_us, 1000);
  clock_.Advance(1000);
  client.Finish(100);
  EXPECT_EQ(client.Of(next).response->finish, Finish::kLength);
}

// Behind its prompt a request that keeps a part of it is two sequences for a moment. Others that
// run give way for that, and what it says does not depend on them.
TEST_F(EngineOnFullTest, WhatIsKeptOfAPromptFindsRoomBesideOthers) {
  Make(64, /*chunk_tokens=*/16);
  const Request keeps = {.prompt = SomeTokens(70, 1), .max_tokens = 6, .keep = {.share = 0.5}};
  const Response alone = RunOne(keeps);
  ASSERT_EQ(alone.finish, Finish::kLength) << alone.error.message;
  ASSERT_GT(alone.dropped_tokens, 0);
  uint64_t preempted = 0;
  for (uint64_t blocks = 8; blocks <= 16; ++blocks) {
    MakeWithModel(blocks, /*chunk_tokens=*/16);
    std::vector<Request> requests = {{.prompt = SomeTokens(30, 2), .max_tokens = 20}, keeps};
    requests.push_back({.prompt = SomeTokens(30, 3), .max_tokens = 20, .on_full = OnFull::kHalt});
    requests.push_back({.prompt = SomeTokens(10, 4), .max_tokens = 60, .on_full = OnFull::kHalt});
    const std::vector<Response> responses = Run(requests);
    EXPECT_EQ(responses[1].finish, Finish::kLength)
        << blocks << " blocks: " << responses[1].error.message;
    EXPECT_EQ(responses[1].tokens, alone.tokens);
    EXPECT_EQ(responses[1].logits_digest, alone.logits_digest);
    preempted += engine_->stats().preemptions;
  }
  EXPECT_GT(preempted, 0);
}

TEST_F(EngineOnFullTest, APartOfAPromptIsNotKeptWhereLayersHaveWindows) {
  model::ModelConfig config = model::SmallConfig();
  config.window_tokens = 24;
  config.window_layers = {config.layers - 1};
  model_ =
      model::Model::Create(config, model::RandomTensors(config, ComputeType::kF32, 7), {}).value();
  engine_options_.chunk_tokens_min = engine_options_.chunk_tokens_max = 32;
  cache_ = Cache::Create({.geometry = model::GeometryOf(config),
                          .profile = NumericProfile::Uniform(Codec::kF32, kBlockTokens),
                          .hot_bytes = uint64_t{1} << 26,
                          .tokens_max = 4096})
               .value();
  executor_ = MakeThreadPool(1);
  attention_ = MakeCpuAttention().value();
  engine_ = MakeEngine(*cache_);
  const auto refused = engine_->Submit({.prompt = SomeTokens(40, 1), .keep = {.share = 0.5}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("keep"), std::string::npos);
  EXPECT_EQ(RunOne({.prompt = SomeTokens(40, 1), .max_tokens = 2}).finish, Finish::kLength);
}

}  // namespace
}  // namespace quire::serve
