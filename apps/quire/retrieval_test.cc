#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/quire/retrieval.h"

namespace quire::app {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kText = "0123456789 It rained. They stayed. She read.";

TEST(Retrieval, PlantsFactsInTheSlice) {
  const auto documents = ParseRetrieval(
      R"({"start":11,"length":23,"facts":[[10,"Ann","12"],[23,"Bob","34"]],"ask":"Ann"})", "cases",
      kText.size());
  ASSERT_TRUE(documents.has_value()) << documents.error().message;
  ASSERT_EQ(documents->size(), 1u);
  const RetrievalDocument& document = documents->front();
  EXPECT_EQ(RetrievalText(document, kText),
            "It rained. The secret number of Ann=12. They stayed."
            " The secret number of Bob=34.");
  EXPECT_EQ(document.facts[1].Question(), " The secret number of Bob=");
  EXPECT_EQ(document.facts[1].Answer(), "34.");
}

TEST(Retrieval, MostFactsComeFirst) {
  const auto documents = ParseRetrieval(
      "{\"start\":1,\"length\":9,\"facts\":[[1,\"A\",\"1\"]]}\n"
      "{\"start\":2,\"length\":9,\"facts\":[[1,\"A\",\"1\"],[1,\"B\",\"2\"]]}\n\n"
      "{\"start\":3,\"length\":9,\"facts\":[[9,\"A\",\"1\"]]}\n",
      "cases", kText.size());
  ASSERT_TRUE(documents.has_value()) << documents.error().message;
  std::vector<uint64_t> starts;
  for (const RetrievalDocument& document : *documents) starts.push_back(document.start);
  EXPECT_EQ(starts, (std::vector<uint64_t>{2, 1, 3}));
}

TEST(Retrieval, BadCasesAreNamed) {
  const struct {
    const char* line;
    const char* message;
  } kBad[] = {
      {"{", "cases: line 2"},
      {R"({"length":9,"facts":[]})", "start"},
      {R"({"start":40,"length":9,"facts":[]})", "length: 9 bytes from 40 on are not in a text of"},
      {R"({"start":18446744073709551615,"length":9,"facts":[]})", "length"},
      {R"({"start":0,"length":9})", "facts"},
      {R"({"start":0,"length":9,"facts":[[1,"A"]]})", "facts"},
      {R"({"start":0,"length":9,"facts":[[-1,"A","1"]]})", "facts"},
      {R"({"start":0,"length":9,"facts":[[10,"A","1"]]})", "place 10"},
      {R"({"start":0,"length":9,"facts":[[5,"A","1"],[4,"B","2"]]})", "place 4"},
  };
  for (const auto& bad : kBad) {
    const auto documents =
        ParseRetrieval(std::string(R"({"start":0,"length":9,"facts":[]})") + "\n" + bad.line,
                       "cases", kText.size());
    ASSERT_FALSE(documents.has_value()) << bad.line;
    EXPECT_EQ(documents.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(documents.error().message, HasSubstr("cases: line 2"));
    EXPECT_THAT(documents.error().message, HasSubstr(bad.message));
  }
}

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
