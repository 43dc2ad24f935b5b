// What is read for a request that is expected: cached when it has come, and not held.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sync_point.h"
#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kWholeTokens = uint64_t{10} * kBlock;

class PrefetchTest : public testing::Test {
 protected:
  PrefetchTest() {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  std::unique_ptr<TestCache> Make(uint64_t slots = 64) {
    CacheOptions more;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    return std::make_unique<TestCache>(slots, SmallGeometry(), NumericProfile::Uniform(Codec::kF16),
                                       0, more);
  }
  Result<uint64_t> Prefetch(TestCache& test) {
    return test.cache->Prefetch({.identity = &test.identity, .tokens = prompt_});
  }

  void TakeOver(bool goes) {
    store_.DamageSegments(100'000);
    const auto test = Make();
    Must(Prefetch(*test));
    Ticket ticket = Must(test->cache->Load(test->Acquire(prompt_), {}));
    uint64_t evicted = 0;
    {
      const SyncPointHandler handler([&](std::string_view name) {
        if (!goes || evicted > 0 || name != "acquire: before blocks are leased") return;
        evicted = test->cache->Evict(100);
      });
      store_.Turn();
    }
    const uint64_t tokens = ticket.Take().resident_tokens();
    ASSERT_GT(tokens, 0);
    ASSERT_LT(tokens, kWholeTokens);
    const uint64_t blocks = tokens / kBlock;
    EXPECT_EQ(evicted, goes ? blocks : 0);
    EXPECT_GE(store_.store->stats().records_loaded, (goes ? 2 : 1) * blocks);
    EXPECT_EQ(test->cache->Evict(100), blocks);
    EXPECT_EQ(test->slots_used(), 0);
  }

  TestStore store_;
  const std::vector<TokenId> prompt_ = SomeTokens(kWholeTokens + 5, 1);
};

TEST_F(PrefetchTest, IsCachedAndNotHeld) {
  const auto test = Make();
  EXPECT_EQ(Must(Prefetch(*test)), kWholeTokens);
  EXPECT_EQ(test->cache->stats().lookups, 0);
  store_.Turn();
  EXPECT_EQ(test->cache->stats().loaded_total, 10);
  EXPECT_EQ(Must(Prefetch(*test)), 0);  // memory has it
  {
    const Plan plan = test->Acquire(prompt_);
    EXPECT_EQ(plan.resident_tokens(), kWholeTokens);
    EXPECT_EQ(plan.loadable_tokens(), 0);
  }
  EXPECT_EQ(test->cache->stats().lookups, 1);
  EXPECT_EQ(test->cache->stats().hit_tokens, kWholeTokens);
  EXPECT_EQ(test->cache->Evict(100), 10);
  EXPECT_EQ(test->slots_used(), 0);
}

TEST_F(PrefetchTest, ARequestThatComesMeanwhileIsAnsweredAsEver) {
  const auto test = Make();
  EXPECT_EQ(Must(Prefetch(*test)), kWholeTokens);
  const RunReport report = RunThrough(*test, prompt_);
  EXPECT_EQ(report.reused, kWholeTokens);
  store_.Turn();
  TestCache whole(64, SmallGeometry(), NumericProfile::Uniform(Codec::kF16));
  const auto judge = whole.Run(prompt_);
  for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue}) {
    std::vector<float> want(prompt_.size() * 1024);
    std::vector<float> have(want.size());
    const Stream& stream = test->model.GroupOf(0).streams[role == StreamRole::kKey ? 0 : 1];
    want.resize(prompt_.size() * stream.heads * stream.dim);
    have.resize(want.size());
    Must(judge->Gather(0, role, 0, prompt_.size(), want));
    Must(report.sequence->Gather(0, role, 0, prompt_.size(), have));
    EXPECT_EQ(want, have);
  }
}

