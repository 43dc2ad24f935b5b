// What waiting requests wait for, and what wakes them.
#include "serve/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "serve/state_test_util.h"

namespace quire::serve {
namespace {

class WaitingTest : public StateTest {
 protected:
  void Make(uint64_t slots, const EngineOptions& options = {},
            const NumericProfile& profile = NumericProfile::Uniform(Codec::kF16)) {
    StateTest::Make(slots, options, {}, profile);
    waiting_.emplace(*state_);
  }
  Request Of(const std::vector<TokenId>& prompt, TenantId tenant = kDefaultTenant) {
    return {.prompt = prompt, .max_tokens = 4, .tenant = tenant};
  }
  /// The first `common` tokens of `prompt`, then others.
  static std::vector<TokenId> Branch(std::vector<TokenId> prompt, uint64_t common) {
    for (uint64_t i = common; i < prompt.size(); ++i) prompt[i] = 60'000;
    return prompt;
  }
  uint64_t WaitsFor(const Request& request) {
    Task& task = Add(request);
    const auto wait = waiting_->ForPrefix(task);
    task.End(Finish::kCancelled);
    waiting_->RemoveEnded();
    return wait ? wait->tokens : 0;
  }

  const std::vector<TokenId> prompt_ = Tokens(5 * kBlock, 1);
  std::optional<Waiting> waiting_;
};

TEST_F(WaitingTest, ForWholeBlocksThatAnotherHasNotComputedYet) {
  Make(32);
  Task& owner = AddRunning(Of(prompt_));
  EXPECT_EQ(WaitsFor(Of(prompt_)), 4u * kBlock);  // one token at least is left to compute
  EXPECT_EQ(WaitsFor(Of(Tokens(5 * kBlock, 2))), 0u);
  EXPECT_EQ(WaitsFor(Of(Branch(prompt_, 2 * kBlock + 3))), 2u * kBlock);
  EXPECT_EQ(WaitsFor(Of(Branch(prompt_, kBlock - 1))), 0u);
  Compute(owner, 2 * kBlock + 5);
  EXPECT_EQ(WaitsFor(Of(Branch(prompt_, 2 * kBlock + 3))), 0u);  // it is there
  EXPECT_EQ(WaitsFor(Of(prompt_)), 4u * kBlock);
  Request alone = Of(prompt_);
  alone.reuse = false;
  EXPECT_EQ(WaitsFor(alone), 0u);
}

TEST_F(WaitingTest, ForWhoHasMostInCommonAndGoesOn) {
  Make(32);
  AddRunning(Of(Branch(prompt_, kBlock)));
  Task& most = AddRunning(Of(Branch(prompt_, 3 * kBlock)));
  AddRunning(Of(Branch(prompt_, 2 * kBlock)));
  EXPECT_EQ(waiting_->ForPrefix(Add(Of(prompt_)))->owner, most.id());
  most.SetPaused(1);
  EXPECT_EQ(WaitsFor(Of(prompt_)), 2u * kBlock);
}

TEST_F(WaitingTest, WhatIsPrivateIsNotWaitedFor) {
  Make(32);
  Request owner = Of(prompt_);
  owner.keep.share = 0.5;
  AddRunning(owner);
  EXPECT_EQ(WaitsFor(Of(prompt_)), 0u);
}

TEST_F(WaitingTest, OnlyTenantsOfOneDomainWaitForEachOther) {
  Make(32);
  const TenantId a = test_->cache->AddTenant({.name = "a"}).value();
  const TenantId b = test_->cache->AddTenant({.name = "b"}).value();
  AddRunning(Of(prompt_, a));
  EXPECT_EQ(WaitsFor(Of(prompt_, a)), 4u * kBlock);
  EXPECT_EQ(WaitsFor(Of(prompt_, b)), 0u);
  waiting_->SetDomain(a, TenantId(77));
  EXPECT_EQ(WaitsFor(Of(prompt_, b)), 0u);
  waiting_->SetDomain(b, TenantId(78));
  EXPECT_EQ(WaitsFor(Of(prompt_, b)), 0u);
  waiting_->SetDomain(b, TenantId(77));
  EXPECT_EQ(WaitsFor(Of(prompt_, b)), 4u * kBlock);
  waiting_->SetDomain(b, TenantId::None());
  EXPECT_EQ(WaitsFor(Of(prompt_, b)), 0u);
}

TEST_F(WaitingTest, WithResidualTokensOnlyTheEndOfAPromptIsWaitedFor) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8);
  profile.open_dtype = Codec::kF32;
  profile.residual_tokens = kBlock;
  Make(64, {}, profile);
  AddRunning(Of(prompt_));
  EXPECT_EQ(WaitsFor(Of(Branch(prompt_, 3 * kBlock))), 0u);
  EXPECT_EQ(WaitsFor(Of(prompt_)), 4u * kBlock);
}

