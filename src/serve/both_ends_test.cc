// Requests whose end is loaded while their front is computed, on a store that the tests turn: both
// sides bring a part of it, whatever happens on the way, and no answer changes.
#include <gtest/gtest.h>

#include <algorithm>

#include "serve/after_restart_test_util.h"

namespace quire::serve {
namespace {

class BothEndsTest : public AfterRestartTest {
 protected:
  BothEndsTest() { engine_options_.load = LoadPolicy::kBoth; }
};

TEST_F(BothEndsTest, BothBringAPart) {
  MakeAfterRestart(64);
  const Response response = DriveOne(Of(0));
  EXPECT_GT(response.loaded_tokens, 0);
  EXPECT_GT(response.computed_tokens, kTokens - kReusable);
  EXPECT_LT(response.computed_tokens, kTokens);
  EXPECT_EQ(response.logits_digest, cold_[0].logits_digest);
  EXPECT_EQ(response.miss_reason, MissReason::kNotLoaded);
  CheckSums(response);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.loads, 1);
  EXPECT_EQ(stats.loads_from_end, 1);
  EXPECT_EQ(stats.loaded_tokens, response.loaded_tokens);
  EXPECT_EQ(stats.prompt_tokens, response.computed_tokens);
  // What had come when the last step began was computed by it as well.
  EXPECT_GE(cache_->stats().loaded_total, response.loaded_tokens / kBlockTokens);
  EXPECT_EQ(DriveOne(Of(0)).reused_tokens, kReusable);  // all of it is in memory now
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(BothEndsTest, NoTimingChangesAnAnswer) {
  uint64_t both = 0;
  MakeAfterRestart(64, 2);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Prng prng(seed);
    engine_ = MakeEngine(*cache_);  // it has measured nothing
    TestClient client(*engine_);
    const RequestId id = client.Submit(Of(seed % 2));
    while (!client.AllEnded()) {
      Turn(prng.NextBelow(6));
      client.TakeAll();
    }
    const Response& response = *client.Of(id).response;
    EXPECT_EQ(response.logits_digest, cold_[seed % 2].logits_digest) << seed;
    CheckSums(response);
    const bool is_both =
        response.loaded_tokens > 0 && response.computed_tokens > kTokens - kReusable;
    both += is_both ? 1 : 0;
    EXPECT_TRUE(NothingIsLeft()) << seed;
  }
  EXPECT_GT(both, 20);
}

TEST_F(BothEndsTest, WhatEndsOnTheWayLeavesNothing) {
  MakeAfterRestart(64);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Prng prng(seed);
    engine_ = MakeEngine(*cache_);
    TestClient client(*engine_);
    Request request = Of(0);
    const bool is_late = prng.NextBelow(2) == 0;
    if (is_late) request.deadline_us = clock_.NowMicros() + 1000;
    const RequestId id = client.Submit(request);
    for (uint64_t turns = 1 + prng.NextBelow(4); turns > 0; --turns) Turn(prng.NextBelow(3));
    if (is_late) {
      clock_.Advance(2000);
    } else {
      engine_->Cancel(id);
    }
    Finish(client, {{id}});
    EXPECT_EQ(client.Of(id).response->finish, is_late ? Finish::kFailed : Finish::kCancelled);
    EXPECT_TRUE(NothingIsLeft()) << seed;
  }
}

TEST_F(BothEndsTest, APreemptedRequestStartsAnew) {
  engine_options_.outside_retry_us = 10;
  MakeAfterRestart(64);
  for (uint64_t turns = 1; turns < 8; ++turns) {
    engine_ = MakeEngine(*cache_);
    TestClient client(*engine_);
    const RequestId id = client.Submit(Of(0));
    for (uint64_t turn = 0; turn < turns; ++turn) Turn(1);
    engine_->GiveWay();
    const Response response = Finish(client, {{id}})[0];
    EXPECT_EQ(response.logits_digest, cold_[0].logits_digest);
    CheckSums(response);
    EXPECT_TRUE(NothingIsLeft()) << turns;
  }
}

