// Which requests give up room, in which order, and what becomes of it.
#include "serve/preemption.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "serve/state_test_util.h"

namespace quire::serve {
namespace {

class PreemptionTest : public StateTest {
 protected:
  void Make(uint64_t slots, const EngineOptions& options = {}) {
    StateTest::Make(slots, options);
    waiting_.emplace(*state_);
    preemption_.emplace(*state_, *waiting_);
  }
  Task& Run(uint8_t priority = 50) { return RunOf(kDefaultTenant, priority); }
  TenantId AddTenant(const std::string& name) {
    return test_->cache->AddTenant({.name = name}).value();
  }
  Task& RunOf(TenantId tenant, uint8_t priority = 50) {
    return AddRunning({.prompt = Tokens(kBlock, ++seed_), .tenant = tenant, .priority = priority});
  }
  /// A session that idles and holds a sequence.
  void MakeIdleSession() {
    const SessionId id = mailbox_->OpenSession({}, {}).value();
    keeper_->Take(std::get<OpenSessionCommand>(std::move(mailbox_->TakeCommands().back())));
    Session& session = *keeper_->Find(id);
    session.text = Tokens(kBlock + 1, ++seed_);
    session.sequence = test_->Open(session.text);
  }
  Task* Victim(bool spare_oldest) { return FirstToGiveWay(*state_, spare_oldest); }

  std::optional<Waiting> waiting_;
  std::optional<Preemption> preemption_;
  uint64_t seed_ = 0;
};

const Error kFull{ErrorCode::kNoSpace, "full"};

TEST_F(PreemptionTest, TheMostServedTenantThenTheLowestPriorityThenTheLatest) {
  Make(16);
  const TenantId a = AddTenant("a");
  const TenantId b = AddTenant("b");
  EXPECT_EQ(Victim(false), nullptr);
  Task& oldest = RunOf(a, 10);
  EXPECT_EQ(Victim(false), &oldest);
  EXPECT_EQ(Victim(true), nullptr);
  Task& high = RunOf(a, 60);
  Task& low = RunOf(a, 50);
  Task& latest = RunOf(a, 50);
  EXPECT_EQ(Victim(false), &oldest);  // by priority
  EXPECT_EQ(Victim(true), &latest);
  state_->tasks.Stop(latest);
  EXPECT_EQ(Victim(true), &low);
  Task& other = RunOf(b, 90);
  state_->shares.Charge(a, 10);
  EXPECT_EQ(Victim(true), &low);
  state_->shares.Charge(b, 11);
  EXPECT_EQ(Victim(true), &other);
  state_->shares.SetWeight(b, 2);
  state_->shares.Charge(b, 1);
  EXPECT_EQ(Victim(true), &other);  // what was counted stays
  state_->shares.Charge(a, 2);
  EXPECT_EQ(Victim(true), &low);
  low.End(Finish::kCancelled);
  EXPECT_EQ(Victim(true), &high);
}

// Against all of them sorted: what is left is the next.
TEST_F(PreemptionTest, VictimsComeInOrder) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Make(32);
    Prng prng(seed);
    const TenantId tenants[] = {AddTenant("a"), AddTenant("b"), AddTenant("c")};
    for (const TenantId tenant : tenants) state_->shares.Charge(tenant, prng.NextBelow(2));
    std::vector<Task*> sorted;
    for (int i = 0; i < 10; ++i) {
      sorted.push_back(
          &RunOf(tenants[prng.NextBelow(3)], static_cast<uint8_t>(50 + prng.NextBelow(3))));
    }
    Task* const oldest = sorted.front();
    const auto before = [&](const Task* one, const Task* other) {
      const double served = state_->shares.served(one->tenant());
      const double other_served = state_->shares.served(other->tenant());
      if (served != other_served) return served > other_served;
      if (one->tenant() != other->tenant()) return one->tenant() > other->tenant();
      if (one->request().priority != other->request().priority) {
        return one->request().priority < other->request().priority;
      }
      return one->id() > other->id();
    };
    std::ranges::sort(sorted, before);
    std::erase(sorted, oldest);
    for (Task* const expected : sorted) {
      ASSERT_EQ(Victim(true), expected) << seed;
      preemption_->Preempt(*expected, Waits::kRoom);
    }
    EXPECT_EQ(Victim(true), nullptr);
    EXPECT_EQ(Victim(false), oldest);
  }
}

