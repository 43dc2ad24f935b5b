// Loads from the end that meet what is computed from the front: what both bring is what one of them
// would have brought, and until they meet nothing of the end is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kLoadFromEndBlocks = 12;

struct Kind {
  std::string name;
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  ArenaLayout layout = ArenaLayout::kBlockMajor;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

/// A request that computes and loads.
struct BothEnds {
  Ticket ticket;
  std::unique_ptr<Sequence> front;
};

class LoadFromEndTest : public testing::TestWithParam<Kind> {
 protected:
  /// A cache after a restart, whose store has the prompt.
  void SetUp() override {
    {
      const auto test = MakeTest(64);
      RunThrough(*test, prompt_);
      Must(store_.store->Flush());
    }
    store_.Restart();
    test_ = MakeTest(64);
  }
  std::unique_ptr<TestCache> MakeTest(uint64_t slots) {
    CacheOptions more;
    more.layout = GetParam().layout;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    return std::make_unique<TestCache>(slots, SmallGeometry(), GetParam().profile, 0, more);
  }
  BothEnds Begin(const LoadOptions& options = {.order = LoadOrder::kFromEnd}) {
    Ticket ticket = Must(test_->cache->Load(test_->Acquire(prompt_), options));
    Plan front = ticket.Front(1);
    auto sequence = Must(test_->cache->Open(std::move(front), {.on_full = OnFull::kHalt}));
    return {.ticket = std::move(ticket), .front = std::move(sequence)};
  }
  void ComputeTo(BothEnds& both, uint64_t tokens) const {
    Must(test_->model.Feed(*both.front, std::span(prompt_).first(tokens)));
    both.ticket.Meet(tokens);
  }
  /// Goes on behind what came: empty if the prompt is as if all of it had been computed.
  std::string Differs(Plan plan) const {
    const auto sequence = Must(test_->cache->Open(std::move(plan), {}));
    Must(test_->model.Feed(*sequence, prompt_));
    CacheOptions more;
    more.layout = GetParam().layout;
    TestCache other(64, SmallGeometry(), GetParam().profile, 0, more);
    const auto cold = other.Run(prompt_);
    for (uint32_t layer = 0; layer < test_->model.geometry().layer_count(); ++layer) {
      for (const Stream& stream : test_->model.GroupOf(layer).streams) {
        std::vector<float> want(prompt_.size() * stream.heads * stream.dim);
        std::vector<float> have = want;
        Must(cold->Gather(layer, stream.role, 0, prompt_.size(), want));
        Must(sequence->Gather(layer, stream.role, 0, prompt_.size(), have));
        if (want != have) return "layer " + std::to_string(layer);
      }
    }
    return {};
  }
  uint64_t slots_used() const {
    const CacheStats stats = test_->cache->stats();
    return stats.sealed.slots_used + stats.open.slots_used;
  }
  /// Bytes that are charged when nothing is held and everything was evicted.
  uint64_t LeftBehind() const {
    while (test_->cache->Evict(100) > 0) {
    }
    return test_->cache->stats().hot_bytes_used;
  }

  TestStore store_;
  std::unique_ptr<TestCache> test_;
  const std::vector<TokenId> prompt_ = SomeTokens(kLoadFromEndBlocks * kBlock + 5, 1);
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, LoadFromEndTest,
    testing::Values(Kind{.name = "f16"},
                    Kind{.name = "layer_major", .layout = ArenaLayout::kLayerMajor},
                    Kind{.name = "head_major", .layout = ArenaLayout::kHeadMajor},
                    Kind{.name = "int8", .profile = EncodedInt8()}),
    [](const auto& kind) { return kind.param.name; });

TEST_P(LoadFromEndTest, TheEndIsFoundWhenItMeetsWhatWasComputed) {
  BothEnds both = Begin();
  EXPECT_EQ(both.ticket.progress().meet_tokens, kLoadFromEndBlocks * kBlock);
  ComputeTo(both, 5 * kBlock);
  EXPECT_EQ(test_->Resident(prompt_), 5 * kBlock);
  ASSERT_TRUE(both.ticket.WaitFor(1'000'000));
  const LoadProgress progress = both.ticket.progress();
  EXPECT_EQ(progress.meet_tokens, 5 * kBlock);
  EXPECT_EQ(progress.blocks_ready, kLoadFromEndBlocks - 5);
  EXPECT_GT(progress.elapsed_us, 0);
  EXPECT_EQ(test_->Resident(prompt_), kLoadFromEndBlocks * kBlock);
  EXPECT_EQ(test_->cache->stats().loaded_total, kLoadFromEndBlocks - 5);
  Plan plan = both.ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), kLoadFromEndBlocks * kBlock);
  EXPECT_EQ(plan.reason(), MissReason::kPartialBlock);
  both.front.reset();
  EXPECT_EQ(Differs(std::move(plan)), "");
  EXPECT_EQ(LeftBehind(), 0);
}