TEST_F(BothEndsTest, DamageIsComputedInstead) {
  MakeAfterRestart(64);
  machine_.DamageSegments(40'000);
  const Response response = DriveOne(Of(0));
  EXPECT_EQ(response.logits_digest, cold_[0].logits_digest);
  CheckSums(response);
  const bool told = std::ranges::any_of(
      response.missing, [](const MissRun& run) { return run.reason == MissReason::kLoadFailed; });
  EXPECT_TRUE(told);
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(BothEndsTest, WhatIsInMemoryIsNeitherLoadedNorComputed) {
  MakeAfterRestart(64);
  DriveOne(Of(0));
  for (const uint64_t gone : {4, 12, 20}) {
    ASSERT_EQ(cache_->Evict(gone + 1), gone + 1);  // one that the answer filled, then the prompt's
    engine_ = MakeEngine(*cache_);
    const Response response = DriveOne(Of(0));
    EXPECT_EQ(response.logits_digest, cold_[0].logits_digest);
    EXPECT_EQ(response.reused_tokens + response.computed_tokens, kTokens);
    EXPECT_EQ(response.reused_tokens - response.loaded_tokens, kReusable - gone * kBlockTokens);
    EXPECT_GT(response.loaded_tokens, 0);
    EXPECT_EQ(MissingOf(response), response.computed_tokens);
    EXPECT_EQ(engine_->stats().loads_from_end, 1);
  }
}

// As little memory as a request needs: what is loaded has its room, and the front grows into what
// comes back, or does not.
TEST_F(BothEndsTest, MemoryThatIsJustEnoughIsEnough) {
  for (uint64_t blocks = 26; blocks < 32; ++blocks) {
    cold_.clear();
    MakeAfterRestart(blocks);
    const Response response = DriveOne(Of(0), 1 + blocks % 3);
    EXPECT_EQ(response.logits_digest, cold_[0].logits_digest) << blocks;
    CheckSums(response);
    EXPECT_TRUE(NothingIsLeft());
  }
}

TEST_F(BothEndsTest, WhoBeginsTheSameWaitsUntilTheyMeet) {
  MakeAfterRestart(64);
  const std::vector<Request> requests = {Of(0), Of(0), Of(0)};
  for (const Response& response : Drive(requests)) {
    EXPECT_EQ(response.logits_digest, cold_[0].logits_digest);
  }
  EXPECT_EQ(engine_->stats().loads, 1);
  EXPECT_EQ(engine_->stats().loads_from_end, 1);
}

// Computing for one what can be loaded would take it from the others.
TEST_F(BothEndsTest, BesideOthersOneSideIsEnough) {
  MakeAfterRestart(64);
  TestClient client(*engine_);
  Request other = {.prompt = SomeTokens(20, 77), .max_tokens = 200};
  const RequestId first = client.Submit(other);
  Turn(0);
  const RequestId second = client.Submit(Of(0));
  const Response response = Finish(client, {{first, second}})[1];
  EXPECT_EQ(response.loaded_tokens, kReusable);
  EXPECT_EQ(response.logits_digest, cold_[0].logits_digest);
  EXPECT_EQ(engine_->stats().loads_from_end, 0);
}

TEST_F(BothEndsTest, WhoMustNotEvictLoads) {
  MakeAfterRestart(64);
  Request request = Of(0);
  request.on_full = OnFull::kNoEvict;
  EXPECT_EQ(DriveOne(request).loaded_tokens, kReusable);
  EXPECT_EQ(engine_->stats().loads_from_end, 0);
}

// The first step of the front goes as far as it is likely to come before what is loaded: its share
// of the time of both.
TEST_F(BothEndsTest, TheFrontGoesToWhereTheyAreLikelyToMeet) {
  ns_per_run_ = 1000;
  MakeAfterRestart(64, 2);
  engine_options_.chunk_tokens_min = engine_options_.chunk_tokens_max = 512;
  for (const double wanted : {0.5, 1.0, 2.0}) {
    // Costs of loading all of it, over those of computing it. The store has the time to bring all
    // that it is asked for between two steps: where the front came to the end before anything was
    // loaded there would be no cost of that.
    const auto measure = [&] {
      EvictAll();
      engine_ = MakeEngine(*cache_);
      DriveOne(Of(0), /*store_ticks=*/40);
      const EngineStats stats = engine_->stats();
      const auto load = stats.load_rate.UsPerUnit(clock_.NowMicros());
      const auto read = stats.read_rate.UsPerUnit(clock_.NowMicros());
      if (!load || !read || *read == 0) {
        ADD_FAILURE() << "measured " << stats.load_bytes << " bytes and " << stats.read_us << " us";
        return wanted;
      }
      const double bytes = static_cast<double>(kReusable / kBlockTokens * cache_->block_bytes());
      return *load * bytes / *read / kReusable;
    };
    for (int i = 0; i < 3; ++i) {
      ns_per_run_ = static_cast<uint64_t>(static_cast<double>(ns_per_run_) * measure() / wanted);
    }
    const double costs = measure();
    ASSERT_GT(costs, 0.3);
    ASSERT_LT(costs, 3.3);
    EvictAll();
    TestClient client(*engine_);
    const RequestId id = client.Submit(Of(1));
    engine_->Tick();
    client.TakeAll();
    ASSERT_EQ(client.Of(id).progress.size(), 1u);
    const double meet = kReusable * costs / (1 + costs);
    EXPECT_GE(static_cast<double>(client.Of(id).progress[0]), meet);
    EXPECT_LE(static_cast<double>(client.Of(id).progress[0]), meet + kBlockTokens);
    Finish(client, {{id}});
  }
}

// The second request goes by what the first one measured.
TEST_F(BothEndsTest, MeasuredCostDecides) {
  ns_per_run_ = 1000;
  engine_options_.load = LoadPolicy::kAuto;
  MakeAfterRestart(64, 2);
  DriveOne(Of(0));
  const EngineStats stats = engine_->stats();
  ASSERT_EQ(stats.loads, 1);
  ASSERT_GT(stats.load_us, 0);
  EXPECT_GT(stats.read_us, 0);
  EXPECT_GT(stats.step_us, stats.read_us);  // those that generate too
  EXPECT_LE(stats.step_us, clock_.NowMicros());
  // Time per token as loaded; and pieces of work per token as computed.
  const double bytes_of_all = static_cast<double>(kReusable / kBlockTokens * cache_->block_bytes());
  const double load_us =
      static_cast<double>(stats.load_us) / static_cast<double>(stats.load_bytes) * bytes_of_all;
  const double runs =
      static_cast<double>(stats.read_us) / static_cast<double>(stats.read_tokens) * kReusable;
  const auto same = static_cast<uint64_t>(1000 * load_us / runs);
  ASSERT_GT(same, 0);
  struct Case {
    uint64_t ns_per_run;
    uint64_t loads;
    uint64_t from_end;
  };
  for (const Case& each : {Case{.ns_per_run = 0, .loads = 1, .from_end = 0},
                           Case{.ns_per_run = same, .loads = 2, .from_end = 1},
                           Case{.ns_per_run = 50 * same, .loads = 2, .from_end = 0}}) {
    EvictAll();
    ns_per_run_ = each.ns_per_run;
    engine_ = MakeEngine(*cache_);
    DriveOne(Of(0));
    EXPECT_EQ(engine_->stats().loads, 1);  // nothing was measured before
    EvictAll();
    EXPECT_EQ(DriveOne(Of(1)).logits_digest, cold_[1].logits_digest);
    EXPECT_EQ(engine_->stats().loads, each.loads) << each.ns_per_run;
    EXPECT_EQ(engine_->stats().loads_from_end, each.from_end) << each.ns_per_run;
  }
}

TEST_F(BothEndsTest, ARequestThatGeneratesWaitsForItsLastBlock) {
  engine_options_.outside_retry_us = 10;
  MakeAfterRestart(200);
  TestClient client(*engine_);
  const RequestId id = client.Submit(Of(1));  // nothing was loaded yet, so no cost is known
  while (client.Of(id).tokens.empty()) {
    Turn(5);
    client.Take(id);
  }
  // It lost its sequence after the first token, and all its whole blocks are in the store.
  engine_->GiveWay();
  engine_->Tick();
  ASSERT_TRUE(machine_.store->Flush().has_value());
  EvictAll();
  clock_.Advance(100);
  for (int i = 0; i < 100; ++i) Turn(0);  // the store stands still: the front gets to the end
  EXPECT_EQ(engine_->stats().loads_from_end, 1u);
  const Response response = Finish(client, {&id, 1})[0];
  EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
  Request alone = Of(1);
  alone.reuse = false;
  EXPECT_EQ(response.logits_digest, DriveOne(alone).logits_digest);
}

TEST_F(BothEndsTest, AFrontWhoseLoadFailsKeepsItsRoom) {
  MakeAfterRestart(40, 2);
  TestClient client(*engine_);
  const RequestId front = client.Submit(Of(0));
  engine_->Tick();
  ASSERT_EQ(engine_->stats().loads_from_end, 1u);
  machine_.files.set_rates({.read_error = 1});
  for (int i = 0; i < 100; ++i) machine_.transfers->Tick(100);
  ASSERT_GT(machine_.store->stats().loads_failed, 0u);
  machine_.files.set_rates({});
  // What that gives back the next one may take, for a load that lasts: not what the front needs.
  const RequestId next = client.Submit(Of(1));
  for (int turn = 0; turn < 200; ++turn) Turn(0);
  client.Take(front);
  EXPECT_TRUE(client.Of(front).response.has_value());
  const std::vector<Response> responses = Finish(client, {{front, next}});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(responses[i].finish, Finish::kLength) << responses[i].error.message;
    EXPECT_EQ(responses[i].logits_digest, cold_[i].logits_digest);
  }
}

// Not only once a request ends: the front may go on for long.
TEST_F(BothEndsTest, WhoWaitsForRoomHearsOfALoadThatFailed) {
  MakeAfterRestart(30);
  TestClient client(*engine_);
  Request halts = Of(0);  // it has room for what it computes next alone
  halts.on_full = OnFull::kHalt;
  const RequestId front = client.Submit(halts);
  engine_->Tick();
  ASSERT_EQ(engine_->stats().loads_from_end, 1u);
  const RequestId waits = client.Submit({.prompt = SomeTokens(100, 77), .max_tokens = 1});
  engine_->Tick();
  ASSERT_EQ(engine_->stats().waiting, 1u);
  machine_.files.set_rates({.read_error = 1});
  for (int i = 0; i < 100; ++i) machine_.transfers->Tick(100);
  ASSERT_GT(machine_.store->stats().loads_failed, 0u);
  machine_.files.set_rates({});
  engine_->Tick();
  EXPECT_EQ(engine_->stats().waiting, 0u);
  client.Take(front);
  EXPECT_FALSE(client.Of(front).response.has_value());
  for (const Response& response : Finish(client, {{front, waits}})) {
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
  }
}

}  // namespace
}  // namespace quire::serve
