#include "apps/quire/demo_document.h"

#include <gtest/gtest.h>

namespace quire::app {
namespace {

std::string Prose(int sentences) {
  std::string text = "Beginning in the middle. ";
  for (int i = 0; i < sentences; ++i) text += "It was a fine day, and Mr. Brown went out walking. ";
  return text;
}

TEST(MakeDocument, PlantsEveryFactBetweenSentences) {
  const Document document = MakeDocument(Prose(100), 2600).value();
  ASSERT_FALSE(document.facts.empty());
  size_t last = 0;
  for (const Fact& fact : document.facts) {
    const size_t at = document.text.find("walking." + fact.Sentence() + " It was");
    ASSERT_NE(at, std::string::npos) << fact.name;
    EXPECT_GT(at, last);
    EXPECT_EQ(fact.Sentence(), fact.Question() + fact.Answer());
    last = at;
  }
  EXPECT_GT(document.text.size(), 2600u);
  EXPECT_TRUE(document.text.ends_with("walking."));
}

TEST(MakeDocument, RefusesTextThatIsTooShort) {
  EXPECT_EQ(MakeDocument(Prose(3), 2600).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(MakeDocument("", 2600).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace quire::app
