#include "text/tokenizer/stages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tokenizer/vocabulary.h"

namespace quire::model {
namespace {

using Pieces = std::vector<std::string>;

Pieces Cut(const Json& json, std::string_view text, bool at_start = true) {
  const auto pre_tokenizer = PreTokenizer::Parse(JsonNode(json, "t"));
  EXPECT_TRUE(pre_tokenizer.has_value()) << pre_tokenizer.error().message;
  if (!pre_tokenizer) return {};
  RegexBudget budget(text.size());
  const auto pieces = pre_tokenizer->Cut(std::string(text), at_start, budget);
  EXPECT_TRUE(pieces.has_value()) << pieces.error().message;
  return pieces.value_or(Pieces());
}

Json Split(const char* regex, const char* behavior, bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", behavior},
          {"invert", invert}};
}

// The examples of SplitDelimiterBehavior in the documentation of `tokenizers`.
TEST(PreTokenizerTest, Behaviors) {
  const char* text = "the-final--countdown";
  EXPECT_EQ(Cut(Split("-", "Removed"), text), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(Cut(Split("-", "Isolated"), text),
            (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(Cut(Split("-", "MergedWithPrevious"), text),
            (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(Cut(Split("-", "MergedWithNext"), text), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(Cut(Split("-", "Contiguous"), text), (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(Cut(Split("[a-z]+", "Removed", true), text), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(Cut(Split("-", "Isolated"), ""), Pieces{});
}

TEST(PreTokenizerTest, ByteLevel) {
  const Json plain = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  EXPECT_EQ(Cut(plain, "I'll  go 12"), (Pieces{"I", "'ll", " ", " go", " 12"}));
  const Json prefix = {{"type", "ByteLevel"}};  // the defaults of the format
  EXPECT_EQ(Cut(prefix, "go"), (Pieces{" go"}));
  EXPECT_EQ(Cut(prefix, " go"), (Pieces{" go"}));
  EXPECT_TRUE(PreTokenizer::Parse(JsonNode(plain, "t"))->byte_level());
}

TEST(PreTokenizerTest, Metaspace) {
  Json json = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  EXPECT_EQ(Cut(json, "a  b"), (Pieces{"_a", "_", "_b"}));
  EXPECT_EQ(Cut(json, "a b", false), (Pieces{"a", "_b"}));
  json["split"] = false;
  EXPECT_EQ(Cut(json, " a b"), (Pieces{"_a_b"}));
  json["prepend_scheme"] = "never";
  EXPECT_EQ(Cut(json, "a b"), (Pieces{"a_b"}));
  json.erase("prepend_scheme");  // as older files
  EXPECT_EQ(Cut(json, "a b", false), (Pieces{"_a_b"}));
  json["add_prefix_space"] = false;
  EXPECT_EQ(Cut(json, "a b"), (Pieces{"a_b"}));
}

TEST(PreTokenizerTest, DigitsAndSequences) {
  const Json one = {{"type", "Digits"}, {"individual_digits", true}};
  const Json runs = {{"type", "Digits"}};
  EXPECT_EQ(Cut(one, "ab12"), (Pieces{"ab", "1", "2"}));
  EXPECT_EQ(Cut(runs, "ab12c"), (Pieces{"ab", "12", "c"}));
  const Json both = {{"type", "Sequence"}, {"pretokenizers", {runs, Split("2", "Isolated")}}};
  EXPECT_EQ(Cut(both, "ab12c"), (Pieces{"ab", "1", "2", "c"}));
}

TEST(PreTokenizerTest, OthersAreNamed) {
  const Json byte_level = {{"type", "ByteLevel"}};
  Json deep = byte_level;
  for (int i = 0; i < 20; ++i) deep = {{"type", "Sequence"}, {"pretokenizers", {deep}}};
  for (const auto& [json, name] : std::vector<std::pair<Json, std::string>>{
           {{{"type", "Whitespace"}}, "Whitespace"},
           {Split("a", "Sideways"), "behavior: \"Sideways\""},
           {Split("a++", "Isolated"), "pattern.Regex"},
           {{{"type", "Sequence"}, {"pretokenizers", {byte_level, byte_level}}},
            "pretokenizers[1]"},
           {deep, "Sequence"},
           {{{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "x"}}, "scheme"}}) {
    const auto parsed = PreTokenizer::Parse(JsonNode(json, "file"));
    ASSERT_FALSE(parsed.has_value()) << json;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported) << parsed.error().message;
    EXPECT_TRUE(parsed.error().message.contains(name)) << parsed.error().message;
  }
  const Json two = {{"type", "Metaspace"}, {"replacement", "__"}};
  EXPECT_EQ(PreTokenizer::Parse(JsonNode(two, "file")).error().code, ErrorCode::kCorrupt);
}

TEST(NormalizerTest, StepsInOrder) {
  const Json json = {{"type", "Sequence"},
                     {"normalizers",
                      {{{"type", "NFC"}},
                       {{"type", "Prepend"}, {"prepend", "_"}},
                       {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}},
                       {{"type", "Replace"}, {"pattern", {{"Regex", "x+"}}}, {"content", ""}}}}};
  const auto normalizer = Normalizer::Parse(JsonNode(json, "t"));
  ASSERT_TRUE(normalizer.has_value()) << normalizer.error().message;
  RegexBudget budget(0);
  EXPECT_EQ(normalizer->Normalize("a b xxe\u0301x", budget), "_a_b_\u00e9");
  EXPECT_EQ(normalizer->Normalize("", budget), "");
}

TEST(NormalizerTest, TextCannotGrowWithoutEnd) {
  const Json step = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}};
  const Json json = {{"type", "Sequence"}, {"normalizers", {step, step, step, step, step}}};
  const auto normalizer = Normalizer::Parse(JsonNode(json, "t"));
  ASSERT_TRUE(normalizer.has_value());
  RegexBudget budget(0);
  EXPECT_EQ(normalizer->Normalize("a", budget).error().code, ErrorCode::kNoSpace);
}

TEST(ByteLevelTest, EveryByteHasItsCharacter) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(CharactersToBytes(BytesToCharacters(bytes)), bytes);
  EXPECT_EQ(BytesToCharacters(" \n\xad"), "\u0120\u010a\u0143");
  EXPECT_EQ(CharactersToBytes("a b"), std::nullopt);
  EXPECT_EQ(CharactersToBytes("\u0144"), std::nullopt);
}

}  // namespace
}  // namespace quire::model