TEST_F(PrefetchTest, WhatIsAskedForMeanwhileIsReadOnce) {
  for (const uint64_t turned_us : {0, 50, 150, 400}) {
    const auto test = Make();
    const uint64_t before = store_.store->stats().records_loaded;
    EXPECT_EQ(Must(Prefetch(*test)), kWholeTokens);
    EXPECT_EQ(Must(Prefetch(*test)), kWholeTokens);
    store_.Turn(turned_us);
    Ticket ticket = Must(test->cache->Load(test->Acquire(prompt_), {}));
    store_.Turn();
    ASSERT_TRUE(ticket.IsDone());
    EXPECT_EQ(ticket.Take().resident_tokens(), kWholeTokens);
    EXPECT_EQ(store_.store->stats().records_loaded, before + 10) << turned_us;
    EXPECT_EQ(test->cache->Evict(100), 10);
    EXPECT_EQ(test->slots_used(), 0);
  }
}

TEST_F(PrefetchTest, WhatIsLongerIsReadBehindIt) {
  const auto test = Make();
  const auto front = std::span(prompt_).first(4 * kBlock + 1);
  Ticket first = Must(test->cache->Load(test->Acquire(front), {}));
  Plan plan = test->Acquire(prompt_);
  const uint64_t bytes = plan.loadable_bytes();
  Ticket second = Must(test->cache->Load(std::move(plan), {}));
  store_.Turn();
  EXPECT_EQ(first.Take().resident_tokens(), 4 * kBlock);
  EXPECT_EQ(second.progress().blocks_ready, 10);
  EXPECT_EQ(second.progress().bytes, bytes / 10 * 6) << "the others are the first one's";
  EXPECT_EQ(second.Take().resident_tokens(), kWholeTokens);
  EXPECT_EQ(store_.store->stats().records_loaded, 10);
}

TEST_F(PrefetchTest, ALoadThatIsGivenUpKeepsNoOtherOneWaiting) {
  const auto test = Make();
  const auto load = [&](uint64_t timeout_us) {
    return Must(test->cache->Load(test->Acquire(prompt_), {.timeout_us = timeout_us}));
  };
  Ticket first = load(0);
  Ticket second = load(0);
  Ticket late = load(1);
  Ticket cancelled = load(0);
  cancelled.Cancel();
  store_.clock.Advance(10);
  for (int i = 0; i < 10 && !late.IsDone(); ++i) store_.transfers->Tick(0);
  for (Ticket* const ticket : {&late, &cancelled}) {
    ASSERT_TRUE(ticket->IsDone());
    EXPECT_EQ(ticket->Take().reason(), MissReason::kLoadLate);
  }
  EXPECT_FALSE(second.IsDone());
  first.Cancel();
  store_.Turn();
  EXPECT_TRUE(first.IsDone());
  EXPECT_EQ(second.Take().resident_tokens(), kWholeTokens);
}

// Where the other one ends early, what came of it is taken over, unless it has gone again.
TEST_F(PrefetchTest, WhatADamagedRecordEndsIsTakenOver) { TakeOver(/*goes=*/false); }
TEST_F(PrefetchTest, WhatWentAgainIsReadOnceMore) { TakeOver(/*goes=*/true); }

TEST_F(PrefetchTest, ACacheThatEndsMeanwhileEndsIt) {
  for (const uint64_t turned_us : {0, 50, 150, 400}) {
    auto test = Make();
    EXPECT_EQ(Must(Prefetch(*test)), kWholeTokens);
    EXPECT_EQ(Must(Prefetch(*test)), kWholeTokens);  // nothing of it is there yet
    store_.Turn(turned_us);
    test = nullptr;
  }
  store_.Turn();
}

TEST_F(PrefetchTest, WithoutRoomOrStoreNothingIsRead) {
  const auto small = Make(9);
  const auto refused = Prefetch(*small);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(small->slots_used(), 0);
  TestCache alone(64);
  EXPECT_EQ(Must(Prefetch(alone)), 0);
  const auto bad = small->cache->Prefetch({.identity = &small->identity, .tokens = {}});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
}

// What is damaged is computed by the request that comes.
TEST_F(PrefetchTest, DamageIsLeftOut) {
  store_.DamageSegments(40'000);
  const auto test = Make();
  EXPECT_EQ(Must(Prefetch(*test)), kWholeTokens);
  store_.Turn();
  EXPECT_LT(test->Resident(prompt_), kWholeTokens);
  EXPECT_EQ(test->cache->Verify().damaged, 0);
  test->cache->Evict(100);
  EXPECT_EQ(test->slots_used(), 0);
}

}  // namespace
}  // namespace quire::cache
