// Which request goes on in a step, which starts, which gives way.
#include <gtest/gtest.h>

#include <algorithm>

#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class SchedulerTest : public EngineTest {
 protected:
  SchedulerTest() { faults_ = &cache_faults_; }

  void Make(uint64_t blocks, uint32_t chunk_tokens = 32) {
    EngineTest::Make(blocks, chunk_tokens);
    client_.emplace(*engine_);
  }

  TenantId AddTenant(const std::string& name, const std::string& domain = "") {
    return cache_->AddTenant({.name = name, .domain = domain}).value();
  }

  /// What the request gives by itself, with nothing to reuse.
  Response Alone(Request request) {
    const std::unique_ptr<Cache> cache = Cache::Create(cache_->options()).value();
    request.tenant = kDefaultTenant;
    request.session = SessionId::None();
    const auto engine = MakeEngine(*cache);
    return RunAll(*engine, {request})[0];
  }

  /// A sequence that is none of the engine's.
  std::unique_ptr<Sequence> HoldFromOutside(uint64_t tokens) {
    const Identity identity{.weights = model_->fingerprint(), .domain = {.name = "outside"}};
    const std::vector<TokenId> text = SomeTokens(tokens, 9);
    auto plan = cache_->Acquire({.identity = &identity, .tokens = text});
    return cache_->Open(*std::move(plan), {.reserve_tokens = tokens}).value();
  }

  void ExpectNothingHeld() {
    EXPECT_EQ(cache_->stats().sequences, 0u);
    EXPECT_EQ(cache_->stats().sealed.slots_used, cache_->stats().published_blocks);
  }

  CacheFaults cache_faults_;
  std::optional<TestClient> client_;
};

TEST_F(SchedulerTest, ALongPromptDelaysNobodyByMoreThanOneChunk) {
  constexpr uint32_t kChunk = 512;
  cache_tokens_max_ = 1 << 15;
  Make(1400, kChunk);
  std::vector<RequestId> decoding;
  for (uint64_t i = 0; i < 16; ++i) {
    decoding.push_back(client_->Submit({.prompt = SomeTokens(20, 100 + i), .max_tokens = 60}));
  }
  while (
      std::ranges::any_of(decoding, [&](RequestId id) { return client_->Of(id).tokens.empty(); })) {
    engine_->Tick();
    client_->TakeAll();
  }
  const RequestId longest = client_->Submit({.prompt = SomeTokens(16384, 1), .max_tokens = 2});
  uint64_t steps = 0;
  while (client_->Of(longest).tokens.empty()) {
    const uint64_t prompt_tokens = engine_->stats().prompt_tokens;
    engine_->Tick();
    ++steps;
    EXPECT_LE(engine_->stats().prompt_tokens - prompt_tokens, kChunk);
    client_->Take(longest);
    for (const RequestId id : decoding) {
      const bool generates = !client_->Of(id).response;
      EXPECT_EQ(client_->Take(id), generates ? 1u : 0u);
    }
  }
  EXPECT_EQ(steps, 16384u / kChunk);
  EXPECT_EQ(engine_->stats().step_prompt_tokens_max, kChunk);
}

TEST_F(SchedulerTest, AShortPromptPassesALongOne) {
  Make(300, 64);
  const RequestId longest = client_->Submit({.prompt = SomeTokens(2000, 1), .max_tokens = 1});
  for (int i = 0; i < 5; ++i) engine_->Tick();
  const RequestId brief = client_->Submit({.prompt = SomeTokens(50, 2), .max_tokens = 1});
  engine_->Tick();
  client_->TakeAll();
  EXPECT_TRUE(client_->Of(brief).response.has_value());
  EXPECT_FALSE(client_->Of(longest).response.has_value());
  client_->Finish();
}

TEST_F(SchedulerTest, PromptsThatAreAlikeAreReadOneAfterTheOther) {
  constexpr uint64_t kTokens = 700;
  Make(300, 64);
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 4; ++i) {
    ids.push_back(client_->Submit({.prompt = SomeTokens(kTokens, 1 + i), .max_tokens = 1}));
  }
  for (const RequestId id : ids) {
    const uint64_t before = engine_->stats().prompt_tokens;
    while (!client_->Of(id).response) {
      engine_->Tick();
      client_->TakeAll();
      ASSERT_LE(engine_->stats().prompt_tokens - before, kTokens + 64);
    }
  }
}