TEST_P(LoadFromEndTest, WhatWasComputedMeanwhileIsNoHit) {
  const CacheStats before = test_->cache->stats();
  BothEnds both = Begin();
  ComputeTo(both, 5 * kBlock);
  const Plan plan = both.ticket.Take();
  const CacheStats after = test_->cache->stats();
  EXPECT_EQ(after.lookups - before.lookups, 1);
  EXPECT_EQ(after.lookup_tokens - before.lookup_tokens, prompt_.size());
  EXPECT_EQ(after.hit_tokens - before.hit_tokens, (kLoadFromEndBlocks - 5) * kBlock);
  const TenantStats tenant = Must(test_->cache->tenant_stats(kDefaultTenant));
  EXPECT_EQ(tenant.missed_tokens[static_cast<uint8_t>(MissReason::kNotLoaded)], 5 * kBlock);
}

// However the two sides are timed: of what has come nothing is found before they meet, and
// everything afterwards.
TEST_P(LoadFromEndTest, AnyTimingGivesTheSame) {
  uint64_t loaded = 0;
  uint64_t computed = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    Prng prng(seed);
    const uint64_t loaded_before = test_->cache->stats().loaded_total;
    BothEnds both = Begin();
    uint64_t position = 0;
    while (!both.ticket.IsDone()) {
      if (prng.NextBelow(3) == 0) {
        // Where they met in the middle of a block, what was computed goes beyond it, also while the
        // load still waits for its copies.
        const uint64_t most = std::max(position, both.ticket.progress().meet_tokens);
        position = std::min(most, position + 1 + prng.NextBelow(3 * kBlock));
        ComputeTo(both, position);
      } else {
        store_.transfers->Tick(prng.NextBelow(40));
      }
      const uint64_t resident = test_->Resident(prompt_);
      if (!both.ticket.IsDone() && resident > position) {
        EXPECT_EQ(both.ticket.progress().meet_tokens, position / kBlock * kBlock) << seed;
      } else if (!both.ticket.IsDone()) {
        EXPECT_EQ(resident, position / kBlock * kBlock) << seed;
      }
    }
    Plan plan = both.ticket.Take();
    EXPECT_EQ(plan.resident_tokens(), kLoadFromEndBlocks * kBlock) << seed;
    const uint64_t came = test_->cache->stats().loaded_total - loaded_before;
    EXPECT_EQ(came + position / kBlock, kLoadFromEndBlocks) << seed;
    loaded += came;
    computed += position / kBlock;
    both.front.reset();
    EXPECT_EQ(Differs(std::move(plan)), "") << seed;
    EXPECT_EQ(LeftBehind(), 0) << seed;
  }
  EXPECT_GT(loaded, 60);
  EXPECT_GT(computed, 60);
}

TEST_P(LoadFromEndTest, RoomOfWhatWasComputedComesBack) {
  BothEnds both = Begin();
  const uint64_t used = slots_used();
  ComputeTo(both, 6 * kBlock);
  store_.transfers->Tick(0);  // reads of the front that were under way may end later
  ASSERT_TRUE(both.ticket.WaitFor(1'000'000));
  EXPECT_LE(slots_used(), used + 1);
  const Plan plan = both.ticket.Take();
  both.front.reset();
  EXPECT_EQ(slots_used(), kLoadFromEndBlocks);
}

TEST_P(LoadFromEndTest, WhoComputesAllOfItLoadsNothing) {
  BothEnds both = Begin();
  ComputeTo(both, prompt_.size());
  ASSERT_TRUE(both.ticket.WaitFor(1'000'000));
  EXPECT_EQ(test_->cache->stats().loaded_total, 0);
  const Plan plan = both.ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), kLoadFromEndBlocks * kBlock);
  EXPECT_EQ(plan.reason(), MissReason::kPartialBlock);
}

TEST_P(LoadFromEndTest, WhoComputesNothingLoadsAllOfIt) {
  Ticket ticket = Must(test_->cache->Load(test_->Acquire(prompt_), {.order = LoadOrder::kFromEnd}));
  Plan plan = ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), kLoadFromEndBlocks * kBlock);
  EXPECT_EQ(Differs(std::move(plan)), "");
}

TEST_P(LoadFromEndTest, WhatIsResidentAlreadyIsNotLoaded) {
  {
    test_->Run(std::span(prompt_).first(4 * kBlock));
  }
  BothEnds both = Begin();
  EXPECT_EQ(both.front->length(), 4 * kBlock);
  EXPECT_EQ(both.ticket.progress().blocks, kLoadFromEndBlocks - 4);
  ComputeTo(both, 6 * kBlock + 3);
  ASSERT_TRUE(both.ticket.WaitFor(1'000'000));
  EXPECT_EQ(test_->cache->stats().loaded_total, kLoadFromEndBlocks - 6);
  EXPECT_EQ(Differs(both.ticket.Take()), "");
}

// Only what is there at the end can have been computed meanwhile.
TEST_P(LoadFromEndTest, WhatWasComputedButNotPublishedTakesNoHitsAway) {
  test_->Run(std::span(prompt_).first(4 * kBlock)).reset();
  const uint64_t before = test_->cache->stats().hit_tokens;
  BothEnds both = Begin();
  both.ticket.Meet(6 * kBlock);
  both.ticket.Cancel();
  const Plan plan = both.ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), 4 * kBlock);
  EXPECT_EQ(test_->cache->stats().hit_tokens - before, 4 * kBlock);
}