// It would start again at the expense of the oldest, which would start again beside it.
TEST_F(PreemptionTest, ARequestGrowsAtTheExpenseOfALowerPriorityThatIsTheOldest) {
  Make(16);
  Task& oldest = Run(20);
  Task& high = Run(60);
  EXPECT_TRUE(preemption_->MakeRoomToGrow(high, kFull));
  EXPECT_FALSE(oldest.running());
  EXPECT_TRUE(high.running());
}

TEST_F(PreemptionTest, ARequestStartsAtTheExpenseOfLowerPrioritiesOfItsTenant) {
  Make(16);
  Task& first = Run(20);
  Task& latest = Run(20);
  Run(30);
  RunOf(AddTenant("other"), 1);
  const Task& asks = Add({.prompt = {1}, .priority = 30});
  EXPECT_EQ(FirstToGiveWayTo(asks, *state_), &latest);
  state_->tasks.Stop(latest);
  EXPECT_EQ(FirstToGiveWayTo(asks, *state_), &first);
  state_->tasks.Stop(first);
  EXPECT_EQ(FirstToGiveWayTo(asks, *state_), nullptr);
}

TEST_F(PreemptionTest, WhoTakesRoomToStartSaysSoUntilItStarted) {
  Make(16);
  MakeIdleSession();
  const Task& low = Run(20);
  Task& asks = Add({.prompt = {1}, .priority = 30});
  EXPECT_TRUE(preemption_->MakeRoomToStart(asks));
  EXPECT_FALSE(asks.took_room());  // of an idle session
  EXPECT_TRUE(preemption_->MakeRoomToStart(asks));
  EXPECT_FALSE(low.running());
  EXPECT_TRUE(asks.took_room());
  Start(asks);
  EXPECT_FALSE(asks.took_room());
  EXPECT_FALSE(preemption_->MakeRoomToStart(asks));
}

TEST_F(PreemptionTest, IdleSessionsGoFirstThenSlowReadersThenTheOthers) {
  Make(16);
  MakeIdleSession();
  Task& oldest = Run();
  Task& slow = Run(90);
  Task& other = Run(80);
  slow.SetPaused(1);
  EXPECT_TRUE(preemption_->MakeRoomToGrow(oldest, kFull));
  EXPECT_EQ(state_->stats.sessions_released, 1u);
  EXPECT_EQ(state_->tasks.running().size(), 3u);
  EXPECT_TRUE(preemption_->MakeRoomToGrow(oldest, kFull));
  EXPECT_FALSE(slow.running());
  EXPECT_EQ(slow.wait().what, Waits::kReader);
  EXPECT_TRUE(preemption_->MakeRoomToGrow(oldest, kFull));
  EXPECT_FALSE(other.running());
  EXPECT_EQ(other.wait().what, Waits::kRoom);
  EXPECT_EQ(state_->stats.preemptions, 2u);
  EXPECT_TRUE(oldest.running());
}

TEST_F(PreemptionTest, WhoIsNextToGiveWayGivesWayItself) {
  Make(16);
  const Task& oldest = Run();
  Task& latest = Run();
  EXPECT_FALSE(preemption_->MakeRoomToGrow(latest, kFull));
  EXPECT_FALSE(latest.running());
  EXPECT_EQ(latest.wait().what, Waits::kRoom);
  EXPECT_TRUE(oldest.running());
}

TEST_F(PreemptionTest, TheOldestFailsWhereNobodyWillEverGiveAny) {
  Make(16);
  Task& whole = Run();
  const RequestId id = whole.id();
  EXPECT_FALSE(preemption_->MakeRoomToGrow(whole, kFull));
  EXPECT_EQ(ResponseOf(id)->error.message, "full");
}

TEST_F(PreemptionTest, OneThatGrewTriesToStartWithAllItMayNeed) {
  Make(16);
  Task& grew = AddRunning({.prompt = Tokens(kBlock, 1)}, 0, /*starts_whole=*/false);
  EXPECT_FALSE(preemption_->MakeRoomToGrow(grew, kFull));
  EXPECT_TRUE(grew.starts_whole());
  EXPECT_FALSE(grew.running());
  EXPECT_EQ(grew.wait().what, Waits::kNothing);
  EXPECT_TRUE(state_->may_start);
}