// What it found in the cache is nothing that was read for it.
TEST_F(SchedulerTest, APromptThatIsMostlyCachedIsAShortOne) {
  Make(300, 64);
  const std::vector<TokenId> known = SomeTokens(960, 2);
  RunOne({.prompt = known, .max_tokens = 0});
  const RequestId longest = client_->Submit({.prompt = SomeTokens(2000, 1), .max_tokens = 1});
  for (int i = 0; i < 5; ++i) engine_->Tick();
  const RequestId brief =
      client_->Submit({.prompt = Join(known, SomeTokens(50, 3)), .max_tokens = 1});
  engine_->Tick();
  client_->TakeAll();
  EXPECT_TRUE(client_->Of(brief).response.has_value());
  EXPECT_FALSE(client_->Of(longest).response.has_value());
  client_->Finish();
}

TEST_F(SchedulerTest, APrefixIsComputedOnceForAllThatComeTogether) {
  constexpr uint64_t kPrefix = 8192;
  constexpr uint64_t kTail = 10;
  cache_tokens_max_ = 1 << 14;
  Make(1000, 1024);
  const std::vector<TokenId> prefix = SomeTokens(kPrefix, 1);
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 64; ++i) {
    ids.push_back(
        client_->Submit({.prompt = Join(prefix, SomeTokens(kTail, 100 + i)), .max_tokens = 3}));
  }
  engine_->Tick();
  // One reads it, and every other was looked at once and waits.
  EXPECT_EQ(engine_->stats().running, 1u);
  EXPECT_EQ(engine_->stats().waiting, 63u);
  EXPECT_EQ(engine_->stats().looks, 64u);
  EXPECT_EQ(engine_->stats().prefix_waits, 63u);
  const RequestId other = client_->Submit({.prompt = SomeTokens(40, 7), .max_tokens = 4});
  for (int i = 0; i < 5; ++i) engine_->Tick();
  client_->TakeAll();
  EXPECT_TRUE(client_->Of(other).response.has_value());  // what does not need it goes on
  EXPECT_EQ(engine_->stats().looks, 65u);                // and those that do cost nothing
  client_->Finish();
  EXPECT_EQ(engine_->stats().looks, 65u + 63u);
  EXPECT_EQ(engine_->stats().prompt_tokens, kPrefix + 64 * kTail + 40);
  for (const RequestId id : ids) {
    EXPECT_EQ(client_->Of(id).response->reused_tokens, id == ids[0] ? 0 : kPrefix);
  }
  const Response alone = Alone({.prompt = Join(prefix, SomeTokens(kTail, 163)), .max_tokens = 3});
  EXPECT_EQ(client_->Of(ids[63]).response->logits_digest, alone.logits_digest);
}

TEST_F(SchedulerTest, WhoWaitsStartsAsSoonAsWhatItCanUseIsThere) {
  Make(64, 16);
  // Of 48 tokens 32 can be reused: the last one has to be computed.
  const Request request{.prompt = SomeTokens(48, 1), .max_tokens = 9};
  client_->Submit(request);
  const RequestId second = client_->Submit(request);
  engine_->Tick();
  engine_->Tick();
  EXPECT_EQ(engine_->stats().running, 1u);
  engine_->Tick();
  EXPECT_EQ(engine_->stats().running, 2u);
  client_->Finish();
  EXPECT_EQ(client_->Of(second).response->reused_tokens, 32u);
}

