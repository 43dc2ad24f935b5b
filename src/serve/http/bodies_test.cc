#include "serve/http/bodies.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace quire::serve::http {
namespace {

constexpr uint64_t kFree = BodyCharge::kFreeBytes;
constexpr TenantId kAlice{1};
constexpr TenantId kBob{2};
constexpr TenantId kCarol{3};

TEST(Bodies, TogetherTakeNoMoreThanTheBudget) {
  std::atomic<uint64_t> used = 0;
  BodyBudget budget(used, 100);
  {
    BodyCharge first(budget, kAlice);
    BodyCharge second(budget, kBob);
    EXPECT_TRUE(first.GrowTo(kFree));
    EXPECT_EQ(used, 0u);
    EXPECT_TRUE(first.GrowTo(kFree + 60));
    EXPECT_FALSE(second.GrowTo(kFree + 41));
    EXPECT_EQ(used, 60u);
    EXPECT_TRUE(second.GrowTo(kFree + 40));
    EXPECT_TRUE(second.GrowTo(kFree + 30)) << "it has that already";
    EXPECT_FALSE(first.GrowTo(kFree + 61));
    EXPECT_FALSE(first.GrowTo(UINT64_MAX));
    EXPECT_TRUE(BodyCharge(budget, kCarol).GrowTo(kFree)) << "a small one is read all the same";
    second.Release();
    EXPECT_TRUE(first.GrowTo(kFree + 100)) << "its tenant's only one";
    EXPECT_EQ(used, 100u);
  }
  EXPECT_EQ(used, 0u);
}

TEST(Bodies, ATenantLeavesAsMuchAsItTakes) {
  std::atomic<uint64_t> used = 0;
  BodyBudget budget(used, 90);
  std::vector<std::unique_ptr<BodyCharge>> charges;
  const auto fill = [&](TenantId tenant) {
    for (uint64_t taken = 0;; taken += 5) {
      auto charge = std::make_unique<BodyCharge>(budget, tenant);
      if (!charge->GrowTo(kFree + 5)) return taken;
      charges.push_back(std::move(charge));
    }
  };
  EXPECT_EQ(fill(kAlice), 45u);
  EXPECT_EQ(fill(kBob), 20u) << "half of what is left";
  EXPECT_EQ(fill(kCarol), 10u);
  EXPECT_EQ(fill(kAlice), 0u);
  charges.clear();
  EXPECT_EQ(used, 0u);
  EXPECT_EQ(fill(kBob), 45u) << "what was given back is there again";
}

}  // namespace
}  // namespace quire::serve::http
