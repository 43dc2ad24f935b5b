// Requests that wait for room: what the cache counts, when they are tried again, how long it took.
#include <gtest/gtest.h>

#include "serve/test_util.h"

namespace quire::serve {
namespace {

class EngineWaitingTest : public EngineTest {
 protected:
  EngineWaitingTest() { faults_ = &cache_faults_; }

  CacheFaults cache_faults_;
};

TEST_F(EngineWaitingTest, AWaitingRequestIsCountedOnce) {
  Make(6);
  // Each needs 4 of 6 blocks, so the first three run one after the other, for 20 steps each.
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 3; ++i) {
    requests.push_back({.prompt = SomeTokens(40, 1 + i), .max_tokens = 20});
  }
  requests.push_back(requests.back());  // shares 2 blocks with the third and runs beside it
  const std::vector<Response> responses = Run(requests);
  uint64_t reused = 0;
  for (const Response& response : responses) {
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
    reused += response.reused_tokens;
  }
  EXPECT_EQ(responses[3].reused_tokens, 32u);
  const CacheStats stats = cache_->stats();
  EXPECT_EQ(stats.lookups, 4u);
  EXPECT_EQ(stats.lookup_tokens, 160u);
  EXPECT_EQ(stats.hit_tokens, reused);
  EXPECT_EQ(stats.refused_total, 0u);
  const TenantStats tenant = cache_->tenant_stats(kDefaultTenant).value();
  EXPECT_EQ(tenant.lookups, 4u);
  EXPECT_EQ(tenant.hit_tokens, reused);
  EXPECT_EQ(tenant.refused_total, 0u);
  uint64_t missed = 0;
  for (const uint64_t tokens : tenant.missed_tokens) missed += tokens;
  EXPECT_EQ(missed, 160u - reused);
  // Once each, and the two that waited once more, when the one before had ended.
  EXPECT_EQ(cache_faults_.acquires, 4u + 2u);
}

TEST_F(EngineWaitingTest, WaitingDoesNotMakeBlocksRecent) {
  Make(8);
  const std::vector<TokenId> old_prompt = SomeTokens(33, 1);
  RunOne({.prompt = old_prompt, .max_tokens = 1});         // 2 blocks, used first
  RunOne({.prompt = SomeTokens(33, 2), .max_tokens = 1});  // 2 blocks, used later
  // The first runs in 3 blocks and leaves 1 free; the second continues the old prompt and needs 2
  // shared and 4 own, which is 1 more than can be had beside the first.
  std::vector<TokenId> longer = old_prompt;
  const std::vector<TokenId> more = SomeTokens(50, 3);
  longer.insert(longer.end(), more.begin(), more.end());
  bool checked = false;
  const std::vector<Request> requests = {{.prompt = SomeTokens(33, 4), .max_tokens = 10},
                                         {.prompt = longer, .max_tokens = 4}};
  const auto on_event = [&](size_t index, const Event&) {
    if (index != 0 || cache_faults_.acquires < 4 || checked) return true;
    checked = true;
    // It has asked and waits. One block goes: it must be of the old prompt.
    EXPECT_EQ(cache_->stats().sequences, 1u);
    EXPECT_EQ(cache_->Evict(1), 1u);
    return true;
  };
  const std::vector<Response> responses = Run(requests, on_event);
  EXPECT_TRUE(checked);
  for (const Response& response : responses) {
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
  }
  EXPECT_EQ(responses[1].reused_tokens, 16u);
}

TEST_F(EngineWaitingTest, WhatFindsRoomBesideOthersStartsAtOnce) {
  Make(8);
  const std::vector<TokenId> prompt = SomeTokens(49, 1);
  RunOne({.prompt = prompt, .max_tokens = 1});
  // 4 blocks for the first, 3 that are cached and 1 of its own for the second: just enough.
  uint64_t together = 0;
  std::vector<Request> requests = {{.prompt = SomeTokens(50, 2), .max_tokens = 10},
                                   {.prompt = prompt, .max_tokens = 5}};
  const auto on_event = [&](size_t, const Event&) {
    together = std::max(together, cache_->stats().sequences);
    return true;
  };
  const std::vector<Response> responses = Run(requests, on_event);
  EXPECT_EQ(together, 2u);
  EXPECT_EQ(responses[1].reused_tokens, 48u);
  EXPECT_EQ(cache_->stats().refused_total, 0u);
}

TEST_F(EngineWaitingTest, WhatCanNeverFitDoesNotWait) {
  Make(6);
  std::vector<Request> requests = {{.prompt = SomeTokens(30, 1), .max_tokens = 30},
                                   {.prompt = SomeTokens(97, 2), .max_tokens = 4},
                                   {.prompt = SomeTokens(20, 3), .max_tokens = 4}};
  uint64_t together = 0;
  const auto on_event = [&](size_t, const Event&) {
    together = std::max(together, cache_->stats().sequences);
    return true;
  };
  const std::vector<Response> responses = Run(requests, on_event);
  EXPECT_EQ(responses[1].error.code, ErrorCode::kTooLarge);
  EXPECT_EQ(together, 2u);  // the one behind it did not wait either
  EXPECT_EQ(cache_->stats().refused_total, 1u);
}

TEST_F(EngineWaitingTest, TheTimeToTheFirstTokenIncludesTheQueue) {
  Make(6);
  // Each step of a request takes a millisecond; the second waits until the first has ended.
  std::vector<Request> requests = {{.prompt = SomeTokens(40, 1), .max_tokens = 20},
                                   {.prompt = SomeTokens(40, 2), .max_tokens = 20}};
  const std::vector<Response> responses = Run(requests, [&](size_t, const Event& event) {
    if (std::holds_alternative<NewToken>(event)) clock_.Advance(1000);
    return true;
  });
  EXPECT_EQ(responses[0].ttft_ms, 0.0);
  EXPECT_EQ(responses[1].ttft_ms, 20.0);
  EXPECT_EQ(responses[1].ms_per_token, 1.0);
}

TEST_F(EngineWaitingTest, WhatCanNeverFitCostsNoSessionItsRoom) {
  Make(6);
  const SessionId session = engine_->OpenSession({}).value();
  RunOne({.prompt = SomeTokens(20, 1), .max_tokens = 3, .session = session});
  EXPECT_EQ(RunOne({.prompt = SomeTokens(97, 2)}).error.code, ErrorCode::kTooLarge);
  EXPECT_EQ(engine_->stats().sessions_released, 0u);
  EXPECT_EQ(cache_->stats().sequences, 1u);
  // What fits takes it, and was never refused.
  EXPECT_EQ(RunOne({.prompt = SomeTokens(80, 3), .max_tokens = 2}).finish, Finish::kLength);
  EXPECT_EQ(engine_->stats().sessions_released, 1u);
  EXPECT_EQ(cache_->stats().refused_total, 1u);
}

TEST_F(EngineWaitingTest, ATurnThatCanNeverFitIsRefusedBeforeItGrows) {
  engine_options_.admission = Admission::kGrow;
  Make(6);
  const SessionId session = engine_->OpenSession({}).value();
  RunOne({.prompt = SomeTokens(20, 1), .max_tokens = 3, .session = session});
  const Response refused =
      RunOne({.prompt = SomeTokens(5, 2), .max_tokens = 90, .session = session});
  EXPECT_EQ(refused.error.code, ErrorCode::kTooLarge);
  EXPECT_TRUE(refused.tokens.empty());
}

TEST_F(EngineWaitingTest, AFullEngineSleepsWhileItsReadersDo) {
  engine_options_.running_max = 1;
  engine_options_.events_max = 8;
  Make(64);
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(engine_->Submit({.prompt = SomeTokens(20, 1 + i), .max_tokens = 40}).has_value());
  }
  for (int i = 0; i < 20; ++i) engine_->Tick();
  EXPECT_FALSE(engine_->Tick().worked);
  EXPECT_EQ(engine_->stats().running, 1u);
  EXPECT_EQ(engine_->stats().waiting, 1u);
}