TEST_F(SchedulerTest, WhoWaitsTakesOverWhereTheOwnerStopped) {
  Make(200, 32);
  const std::vector<TokenId> prefix = SomeTokens(320, 1);
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 3; ++i) {
    ids.push_back(
        client_->Submit({.prompt = Join(prefix, SomeTokens(5, 10 + i)), .max_tokens = 2}));
  }
  for (int i = 0; i < 3; ++i) engine_->Tick();
  EXPECT_TRUE(engine_->Cancel(ids[0]));
  engine_->Tick();
  EXPECT_EQ(engine_->stats().running, 1u);  // the second reads, the third waits for it
  EXPECT_EQ(engine_->stats().prefix_waits, 3u);
  client_->Finish();
  EXPECT_EQ(client_->Of(ids[0]).response->finish, Finish::kCancelled);
  EXPECT_EQ(client_->Of(ids[1]).response->reused_tokens, 96u);
  EXPECT_EQ(client_->Of(ids[2]).response->reused_tokens, 320u);
  EXPECT_EQ(engine_->stats().prompt_tokens, 320u + 2 * 5);
}

TEST_F(SchedulerTest, WhoWaitsTakesOverFromOneThatFails) {
  Make(200, 32);
  const std::vector<TokenId> prefix = SomeTokens(320, 1);
  uint64_t bad = UINT64_MAX;
  cache_faults_.append = [&](Sequence& sequence, uint32_t) -> Result<void> {
    if (bad == UINT64_MAX) bad = sequence.id().number();
    if (sequence.id().number() != bad || sequence.length() < 64) return {};
    return Fail(ErrorCode::kIo, "injected");
  };
  const RequestId first =
      client_->Submit({.prompt = Join(prefix, SomeTokens(5, 10)), .max_tokens = 2});
  const RequestId second =
      client_->Submit({.prompt = Join(prefix, SomeTokens(5, 11)), .max_tokens = 2});
  client_->Finish();
  EXPECT_EQ(client_->Of(first).response->error.message, "injected");
  EXPECT_EQ(client_->Of(second).response->finish, Finish::kLength);
  EXPECT_EQ(client_->Of(second).response->reused_tokens, 64u);
}

TEST_F(SchedulerTest, NobodyWaitsForAPrefixOfATenantThatDoesNotShare) {
  Make(200, 32);
  const TenantId a = AddTenant("a");
  const TenantId b = AddTenant("b");
  const TenantId domain = cache_->AddTenant({.name = "team", .shared = true}).value();
  const TenantId c = AddTenant("c", "team");
  const TenantId d = AddTenant("d", "team");
  for (const TenantId member : {c, d}) engine_->SetTenant({.tenant = member, .domain = domain});
  const std::vector<TokenId> prompt = SomeTokens(320, 1);
  std::vector<RequestId> ids;
  for (const TenantId tenant : {a, b, c, d}) {
    ids.push_back(client_->Submit({.prompt = prompt, .max_tokens = 2, .tenant = tenant}));
  }
  engine_->Tick();
  EXPECT_EQ(engine_->stats().running, 3u);
  EXPECT_EQ(engine_->stats().prefix_waits, 1u);  // one of the team for the other
  client_->Finish();
  EXPECT_EQ(engine_->stats().prompt_tokens, 3 * 320u + 16);
}

TEST_F(SchedulerTest, ATenantThatLeavesItsDomainSharesNoMore) {
  Make(64, 32);
  const TenantId a = AddTenant("a");
  const TenantId b = AddTenant("b");
  const TenantId domain{77};
  const auto ask = [&](uint64_t seed) {
    for (const TenantId tenant : {a, b}) {
      client_->Submit({.prompt = SomeTokens(80, seed), .max_tokens = 2, .tenant = tenant});
    }
    engine_->Tick();
    const uint32_t running = engine_->stats().running;
    client_->Finish();
    return running;
  };
  EXPECT_EQ(ask(1), 2u);
  engine_->SetTenant({.tenant = a, .domain = domain});
  EXPECT_EQ(ask(2), 2u);
  engine_->SetTenant({.tenant = b, .domain = TenantId{78}});
  EXPECT_EQ(ask(3), 2u);
  engine_->SetTenant({.tenant = b, .domain = domain});
  EXPECT_EQ(ask(4), 1u);  // one waits for the other
  engine_->SetTenant({.tenant = a});
  EXPECT_EQ(ask(5), 2u);
}

