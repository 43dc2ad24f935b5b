// Whether what a store has of a prompt is loaded, computed or both, and requests that wait for it.
#include "serve/prompt_loads.h"

#include <gtest/gtest.h>

#include "cache/below/test_store.h"
#include "serve/state_test_util.h"

namespace quire::serve {
namespace {

constexpr uint64_t kSeenUs = 1'000'000;

TEST(RecentRate, ForgetsWhatWasLongAgo) {
  RecentRate rate;
  EXPECT_FALSE(rate.UsPerUnit(kSeenUs).has_value());
  rate.Add(7, 0, kSeenUs);
  EXPECT_FALSE(rate.UsPerUnit(kSeenUs).has_value());
  rate.Add(100, 1000, kSeenUs);
  EXPECT_DOUBLE_EQ(*rate.UsPerUnit(kSeenUs), 0.1);
  // A disk that became ten times as slow is believed after a few loads, and one that recovers too.
  for (int i = 0; i < 8; ++i) rate.Add(1000, 1000, kSeenUs);
  EXPECT_NEAR(*rate.UsPerUnit(kSeenUs), 1, 0.1);
  for (int i = 0; i < 8; ++i) rate.Add(100, 1000, kSeenUs);
  EXPECT_NEAR(*rate.UsPerUnit(kSeenUs), 0.1, 0.1);
  EXPECT_TRUE(rate.UsPerUnit(kSeenUs + RecentRate::kKnownUs).has_value());
  EXPECT_FALSE(rate.UsPerUnit(kSeenUs + RecentRate::kKnownUs + 1).has_value());
}

TEST(HowToBring, ThePolicyComesFirst) {
  for (const bool can_both : {false, true}) {
    EXPECT_EQ(HowToBring(LoadPolicy::kNever, Costs{1, 100}, can_both), Bring::kCompute);
    EXPECT_EQ(HowToBring(LoadPolicy::kAlways, Costs{100, 1}, can_both), Bring::kLoad);
  }
}

TEST(HowToBring, WhereNothingWasMeasuredItIsLoaded) {
  for (const bool can_both : {false, true}) {
    EXPECT_EQ(HowToBring(LoadPolicy::kAuto, std::nullopt, can_both), Bring::kLoad);
  }
}

TEST(HowToBring, BothIfThatIsAskedForAndCanBe) {
  for (const auto& costs : {std::optional<Costs>(), std::optional(Costs{1, 100})}) {
    EXPECT_EQ(HowToBring(LoadPolicy::kBoth, costs, true), Bring::kBoth);
    EXPECT_EQ(HowToBring(LoadPolicy::kBoth, costs, false), Bring::kLoad);
  }
}

TEST(HowToBring, TheFasterOneOrBothWhereTheyAreWithinFourOfEachOther) {
  struct Case {
    Costs costs;
    Bring with_both;
    Bring alone;
  };
  for (const Case& each :
       {Case{{10, 39}, Bring::kBoth, Bring::kLoad}, Case{{39, 10}, Bring::kBoth, Bring::kCompute},
        Case{{10, 40}, Bring::kLoad, Bring::kLoad},
        Case{{40, 10}, Bring::kCompute, Bring::kCompute},
        Case{{10, 10}, Bring::kBoth, Bring::kCompute},
        Case{{0, 0}, Bring::kCompute, Bring::kCompute},
        Case{{0, 10}, Bring::kLoad, Bring::kLoad}}) {
    SCOPED_TRACE(std::to_string(each.costs.load_us) + " " + std::to_string(each.costs.compute_us));
    EXPECT_EQ(HowToBring(LoadPolicy::kAuto, each.costs, true), each.with_both);
    EXPECT_EQ(HowToBring(LoadPolicy::kAuto, each.costs, false), each.alone);
  }
}

TEST(SlicesToLoad, AreAsLargeAsIsAskedAndSaveTime) {
  const Costs both{.load_us = 10, .compute_us = 10};
  EXPECT_EQ(SlicesToLoad(both, 100, 200), 1u);
  EXPECT_EQ(SlicesToLoad(both, 399, 200), 1u);
  EXPECT_EQ(SlicesToLoad(both, 400, 200), 2u);
  EXPECT_EQ(SlicesToLoad(both, 4000, 200), 2u);
  EXPECT_EQ(SlicesToLoad(both, 4000, 0), 2u);
  EXPECT_EQ(SlicesToLoad({.load_us = 10, .compute_us = 5}, 400, 200), 2u);
  EXPECT_EQ(SlicesToLoad({.load_us = 10, .compute_us = 4.9}, 400, 200), 1u);
}

TEST(FrontTokens, AreItsShareOfTheTimeOfBoth) {
  EXPECT_EQ(FrontTokens(std::nullopt, 100), 51u);
  EXPECT_EQ(FrontTokens(Costs{30, 10}, 100), 76u);
  EXPECT_EQ(FrontTokens(Costs{10, 30}, 100), 26u);
  EXPECT_EQ(FrontTokens(Costs{0, 30}, 100), 1u);
  EXPECT_EQ(FrontTokens(Costs{0, 0}, 100), 1u);  // not 0 divided by 0
  EXPECT_EQ(FrontTokens(Costs{30, 0}, 100), 101u);
  EXPECT_EQ(FrontTokens(Costs{10, 10}, 0), 1u);
}

class PromptLoadsTest : public StateTest {
 protected:
  /// The store has prompt_ but for its last block, and memory nothing.
  void MakeWith(LoadPolicy load) {
    Make(32, {.load = load}, {.store = machine_.store.get()});
    waiting_.emplace(*state_);
    preemption_.emplace(*state_, *waiting_);
    loads_.emplace(*state_, *waiting_, *preemption_);
    test_->Run(prompt_);
    cache::Must(machine_.store->Flush());
    EvictAll();
  }
  ~PromptLoadsTest() override { End(); }
  void EvictAll() {
    while (test_->cache->Evict(100) > 0) {
    }
  }
  Result<void> Start(Task& task) {
    return loads_->Start(task, test_->Acquire(task.text().tokens()),
                         {.reserve_tokens = task.text().tokens_at_most()});
  }
  Task& Ask() { return Add({.prompt = prompt_, .max_tokens = 2}); }
  void BringAll() {
    for (int i = 0; i < 1000; ++i) machine_.transfers->Tick(100);
  }

