#include "model/config.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace quire::model {
namespace {

// What transformers 4 writes for Qwen3-0.6B.
constexpr std::string_view kConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
  "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
  "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null,
  "max_position_embeddings": 40960, "attention_bias": false, "attention_dropout": 0.0,
  "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "bos_token_id": 151643,
  "eos_token_id": 151645})";

// kConfig with `from` replaced by `to`.
std::string With(std::string_view from, std::string_view to) {
  std::string text(kConfig);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void ExpectError(const std::string& text, ErrorCode code, std::string_view mentions) {
  const Result<ModelConfig> config = ParseConfig(text, "dir/config.json");
  ASSERT_FALSE(config.has_value()) << text;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_TRUE(config.error().message.contains("dir/config.json")) << config.error().message;
  EXPECT_TRUE(config.error().message.contains(mentions)) << config.error().message;
}

TEST(ConfigTest, ReadsQwen3) {
  const Result<ModelConfig> config = ParseConfig(kConfig, "config.json");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->layers, 28u);
  EXPECT_EQ(config->hidden, 1024u);
  EXPECT_EQ(config->intermediate, 3072u);
  EXPECT_EQ(config->query_dim(), 2048u);
  EXPECT_EQ(config->kv_dim(), 1024u);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_EQ(config->norm_eps, 1e-6f);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->dtype, ComputeType::kBf16);
  EXPECT_EQ(config->bos, 151643);
  EXPECT_EQ(config->eos, std::vector<TokenId>{151645});
  EXPECT_EQ(GeometryOf(*config), Geometry::Uniform(28, 8, 128));
  EXPECT_EQ(GeometryOf(*config).values_per_token(), 57'344u);
}

TEST(ConfigTest, NewerFilesSayTheSame) {
  std::string text = With(R"("rope_theta": 1000000, "rope_scaling": null)",
                          R"("rope_parameters": {"rope_theta": 1000000, "rope_type": "default"})");
  text.replace(text.find("torch_dtype"), 11, "dtype");
  EXPECT_EQ(ParseConfig(text, "a").value(), ParseConfig(kConfig, "b").value());
}

TEST(ConfigTest, EosMayBeAList) {
  const auto config = ParseConfig(With("151645", "[151645, 151643]"), "a");
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->eos, (std::vector<TokenId>{151645, 151643}));
}

TEST(ConfigTest, BrokenTextIsCorrupt) {
  for (const size_t length : {size_t{0}, size_t{1}, size_t{100}, kConfig.size() - 1}) {
    ExpectError(std::string(kConfig.substr(0, length)), ErrorCode::kCorrupt, "");
  }
  ExpectError("[]", ErrorCode::kCorrupt, "object");
  ExpectError(With("1000000", "NaN"), ErrorCode::kCorrupt, "");
}

TEST(ConfigTest, UnknownArchitectureSaysWhatIsSupported) {
  ExpectError(With("\"qwen3\"", "\"mamba\""), ErrorCode::kUnsupported, "supported: qwen3");
  ExpectError(With("Qwen3ForCausalLM", "Qwen3ForRewards"), ErrorCode::kUnsupported,
              "architectures");
  ExpectError(With(R"("model_type": "qwen3", )", ""), ErrorCode::kCorrupt, "model_type");
}

TEST(ConfigTest, NumbersAreChecked) {
  for (const std::string_view field :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"}) {
    const std::string name = "\"" + std::string(field) + "\": ";
    for (const std::string_view bad :
         {"0, \"x\": ", "-1, \"x\": ", "1.5, \"x\": ", "\"8\", \"x\": ", "1000000000000, \"x\": ",
          "18446744073709551617, \"x\": "}) {
      ExpectError(With(name, name + std::string(bad)), ErrorCode::kCorrupt, field);
    }
    ExpectError(With(name, "\"x\": "), ErrorCode::kCorrupt, field);
  }
  ExpectError(With("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7"), ErrorCode::kCorrupt,
              "num_key_value_heads");
  ExpectError(With("\"head_dim\": 128", "\"head_dim\": 127"), ErrorCode::kCorrupt, "head_dim");
  ExpectError(With("\"num_hidden_layers\": 28", "\"num_hidden_layers\": 1000000000"),
              ErrorCode::kCorrupt, "num_hidden_layers");
  ExpectError(With("1000000", "0"), ErrorCode::kCorrupt, "rope_theta");
  ExpectError(With("1e-06", "0"), ErrorCode::kCorrupt, "rms_norm_eps");
  ExpectError(With("1e-06", "1e-60"), ErrorCode::kCorrupt, "rms_norm_eps");
  ExpectError(With("151645", "151936"), ErrorCode::kCorrupt, "eos_token_id");
  ExpectError(With("151643", "-1"), ErrorCode::kCorrupt, "bos_token_id");
}

TEST(ConfigTest, WhatWouldChangeTheResultIsRefused) {
  ExpectError(With("\"rope_scaling\": null", R"("rope_scaling": {"type": "yarn", "factor": 4})"),
              ErrorCode::kUnsupported, "rope_scaling.rope_type: \"yarn\"");
  ExpectError(With("\"rope_scaling\": null", R"("rope_parameters": {"rope_type": "llama3"})"),
              ErrorCode::kUnsupported, "rope_parameters.rope_type");
  ExpectError(With("\"rope_scaling\": null", "\"rope_scaling\": 3"), ErrorCode::kCorrupt,
              "rope_scaling");
  ExpectError(With("\"attention_bias\": false", "\"attention_bias\": true"),
              ErrorCode::kUnsupported, "attention_bias");
  ExpectError(With("\"use_sliding_window\": false", "\"use_sliding_window\": true"),
              ErrorCode::kUnsupported, "use_sliding_window");
  ExpectError(With("silu", "gelu"), ErrorCode::kUnsupported, "hidden_act");
  ExpectError(With("\"torch_dtype\": \"bfloat16\"", "\"torch_dtype\": \"float8_e4m3fn\""),
              ErrorCode::kUnsupported, "torch_dtype");
  ExpectError(With("\"head_dim\"", R"("quantization_config": {"bits": 4}, "head_dim")"),
              ErrorCode::kUnsupported, "quantization_config");
  ExpectError(With("\"head_dim\"", R"("layer_types": ["full_attention"], "head_dim")"),
              ErrorCode::kCorrupt, "layer_types");
}

}  // namespace
}  // namespace quire::model
