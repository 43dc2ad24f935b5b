// Requests that go on behind what is loaded, in the layers that have come, on a store that the
// tests turn: whatever happens on the way, no answer changes and nothing is left.
#include <gtest/gtest.h>

#include <algorithm>

#include "serve/after_restart_test_util.h"

namespace quire::serve {
namespace {

constexpr uint64_t kBehind = 11;  // tokens that fill no block, so the store never has them

class LayerLoadsTest : public AfterRestartTest {
 protected:
  LayerLoadsTest() {
    engine_options_.load = LoadPolicy::kAlways;
    engine_options_.load_slice_bytes = 1;  // small blocks too
    ns_per_run_ = 300'000;                 // so that computing takes longer than loading
    machine_.options.staging_bytes = 4 * machine_.options.chunk_bytes;  // few reads at once
    machine_.Restart();
    store_ = machine_.store.get();
  }

  /// A prompt of the store's, and what follows.
  static Request Longer(uint64_t seed) {
    Request request = Of(seed);
    const std::vector<TokenId> behind = SomeTokens(kBehind, 1000 + seed);
    request.prompt.insert(request.prompt.end(), behind.begin(), behind.end());
    return request;
  }
  /// Sets longer_, what prompts that go on behind the store's are answered.
  void Prepare(uint64_t blocks, uint64_t count = 1) {
    Make(200);
    for (uint64_t seed = 0; seed < count; ++seed) longer_.push_back(RunOne(Computed(Longer(seed))));
    End();
    MakeAfterRestart(blocks, count);
  }
  /// Until its first layers have come, and no more.
  void TurnUntilItRuns() {
    for (int turn = 0; turn < 1000 && engine_->stats().loads_by_layer == 0; ++turn) {
      Turn(1);
      clock_.Advance(1);
    }
    ASSERT_EQ(engine_->stats().loads_by_layer, 1u);
  }