// Against one that compares block by block.
TEST_F(WaitingTest, TheLongestCommonBeginningIsFound) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Make(64);
    Prng prng(seed);
    // Few tokens, so that prompts have beginnings in common.
    const auto draw = [&] {
      std::vector<TokenId> prompt(1 + prng.NextBelow(4 * kBlock));
      for (uint64_t i = 0; i < prompt.size(); ++i) {
        prompt[i] = static_cast<TokenId>(i % kBlock == 0 ? prng.NextBelow(2) : 7);
      }
      return prompt;
    };
    for (int i = 0; i < 3; ++i) {
      const std::vector<TokenId> prompt = draw();
      Task& task = AddRunning(Of(prompt));
      const uint64_t left = task.text().goal() - task.position();
      if (const uint64_t some = prng.NextBelow(left); some > 0) Compute(task, some);
    }
    const std::vector<TokenId> prompt = draw();
    uint64_t most = 0;
    for (const Task* const owner : state_->tasks.running()) {
      const auto theirs = owner->text().tokens();
      uint64_t common = 0;
      for (uint64_t end = kBlock; end < prompt.size() && end <= theirs.size(); end += kBlock) {
        if (!std::equal(theirs.begin(), theirs.begin() + static_cast<int64_t>(end),
                        prompt.begin())) {
          break;
        }
        common = end;
      }
      if (common > owner->position() / kBlock * kBlock) most = std::max(most, common);
    }
    EXPECT_EQ(WaitsFor(Of(prompt)), most) << seed;
  }
}

TEST_F(WaitingTest, ItEndsWhenThePrefixIsThere) {
  Make(32);
  Task& owner = AddRunning(Of(prompt_));
  Task& task = Add(Of(Branch(prompt_, 2 * kBlock)));
  task.WaitFor(*waiting_->ForPrefix(task));
  Compute(owner, 2 * kBlock - 1);
  waiting_->WakeForPrefix();
  EXPECT_EQ(task.wait().what, Waits::kPrefix);
  EXPECT_FALSE(state_->may_start);
  Compute(owner, 1);
  waiting_->WakeForPrefix();
  EXPECT_EQ(task.wait().what, Waits::kNothing);
  EXPECT_TRUE(state_->may_start);
}

TEST_F(WaitingTest, ItEndsWhenTheOtherDoesNotGoOn) {
  for (int how = 0; how < 3; ++how) {
    Make(32);
    Task& owner = AddRunning(Of(prompt_));
    Task& task = Add(Of(prompt_));
    task.WaitFor(*waiting_->ForPrefix(task));
    if (how == 0) owner.SetPaused(1);
    if (how == 1) state_->tasks.Stop(owner);
    if (how == 2) {
      owner.End(Finish::kCancelled);
      waiting_->RemoveEnded();
    } else {
      waiting_->WakeForPrefix();
    }
    EXPECT_EQ(task.wait().what, Waits::kNothing) << how;
  }
}

TEST_F(WaitingTest, WhoWaitsForRoomHearsOfEveryEnd) {
  Make(32);
  const Task& owner = AddRunning(Of(prompt_));
  Task& task = Add(Of(prompt_));
  waiting_->WaitForRoom(task);
  waiting_->RemoveEnded();
  EXPECT_EQ(task.wait().what, Waits::kRoom);  // none has ended
  state_->tasks.Find(owner.id())->End(Finish::kCancelled);
  waiting_->RemoveEnded();
  EXPECT_EQ(task.wait().what, Waits::kNothing);
  EXPECT_TRUE(state_->may_start);
  EXPECT_TRUE(state_->tasks.running().empty());
}

TEST_F(WaitingTest, WhatARunningRequestGivesBackIsSeen) {
  Make(32);
  Request keeps = Of(prompt_);
  keeps.keep = {.share = 0.4, .by = KeepBy::kRecent};
  Task& owner = AddRunning(keeps);
  Task& task = Add(Of(Tokens(20, 3)));
  waiting_->WaitForRoom(task);
  Compute(owner, 2 * kBlock);
  waiting_->LookForRoom();
  EXPECT_EQ(task.wait().what, Waits::kRoom);
  Compute(owner, 3 * kBlock);
  waiting_->LookForRoom();
  EXPECT_EQ(task.wait().what, Waits::kRoom);
  // Behind its prompt it drops blocks.
  cache::Must(owner.Reserve(1));
  waiting_->LookForRoom();
  EXPECT_EQ(task.wait().what, Waits::kNothing);
}

TEST_F(WaitingTest, OthersOutsideAreAskedAgainAfterAWhile) {
  Make(32, {.outside_retry_us = 50});
  EXPECT_TRUE(waiting_->CanWaitForRoom());
  EXPECT_EQ(waiting_->retry_outside_us(), UINT64_MAX);
  Task& first = Add(Of(prompt_));
  waiting_->WaitForRoom(first);
  clock_.Advance(30);
  Task& second = Add(Of(prompt_));
  waiting_->WaitForRoom(second);
  EXPECT_EQ(waiting_->retry_outside_us(), clock_.NowMicros() + 20);  // the earlier of the two
  waiting_->RetryOutside(clock_.NowMicros() + 19);
  EXPECT_EQ(first.wait().what, Waits::kRoom);
  waiting_->RetryOutside(clock_.NowMicros() + 20);
  EXPECT_EQ(first.wait().what, Waits::kNothing);
  EXPECT_EQ(second.wait().what, Waits::kNothing);
  EXPECT_EQ(waiting_->retry_outside_us(), UINT64_MAX);
}

TEST_F(WaitingTest, NobodyCanGiveWhatNobodyHolds) {
  Make(32);
  EXPECT_FALSE(waiting_->CanWaitForRoom());
  Task& owner = AddRunning(Of(prompt_));
  EXPECT_TRUE(waiting_->CanWaitForRoom());
  owner.End(Finish::kCancelled);
  waiting_->RemoveEnded();
  EXPECT_FALSE(waiting_->CanWaitForRoom());
}

}  // namespace
}  // namespace quire::serve