// What follows on a damaged record is of no use, wherever what is before it comes from.
TEST_P(LoadFromEndTest, DamageEndsTheLoadWhereItIs) {
  for (const uint64_t computed : {0, 1, 3}) {
    store_.DamageSegments(9000 - 1000 * computed);  // other bits every time
    BothEnds both = Begin();
    ASSERT_EQ(both.ticket.progress().blocks, kLoadFromEndBlocks);
    ComputeTo(both, computed * kBlock);
    Plan plan = both.ticket.Take();
    EXPECT_LT(plan.resident_tokens(), kLoadFromEndBlocks * kBlock);
    EXPECT_GE(plan.resident_tokens(), computed * kBlock);
    EXPECT_EQ(plan.reason(), MissReason::kLoadFailed);
    both.front.reset();
    EXPECT_EQ(Differs(std::move(plan)), "");
    Must(store_.store->Flush());  // what was damaged is written anew
    EXPECT_EQ(LeftBehind(), 0);
  }
}

TEST_P(LoadFromEndTest, WhatEndsOnTheWayLeavesNothing) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Prng prng(seed);
    BothEnds both = Begin();
    ComputeTo(both, prng.NextBelow(6 * kBlock));
    for (uint64_t ticks = prng.NextBelow(12); ticks > 0; --ticks) store_.transfers->Tick(10);
    const uint64_t how = prng.NextBelow(3);
    if (how == 0) both.front.reset();  // what it had computed may be evicted
    if (how == 0) test_->cache->Evict(100);
    if (how > 0) both.ticket.Cancel();
    if (how < 2) {
      Plan plan = both.ticket.Take();
      both.front.reset();
      EXPECT_EQ(Differs(std::move(plan)), "") << seed;
    } else {
      const BothEnds dropped = std::move(both);
    }
    EXPECT_EQ(LeftBehind(), 0) << seed;
  }
}

TEST_P(LoadFromEndTest, WhatDoesNotComeInTimeIsLate) {
  BothEnds both = Begin({.timeout_us = 1, .order = LoadOrder::kFromEnd});
  store_.clock.Advance(1000);
  ComputeTo(both, 3 * kBlock);
  ASSERT_TRUE(both.ticket.WaitFor(1'000'000));
  const Plan plan = both.ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), 3 * kBlock);
  EXPECT_EQ(plan.reason(), MissReason::kLoadLate);
}

TEST_P(LoadFromEndTest, WhatIsErasedMeanwhileIsNotFound) {
  BothEnds both = Begin();
  ComputeTo(both, 3 * kBlock);
  Must(test_->cache->Erase(kDefaultTenant));
  ASSERT_TRUE(both.ticket.WaitFor(1'000'000));
  Plan plan = both.ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), 0);
  EXPECT_EQ(plan.missing_tokens(), prompt_.size());
  both.front.reset();
  EXPECT_EQ(Differs(std::move(plan)), "");
}

// Another request publishes blocks of the end meanwhile: in either order the bits are the same.
TEST_P(LoadFromEndTest, OthersMayComputeTheSameMeanwhile) {
  BothEnds both = Begin();
  ComputeTo(both, 2 * kBlock);
  const auto other = test_->Run(std::span(prompt_).first(8 * kBlock));
  Plan plan = both.ticket.Take();
  EXPECT_EQ(plan.resident_tokens(), kLoadFromEndBlocks * kBlock);
  EXPECT_EQ(Differs(std::move(plan)), "");
  both.front.reset();
  EXPECT_EQ(slots_used(), kLoadFromEndBlocks);
}

TEST(LoadFromEndWindowTest, AWindowOrTwinsHaveNoFront) {
  Geometry window = SmallGeometry();
  window.groups[0].kind = LayerKind::kWindow;
  window.groups[0].window_tokens = 2 * kBlock + 3;
  const NumericProfile f16 = NumericProfile::Uniform(Codec::kF16);
  const std::vector<TokenId> prompt = SomeTokens(6 * kBlock + 1, 1);
  for (const auto& [geometry, profile] :
       {std::pair(window, f16), std::pair(SmallGeometry(), EncodedInt8(2 * kBlock))}) {
    TestStore store;
    CacheOptions more;
    more.store = store.store.get();
    more.clock = &store.clock;
    TestCache test(64, geometry, profile, 0, more);
    RunThrough(test, prompt);
    Must(store.store->Flush());
    while (test.cache->Evict(100) > 0) {
    }
    Plan plan = test.Acquire(prompt);
    ASSERT_GT(plan.loadable_tokens(), 0);
    const auto ticket = test.cache->Load(std::move(plan), {.order = LoadOrder::kFromEnd});
    ASSERT_FALSE(ticket.has_value());
    EXPECT_EQ(ticket.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(test.cache->stats().hot_bytes_used, 0);
  }
}

}  // namespace
}  // namespace quire::cache
