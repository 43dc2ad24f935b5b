#include "serve/http/bodies.h"

#include <gtest/gtest.h>

namespace quire::serve::http {
namespace {

constexpr uint64_t kFree = BodyCharge::kFreeBytes;

TEST(Bodies, TogetherTakeNoMoreThanTheBudget) {
  std::atomic<uint64_t> used = 0;
  BodyBudget budget(used, 100);
  {
    BodyCharge first(budget);
    BodyCharge second(budget);
    EXPECT_TRUE(first.GrowTo(kFree));
    EXPECT_EQ(used, 0u);
    EXPECT_TRUE(first.GrowTo(kFree + 60));
    EXPECT_FALSE(second.GrowTo(kFree + 41));
    EXPECT_EQ(used, 60u);
    EXPECT_TRUE(second.GrowTo(kFree + 40));
    EXPECT_TRUE(second.GrowTo(kFree + 30)) << "it has that already";
    EXPECT_FALSE(first.GrowTo(kFree + 61));
    EXPECT_FALSE(first.GrowTo(UINT64_MAX));
    EXPECT_TRUE(BodyCharge(budget).GrowTo(kFree)) << "a small one is read all the same";
    second.Release();
    EXPECT_TRUE(first.GrowTo(kFree + 100));
    EXPECT_EQ(used, 100u);
  }
  EXPECT_EQ(used, 0u);
}

}  // namespace
}  // namespace quire::serve::http
