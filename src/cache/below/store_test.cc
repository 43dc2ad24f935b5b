// Caches on a store: what was published is found by a later process, byte for byte, or the reason
// is told why not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

struct StoreKind {
  std::string name;
  Geometry geometry;
  NumericProfile profile;
  ArenaLayout layout = ArenaLayout::kBlockMajor;
};

Geometry Windowed(bool with_full) {
  Geometry geometry = SmallGeometry();
  LayerGroup window = geometry.groups[0];
  window.kind = LayerKind::kWindow;
  window.window_tokens = 2 * kBlock + 3;
  if (!with_full) {
    geometry.groups[0] = window;
    return geometry;
  }
  window.layers = {2, 3};
  geometry.groups.push_back(window);
  return geometry;
}

void PrintTo(const StoreKind& kind, std::ostream* out) { *out << kind.name; }

std::vector<StoreKind> Kinds() {
  const NumericProfile f16 = NumericProfile::Uniform(Codec::kF16);
  return {{"f16", SmallGeometry(), f16},
          {"layer_major", SmallGeometry(), f16, ArenaLayout::kLayerMajor},
          {"head_major", SmallGeometry(), f16, ArenaLayout::kHeadMajor},
          {"int8", SmallGeometry(), EncodedInt8(0)},
          {"int8_residual", SmallGeometry(), EncodedInt8(2 * kBlock)},
          {"window", Windowed(false), f16},
          {"full_and_window", Windowed(true), f16},
          {"int8_full_and_window", Windowed(true), EncodedInt8(0)},
          {"int8_residual_window", Windowed(true), EncodedInt8(kBlock)}};
}

class StoreTest : public testing::TestWithParam<StoreKind> {
 protected:
  std::unique_ptr<TestCache> Make(uint64_t slots = 64) {
    CacheOptions more;
    more.layout = GetParam().layout;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    return std::make_unique<TestCache>(slots, GetParam().geometry, GetParam().profile, 0, more);
  }
  /// Empty if a sequence holds what one holds that computed all of it; else where not.
  static std::string DiffersFromCold(const Sequence& sequence, std::span<const TokenId> prompt) {
    CacheOptions more;
    more.layout = GetParam().layout;
    TestCache test(64, GetParam().geometry, GetParam().profile, 0, more);
    const auto cold = test.Run(prompt);
    for (uint32_t layer = 0; layer < test.model.geometry().layer_count(); ++layer) {
      const LayerGroup& group = test.model.GroupOf(layer);
      const uint64_t seen = group.window_tokens == 0 ? prompt.size() : group.window_tokens - 1;
      const uint64_t begin = prompt.size() - std::min<uint64_t>(seen, prompt.size());
      for (const Stream& stream : group.streams) {
        std::vector<float> want((prompt.size() - begin) * stream.heads * stream.dim);
        std::vector<float> have = want;
        Must(cold->Gather(layer, stream.role, begin, prompt.size(), want));
        Must(sequence.Gather(layer, stream.role, begin, prompt.size(), have));
        if (want != have) return "layer " + std::to_string(layer);
      }
    }
    return {};
  }
  static bool IsResidual() { return GetParam().profile.residual_tokens > 0; }

  TestStore store_;
  const std::vector<TokenId> prompt_ = SomeTokens(10 * kBlock + 5, 1);
};

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest, testing::ValuesIn(Kinds()),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(StoreTest, ARestartFindsWhatWasWritten) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
    EXPECT_EQ(test->cache->stats().stored_blocks, 10);
    EXPECT_EQ(test->cache->stats().unwritten_blocks, 0);
  }
  store_.Restart();
  const auto test = Make();
  {
    const Plan plan = test->Acquire(prompt_);
    EXPECT_EQ(plan.resident_tokens(), 0);
    EXPECT_EQ(plan.loadable_tokens(), 10 * kBlock);
    EXPECT_GT(plan.loadable_bytes(), 0);
    EXPECT_EQ(plan.reason(), MissReason::kNotLoaded);
  }
  const RunReport again = RunThrough(*test, prompt_);
  EXPECT_EQ(again.reused, 10 * kBlock);
  EXPECT_EQ(DiffersFromCold(*again.sequence, prompt_), "");
  EXPECT_EQ(again.reason, MissReason::kPartialBlock);
  EXPECT_GT(test->cache->stats().loaded_total, 0);
  EXPECT_EQ(test->cache->Verify().damaged, 0);
  // It is a published prefix like any other now, and is not written again.
  EXPECT_EQ(RunThrough(*test, prompt_).loadable, 0);
  EXPECT_EQ(test->cache->stats().unwritten_blocks, 0);
  EXPECT_EQ(test->cache->stats().hit_tokens, 2 * 10 * kBlock);
}