TEST_F(EngineWaitingTest, NobodyWaitsForWhatItCannotUse) {
  Make(64);
  const auto running = [&](Request first, Request second) {
    engine_->CancelAll();
    engine_->Tick();
    cache_->Evict(1000);
    EXPECT_TRUE(engine_->Submit(std::move(first)).has_value());
    EXPECT_TRUE(engine_->Submit(std::move(second)).has_value());
    engine_->Tick();
    return engine_->stats().running;
  };
  const Request plain{.prompt = SomeTokens(200, 1), .max_tokens = 9};
  Request asks_for_nothing = plain;
  asks_for_nothing.reuse = false;
  Request keeps_a_part = plain;
  keeps_a_part.keep.share = 0.5;
  EXPECT_EQ(running(plain, plain), 1u);
  EXPECT_EQ(running(plain, asks_for_nothing), 2u);
  EXPECT_EQ(running(asks_for_nothing, plain), 1u);
  EXPECT_EQ(running(plain, keeps_a_part), 2u);
  EXPECT_EQ(running(keeps_a_part, plain), 2u);  // what it computes is its own
}

TEST_F(EngineWaitingTest, WhoWaitsForAPrefixPassesAnOwnerThatStandsStill) {
  engine_options_.events_max = 8;
  Make(64, 16);
  // 20 steps, and an event of each: those of the first are not taken.
  const Request request{.prompt = SomeTokens(320, 1), .max_tokens = 2};
  ASSERT_TRUE(engine_->Submit(request).has_value());
  const Response second = RunOne(request);
  EXPECT_EQ(second.finish, Finish::kLength);
  EXPECT_EQ(second.reused_tokens, 96u);
  EXPECT_EQ(engine_->stats().running, 1u);
}

TEST_F(EngineWaitingTest, ABadRequestFailsWithoutTheCacheBeingAsked) {
  Make(6);
  EXPECT_EQ(RunOne({.prompt = {1, 2, 96}}).error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(cache_faults_.acquires, 0u);
}

}  // namespace
}  // namespace quire::serve