TEST_F(SchedulerTest, TheQueueIsBoundedAndSaysSo) {
  engine_options_.requests_max = 3;
  Make(64);
  for (uint64_t i = 0; i < 3; ++i) client_->Submit({.prompt = SomeTokens(20, i)});
  const auto refused = engine_->Submit({.prompt = SomeTokens(20, 9)});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(refused.error().message.find("requests_max"), std::string::npos);
  client_->Finish();
  EXPECT_TRUE(engine_->Submit({.prompt = SomeTokens(20, 9)}).has_value());
}

TEST_F(SchedulerTest, HigherPrioritiesOfATenantStartFirstAndPreempt) {
  engine_options_.running_max = 1;
  Make(64);
  const RequestId low = client_->Submit({.prompt = SomeTokens(20, 1), .max_tokens = 3});
  const RequestId high =
      client_->Submit({.prompt = SomeTokens(20, 2), .max_tokens = 3, .priority = 60});
  engine_->Tick();
  client_->TakeAll();
  EXPECT_EQ(client_->Of(high).tokens.size(), 1u);
  EXPECT_TRUE(client_->Of(low).tokens.empty());
  client_->Finish();

  // Where there is no room for both the higher one takes it.
  engine_options_.running_max = 8;
  Make(6);
  const Request slow{.prompt = SomeTokens(40, 3), .max_tokens = 30};
  const RequestId preempted = client_->Submit(slow);
  for (int i = 0; i < 13; ++i) engine_->Tick();
  const RequestId urgent =
      client_->Submit({.prompt = SomeTokens(40, 4), .max_tokens = 5, .priority = 51});
  engine_->Tick();
  engine_->Tick();
  client_->TakeAll();
  EXPECT_FALSE(client_->Of(urgent).tokens.empty());
  client_->Finish();
  const Response& response = *client_->Of(preempted).response;
  EXPECT_EQ(response.preemptions, 1u);
  EXPECT_EQ(response.computed_tokens, 40u);
  EXPECT_GT(response.recomputed_tokens, 0u);
  EXPECT_LT(response.recomputed_tokens, 40u);  // whole blocks were found again
  EXPECT_EQ(engine_->stats().recomputed_tokens, response.recomputed_tokens);
  EXPECT_EQ(response.logits_digest, Alone(slow).logits_digest);
  ExpectNothingHeld();
}

TEST_F(SchedulerTest, TheLatestOfTheLowestPriorityGivesWayToAHigherOne) {
  Make(9);
  // Each takes 3 blocks.
  const auto submit = [&](uint64_t seed, uint8_t priority) {
    return client_->Submit(
        {.prompt = SomeTokens(33, seed), .max_tokens = 10, .priority = priority});
  };
  const RequestId low = submit(1, 10);
  const RequestId latest = submit(2, 10);
  const RequestId middle = submit(3, 20);
  engine_->Tick();
  EXPECT_EQ(engine_->stats().running, 3u);
  const RequestId equal = submit(4, 10);
  engine_->Tick();
  EXPECT_EQ(engine_->stats().preemptions, 0u);
  const RequestId high = submit(5, 30);
  engine_->Tick();
  EXPECT_EQ(engine_->stats().preemptions, 1u);
  client_->Finish();
  EXPECT_EQ(client_->Of(latest).response->preemptions, 1u);
  for (const RequestId id : {low, middle, equal, high}) {
    EXPECT_EQ(client_->Of(id).response->preemptions, 0u);
  }
}

TEST_F(SchedulerTest, WaitingRaisesThePriority) {
  engine_options_.running_max = 1;
  Make(64);
  client_->Submit({.prompt = SomeTokens(20, 1), .max_tokens = 3, .priority = 90});
  engine_->Tick();
  const RequestId old = client_->Submit({.prompt = SomeTokens(20, 2), .max_tokens = 3});
  clock_.Advance(11 * engine_options_.aging_us);
  const RequestId fresh =
      client_->Submit({.prompt = SomeTokens(20, 3), .max_tokens = 3, .priority = 60});
  while (client_->Of(old).tokens.empty()) {
    engine_->Tick();
    client_->TakeAll();
    EXPECT_TRUE(client_->Of(fresh).tokens.empty());
  }
  client_->Finish();
}

