// What every eviction policy must do (SPEC S2, S3, S4).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/prng.h"
#include "evict/baselines/baselines.h"
#include "evict/policies.h"
#include "tests/suite/policy_tree.h"

namespace quire::evict {
namespace {

constexpr uint32_t kSteps = 3000;

/// Those of caches, and those of replays.
std::vector<std::string_view> AllNames() {
  std::vector<std::string_view> names(PolicyNames().begin(), PolicyNames().end());
  names.insert(names.end(), BaselineNames().begin(), BaselineNames().end());
  return names;
}

class PolicySuite : public testing::TestWithParam<std::string_view> {
 protected:
  static std::unique_ptr<Policy> Make() {
    auto policy = MakePolicy(GetParam());
    return policy != nullptr ? std::move(policy) : MakeBaseline(GetParam());
  }
};

using PolicySuiteDeathTest = PolicySuite;

auto Choices(Prng& prng) {
  return [&prng](uint64_t bound) { return prng.NextBelow(bound); };
}

std::vector<uint32_t> VictimsOfARun(Policy& policy, uint64_t seed) {
  Prng prng(seed);
  PolicyTree tree(policy, Choices(prng));
  std::vector<uint32_t> victims;
  for (uint32_t step = 0; step < kSteps; ++step) {
    tree.Step();
    if (step % 5 == 0) {
      if (const auto victim = tree.Evict()) victims.push_back(*victim);
    }
  }
  return victims;
}

TEST_P(PolicySuite, HasTheNameItIsMadeBy) { EXPECT_EQ(Make()->name(), GetParam()); }

TEST_P(PolicySuite, VictimsAreLeavesWithoutLeases) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto policy = Make();
    Prng prng(seed);
    PolicyTree tree(*policy, Choices(prng));
    for (uint32_t step = 0; step < kSteps; ++step) {
      tree.Step();
      ASSERT_EQ(policy->size(), tree.evictable()) << "step " << step;
      const auto victim = policy->Victim();
      ASSERT_EQ(victim.has_value(), tree.evictable() > 0) << "step " << step;
      if (victim) {
        ASSERT_TRUE(tree.IsEvictableLeaf(*victim)) << "step " << step;
        ASSERT_EQ(policy->Victim(), victim) << "asking changes nothing";
      }
    }
  }
}

TEST_P(PolicySuite, DrainsToEmpty) {
  const auto policy = Make();
  Prng prng(5);
  PolicyTree tree(*policy, Choices(prng));
  for (uint32_t step = 0; step < kSteps; ++step) tree.Step();
  tree.EndAllLeases();
  const uint64_t blocks = tree.evictable();
  ASSERT_GT(blocks, 0u);
  for (uint64_t i = 0; i < blocks; ++i) {
    ASSERT_TRUE(tree.IsEvictableLeaf(policy->Victim().value()));
    tree.Evict();
  }
  EXPECT_EQ(policy->size(), 0u);
  EXPECT_EQ(policy->Victim(), std::nullopt);
}

TEST_P(PolicySuite, SameCallsSameVictims) {
  const auto first = Make();
  const auto victims = VictimsOfARun(*first, 9);
  EXPECT_GT(victims.size(), 100u);
  // Memory that another one left behind, so that addresses differ.
  const std::vector<std::unique_ptr<Policy>> others = [] {
    std::vector<std::unique_ptr<Policy>> some;
    for (int i = 0; i < 7; ++i) some.push_back(Make());
    return some;
  }();
  const auto second = Make();
  EXPECT_EQ(VictimsOfARun(*second, 9), victims);
  EXPECT_NE(VictimsOfARun(*Make(), 10), victims) << "the run decides, not the test";
}

TEST_P(PolicySuite, FactsMayBeLeftOut) {
  const auto policy = Make();
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t block = 0; block < 100; ++block) policy->Add(BlockId(block));
    for (uint32_t block = 0; block < 50; ++block) policy->Remove(BlockId(block));
    EXPECT_EQ(policy->size(), 50u);
    std::vector<bool> gone(100);
    for (uint32_t i = 0; i < 50; ++i) {
      const BlockId victim = policy->Victim().value();
      EXPECT_GE(victim.number(), 50u);
      EXPECT_FALSE(gone[victim.number()]);
      gone[victim.number()] = true;
      policy->Evict(victim);
    }
    EXPECT_EQ(policy->Victim(), std::nullopt);
  }
}

TEST_P(PolicySuiteDeathTest, AddingTwiceAndRemovingNothingAreBugs) {
  const auto policy = Make();
  policy->Add(BlockId(3));
  EXPECT_DEATH(policy->Add(BlockId(3)), "already evictable");
  EXPECT_DEATH(policy->Remove(BlockId(2)), "not evictable");
  EXPECT_DEATH(policy->Remove(BlockId(77)), "not evictable");
  EXPECT_DEATH(policy->Evict(BlockId(2)), "not evictable");
  EXPECT_DEATH(policy->Add(BlockId::None()), "");
}

INSTANTIATE_TEST_SUITE_P(All, PolicySuite, testing::ValuesIn(AllNames()),
                         [](const auto& name) { return std::string(name.param); });
INSTANTIATE_TEST_SUITE_P(All, PolicySuiteDeathTest, testing::ValuesIn(AllNames()),
                         [](const auto& name) { return std::string(name.param); });

TEST(Policies, AnUnknownNameMakesNone) { EXPECT_EQ(MakePolicy("mru"), nullptr); }

}  // namespace
}  // namespace quire::evict
