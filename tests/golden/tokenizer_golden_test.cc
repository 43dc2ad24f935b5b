// Ids and texts as the `tokenizers` package gave them, for small tokenizers of every kind.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "env/file.h"
#include "text/tokenizer.h"

namespace quire::model {
namespace {

Json Read(const std::string& name) {
  const std::string path = QUIRE_SOURCE_DIR "/tests/golden/tokenizer/" + name + ".json";
  const auto text = ReadFile(path, 1 << 20);
  if (!text) ADD_FAILURE() << text.error().message;
  const auto json = ParseJson(text.value_or("null"), path);
  if (!json) ADD_FAILURE() << json.error().message;
  return json.value_or(Json());
}

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGoldenTest, SameIdsAndTexts) {
  const Json golden = Read(GetParam());
  const auto lines = Read("lines").get<std::vector<std::string>>();
  const auto tokenizer = Tokenizer::Parse(golden["tokenizer"].dump(), GetParam());
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  ASSERT_FALSE(lines.empty());
  for (size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(lines[i]);
    const auto wanted = golden["ids"].at(i).get<std::vector<TokenId>>();
    const auto ids = tokenizer->Encode(lines[i]);
    ASSERT_TRUE(ids.has_value()) << ids.error().message;
    EXPECT_EQ(*ids, wanted);
    EXPECT_EQ(tokenizer->Decode(wanted), golden["texts"].at(i).get<std::string>());
    EXPECT_EQ(tokenizer->Decode(wanted, {.skip_special = false}),
              golden["texts_with_special"].at(i).get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGoldenTest,
                         testing::Values("llama3", "qwen2", "tekken", "deepseek", "roberta",
                                         "greedy", "llama2", "mistral", "gemma"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace quire::model
