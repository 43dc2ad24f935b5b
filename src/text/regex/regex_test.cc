#include "text/regex/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace quire::model {
namespace {

using Ranges = std::vector<std::pair<size_t, size_t>>;

Ranges Matches(std::string_view pattern, std::string_view text) {
  Ranges ranges;
  const auto regex = Regex::Compile(pattern, "pattern");
  EXPECT_TRUE(regex.has_value()) << regex.error().message;
  if (!regex) return ranges;
  RegexBudget budget(text.size());
  const auto done = regex->FindAll(
      text, budget, [&](size_t begin, size_t end) { ranges.emplace_back(begin, end); });
  EXPECT_TRUE(done.has_value()) << done.error().message;
  return ranges;
}

ErrorCode CompileError(std::string_view pattern) {
  const auto regex = Regex::Compile(pattern, "file: field f");
  EXPECT_FALSE(regex.has_value()) << pattern;
  if (regex) return ErrorCode{};
  EXPECT_TRUE(regex.error().message.starts_with("file: field f")) << regex.error().message;
  return regex.error().code;
}

TEST(RegexTest, FindsEveryMatchInOrder) {
  EXPECT_EQ(Matches("a+|b", "xaab-b"), (Ranges{{1, 3}, {3, 4}, {5, 6}}));
  EXPECT_EQ(Matches(R"(\s+(?!\S)|\s+)", "a  b "), (Ranges{{1, 2}, {2, 3}, {4, 5}}));
  EXPECT_EQ(Matches("é", "eé"), (Ranges{{1, 3}}));
  EXPECT_EQ(Matches("(?i:'S)", "'s'S'\u017f"), (Ranges{{0, 2}, {2, 4}, {4, 7}}));
}

TEST(RegexTest, EmptyMatchesCutButNeverWhereTheLastEnded) {
  EXPECT_EQ(Matches("x*", "axxé"), (Ranges{{0, 0}, {1, 3}, {5, 5}}));
  EXPECT_EQ(Matches("a", ""), Ranges{});
}

TEST(RegexTest, WhiteSpaceIsUnicodes) {
  EXPECT_EQ(Matches(R"(\s)", "\u0085"), (Ranges{{0, 2}}));
  EXPECT_EQ(Matches(R"(\s)", "\u180e"), Ranges{});  // PCRE2's own \s has it
  EXPECT_EQ(Matches(R"([^\s])", "\u180e"), (Ranges{{0, 3}}));
  EXPECT_EQ(Matches(R"(\S)", "\u3000x"), (Ranges{{3, 4}}));
}

TEST(RegexTest, ScriptsAreNotExtended) {
  EXPECT_EQ(Matches(R"(\p{Han})", "\u4e00\u3001"), (Ranges{{0, 3}}));  // U+3001 is used with Han
  EXPECT_EQ(ToPcre2(R"(\p{Han}\P{^Lu}\u00e9\x{e9}\x41)"),
            R"(\p{sc:Han}\P{^Lu}\x{00e9}\x{e9}\x{41})");
}

TEST(RegexTest, PatternsThatTheSyntaxesReadDifferentlyAreRefused) {
  for (const char* pattern : {"^a",
                              "a$",
                              "(?<n>a)",
                              "(?#c)",
                              "(*UCP)",
                              "(?R)",
                              "(?>a)",
                              "(?C)",
                              "[[:alpha:]]",
                              "[a&&b]",
                              "[]a]",
                              "[a",
                              "a{,3}",
                              "a{x",
                              "{",
                              "a{1,2}+",
                              "a{1,2}?",
                              "a*+",
                              "a++",
                              R"(\w)",
                              R"(\b)",
                              R"(\h)",
                              R"(\v)",
                              R"(\R)",
                              R"(\K)",
                              R"(\A)",
                              R"(\z)",
                              R"(\1)",
                              R"(\pL)",
                              R"(\p{)",
                              R"(\p{Nonsense})",
                              R"(\xff)",
                              R"(\x{123456789})",
                              R"(\u12)",
                              "\\",
                              "(?=a+)",
                              "(?!(?:b|a*))",
                              "(?<=a{2,})"}) {
    EXPECT_EQ(CompileError(pattern), ErrorCode::kUnsupported) << pattern;
  }
  for (const char* pattern : {"(a", "a)", "[b-a]", "**", R"(\x{110000})"}) {
    EXPECT_EQ(CompileError(pattern), ErrorCode::kCorrupt) << pattern;
  }
  EXPECT_EQ(Matches("(?:a?+b)+?(?![c]{2}d?)", "ab"), (Ranges{{0, 2}}));
}

TEST(RegexTest, PatternsHaveLimits) {
  EXPECT_EQ(CompileError(std::string(70'000, 'a')), ErrorCode::kUnsupported);
  EXPECT_EQ(CompileError(std::string(200, '(') + "a" + std::string(200, ')')),
            ErrorCode::kUnsupported);
  EXPECT_EQ(CompileError("(?:(?:(?:a{1000}){1000}){1000}){1000}"), ErrorCode::kUnsupported);
}

TEST(RegexTest, CostlyMatchesEndInAnError) {
  for (const char* pattern : {"(?:a|a)*b", "(?:a*)*b", "(?:a?){500}a{500}b", "(?:a+)+b"}) {
    const auto regex = Regex::Compile(pattern, "file: field f");
    ASSERT_TRUE(regex.has_value()) << regex.error().message;
    RegexBudget budget(600);
    const auto done = regex->FindAll(std::string(600, 'a'), budget, [](size_t, size_t) {});
    ASSERT_FALSE(done.has_value()) << pattern;
    EXPECT_EQ(done.error().code, ErrorCode::kNoSpace);
    EXPECT_TRUE(done.error().message.starts_with("file: field f: matching at byte 0 of 600"))
        << done.error().message;
  }
}

// One budget for all pieces of a text, or many small ones would cost as much as a large one.
TEST(RegexTest, TheBudgetIsForAllTexts) {
  const auto regex = Regex::Compile("(?:a|a)*b", "pattern");
  ASSERT_TRUE(regex.has_value());
  RegexBudget budget(0);
  int searched = 0;
  while (regex->FindAll(std::string(14, 'a'), budget, [](size_t, size_t) {})) ++searched;
  EXPECT_GT(searched, 0);
  EXPECT_LT(searched, 100);
}

TEST(RegexTest, LongRunsOfSpaceAreNoAttack) {
  const std::string text = std::string(200'000, ' ') + "x";
  EXPECT_EQ(Matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", text),
            (Ranges{{0, text.size() - 2}, {text.size() - 2, text.size() - 1}}));
}

}  // namespace
}  // namespace quire::model
