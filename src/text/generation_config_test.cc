#include "text/generation_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::model {
namespace {

GenerationConfig ParsedGeneration(const std::string& json) {
  const auto config = GenerationConfig::Parse(json, "generation_config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message;
  return config.value_or(GenerationConfig());
}

// As Qwen3 has it.
TEST(GenerationConfigTest, ReadsWhatTheEngineHas) {
  const GenerationConfig config = ParsedGeneration(R"({
    "bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
    "pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    "transformers_version": "4.51.0"})");
  EXPECT_EQ(config.bos, 151643);
  EXPECT_EQ(config.eos, (std::vector<TokenId>{151645, 151643}));
  EXPECT_TRUE(config.do_sample);
  EXPECT_EQ(config.temperature, 0.6f);
  EXPECT_EQ(config.top_k, 20u);
  EXPECT_EQ(config.top_p, 0.95f);
  EXPECT_TRUE(config.ignored.empty());
}

TEST(GenerationConfigTest, DefaultsAndWhatHasNoPart) {
  const GenerationConfig plain = ParsedGeneration(R"({"eos_token_id": 2, "top_p": null})");
  EXPECT_EQ(plain.eos, std::vector<TokenId>{2});
  EXPECT_FALSE(plain.do_sample);
  EXPECT_EQ(plain.top_p, 1.0f);
  EXPECT_EQ(
      ParsedGeneration(R"({"repetition_penalty": 1.05, "num_beams": 1, "min_p": 0.0})").ignored,
      std::vector<std::string>{"repetition_penalty"});
}

TEST(GenerationConfigTest, DamageIsNamedByField) {
  for (const auto& [json, field] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "not a JSON object"},
           {R"({"eos_token_id": -1})", "eos_token_id"},
           {R"({"eos_token_id": [1, "2"]})", "eos_token_id[1]"},
           {R"({"eos_token_id": [)" + std::string(200, '1') + "]}", "eos_token_id[0]"},
           {R"({"temperature": -1})", "temperature"},
           {R"({"temperature": "warm"})", "temperature"},
           {R"({"top_p": 1.5})", "top_p"},
           {R"({"top_p": 0})", "top_p"},
           {R"({"top_k": 5000000000})", "top_k"},
           {R"({"top_k": 1.5})", "top_k"},
           {R"({"do_sample": 1})", "do_sample"}}) {
    const auto config = GenerationConfig::Parse(json, "dir/generation_config.json");
    ASSERT_FALSE(config.has_value()) << json;
    EXPECT_EQ(config.error().code, ErrorCode::kCorrupt);
    EXPECT_TRUE(config.error().message.starts_with("dir/generation_config.json: "));
    EXPECT_TRUE(config.error().message.contains(field)) << config.error().message;
  }
}

TEST(GenerationConfigTest, AbsentFileGivesTheDefaults) {
  const auto config = GenerationConfig::Load("/nonexistent");
  ASSERT_TRUE(config.has_value());
  EXPECT_TRUE(config->eos.empty());
}

}  // namespace
}  // namespace quire::model
