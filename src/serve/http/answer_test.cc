#include "serve/http/answer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace quire::serve::http {
namespace {

TEST(StopMatcher, TextEndsBeforeTheStopString) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Add("one E"), "one ");
  EXPECT_EQ(matcher.Add("N"), "");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Add("D two"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Add("three"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, WhatWasNoStopStringComesOut) {
  StopMatcher matcher({"END", "\n\n"});
  EXPECT_EQ(matcher.Add("\nEN"), "\n");
  EXPECT_EQ(matcher.Add("E"), "EN");
  EXPECT_EQ(matcher.Finish(), "E");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, TheOneThatBeginsFirstCounts) {
  StopMatcher matcher({"cd", "bcx", "abcde"});
  EXPECT_EQ(matcher.Add("0abcde"), "0");
  EXPECT_TRUE(matcher.stopped());
}

RC_GTEST_PROP(StopMatcherProp, PiecesGiveWhatTheWholeTextGives, ()) {
  const auto letters = rc::gen::elementOf(std::string("ab"));
  const auto text = *rc::gen::container<std::string>(letters);
  std::vector<std::string> stops;
  for (int i = 0; i < 2; ++i) {
    stops.push_back(*rc::gen::nonEmpty(rc::gen::container<std::string>(letters)));
  }
  size_t first = std::string::npos;
  // A longer string that begins earlier may end later than one that the text has already ended at.
  for (size_t end = 0; end <= text.size() && first == std::string::npos; ++end) {
    for (const auto& stop : stops) first = std::min(first, text.substr(0, end).find(stop));
  }
  StopMatcher matcher(stops);
  std::string out;
  for (const char letter : text) out += matcher.Add(std::string(1, letter));
  out += matcher.Finish();
  RC_ASSERT(matcher.stopped() == (first != std::string::npos));
  RC_ASSERT(out == text.substr(0, first));
}

}  // namespace
}  // namespace quire::serve::http