TEST_F(PreemptionTest, WhereOthersOutsideHoldRoomTheOldestWaitsForThem) {
  Make(16, {.outside_retry_us = 70});
  Task& whole = Run();
  EXPECT_FALSE(preemption_->MakeRoomToGrow(whole, kFull));
  EXPECT_FALSE(whole.ended());
  EXPECT_EQ(whole.wait().what, Waits::kRoom);
  EXPECT_EQ(waiting_->retry_outside_us(), clock_.NowMicros() + 70);
}

TEST_F(PreemptionTest, WhoHaltsOnAFullCacheTakesFromNobody) {
  Make(16);
  Task& halts = AddRunning({.prompt = Tokens(kBlock, 1), .on_full = OnFull::kHalt});
  const RequestId id = halts.id();
  const Task& other = Run();
  MakeIdleSession();
  EXPECT_FALSE(preemption_->MakeRoomToGrow(halts, kFull));
  EXPECT_EQ(ResponseOf(id)->finish, Finish::kNoSpace);
  EXPECT_TRUE(other.running());
  EXPECT_EQ(state_->stats.sessions_released, 0u);
}

TEST_F(PreemptionTest, WhoLosesItsSequenceHasRoomComeBackForTheOthers) {
  Make(16);
  Task& waits = Add({.prompt = {1}});
  waits.WaitFor({.what = Waits::kRoom});
  Task& runs = Run();
  preemption_->Preempt(runs, Waits::kRoom);
  EXPECT_EQ(waits.wait().what, Waits::kNothing);
  EXPECT_EQ(runs.wait().what, Waits::kRoom);
  EXPECT_TRUE(state_->may_start);
}

TEST_F(PreemptionTest, WhatIsGivenToOneOutsideIsForNobodyHere) {
  Make(16, {.outside_retry_us = 70});
  Task& waits = Add({.prompt = {1}});
  waits.WaitFor({.what = Waits::kRoom});
  const Task& only = Run();
  MakeIdleSession();
  preemption_->GiveWay();
  EXPECT_EQ(state_->stats.sessions_released, 1u);
  EXPECT_TRUE(only.running());
  preemption_->GiveWay();  // the oldest is not spared
  EXPECT_FALSE(only.running());
  EXPECT_EQ(waits.wait().what, Waits::kRoom);
  EXPECT_FALSE(state_->may_start);
  preemption_->GiveWay();  // none is left
}

TEST_F(PreemptionTest, AReaderThatTakesNothingForLongCostsTheSequence) {
  Make(16, {.stall_us = 100});
  Task& task = Run();
  Task& waits = Add({.prompt = {1}});
  waits.WaitFor({.what = Waits::kRoom});
  FillEvents(task);
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_EQ(task.paused_us(), clock_.NowMicros());
  EXPECT_EQ(waits.wait().what, Waits::kNothing);  // it may take the room of this one
  clock_.Advance(99);
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_TRUE(task.running());
  clock_.Advance(1);
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_FALSE(task.running());
  EXPECT_EQ(task.wait().what, Waits::kReader);
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_EQ(task.wait().what, Waits::kReader);
  TakeEvents(task);
  state_->may_start = false;
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_EQ(task.wait().what, Waits::kNothing);
  EXPECT_TRUE(state_->may_start);
}

// No step is taken meanwhile that would tell it.
TEST_F(PreemptionTest, WhoWaitsForThePrefixOfOneThatStandsStillComputesItItself) {
  Make(16, {.stall_us = 100});
  Task& owner = Run();
  Task& waits = Add({.prompt = {owner.text().tokens().begin(), owner.text().tokens().end()}});
  waits.WaitFor({.what = Waits::kPrefix, .owner = owner.id(), .tokens = kBlock});
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_EQ(waits.wait().what, Waits::kPrefix);
  FillEvents(owner);
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_EQ(waits.wait().what, Waits::kNothing);
  EXPECT_TRUE(state_->may_start);
  EXPECT_TRUE(owner.running());
}

TEST_F(PreemptionTest, AReaderThatComesBackIsForgiven) {
  Make(16, {.stall_us = 100});
  Task& task = Run();
  FillEvents(task);
  preemption_->LookAtReaders(clock_.NowMicros());
  clock_.Advance(99);
  TakeEvents(task);
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_FALSE(task.paused_us().has_value());
  FillEvents(task);
  clock_.Advance(99);
  preemption_->LookAtReaders(clock_.NowMicros());
  EXPECT_TRUE(task.running());
}

}  // namespace
}  // namespace quire::serve
