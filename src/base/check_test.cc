#include "base/check.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

TEST(CheckDeathTest, NamesPlaceConditionAndMessage) {
  EXPECT_DEATH(QUIRE_CHECK(1 == 2), "check_test.cc:[0-9]+: check failed: 1 == 2");
  EXPECT_DEATH(QUIRE_CHECK_MSG(false, "slot " + std::to_string(7)), "check failed: false: slot 7");
}

TEST(Check, PassesAndEvaluatesOnce) {
  int evaluations = 0;
  QUIRE_CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
}

TEST(Check, MessageIsBuiltOnlyOnFailure) {
  int built = 0;
  const auto message = [&built] {
    ++built;
    return std::string("never");
  };
  QUIRE_CHECK_MSG(true, message());
  EXPECT_EQ(built, 0);
}

#if defined(QUIRE_DEBUG_CHECKS)
TEST(CheckDeathTest, DebugCheckIsOn) { EXPECT_DEATH(QUIRE_DCHECK(false), "check failed"); }
#else
TEST(Check, DebugCheckIsNeverEvaluated) {
  int evaluations = 0;
  QUIRE_DCHECK(++evaluations == 0);
  EXPECT_EQ(evaluations, 0);
}
#endif

}  // namespace
}  // namespace quire