TEST_F(SchedulerTest, DeadlinesEndWhatWaitsAndWhatRuns) {
  engine_options_.running_max = 1;
  Make(64);
  clock_.Advance(1000);
  const RequestId runs =
      client_->Submit({.prompt = SomeTokens(20, 1), .max_tokens = 100, .deadline_us = 3000});
  const RequestId waits =
      client_->Submit({.prompt = SomeTokens(20, 2), .max_tokens = 100, .deadline_us = 4000});
  // Of equal priority the nearer deadline starts first.
  const RequestId sooner =
      client_->Submit({.prompt = SomeTokens(20, 3), .max_tokens = 3, .deadline_us = 2500});
  for (int i = 0; i < 8; ++i) engine_->Tick();
  client_->TakeAll();
  EXPECT_EQ(client_->Of(sooner).response->finish, Finish::kLength);
  EXPECT_FALSE(client_->Of(runs).tokens.empty());
  clock_.Advance(3000);
  engine_->Tick();
  client_->TakeAll();
  for (const RequestId id : {runs, waits}) {
    ASSERT_TRUE(client_->Of(id).response.has_value());
    EXPECT_EQ(client_->Of(id).response->error.code, ErrorCode::kDeadline);
  }
  EXPECT_EQ(client_->Of(runs).response->error.message, "request 1: its deadline was 1000 us ago");
  EXPECT_EQ(engine_->Tick().wait_us, UINT64_MAX);
  ExpectNothingHeld();
}

