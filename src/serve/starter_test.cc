// Which request is first in line, and which starts.
#include "serve/starter.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "serve/state_test_util.h"

namespace quire::serve {
namespace {

constexpr TenantId kA{1};
constexpr TenantId kB{2};

class StarterTest : public StateTest {
 protected:
  Task& Wait(uint8_t priority, uint64_t deadline_us = 0, TenantId tenant = kDefaultTenant) {
    return Add(
        {.prompt = {1, 2, 3}, .tenant = tenant, .priority = priority, .deadline_us = deadline_us});
  }
  Task* First() { return FirstInLine(*state_, clock_.NowMicros()); }
  /// The order in which those that wait would start, if nothing else changed.
  std::vector<Task*> Line() {
    std::vector<Task*> line;
    while (Task* const first = First()) {
      line.push_back(first);
      first->WaitFor({.what = Waits::kReader});
    }
    return line;
  }
};

using Tasks = std::vector<Task*>;

TEST_F(StarterTest, InATenantByPriorityThenDeadlineThenAge) {
  Make(8);
  Task& old = Wait(50);
  Task& late = Wait(50, 900);
  Task& soon = Wait(50, 300);
  Task& high = Wait(60);
  Task& young = Wait(50);
  EXPECT_EQ(Line(), (Tasks{&high, &soon, &late, &old, &young}));
}

TEST_F(StarterTest, WhoWaitsGetsMoreUrgent) {
  Make(8, {.aging_us = 100});
  Task& low = Wait(50);
  clock_.Advance(150);  // one priority higher
  Task& same = Wait(51);
  EXPECT_EQ(First(), &low);
  Task& high = Wait(52);
  EXPECT_EQ(Line(), (Tasks{&high, &low, &same}));
}

TEST_F(StarterTest, TheLeastServedTenantIsFirstWhateverThePriorities) {
  Make(8);
  Task& a = Wait(90, 0, kA);
  Task& b = Wait(10, 0, kB);
  EXPECT_EQ(First(), &a);  // of those served alike the smaller id
  state_->shares.Charge(kA, 1);
  EXPECT_EQ(First(), &b);
  state_->shares.Charge(kB, 10);
  EXPECT_EQ(First(), &a);
  state_->shares.SetWeight(kB, 100);
  state_->shares.Charge(kA, 11);
  state_->shares.Charge(kB, 10);
  EXPECT_EQ(First(), &b);  // 10.1 for 12
}

TEST_F(StarterTest, WhatRunningRequestsMayStillComputeCountsAsServed) {
  Make(8);
  Task& a = AddRunning({.prompt = Tokens(20, 1), .max_tokens = 6}, 5);
  const Task& b = AddRunning({.prompt = Tokens(30, 2), .max_tokens = 1}, 20);
  ASSERT_EQ(a.tenant(), b.tenant());
  Task& of_them = Wait(50);  // 25 - 5 and 30 - 20 more
  Task& of_a = Wait(50, 0, kA);
  state_->shares.Charge(kA, 29);
  EXPECT_EQ(First(), &of_a);
  state_->shares.Charge(kA, 2);
  EXPECT_EQ(First(), &of_them);
}

TEST_F(StarterTest, OnlyWhoWaitsForNothingOrForRoomIsInLine) {
  Make(8);
  for (const Waits what : {Waits::kPrefix, Waits::kReader, Waits::kLoad, Waits::kText}) {
    Wait(90).WaitFor({.what = what});
  }
  EXPECT_EQ(First(), nullptr);
  Task& last = Wait(10);
  EXPECT_EQ(First(), &last);
  Task& runs = AddRunning({.prompt = Tokens(20, 1), .priority = 90});
  EXPECT_EQ(First(), &last);
  // One that waits for room holds up those behind it, as long as the engine holds any.
  Task& waits = Wait(50);
  waits.WaitFor({.what = Waits::kRoom});
  EXPECT_EQ(First(), &waits);
  state_->tasks.Stop(runs);
  runs.WaitFor({.what = Waits::kReader});
  EXPECT_EQ(First(), &last);
}

// Else the lower one starts, gives its room up once more, and so on, while what is loaded for the
// other one goes to make room for it.
TEST_F(StarterTest, WhoGaveItsRoomUpStartsBehindTheOneThatTookIt) {
  Make(8, {.aging_us = 100});
  Task& low = Wait(10);
  Task& other = Wait(10, 0, kA);
  clock_.Advance(100'000);
  Task& high = Wait(60);
  ASSERT_EQ(First(), &low);  // by its age
  high.TakeRoom();
  EXPECT_EQ(First(), &high);
  high.WaitFor({.what = Waits::kLoad});
  EXPECT_EQ(First(), &other);
  Task& higher = Wait(70);
  EXPECT_EQ(First(), &higher);
  for (Task* const task : {&higher, &other}) task->WaitFor({.what = Waits::kPrefix});
  EXPECT_EQ(First(), nullptr);
  Start(high);
  EXPECT_EQ(First(), &low);
}

// Against all of them sorted by the order that the header tells.
TEST_F(StarterTest, TheFirstIsTheLeastOfAll) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Make(8, {.aging_us = 50});
    Prng prng(seed);
    for (int i = 0; i < 12; ++i) {
      clock_.Advance(prng.NextBelow(60));
      Task& task =
          Wait(static_cast<uint8_t>(50 + prng.NextBelow(3)),
               prng.NextBelow(2) * (1000 + prng.NextBelow(3)), TenantId(prng.NextBelow(3)));
      state_->shares.Charge(task.tenant(), prng.NextBelow(3));
      if (prng.NextBelow(4) == 0) task.WaitFor({.what = Waits::kPrefix});
    }
    Tasks sorted;
    for (const auto& [id, task] : state_->tasks.all()) {
      if (task->wait().what == Waits::kNothing) sorted.push_back(task.get());
    }
    const auto before = [&](const Task* one, const Task* other) {
      const double served = state_->shares.served(one->tenant());
      const double other_served = state_->shares.served(other->tenant());
      if (served != other_served) return served < other_served;
      if (one->tenant() != other->tenant()) return one->tenant() < other->tenant();
      const auto urgency = [&](const Task& task) {
        return task.request().priority + (clock_.NowMicros() - task.submitted_us()) / 50;
      };
      if (urgency(*one) != urgency(*other)) return urgency(*one) > urgency(*other);
      const uint64_t due = one->request().deadline_us;
      const uint64_t other_due = other->request().deadline_us;
      if (due != other_due) return due != 0 && (other_due == 0 || due < other_due);
      return one->id() < other->id();
    };
    std::ranges::sort(sorted, before);
    EXPECT_EQ(Line(), sorted) << seed;
  }
}

class StartSomeTest : public StarterTest {
 protected:
  void StartSome() {
    Waiting waiting(*state_);
    Preemption preemption(*state_, waiting);
    PromptLoads loads(*state_, waiting, preemption);
    Starter(*state_, test_->identity, waiting, preemption, loads).StartSome(clock_.NowMicros());
  }
  Task& Ask(uint64_t blocks, uint64_t seed, uint8_t priority = 50) {
    state_->may_start = true;
    return Add({.prompt = Tokens(blocks * kBlock, seed), .max_tokens = 1, .priority = priority});
  }
};

TEST_F(StartSomeTest, WhoFindsNoRoomIsWaitedFor) {
  Make(6);
  const Task& first = Ask(3, 1);
  const Task& large = Ask(5, 2);
  const Task& small = Ask(1, 3);
  StartSome();
  EXPECT_TRUE(first.running());
  EXPECT_EQ(large.wait().what, Waits::kRoom);
  EXPECT_FALSE(small.running());  // there is room for it
  EXPECT_EQ(small.wait().what, Waits::kNothing);
  EXPECT_FALSE(state_->may_start);
  EXPECT_EQ(state_->stats.looks, 2u);
}

TEST_F(StartSomeTest, NoMoreThanRunningMaxStart) {
  Make(8, {.running_max = 2});
  for (uint64_t seed = 0; seed < 3; ++seed) Ask(1, seed);
  StartSome();
  EXPECT_EQ(state_->tasks.running().size(), 2u);
  EXPECT_FALSE(state_->may_start);
}

TEST_F(StartSomeTest, WhatCanNeverFitFails) {
  Make(4);
  const RequestId large = Ask(5, 1).id();
  const Task& small = Ask(4, 2);
  StartSome();
  EXPECT_EQ(state_->tasks.Find(large), nullptr);
  EXPECT_EQ(ResponseOf(large)->finish, Finish::kFailed);
  EXPECT_TRUE(small.running());
}

// What it may say in all has no room just now: it starts with its prompt and four blocks.
TEST_F(StartSomeTest, WhoGrowsStartsWithLessThanItMayNeed) {
  Make(12);
  const Task& first = Ask(6, 1);
  StartSome();
  ASSERT_TRUE(first.running());
  state_->may_start = true;
  const Task& grows = Add({.prompt = Tokens(2 * kBlock, 2), .max_tokens = 7 * kBlock},
                          /*starts_whole=*/false);
  StartSome();
  EXPECT_TRUE(grows.running());
  state_->may_start = true;
  const Task& large = Add({.prompt = Tokens(3 * kBlock, 3), .max_tokens = 7 * kBlock},
                          /*starts_whole=*/false);
  StartSome();
  EXPECT_FALSE(large.running());
  EXPECT_EQ(large.wait().what, Waits::kRoom);
}

TEST_F(StartSomeTest, AHigherPriorityTakesTheRoomOfALowerOne) {
  Make(4);
  const Task& low = Ask(3, 1, 10);
  StartSome();
  ASSERT_TRUE(low.running());
  const Task& same = Ask(3, 2, 10);
  StartSome();
  EXPECT_FALSE(same.running());
  const Task& high = Ask(3, 3, 20);
  StartSome();
  EXPECT_TRUE(high.running());
  EXPECT_FALSE(low.running());
  EXPECT_EQ(low.wait().what, Waits::kRoom);
  EXPECT_EQ(state_->stats.preemptions, 1u);
}

TEST_F(StartSomeTest, OfTwoWithOnePrefixOneComputesIt) {
  Make(8);
  const Task& first = Ask(3, 1);
  const Task& second = Ask(3, 1);
  StartSome();
  EXPECT_TRUE(first.running());
  EXPECT_EQ(second.wait().what, Waits::kPrefix);
  EXPECT_EQ(second.wait().owner, first.id());
  EXPECT_EQ(second.wait().tokens, 2u * kBlock);  // a token of the third is computed
  EXPECT_EQ(state_->stats.prefix_waits, 1u);
}

}  // namespace
}  // namespace quire::serve