  std::vector<Response> longer_;
};

// However fast the store is beside the engine.
TEST_F(LayerLoadsTest, WhatFollowsIsComputedAsLayersCome) {
  Prepare(64);
  for (const uint64_t store_ticks : {1, 2, 3, 5, 8, 50}) {
    SCOPED_TRACE(store_ticks);
    const Response response = DriveOne(Longer(0), store_ticks);
    EXPECT_EQ(response.logits_digest, longer_[0].logits_digest);
    EXPECT_EQ(response.loaded_tokens, kTokens);
    EXPECT_EQ(response.computed_tokens, kBehind);
    EXPECT_EQ(response.preemptions, 0);
    CheckSums(response, kTokens + kBehind);
    EXPECT_EQ(DriveOne(Of(0)).loaded_tokens, 0);  // all of it is in memory now
    EXPECT_TRUE(NothingIsLeft());
  }
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.loads, 6);
  EXPECT_GT(stats.loads_by_layer, 0);
  EXPECT_EQ(stats.loaded_tokens, 6 * kTokens);
}

// It ends in the tick in which its load does, which counts all the same.
TEST_F(LayerLoadsTest, ARequestThatEndsWithItsLoadIsCounted) {
  Prepare(64);
  uint64_t by_layer = 0;
  for (const uint32_t max_tokens : {0, 1, 0, 1}) {
    const EngineStats before = engine_->stats();
    const CacheStats cache_before = cache_->stats();
    Request request = Longer(0);
    request.max_tokens = max_tokens;
    const Response response = DriveOne(request, 1 + by_layer % 3);
    EXPECT_EQ(response.finish, Finish::kLength);
    EXPECT_EQ(response.loaded_tokens, kTokens);
    const EngineStats after = engine_->stats();
    by_layer += after.loads_by_layer - before.loads_by_layer;
    EXPECT_EQ(after.loaded_tokens - before.loaded_tokens, kTokens);
    EXPECT_GT(after.load_bytes, before.load_bytes);
    EXPECT_EQ(cache_->stats().hit_tokens - cache_before.hit_tokens, kTokens);
    EXPECT_TRUE(NothingIsLeft());
  }
  EXPECT_GT(by_layer, 0);
}

// What another server has published for it is all that there is, but for the end of the prompt.
TEST_F(LayerLoadsTest, WhatWasHandedOverComesWhole) {
  Prepare(64);
  Request request = Longer(0);
  request.handed_over = true;
  const Response response = DriveOne(request, 1);
  EXPECT_EQ(response.logits_digest, longer_[0].logits_digest);
  EXPECT_EQ(response.loaded_tokens, kTokens);
  EXPECT_EQ(engine_->stats().loads_by_layer, 0);
}

// A turn that is only fed, and of which the store has all: there is nothing to compute.
TEST_F(LayerLoadsTest, WhatIsWholeIsKeptBySessions) {
  Prepare(64);
  TestClient client(*engine_);
  Request fed = Of(0);
  fed.session = *engine_->OpenSession({});
  fed.max_tokens = 0;
  const SessionId session = fed.session;
  fed.prompt.resize(kReusable + 1);
  const RequestId id = client.Submit(fed);
  EXPECT_EQ(Finish(client, {&id, 1}, 1)[0].loaded_tokens, kReusable);
  Request next = {.prompt = SomeTokens(5, 3), .max_tokens = 2, .session = session};
  const RequestId last = client.Submit(next);
  EXPECT_GE(Finish(client, {&last, 1})[0].reused_tokens, kReusable);
  EXPECT_EQ(engine_->stats().loads, 1);
}

// Steps of others do not wait for it.
TEST_F(LayerLoadsTest, OthersGoOnMeanwhile) {
  Prepare(120);
  TestClient client(*engine_);
  Request other = Of(7);
  other.max_tokens = 12;
  const RequestId first = client.Submit(other);
  for (int turn = 0; turn < 5; ++turn) engine_->Tick();
  const RequestId second = client.Submit(Longer(0));
  TurnUntilItRuns();
  while (!client.Of(first).response) {
    engine_->Tick();
    client.TakeAll();
  }
  EXPECT_FALSE(client.AllEnded()) << "the test must be able to fail";
  EXPECT_EQ(Finish(client, {&second, 1})[0].logits_digest, longer_[0].logits_digest);
}

// Another one that begins with the same waits for it, and reads nothing.
TEST_F(LayerLoadsTest, WhoWantsTheSameWaits) {
  Prepare(120);
  TestClient client(*engine_);
  std::vector<RequestId> ids = {client.Submit(Longer(0))};
  TurnUntilItRuns();
  ids.push_back(client.Submit(Of(0)));
  ids.push_back(client.Submit(Longer(0)));
  const auto responses = Finish(client, ids);
  EXPECT_EQ(responses[1].logits_digest, cold_[0].logits_digest);
  EXPECT_EQ(responses[1].reused_tokens, kReusable);
  EXPECT_EQ(responses[2].logits_digest, longer_[0].logits_digest);
  EXPECT_EQ(engine_->stats().loads, 1);
}

TEST_F(LayerLoadsTest, WhatDoesNotComeIsComputed) {
  Prepare(64);
  uint64_t by_layer = 0;
  std::vector<std::byte>& segment = *machine_.files.Contents("store/segment-000000");
  Prng prng(1);
  for (uint64_t number = 0; number < 60; ++number) {
    SCOPED_TRACE(number);
    segment[4096 + prng.NextBelow(400'000)] ^= std::byte{4};
    const uint64_t before = engine_->stats().loads_by_layer;
    const Response response = DriveOne(Longer(0), 1 + number % 3);
    if (response.loaded_tokens < kTokens) by_layer += engine_->stats().loads_by_layer - before;
    EXPECT_EQ(response.logits_digest, longer_[0].logits_digest);
    CheckSums(response, kTokens + kBehind);
    EXPECT_EQ(DriveOne(Of(0)).logits_digest, cold_[0].logits_digest);
    ASSERT_TRUE(machine_.store->Flush().has_value());  // what was damaged is written anew
    EXPECT_TRUE(NothingIsLeft());
  }
  EXPECT_GT(by_layer, 0) << "some fail in layers that come later";
}

// A request ends, is cancelled, loses its room or its deadline: at any time of the load.
TEST_F(LayerLoadsTest, WhatEndsOnTheWayLeavesNothing) {
  Prepare(64, 2);
  for (uint64_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    TestClient client(*engine_);
    std::vector<RequestId> ids;
    const bool is_alone = prng.NextBelow(3) == 0;  // then a tick of the engine waits for the store
    Request request = Longer(0);
    if (prng.NextBelow(4) == 0) request.deadline_us = clock_.NowMicros() + prng.NextBelow(400);
    ids.push_back(client.Submit(request));
    if (!is_alone) {
      Request beside = Of(9);
      beside.max_tokens = 30;
      client.Submit(beside);
    }
    for (uint64_t turns = prng.NextBelow(30); turns > 0; --turns) {
      Turn(prng.NextBelow(3));
      clock_.Advance(prng.NextBelow(20));
    }
    if (prng.NextBelow(3) == 0) engine_->Cancel(ids[0]);  // unless it has ended
    if (prng.NextBelow(3) == 0) {                         // takes the room of the first one
      Request urgent = Longer(1);
      urgent.priority = 100;
      ids.push_back(client.Submit(urgent));
    }
    const auto responses = Finish(client, ids, 1 + prng.NextBelow(3));
    for (size_t i = 0; i < responses.size(); ++i) {
      if (responses[i].finish != Finish::kLength) continue;
      EXPECT_EQ(responses[i].logits_digest, longer_[i].logits_digest);
      EXPECT_EQ(responses[i].reused_tokens + responses[i].computed_tokens, kTokens + kBehind);
    }
    while (engine_->stats().running + engine_->stats().waiting > 0) Turn(3);
    EXPECT_TRUE(NothingIsLeft());
  }
  EXPECT_GT(engine_->stats().loads_by_layer, 20);
}

// Without room for what follows it waits for all of the load, and then as any other.
TEST_F(LayerLoadsTest, WithoutRoomItWaits) {
  Prepare(kReusable / kBlockTokens + 8);
  TestClient client(*engine_);
  Request holds = Of(5);
  holds.prompt.resize(6 * kBlockTokens);
  holds.max_tokens = 40;
  const RequestId other = client.Submit(holds);
  for (int turn = 0; turn < 3; ++turn) engine_->Tick();
  const RequestId id = client.Submit(Longer(0));
  const std::vector<RequestId> ids = {other, id};
  const auto responses = Finish(client, ids, 2);
  EXPECT_EQ(responses[1].logits_digest, longer_[0].logits_digest);
  EXPECT_EQ(responses[1].finish, Finish::kLength);
}

// Its session has the whole text for the next turn; a turn that is cancelled leaves it as it was.
TEST_F(LayerLoadsTest, ASessionGoesOn) {
  Prepare(64);
  TestClient client(*engine_);
  const SessionId session = *engine_->OpenSession({});
  Request turn = Longer(0);
  turn.session = session;
  const RequestId cancelled = client.Submit(turn);
  TurnUntilItRuns();
  EXPECT_TRUE(engine_->Cancel(cancelled, CancelledTurn::kUndone));
  EXPECT_EQ(Finish(client, {&cancelled, 1})[0].finish, Finish::kCancelled);
  const RequestId again = client.Submit(turn);
  EXPECT_EQ(Finish(client, {&again, 1})[0].logits_digest, longer_[0].logits_digest);
  Request next = {.prompt = SomeTokens(5, 3), .max_tokens = 2, .session = session};
  const RequestId last = client.Submit(next);
  EXPECT_GE(Finish(client, {&last, 1})[0].reused_tokens, kTokens + kBehind);
}

}  // namespace
}  // namespace quire::serve