TEST_F(SchedulerTest, TheEngineSaysWhenADeadlineComes) {
  engine_options_.events_max = 8;
  Make(64);
  client_->Submit({.prompt = SomeTokens(20, 1), .max_tokens = 100, .deadline_us = 700'000});
  clock_.Advance(100);
  TickReport report;
  do {
    report = engine_->Tick();
  } while (report.worked);  // until the reader is full
  EXPECT_EQ(report.wait_us, 699'900u);
}

TEST_F(SchedulerTest, ASlowReaderStopsItselfAloneAndIsPreempted) {
  engine_options_.events_max = 8;
  Make(64);
  const Request slow_request{.prompt = SomeTokens(20, 1), .max_tokens = 40};
  const RequestId slow = client_->Submit(slow_request);
  const RequestId other = client_->Submit({.prompt = SomeTokens(20, 2), .max_tokens = 40});
  for (int i = 0; i < 60; ++i) {
    engine_->Tick();
    client_->Take(other);
  }
  EXPECT_TRUE(client_->Of(other).response.has_value());
  const TickReport idle = engine_->Tick();
  EXPECT_FALSE(idle.worked);
  EXPECT_EQ(idle.wait_us, engine_options_.stall_us);
  EXPECT_EQ(cache_->stats().sequences, 1u);
  clock_.Advance(engine_options_.stall_us);
  EXPECT_FALSE(engine_->Tick().worked);
  ExpectNothingHeld();
  EXPECT_EQ(engine_->stats().preemptions, 1u);
  // It does not come back before half of what it said was taken.
  EXPECT_TRUE(engine_->Next(slow).has_value());
  EXPECT_FALSE(engine_->Tick().worked);
  EXPECT_EQ(cache_->stats().sequences, 0u);
  // A step may make 3 events, so it stopped with 6 of 8.
  EXPECT_TRUE(engine_->Next(slow).has_value());
  EXPECT_TRUE(engine_->Tick().worked);
  EXPECT_EQ(cache_->stats().sequences, 1u);
  Heard heard;
  while (!heard.response) {
    while (auto event = engine_->Next(slow)) {
      if (auto* response = std::get_if<Response>(&*event)) heard.response = std::move(*response);
    }
    engine_->Tick();
  }
  EXPECT_EQ(heard.response->preemptions, 1u);
  EXPECT_EQ(heard.response->logits_digest, Alone(slow_request).logits_digest);
}

TEST_F(SchedulerTest, ASlowReaderGivesWayAtOnceToWhoWaitsForRoom) {
  engine_options_.events_max = 8;
  Make(8);
  const RequestId slow = client_->Submit({.prompt = SomeTokens(40, 1), .max_tokens = 50});
  const RequestId other = client_->Submit({.prompt = SomeTokens(40, 2), .max_tokens = 50});
  for (int i = 0; i < 80; ++i) {
    engine_->Tick();
    client_->Take(other);
  }
  EXPECT_TRUE(client_->Of(other).response.has_value());
  client_->Finish();
  EXPECT_EQ(client_->Of(slow).response->preemptions, 1u);
}

TEST_F(SchedulerTest, RequestsThatGrowPreemptTheLatest) {
  engine_options_.admission = Admission::kGrow;
  Make(12);
  // 3 blocks each at first, 7 at the end: 12 do not hold two of them.
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 3; ++i) {
    requests.push_back({.prompt = SomeTokens(40, 1 + i), .max_tokens = 70});
    ids.push_back(client_->Submit(requests.back()));
  }
  engine_->Tick();
  engine_->Tick();
  EXPECT_GE(engine_->stats().running, 2u);  // more than could be admitted with all they may need
  client_->Finish();
  EXPECT_GT(engine_->stats().preemptions, 0u);
  EXPECT_EQ(client_->Of(ids[0]).response->preemptions, 0u);  // the oldest is spared
  for (uint64_t i = 0; i < 3; ++i) {
    const Response& response = *client_->Of(ids[i]).response;
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
    EXPECT_EQ(response.logits_digest, Alone(requests[i]).logits_digest) << i;
  }
  ExpectNothingHeld();
}

// 2 of the 3 requests fit with all they need in the end, 6 blocks each.
TEST_F(SchedulerTest, OfThoseThatGrowTheLowestPriorityIsPreempted) {
  engine_options_.admission = Admission::kGrow;
  Make(12);
  std::vector<RequestId> ids;
  for (const uint8_t priority : {50, 40, 60}) {
    ids.push_back(client_->Submit(
        {.prompt = SomeTokens(40, 1 + ids.size()), .max_tokens = 55, .priority = priority}));
  }
  client_->Finish();
  EXPECT_EQ(client_->Of(ids[0]).response->preemptions, 0u);
  EXPECT_EQ(client_->Of(ids[1]).response->preemptions, 1u);
  EXPECT_EQ(client_->Of(ids[2]).response->preemptions, 0u);
}

TEST_F(SchedulerTest, OfThoseThatGrowTheMostServedTenantIsPreempted) {
  engine_options_.admission = Admission::kGrow;
  Make(12);
  const TenantId a = AddTenant("a");
  const TenantId b = AddTenant("b");
  std::vector<RequestId> ids;
  for (const TenantId tenant : {a, a, b}) {
    ids.push_back(client_->Submit(
        {.prompt = SomeTokens(40, 1 + ids.size()), .max_tokens = 55, .tenant = tenant}));
  }
  client_->Finish();
  EXPECT_EQ(client_->Of(ids[0]).response->preemptions, 0u);
  EXPECT_EQ(client_->Of(ids[1]).response->preemptions, 1u);
  EXPECT_EQ(client_->Of(ids[2]).response->preemptions, 0u);
}

TEST_F(SchedulerTest, RoomThatOthersHoldIsLookedForAgainAfterAWhile) {
  engine_options_.outside_retry_us = 1000;
  Make(8);
  auto outside = HoldFromOutside(100);
  const RequestId id = client_->Submit({.prompt = SomeTokens(30, 1), .max_tokens = 5});
  clock_.Advance(50);
  EXPECT_EQ(engine_->Tick().wait_us, 1000u);
  const uint64_t acquires = cache_faults_.acquires;
  clock_.Advance(999);
  EXPECT_EQ(engine_->Tick().wait_us, 1u);
  EXPECT_EQ(cache_faults_.acquires, acquires);
  clock_.Advance(1);
  EXPECT_EQ(engine_->Tick().wait_us, 1000u);
  EXPECT_EQ(cache_faults_.acquires, acquires + 1);
  outside.reset();
  clock_.Advance(1000);
  client_->Finish();
  EXPECT_EQ(client_->Of(id).response->finish, Finish::kLength);
}

TEST_F(SchedulerTest, RoomThatNobodyGivesBackIsNotWaitedFor) {
  Make(8);
  const auto outside = HoldFromOutside(100);
  const RequestId id = client_->Submit({.prompt = SomeTokens(30, 1), .max_tokens = 5});
  engine_->Tick();
  client_->TakeAll();
  ASSERT_TRUE(client_->Of(id).response.has_value());
  EXPECT_EQ(client_->Of(id).response->error.code, ErrorCode::kNoSpace);
  EXPECT_EQ(cache_->stats().refused_total, 1u);
}

TEST_F(SchedulerTest, WhatCanNeverFitIsRefusedBeforeItGrows) {
  engine_options_.admission = Admission::kGrow;
  Make(6);
  const Response response = RunOne({.prompt = SomeTokens(20, 1), .max_tokens = 90});
  EXPECT_EQ(response.error.code, ErrorCode::kTooLarge);
  EXPECT_TRUE(response.tokens.empty());
}

// Served in proportion where both want more, and all it wants where one wants little.
TEST_F(SchedulerTest, TwoTenantsWithLoadsOfOneToFiftyAreServedFairly) {
  engine_options_.running_max = 4;
  Make(64);
  const TenantId few = AddTenant("few");
  const TenantId many = AddTenant("many");
  std::map<TenantId, uint64_t> demand;
  std::map<TenantId, uint64_t> served;
  std::map<RequestId, TenantId> tenant_of;
  const auto submit = [&](TenantId tenant, uint64_t seed) {
    const RequestId id =
        client_->Submit({.prompt = SomeTokens(40, seed), .max_tokens = 8, .tenant = tenant});
    demand[tenant] += 48;
    tenant_of[id] = tenant;
  };
  uint64_t seed = 1;
  for (uint64_t i = 0; i < 50; ++i) submit(many, seed++);
  for (uint64_t tick = 0; tick < 300; ++tick) {
    // One comes for each 50 of the other's, which has a long queue already.
    if (tick % 100 == 10) {
      submit(few, seed++);
      for (uint64_t i = 0; i < 50; ++i) submit(many, seed++);
    }
    engine_->Tick();
    client_->TakeAll();
  }
  for (const auto& [id, tenant] : tenant_of) {
    const Heard& heard = client_->Of(id);
    served[tenant] += (heard.progress.empty() ? 0 : heard.progress.back()) + heard.tokens.size();
  }
  const uint64_t all = served[few] + served[many];
  const auto ratio = [&](TenantId tenant) {
    const uint64_t due = std::min(demand[tenant], std::max(all / 2, all - demand[few]));
    return static_cast<double>(served[tenant]) / static_cast<double>(due);
  };
  const double x = ratio(few);
  const double y = ratio(many);
  EXPECT_LT(served[many], demand[many]);  // there was more than could be done
  EXPECT_GE((x + y) * (x + y) / (2 * (x * x + y * y)), 0.9) << x << " " << y;
  EXPECT_GE(x, 0.9);
  client_->Finish();
}

TEST_F(SchedulerTest, TenantsWithEqualLoadsShareByWeight) {
  engine_options_.running_max = 4;
  Make(64);
  const TenantId a = AddTenant("a");
  const TenantId b = AddTenant("b");
  engine_->SetTenant({.tenant = a, .weight = 3});
  std::map<RequestId, TenantId> tenant_of;
  for (uint64_t i = 0; i < 200; ++i) {
    const TenantId tenant = i < 100 ? a : b;
    tenant_of[client_->Submit(
        {.prompt = SomeTokens(40, 1 + i), .max_tokens = 8, .tenant = tenant})] = tenant;
  }
  for (uint64_t tick = 0; tick < 150; ++tick) {
    engine_->Tick();
    client_->TakeAll();
  }
  std::map<TenantId, uint64_t> ended;
  for (const auto& [id, heard] : client_->all()) {
    if (heard.response) ++ended[tenant_of[id]];
  }
  EXPECT_LT(ended[a], 100u);
  EXPECT_NEAR(static_cast<double>(ended[a]) / static_cast<double>(ended[b]), 3.0, 0.6);
}

TEST_F(SchedulerTest, ChunksGrowWithHeadroomAndShrinkUnderPressure) {
  EngineTest::Make(256, 16);
  engine_options_.chunk_tokens_max = 64;
  engine_ = MakeEngine(*cache_);
  client_.emplace(*engine_);
  EXPECT_EQ(engine_->stats().chunk_tokens, 16u);
  const RequestId first = client_->Submit({.prompt = SomeTokens(600, 1), .max_tokens = 1});
  client_->Finish();
  EXPECT_EQ(client_->Of(first).progress[0], 16u);
  EXPECT_EQ(client_->Of(first).progress[1], 48u);
  EXPECT_EQ(client_->Of(first).progress[2], 112u);
  EXPECT_EQ(engine_->stats().chunk_tokens, 64u);
  // All blocks are taken.
  const Request whole{.prompt = SomeTokens(256 * 16 - 3, 2), .max_tokens = 1};
  const RequestId second = client_->Submit(whole);
  client_->Finish();
  EXPECT_EQ(client_->Of(second).response->finish, Finish::kLength);
  const std::vector<uint64_t>& progress = client_->Of(second).progress;
  EXPECT_EQ(progress[0], 64u);
  EXPECT_EQ(progress[1], 64u + 32u);
  EXPECT_EQ(progress[2], 64u + 32u + 16u);
  EXPECT_EQ(progress[3], 64u + 32u + 16u + 16u);
  EXPECT_LE(cache_->stats().hot_bytes_peak, cache_->stats().hot_bytes_limit);
}

TEST_F(SchedulerTest, AChunkIsASmallOneWhileSomebodyGenerates) {
  EngineTest::Make(256, 16);
  engine_options_.chunk_tokens_max = 64;
  engine_ = MakeEngine(*cache_);
  client_.emplace(*engine_);
  const RequestId generates = client_->Submit({.prompt = SomeTokens(16, 2), .max_tokens = 13});
  for (int i = 0; i < 4; ++i) engine_->Tick();
  EXPECT_EQ(engine_->stats().chunk_tokens, 32u);  // once for the prompt, never for what it says
  const RequestId reads = client_->Submit({.prompt = SomeTokens(600, 1), .max_tokens = 1});
  client_->Finish();
  EXPECT_EQ(client_->Of(generates).tokens.size(), 13u);
  const std::vector<uint64_t>& progress = client_->Of(reads).progress;
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(progress[i], 16 * (i + 1));
  EXPECT_EQ(progress[9], 9 * 16u + 64u);
}

TEST_F(SchedulerTest, CancellingAtRandomPointsLeaksNothing) {
  engine_options_.admission = Admission::kGrow;
  Make(24);
  Prng prng(5);
  uint64_t cancelled = 0;
  while (cancelled < 1000) {
    std::vector<RequestId> ids;
    for (uint64_t i = 0; i < 3; ++i) {
      Request request{.prompt = SomeTokens(10 + prng.NextBelow(100), 1 + prng.NextBelow(4)),
                      .max_tokens = static_cast<uint32_t>(prng.NextBelow(40))};
      ids.push_back(client_->Submit(request));
    }
    for (const RequestId id : ids) {
      for (uint64_t ticks = prng.NextBelow(6); ticks > 0; --ticks) {
        engine_->Tick();
        client_->TakeAll();
      }
      engine_->Cancel(id);
    }
    client_->Finish(100);  // the cancellations are done in the first of them
    for (const RequestId id : ids) {
      cancelled += client_->Of(id).response->finish == Finish::kCancelled;
    }
    ExpectNothingHeld();
    ASSERT_FALSE(HasFailure());
  }
  cache_->Evict(1000);
  EXPECT_EQ(cache_->stats().hot_bytes_used, 0u);
}

}  // namespace
}  // namespace quire::serve