TEST_P(StoreTest, AnotherContinuationLoadsWhatBothHave) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  const std::vector<TokenId> other =
      Join(std::span(prompt_).first(6 * kBlock), SomeTokens(3 * kBlock, 2));
  const RunReport report = RunThrough(*test, other);
  // The twins are where the first prompt ended.
  EXPECT_EQ(report.reused, IsResidual() ? 0 : 6 * kBlock);
  EXPECT_EQ(DiffersFromCold(*report.sequence, other), "");
  const RunReport longer = RunThrough(*test, Join(prompt_, SomeTokens(kBlock, 3)));
  EXPECT_EQ(longer.reused, 10 * kBlock);
}

TEST_P(StoreTest, ALoadGoesOnWhereMemoryEnds) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  test->Run(std::span(prompt_).first(4 * kBlock)).reset();  // computed, not loaded
  EXPECT_EQ(test->Resident(prompt_), 4 * kBlock);
  const RunReport report = RunThrough(*test, prompt_);
  EXPECT_EQ(report.loadable, 6 * kBlock);
  EXPECT_EQ(report.reused, 10 * kBlock);
  EXPECT_EQ(DiffersFromCold(*report.sequence, prompt_), "");
}

TEST_P(StoreTest, WhatWasEvictedComesBack) {
  const auto test = Make();
  RunThrough(*test, prompt_);
  Must(store_.store->Flush());
  while (test->cache->Evict(100) > 0) {
  }
  EXPECT_EQ(test->cache->stats().published_blocks, 0);
  EXPECT_EQ(test->cache->stats().evicted_unwritten_total, 0);
  const RunReport again = RunThrough(*test, prompt_);
  EXPECT_EQ(again.loadable, 10 * kBlock);
  EXPECT_EQ(again.reused, 10 * kBlock);
  EXPECT_EQ(DiffersFromCold(*again.sequence, prompt_), "");
}

TEST_P(StoreTest, AnUnwrittenBlockIsEvictedWithoutWaiting) {
  const auto test = Make();
  RunThrough(*test, prompt_);
  EXPECT_EQ(test->cache->stats().unwritten_blocks, 10);
  while (test->cache->Evict(100) > 0) {
  }
  EXPECT_EQ(test->cache->stats().evicted_unwritten_total, 10);
  EXPECT_EQ(test->cache->stats().unwritten_blocks, 0);
  store_.Turn();
  EXPECT_EQ(store_.store->stats().records, 0);
  EXPECT_EQ(test->Acquire(prompt_).reason(), MissReason::kEvicted);
}

TEST_P(StoreTest, DamageIsAMissWithItsReason) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  store_.DamageSegments(9000);
  const auto test = Make();
  const RunReport report = RunThrough(*test, prompt_);
  EXPECT_LT(report.reused, 10 * kBlock);
  EXPECT_EQ(report.reason, MissReason::kLoadFailed);
  EXPECT_EQ(DiffersFromCold(*report.sequence, prompt_), "");
  EXPECT_GT(store_.store->stats().loads_failed, 0);
}