  cache::TestStore machine_;
  const std::vector<TokenId> prompt_ = Tokens(8 * kBlock + 5, 1);
  std::optional<Waiting> waiting_;
  std::optional<Preemption> preemption_;
  std::optional<PromptLoads> loads_;
};

TEST_F(PromptLoadsTest, ALoadIsWaitedForAndCounted) {
  MakeWith(LoadPolicy::kAlways);
  Task& task = Ask();
  ASSERT_TRUE(Start(task).has_value());
  EXPECT_EQ(task.wait().what, Waits::kLoad);
  EXPECT_EQ(state_->holders(), 1u);  // it has room for it
  loads_->TakeDone();
  EXPECT_FALSE(task.running());
  BringAll();
  loads_->TakeDone();
  EXPECT_TRUE(task.running());
  EXPECT_EQ(task.position(), 8u * kBlock);
  EXPECT_TRUE(state_->loads.empty());
  EXPECT_EQ(state_->stats.loads, 1u);
  EXPECT_EQ(state_->stats.loads_from_end, 0u);
  EXPECT_EQ(state_->stats.loaded_tokens, 8u * kBlock);
  EXPECT_EQ(state_->stats.load_bytes, 8 * test_->cache->block_bytes());
}

TEST_F(PromptLoadsTest, OthersWaitForWhatIsLoaded) {
  MakeWith(LoadPolicy::kAlways);
  Task& task = Ask();
  ASSERT_TRUE(Start(task).has_value());
  Task& other = Ask();
  const auto wait = waiting_->ForPrefix(other);
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->owner, task.id());
  EXPECT_EQ(wait->tokens, 8u * kBlock);
  other.WaitFor(*wait);
  waiting_->WakeForPrefix();
  EXPECT_EQ(other.wait().what, Waits::kPrefix);
  BringAll();
  loads_->TakeDone();
  EXPECT_EQ(other.wait().what, Waits::kNothing);
}

TEST_F(PromptLoadsTest, WhoRunsAloneWaitsForTheRoomOfALoad) {
  MakeWith(LoadPolicy::kAlways);
  ASSERT_TRUE(Start(Ask()).has_value());
  Task& alone = AddRunning({.prompt = Tokens(kBlock, 2)});
  EXPECT_FALSE(preemption_->MakeRoomToGrow(alone, {ErrorCode::kNoSpace, "full"}));
  EXPECT_FALSE(alone.ended());
  EXPECT_EQ(alone.wait().what, Waits::kRoom);
  BringAll();
  loads_->TakeDone();
  EXPECT_EQ(alone.wait().what, Waits::kNothing);
}

TEST_F(PromptLoadsTest, NothingIsLoadedWhereThatIsNotWanted) {
  MakeWith(LoadPolicy::kNever);
  Task& task = Ask();
  ASSERT_TRUE(Start(task).has_value());
  EXPECT_TRUE(task.running());
  EXPECT_EQ(task.position(), 0u);
  EXPECT_EQ(state_->stats.loads, 0u);
}

TEST_F(PromptLoadsTest, CostsAreInProportionToWhatWasSeenLately) {
  MakeWith(LoadPolicy::kAuto);
  const auto add = [&](RecentRate& rate, uint64_t us, uint64_t units) {
    rate.Add(us, units, state_->clock.NowMicros());
  };
  EXPECT_FALSE(CostsOf(*state_, 50, 400).has_value());
  add(state_->stats.load_rate, 100, 1000);
  EXPECT_FALSE(CostsOf(*state_, 50, 400).has_value());
  add(state_->stats.read_rate, 600, 20);
  const auto costs = CostsOf(*state_, 50, 400);
  ASSERT_TRUE(costs.has_value());
  EXPECT_DOUBLE_EQ(costs->load_us, 40);
  EXPECT_DOUBLE_EQ(costs->compute_us, 1500);
}

TEST_F(PromptLoadsTest, FromBothEndsTheFrontStopsWhereTheyMeet) {
  MakeWith(LoadPolicy::kBoth);
  Task& task = Ask();
  ASSERT_TRUE(Start(task).has_value());
  EXPECT_TRUE(task.running());
  EXPECT_EQ(state_->holders(), 1u);
  EXPECT_EQ(state_->stats.loads_from_end, 1u);
  const uint64_t first = task.NextTokens(1000).size();
  EXPECT_EQ(first, 5u * kBlock);  // half of 8 blocks, and up to a whole one more
  Compute(task, first);
  BringAll();
  loads_->TakeDone();
  EXPECT_TRUE(state_->loads.empty());
  EXPECT_EQ(task.position(), 8u * kBlock);
  EXPECT_EQ(state_->stats.loaded_tokens, 3u * kBlock);
  EXPECT_EQ(task.NextTokens(1000).size(), 5u);
}

TEST_F(PromptLoadsTest, AsLongAsNothingWasMeasuredItIsLoaded) {
  MakeWith(LoadPolicy::kAuto);
  Task& loads = Ask();
  ASSERT_TRUE(Start(loads).has_value());
  EXPECT_EQ(loads.wait().what, Waits::kLoad);
  EXPECT_EQ(state_->stats.loads_from_end, 0u);
  BringAll();
  loads_->TakeDone();
  EXPECT_EQ(loads.position(), 8u * kBlock);
  loads.End(Finish::kCancelled);
  state_->tasks.TakeEnded();
  EvictAll();
  {
    const Plan plan = test_->Acquire(prompt_);
    const uint64_t now_us = state_->clock.NowMicros();
    state_->stats.load_rate.Add(1000, plan.loadable_bytes(), now_us);
    state_->stats.read_rate.Add(1000, plan.loadable_tokens(), now_us);
  }
  Task& both = Ask();
  ASSERT_TRUE(Start(both).has_value());
  EXPECT_EQ(state_->stats.loads_from_end, 1u);
}

TEST_F(PromptLoadsTest, BesideOthersWhatIsSlowerIsNotDoneToo) {
  MakeWith(LoadPolicy::kBoth);
  AddRunning({.prompt = Tokens(20, 9)});
  Task& loads = Ask();
  ASSERT_TRUE(Start(loads).has_value());
  EXPECT_EQ(loads.wait().what, Waits::kLoad);
  EXPECT_EQ(state_->stats.loads_from_end, 0u);
}

}  // namespace
}  // namespace quire::serve