TEST_P(StoreTest, ADyingProcessLosesAtMostTheCommitInterval) {
  for (const bool power : {false, true}) {
    const std::vector<TokenId> early = SomeTokens(8 * kBlock + 1, 10 + power);
    const std::vector<TokenId> late = SomeTokens(8 * kBlock + 1, 20 + power);
    {
      const auto test = Make();
      RunThrough(*test, early);
      store_.Turn(store_.options.commit_interval_us + 100'000);
      RunThrough(*test, late);
      store_.Turn(10'000);
    }
    store_.Kill(power);
    const auto test = Make();
    EXPECT_EQ(RunThrough(*test, early).reused, 8 * kBlock);
    const RunReport report = RunThrough(*test, late);
    EXPECT_EQ(DiffersFromCold(*report.sequence, late), "");
  }
}

TEST_P(StoreTest, WritingIsSpreadButNotPastItsTime) {
  store_.spread_us = 1'000'000;
  store_.Restart();
  const auto test = Make();
  RunThrough(*test, prompt_);
  const auto waiting = [&] { return test->cache->stats().unwritten_blocks; };
  EXPECT_EQ(waiting(), 10);
  store_.Turn(store_.spread_us / 2);
  EXPECT_GT(waiting(), 3);
  EXPECT_LT(waiting(), 7);
  store_.Turn(store_.spread_us / 2);
  EXPECT_EQ(waiting(), 0);
  // A flush waits for nothing.
  RunThrough(*test, SomeTokens(10 * kBlock + 5, 2));
  const uint64_t begin_us = store_.clock.NowMicros();
  Must(store_.store->Flush());
  EXPECT_EQ(waiting(), 0);
  EXPECT_LT(store_.clock.NowMicros() - begin_us, store_.spread_us / 4);
}

TEST_P(StoreTest, WhereBlocksGoUnwrittenTheOthersAreWrittenAtOnce) {
  store_.spread_us = 1'000'000;
  store_.Restart();
  const auto test = Make();
  RunThrough(*test, prompt_);
  store_.Turn(1'000);
  while (test->cache->stats().evicted_unwritten_total == 0) ASSERT_GT(test->cache->Evict(1), 0);
  EXPECT_GT(test->cache->stats().unwritten_blocks, 5);
  store_.Turn(20'000);
  EXPECT_EQ(test->cache->stats().unwritten_blocks, 0);
}

TEST_P(StoreTest, ALoadThatIsCancelledGivesEverythingBack) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  const uint64_t used = test->cache->stats().hot_bytes_used;
  {
    const Ticket dropped = Must(test->cache->Load(test->Acquire(prompt_), {}));
    EXPECT_FALSE(dropped.IsDone());
    EXPECT_EQ(dropped.progress().blocks, 10);
    EXPECT_GT(test->cache->stats().hot_bytes_used, used);
  }
  while (test->cache->Evict(100) > 0) {
  }
  EXPECT_EQ(test->cache->stats().hot_bytes_used, used);
  Ticket cancelled = Must(test->cache->Load(test->Acquire(prompt_), {}));
  cancelled.Cancel();
  const Plan plan = cancelled.Take();
  EXPECT_EQ(plan.resident_tokens(), 0);
  EXPECT_EQ(plan.reason(), MissReason::kLoadLate);
}

TEST_P(StoreTest, WhatDoesNotComeInTimeIsLate) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  bool told = false;
  Ticket ticket = Must(test->cache->Load(test->Acquire(prompt_),
                                         {.timeout_us = 1, .on_done = [&told] { told = true; }}));
  store_.clock.Advance(1000);
  EXPECT_TRUE(ticket.WaitFor(1'000'000));
  EXPECT_TRUE(told);
  const Plan plan = ticket.Take();
  EXPECT_LT(plan.resident_tokens(), 10 * kBlock);
  EXPECT_EQ(plan.reason(), MissReason::kLoadLate);
  store_.clock.Advance(20'000'000);
  EXPECT_EQ(RunThrough(*test, prompt_, {.timeout_us = 10'000'000}).reused, 10 * kBlock);
}

TEST_P(StoreTest, WhatWasErasedIsGoneForGood) {
  const auto named = [&](TestCache& test) {
    return Must(test.cache->AddTenant({.name = "alice"}));
  };
  const auto acquire = [&](TestCache& test, TenantId tenant) {
    return Must(
        test.cache->Acquire({.tenant = tenant, .identity = &test.identity, .tokens = prompt_}));
  };
  {
    const auto test = Make();
    const TenantId alice = named(*test);
    auto sequence = Must(test->cache->Open(acquire(*test, alice), {}));
    Must(test->model.Feed(*sequence, prompt_));
    sequence.reset();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
    EXPECT_EQ(acquire(*test, alice).resident_tokens(), 10 * kBlock);
    Must(test->cache->Erase(alice));
    EXPECT_EQ(acquire(*test, alice).resident_tokens(), 0);
    EXPECT_EQ(acquire(*test, alice).loadable_tokens(), 0);
    EXPECT_EQ(test->Acquire(prompt_).resident_tokens(), 10 * kBlock);
  }
  store_.Kill(/*power=*/true);
  {
    const auto test = Make();
    const TenantId alice = named(*test);
    EXPECT_EQ(acquire(*test, alice).loadable_tokens(), 0);
    EXPECT_EQ(test->Acquire(prompt_).loadable_tokens(), 10 * kBlock);
    // What alice does from now on is kept again.
    auto sequence = Must(test->cache->Open(acquire(*test, alice), {}));
    Must(test->model.Feed(*sequence, prompt_));
    sequence.reset();
    Must(store_.store->Flush());
    Must(test->cache->Erase(kDefaultTenant));
    EXPECT_EQ(test->Acquire(prompt_).loadable_tokens(), 0);
  }
  store_.Restart();
  const auto test = Make();
  EXPECT_EQ(acquire(*test, named(*test)).loadable_tokens(), 10 * kBlock);
  EXPECT_EQ(test->Acquire(prompt_).loadable_tokens(), 0);
}

TEST_P(StoreTest, ErasingAMemberErasesItsDomainBelow) {
  const auto test = Make();
  Must(test->cache->AddTenant({.name = "team", .shared = true}));
  const TenantId a = Must(test->cache->AddTenant({.name = "a", .domain = "team"}));
  const TenantId b = Must(test->cache->AddTenant({.name = "b", .domain = "team"}));
  const auto run = [&](TenantId tenant, std::span<const TokenId> prompt) {
    auto sequence = Must(
        test->cache->Open(Must(test->cache->Acquire(
                              {.tenant = tenant, .identity = &test->identity, .tokens = prompt})),
                          {}));
    Must(test->model.Feed(*sequence, prompt));
  };
  const auto loadable = [&](TenantId tenant, std::span<const TokenId> prompt) {
    return Must(test->cache->Acquire(
                    {.tenant = tenant, .identity = &test->identity, .tokens = prompt}))
        .loadable_tokens();
  };
  const std::vector<TokenId> of_b = SomeTokens(4 * kBlock + 1, 7);
  run(a, prompt_);
  run(b, of_b);
  Must(store_.store->Flush());
  while (test->cache->Evict(100) > 0) {
  }
  EXPECT_EQ(loadable(b, prompt_), 10 * kBlock);
  run(b, of_b);
  Must(test->cache->Erase(a));
  EXPECT_EQ(loadable(b, prompt_), 0);
  // b's own is in memory, and goes down again when it is used.
  run(b, of_b);
  Must(store_.store->Flush());
  while (test->cache->Evict(100) > 0) {
  }
  EXPECT_EQ(loadable(b, of_b), 4 * kBlock);
}

TEST_P(StoreTest, ABlockThatChangedInMemoryIsNotWritten) {
  if (GetParam().profile.open_dtype != GetParam().profile.codecs[0].codec) return;  // no views
  const auto test = Make();
  const auto report = RunThrough(*test, prompt_);
  FlipBit(*report.sequence, 9);
  Must(store_.store->Flush());
  EXPECT_EQ(test->cache->stats().stored_blocks, 9);
  EXPECT_EQ(test->Acquire(prompt_).reason(), MissReason::kDamaged);
}

TEST_P(StoreTest, WithoutRoomALoadIsRefusedAndNothingIsHeld) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make(/*slots=*/12);
  const std::vector<TokenId> other = SomeTokens(4 * kBlock, 9);
  auto holder = test->Run(other);
  const uint64_t used = test->cache->stats().hot_bytes_used;
  auto plan = test->Acquire(prompt_);
  if (plan.loadable_bytes() > 0) {
    auto ticket = test->cache->Load(std::move(plan), {});
    if (!ticket) {
      EXPECT_EQ(ticket.error().code, ErrorCode::kNoSpace);
      EXPECT_EQ(test->cache->stats().hot_bytes_used, used);
    }
  }
}

TEST_P(StoreTest, AFullDiskStopsWritingAndNothingElse) {
  store_.files.set_disk_bytes(store_.files.bytes_used() + (256 << 10));
  const auto test = Make();
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::vector<TokenId> prompt = SomeTokens(6 * kBlock + 1, 100 + seed);
    const RunReport report = RunThrough(*test, prompt);
    EXPECT_EQ(DiffersFromCold(*report.sequence, prompt), "");
    store_.Turn(50'000);
  }
  store_.Turn();
  EXPECT_TRUE(store_.store->stats().disk_full);
  store_.files.set_disk_bytes(~uint64_t{0});
  store_.clock.Advance(60'000'000);  // it is tried again
  const std::vector<TokenId> late = SomeTokens(6 * kBlock + 1, 999);
  RunThrough(*test, late);
  Must(store_.store->Flush());
  while (test->cache->Evict(100) > 0) {
  }
  EXPECT_EQ(RunThrough(*test, late).reused, 6 * kBlock);
}

TEST_P(StoreTest, ATenantWithATtlKeepsNothingBelow) {
  const auto test = Make();
  const TenantId shy = Must(test->cache->AddTenant({.name = "shy", .ttl_us = 1'000'000}));
  auto sequence = Must(test->cache->Open(
      Must(test->cache->Acquire({.tenant = shy, .identity = &test->identity, .tokens = prompt_})),
      {}));
  Must(test->model.Feed(*sequence, prompt_));
  Must(store_.store->Flush());
  EXPECT_EQ(store_.store->stats().records, 0);
}

TEST_P(StoreTest, AnotherIdentityFindsNothing) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  test->identity.weights = {2};
  EXPECT_EQ(test->Acquire(prompt_).loadable_tokens(), 0);
  test->identity = SomeIdentity();
  test->identity.domain.secret = {8};
  EXPECT_EQ(test->Acquire(prompt_).loadable_tokens(), 0);
}

TEST_P(StoreTest, WhatIsEvictedInPartComesBack) {
  const auto test = Make();
  RunThrough(*test, prompt_);
  Must(store_.store->Flush());
  for (uint64_t blocks = 1; blocks <= 10; ++blocks) {
    test->cache->Evict(blocks);
    const RunReport report = RunThrough(*test, prompt_);
    EXPECT_EQ(report.reused, 10 * kBlock);
    EXPECT_EQ(DiffersFromCold(*report.sequence, prompt_), "");
  }
}

TEST_P(StoreTest, ErasingAMemberErasesWhatOthersLoaded) {
  const auto add = [](TestCache& test) {
    Must(test.cache->AddTenant({.name = "team", .shared = true}));
    return std::pair(Must(test.cache->AddTenant({.name = "a", .domain = "team"})),
                     Must(test.cache->AddTenant({.name = "b", .domain = "team"})));
  };
  const auto acquire = [&](TestCache& test, TenantId tenant) {
    return Must(
        test.cache->Acquire({.tenant = tenant, .identity = &test.identity, .tokens = prompt_}));
  };
  {
    const auto test = Make();
    const auto [a, b] = add(*test);
    Must(test->model.Feed(*Must(test->cache->Open(acquire(*test, a), {})), prompt_));
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  const auto [a, b] = add(*test);
  EXPECT_EQ(Must(test->cache->Load(acquire(*test, b), {})).Take().resident_tokens(), 10 * kBlock);
  const EraseReport report = Must(test->cache->Erase(a));
  EXPECT_GT(report.slots_zeroed, 0);
  EXPECT_EQ(acquire(*test, b).resident_tokens(), 0);
  EXPECT_EQ(acquire(*test, b).loadable_tokens(), 0);
  EXPECT_EQ(test->cache->stats().published_blocks, 0);
}

TEST_P(StoreTest, CachesThatEraseOneTenantStillAgreeAfterwards) {
  {
    const auto first = Make();
    const auto second = Make();
    RunThrough(*second, prompt_);
    Must(first->cache->Erase(kDefaultTenant));
    EXPECT_EQ(second->Acquire(prompt_).resident_tokens(), 0);
    Must(second->cache->Erase(kDefaultTenant));
    RunThrough(*first, prompt_);
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  EXPECT_EQ(test->Acquire(prompt_).loadable_tokens(), 10 * kBlock);
}

TEST_P(StoreTest, TwoCachesShareAStore) {
  const auto first = Make();
  const auto second = Make();
  RunThrough(*first, prompt_);
  Must(store_.store->Flush());
  const RunReport report = RunThrough(*second, prompt_);
  EXPECT_EQ(report.reused, 10 * kBlock);
  EXPECT_EQ(DiffersFromCold(*report.sequence, prompt_), "");
}

TEST_P(StoreTest, AMissSaysThatThePromptIsThereUnderOtherWeights) {
  {
    const auto test = Make();
    RunThrough(*test, prompt_);
    const auto alice = Must(test->cache->AddTenant({.name = "alice"}));
    const auto others = SomeTokens(4 * kBlock + 1, 2);
    const AcquireRequest request = {.tenant = alice, .identity = &test->identity, .tokens = others};
    Must(test->model.Feed(*Must(test->cache->Open(Must(test->cache->Acquire(request)), {})),
                          others));
    Must(store_.store->Flush());
  }
  const auto reasons = [&](std::span<const TokenId> prompt, bool other_secret = false) {
    const auto test = Make();
    test->identity.weights = {9};
    if (other_secret) test->identity.domain.secret = {0x55};
    const auto alice = Must(test->cache->AddTenant({.name = "alice"}));
    std::map<MissReason, uint64_t> tokens;
    for (const TenantId tenant : {kDefaultTenant, alice}) {
      const Plan plan = Must(
          test->cache->Acquire({.tenant = tenant, .identity = &test->identity, .tokens = prompt}));
      EXPECT_EQ(plan.loadable_tokens(), 0);
      for (const MissRun& run : plan.missing()) {
        if (run.reason != MissReason::kPartialBlock) tokens[run.reason] += run.tokens;
      }
    }
    return tokens;
  };
  using Tokens = std::map<MissReason, uint64_t>;
  // Each hears of its own, and of no more than is there.
  const auto longer = Join(prompt_, SomeTokens(3 * kBlock, 3));
  const uint64_t there = 10 * kBlock;
  const uint64_t all = longer.size() / kBlock * kBlock;
  for (const bool rebuilt : {false, true}) {
    store_.Restart();
    if (rebuilt) {
      store_.store.reset();
      for (const std::string& path : store_.files.Paths()) {
        if (path.find("catalogue") != std::string::npos) Must(store_.files.Remove(path));
      }
      store_.Open();
    }
    EXPECT_EQ(reasons(longer), (Tokens{{MissReason::kOtherProfile, there},
                                       {MissReason::kNeverSeen, 2 * all - there}}))
        << rebuilt;
    EXPECT_EQ(
        reasons(SomeTokens(4 * kBlock + 1, 2)),
        (Tokens{{MissReason::kOtherProfile, 4 * kBlock}, {MissReason::kNeverSeen, 4 * kBlock}}));
    EXPECT_EQ(reasons(SomeTokens(4 * kBlock + 1, 7)),
              (Tokens{{MissReason::kNeverSeen, 8 * kBlock}}));
    EXPECT_EQ(reasons(longer, /*other_secret=*/true), (Tokens{{MissReason::kNeverSeen, 2 * all}}));
  }
}

// Of a store that is full, what memory hands out all the time stays; also where it was lost.
TEST_P(StoreTest, WhatIsUsedInMemoryIsInUseBelow) {
  store_.options.bytes_cap = uint64_t{8} << 20;
  store_.options.segment_bytes = 256 << 10;
  for (const bool is_lost : {false, true}) {
    store_.store.reset();
    for (const std::string& path : store_.files.Paths()) Must(store_.files.Remove(path));
    store_.Open();
    {
      const auto test = Make(150);
      RunThrough(*test, prompt_);
      Must(store_.store->Flush());
      if (is_lost) {  // its front is found damaged, and with that nothing of it
        for (const std::string& path : store_.files.Paths()) {
          if (path.find("segment") == std::string::npos) continue;
          (*store_.files.Contents(path))[300] ^= std::byte{4};
        }
        const auto other = Make();
        Must(other->cache->Load(other->Acquire(prompt_), {})).Take();
        EXPECT_EQ(other->Acquire(prompt_).resident_tokens(), 0);
      }
      for (uint64_t seed = 100; seed < 400; ++seed) {
        RunThrough(*test, SomeTokens(8 * kBlock + 1, seed));
        EXPECT_EQ(RunThrough(*test, prompt_).reused, 10 * kBlock);
        Must(store_.store->Flush());
      }
      EXPECT_GT(store_.store->stats().records_recycled, 500);
    }
    store_.Restart();
    const auto test = Make();
    // What lies in one segment with it stays too (decision 157); this one does not.
    EXPECT_EQ(test->Acquire(SomeTokens(8 * kBlock + 1, 150)).loadable_tokens(), 0);
    const RunReport report = RunThrough(*test, prompt_);
    EXPECT_EQ(report.reused, 10 * kBlock) << is_lost;
    EXPECT_EQ(DiffersFromCold(*report.sequence, prompt_), "");
  }
}

TEST_P(StoreTest, ATenantIsToldWhatItHasInTheStore) {
  struct Tenants {
    TenantId alice, team, member;
  };
  const auto make = [](TestCache& test) {
    const TenantId team = Must(test.cache->AddTenant({.name = "team", .shared = true}));
    const TenantId member = Must(test.cache->AddTenant({.name = "member", .domain = "team"}));
    return Tenants{Must(test.cache->AddTenant({.name = "alice", .store_quota_bytes = 12 << 20})),
                   team, member};
  };
  {
    const auto test = Make();
    const Tenants of = make(*test);
    for (const TenantId tenant : {of.alice, of.member, kDefaultTenant}) {
      auto plan = Must(
          test->cache->Acquire({.tenant = tenant, .identity = &test->identity, .tokens = prompt_}));
      Must(test->model.Feed(*Must(test->cache->Open(std::move(plan), {})), prompt_));
    }
    Must(store_.store->Flush());
  }
  store_.Restart();
  const auto test = Make();
  const Tenants of = make(*test);
  const auto stats = [&](TenantId tenant) { return Must(test->cache->tenant_stats(tenant)); };
  for (const TenantId tenant : {of.alice, of.team, kDefaultTenant}) {
    EXPECT_GE(stats(tenant).store_records, 10);
    EXPECT_GT(stats(tenant).store_bytes, 10 * 1024);
    EXPECT_GT(stats(tenant).store_space_bytes, stats(tenant).store_bytes);
    EXPECT_EQ(stats(tenant).store_quota_bytes, tenant == of.alice ? 12 << 20 : 0);
  }
  EXPECT_EQ(stats(of.member).store_records, 0);  // the domain has them
  Must(test->cache->Erase(of.alice));
  EXPECT_EQ(stats(of.alice).store_records, 0);
  EXPECT_EQ(stats(of.alice).store_space_bytes, 0);
  EXPECT_GE(stats(of.team).store_records, 10);
}

TEST_P(StoreTest, ATenantHasNoMoreOfTheStoreThanItsQuota) {
  store_.options.bytes_cap = uint64_t{8} << 20;
  store_.options.segment_bytes = 256 << 10;
  store_.store.reset();
  for (const std::string& path : store_.files.Paths()) Must(store_.files.Remove(path));
  store_.Open();
  const auto run = [&](const TenantOptions& options) {
    const auto test = Make(300);
    const TenantId tenant = Must(test->cache->AddTenant(options));
    const uint64_t before = store_.store->stats().records_recycled;
    for (uint64_t seed = 100; seed < 130; ++seed) {
      const auto prompt = SomeTokens(8 * kBlock + 1, seed);
      const AcquireRequest request = {
          .tenant = tenant, .identity = &test->identity, .tokens = prompt};
      auto plan = Must(test->cache->Acquire(request));
      Must(test->model.Feed(*Must(test->cache->Open(std::move(plan), {})), prompt));
      // Where the quota has no room for one segment, nothing is stored at all.
      static_cast<void>(store_.store->Flush());
    }
    const uint64_t recycled = store_.store->stats().records_recycled - before;
    Must(test->cache->RemoveTenant(tenant));
    return recycled;
  };
  EXPECT_EQ(run({.name = "a"}), 0);
  EXPECT_GT(run({.name = "b", .store_quota_bytes = 512 << 10}), 0);
  EXPECT_EQ(run({.name = "b"}), 0);  // taken out with its limits
  const uint64_t dropped = store_.store->stats().records_dropped;
  EXPECT_EQ(run({.name = "c", .store_quota_bytes = 1}), 0);
  EXPECT_GT(store_.store->stats().records_dropped, dropped);
  const auto test = Make();
  const auto refused = test->cache->AddTenant(
      {.name = "d", .store_quota_bytes = 1 << 20, .store_floor_bytes = 2 << 20});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("store_floor"));
}

}  // namespace
}  // namespace quire::cache
