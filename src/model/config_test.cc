#include "model/config.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

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
  EXPECT_EQ(config->rope, (RopeConfig{.theta = 1e6}));
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
  ExpectError(With("\"qwen3\"", "\"mamba\""), ErrorCode::kUnsupported, "supported: llama");
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
  ExpectError(With("\"rope_scaling\": null", "\"rope_scaling\": 3"), ErrorCode::kCorrupt,
              "rope_scaling");
  ExpectError(With("\"attention_dropout\"", "\"mlp_bias\": true, \"attention_dropout\""),
              ErrorCode::kUnsupported, "mlp_bias: qwen3 has none");
  ExpectError(With("silu", "gelu"), ErrorCode::kUnsupported, "hidden_act");
  ExpectError(With("\"torch_dtype\": \"bfloat16\"", "\"torch_dtype\": \"float8_e4m3fn\""),
              ErrorCode::kUnsupported, "torch_dtype");
  for (const std::string_view field :
       {"quantization_config", "final_logit_softcapping", "num_experts", "transformers_weights"}) {
    const std::string with = "\"" + std::string(field) + R"(": {"bits": 4}, "head_dim")";
    ExpectError(With("\"head_dim\"", with), ErrorCode::kUnsupported, field);
  }
  ExpectError(With("\"head_dim\"", R"("is_causal": false, "head_dim")"), ErrorCode::kUnsupported,
              "is_causal");
  ExpectError(With("\"head_dim\"", R"("partial_rotary_factor": 0.5, "head_dim")"),
              ErrorCode::kUnsupported, "partial_rotary_factor");
  ExpectError(With("\"head_dim\"", R"("layer_types": ["full_attention"], "head_dim")"),
              ErrorCode::kCorrupt, "layer_types");
}

// --------------------------------------------------------------------------- other families

// A file with as little in it as each family allows, then `more`.
std::string Minimal(std::string_view type, std::string_view more = "") {
  return fmt::format(R"({{"model_type": "{}", "vocab_size": 100, "hidden_size": 96,
      "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6,
      "rms_norm_eps": 1e-05, "max_position_embeddings": 2048 {}{}}})",
                     type, more.empty() ? "" : ", ", more);
}
constexpr std::string_view kKvHeads = "\"num_key_value_heads\": 2";

std::string MinimalWithKvHeads(std::string_view type, std::string_view more = "") {
  return Minimal(type, fmt::format("{}{}{}", kKvHeads, more.empty() ? "" : ", ", more));
}

ModelConfig Parsed(const std::string& text) {
  const Result<ModelConfig> config = ParseConfig(text, "config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message << "\n" << text;
  return config.value_or(ModelConfig());
}

TEST(ConfigTest, WhatIsAbsentMeansWhatItMeansToTransformers) {
  const ModelConfig llama = Parsed(Minimal("llama"));
  EXPECT_EQ(llama.kv_heads, 6u);
  EXPECT_EQ(llama.head_dim, 16u);
  EXPECT_EQ(llama.rope, (RopeConfig{.theta = 10'000}));
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_FALSE(llama.qkv_bias() || llama.out_bias() || llama.mlp_bias || llama.head_norms());
  EXPECT_TRUE(llama.window_layers.empty());

  const ModelConfig mistral = Parsed(MinimalWithKvHeads("mistral"));
  EXPECT_EQ(mistral.kv_heads, 2u);
  EXPECT_EQ(mistral.window_tokens, 4096u);  // only null is none
  EXPECT_EQ(mistral.window_layers, (std::vector<uint32_t>{0, 1, 2, 3}));

  const ModelConfig qwen2 = Parsed(MinimalWithKvHeads("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias());
  EXPECT_FALSE(qwen2.out_bias() || qwen2.mlp_bias || qwen2.head_norms());
  EXPECT_TRUE(qwen2.window_layers.empty());

  EXPECT_TRUE(Parsed(MinimalWithKvHeads("qwen3", "\"head_dim\": 16")).head_norms());
  ExpectError(MinimalWithKvHeads("qwen3"), ErrorCode::kCorrupt, "head_dim");
  for (const std::string_view type : {"mistral", "qwen2", "qwen3"}) {
    ExpectError(Minimal(type, "\"head_dim\": 16"), ErrorCode::kCorrupt, "num_key_value_heads");
    EXPECT_EQ(Parsed(Minimal(type, R"("head_dim": 16, "num_key_value_heads": null)")).kv_heads, 6u);
  }
}

TEST(ConfigTest, HeadDimIsTheQuotientOnlyWhenItIsExact) {
  EXPECT_EQ(Parsed(Minimal("llama", "\"head_dim\": null")).head_dim, 16u);
  EXPECT_EQ(Parsed(Minimal("llama", "\"head_dim\": 80")).head_dim, 80u);
  std::string text = Minimal("llama");
  text.replace(text.find("96"), 2, "97");
  ExpectError(text, ErrorCode::kCorrupt, "head_dim: missing, and hidden_size 97");
  text.replace(text.find("97"), 2, "90");  // 15: odd
  ExpectError(text, ErrorCode::kCorrupt, "head_dim");
  text.replace(text.find("90"), 2, "5");  // less than one
  ExpectError(text, ErrorCode::kCorrupt, "head_dim");
  text.replace(text.find("\"hidden_size\": 5"), 16, "\"hidden_size\": 1048572");
  ExpectError(text, ErrorCode::kCorrupt, "head_dim");
}

TEST(ConfigTest, BiasesByFamily) {
  const ModelConfig llama = Parsed(Minimal("llama", R"("attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(llama.qkv_bias() && llama.out_bias() && llama.mlp_bias);
  const ModelConfig qwen3 =
      Parsed(MinimalWithKvHeads("qwen3", R"("head_dim": 16, "attention_bias": true)"));
  EXPECT_TRUE(qwen3.qkv_bias() && qwen3.out_bias());
  for (const std::string_view bias : {"true", "false"}) {  // no field of Qwen2
    const ModelConfig qwen2 =
        Parsed(MinimalWithKvHeads("qwen2", fmt::format("\"attention_bias\": {}", bias)));
    EXPECT_TRUE(qwen2.qkv_bias());
    EXPECT_FALSE(qwen2.out_bias());
  }
  ExpectError(MinimalWithKvHeads("mistral", "\"attention_bias\": true"), ErrorCode::kUnsupported,
              "attention_bias");
  ExpectError(MinimalWithKvHeads("qwen2", "\"mlp_bias\": true"), ErrorCode::kUnsupported,
              "mlp_bias");
}

using Layers = std::vector<uint32_t>;

TEST(ConfigTest, WindowsByFamily) {
  EXPECT_EQ(Parsed(MinimalWithKvHeads("mistral", "\"sliding_window\": null")).window_layers,
            Layers());
  EXPECT_EQ(Parsed(MinimalWithKvHeads("mistral", "\"sliding_window\": 7")).window_tokens, 7u);
  const auto qwen = [](std::string_view more) {
    return Parsed(MinimalWithKvHeads("qwen2", fmt::format("\"use_sliding_window\": true{}", more)));
  };
  EXPECT_EQ(qwen("").window_layers, Layers());  // from layer 28 on
  EXPECT_EQ(qwen(R"(, "max_window_layers": 3)").window_layers, Layers({3}));
  EXPECT_EQ(qwen(R"(, "max_window_layers": 3)").window_tokens, 4096u);
  EXPECT_EQ(qwen(R"(, "max_window_layers": 0, "sliding_window": 9)").window_layers,
            Layers({0, 1, 2, 3}));
  EXPECT_EQ(qwen(R"(, "max_window_layers": 0, "sliding_window": null)").window_layers, Layers());
  const ModelConfig mixed = qwen(R"(, "max_window_layers": 0, "sliding_window": 9, "layer_types":
      ["sliding_attention", "full_attention", "full_attention", "sliding_attention"])");
  EXPECT_EQ(mixed.window_layers, Layers({0, 3}));
  EXPECT_EQ(mixed.window_of(0), 9u);
  EXPECT_EQ(mixed.window_of(1), 0u);
  const Geometry geometry = GeometryOf(mixed);
  ASSERT_TRUE(geometry.Validate().has_value());
  ASSERT_EQ(geometry.groups.size(), 2u);
  EXPECT_EQ(geometry.groups[0].kind, LayerKind::kFull);
  EXPECT_EQ(geometry.groups[0].layers, Layers({1, 2}));
  EXPECT_EQ(geometry.groups[1].kind, LayerKind::kWindow);
  EXPECT_EQ(geometry.groups[1].layers, Layers({0, 3}));
  EXPECT_EQ(geometry.groups[1].window_tokens, 9u);
  EXPECT_EQ(geometry.values_per_token(), 4u * 2 * 2 * 16);
}

TEST(ConfigTest, AModelWithoutWindowsGetsOne) {
  ModelConfig config = Parsed(Minimal("llama"));
  const ModelConfig before = config;
  ASSERT_TRUE(SetWindow({}, config).has_value());
  EXPECT_EQ(config, before);
  const auto sinks_alone = SetWindow({.sink_tokens = 4}, config);
  ASSERT_FALSE(sinks_alone.has_value());
  EXPECT_EQ(sinks_alone.error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(SetWindow({.window_tokens = 9, .sink_tokens = 4}, config).has_value());
  const Geometry geometry = GeometryOf(config);
  ASSERT_TRUE(geometry.Validate().has_value());
  ASSERT_EQ(geometry.groups.size(), 1u);
  EXPECT_EQ(geometry.groups[0].layers.size(), config.layers);
  EXPECT_EQ(geometry.groups[0].window_tokens, 9u);
  EXPECT_EQ(geometry.groups[0].sink_tokens, 4u);
  const auto again = SetWindow({.window_tokens = 8}, config);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kUnsupported);
}

TEST(ConfigTest, WindowsThatMeanNothingAreRefused) {
  constexpr std::string_view kTypes =
      R"("layer_types": ["full_attention", "full_attention", "full_attention",
                         "sliding_attention"])";
  ExpectError(MinimalWithKvHeads("qwen2", kTypes), ErrorCode::kCorrupt,
              "layer 3 has sliding_attention without a sliding_window");
  ExpectError(MinimalWithKvHeads("mistral", kTypes), ErrorCode::kUnsupported,
              "layer 0 has full_attention");
  ExpectError(Minimal("llama", kTypes), ErrorCode::kCorrupt, "layer_types");
  ExpectError(Minimal("llama", "\"sliding_window\": 8"), ErrorCode::kUnsupported, "sliding_window");
  Parsed(Minimal("llama", R"("sliding_window": 8, "use_sliding_window": false)"));
  for (const std::string_view window : {"0", "-1", "1.5", "\"8\"", "4294967297"}) {
    ExpectError(MinimalWithKvHeads("mistral", fmt::format("\"sliding_window\": {}", window)),
                ErrorCode::kCorrupt, "sliding_window");
  }
  ExpectError(MinimalWithKvHeads("qwen2", "\"max_window_layers\": -1"), ErrorCode::kCorrupt,
              "max_window_layers");
  ExpectError(MinimalWithKvHeads("qwen2", R"("layer_types": ["full_attention", "full_attention",
      "full_attention", "chunked_attention"])"),
              ErrorCode::kUnsupported, "layer_types");
}

// ------------------------------------------------------------------------- rotary positions

std::string RopeOf(std::string_view more) {
  const Result<ModelConfig> config = ParseConfig(Minimal("llama", more), "config.json");
  return config ? RopeText(config->rope) : "error: " + config.error().message;
}

TEST(ConfigTest, BothSpellingsOfEveryRotation) {
  EXPECT_EQ(RopeOf(R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.5})"),
            "rope:theta=500000 type=linear factor=2.5");
  EXPECT_EQ(RopeOf(R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2})"),
            "rope:theta=500000 type=linear factor=2");
  EXPECT_EQ(RopeOf(R"("rope_theta": 3e4, "rope_parameters": {"rope_type": "default"})"),
            "rope:theta=30000");
  EXPECT_EQ(RopeOf(R"("rope_parameters": {"rope_theta": 3e4, "rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 512})"),
            "rope:theta=30000 type=llama3 factor=8 original=512 low=1 high=4");
  // The length trained first: the root goes before the object, the whole length is the last resort.
  const auto yarn = [&](std::string_view inside, std::string_view beside) {
    return RopeOf(
        fmt::format(R"("rope_scaling": {{"rope_type": "yarn", "factor": 4{}}}{})", inside, beside));
  };
  constexpr std::string_view kAttention = " attention=1.138629436111989";
  EXPECT_EQ(yarn("", ""), fmt::format("rope:theta=10000 type=yarn factor=4 original=2048 fast=32 "
                                      "slow=1 truncate=true{}",
                                      kAttention));
  EXPECT_EQ(
      yarn(R"(, "original_max_position_embeddings": 512, "beta_fast": 24, "beta_slow": 2)", ""),
      fmt::format("rope:theta=10000 type=yarn factor=4 original=512 fast=24 slow=2 "
                  "truncate=true{}",
                  kAttention));
  EXPECT_EQ(yarn(R"(, "original_max_position_embeddings": 512, "truncate": false)",
                 R"(, "original_max_position_embeddings": 1024)"),
            fmt::format("rope:theta=10000 type=yarn factor=4 original=1024 fast=32 slow=1 "
                        "truncate=false{}",
                        kAttention));
}

// 0.1 ln 4 + 1; with the weights m and n, (0.1 m ln 4 + 1) / (0.1 n ln 4 + 1).
TEST(ConfigTest, AttentionFactorOfYarn) {
  const auto factor = [](std::string_view more) {
    return Parsed(Minimal("llama",
                          fmt::format(R"("rope_scaling": {{"rope_type": "yarn", "factor": 4{}}})",
                                      more)))
        .rope.attention_factor;
  };
  EXPECT_NEAR(factor(""), 1.1386294361119891, 1e-15);
  EXPECT_NEAR(factor(R"(, "mscale": 1, "mscale_all_dim": 0)"), 1.1386294361119891, 1e-15);
  EXPECT_NEAR(factor(R"(, "mscale": 1)"), 1.1386294361119891, 1e-15);
  EXPECT_NEAR(factor(R"(, "mscale": 1, "mscale_all_dim": 1)"), 1.0, 1e-15);
  EXPECT_NEAR(factor(R"(, "mscale": 0.707, "mscale_all_dim": 1)"), 0.9643269, 1e-6);
  EXPECT_EQ(factor(R"(, "attention_factor": 1.5, "mscale": 1, "mscale_all_dim": 1)"), 1.5);
  EXPECT_EQ(factor(R"(, "attention_factor": null, "mscale": 1, "mscale_all_dim": 1)"), 1.0);
  const ModelConfig by_length = Parsed(Minimal("llama", R"("rope_scaling": {"rope_type": "yarn",
      "factor": null, "original_max_position_embeddings": 512})"));
  EXPECT_EQ(by_length.rope.factor, 4.0);
}

TEST(ConfigTest, RopeScalingGoesBeforeRopeParametersUnlessItIsEmpty) {
  constexpr std::string_view kParameters =
      R"(, "rope_parameters": {"rope_type": "linear", "factor": 3})";
  EXPECT_EQ(
      RopeOf(fmt::format(R"("rope_scaling": {{"type": "linear", "factor": 2}}{})", kParameters)),
      "rope:theta=10000 type=linear factor=2");
  EXPECT_EQ(RopeOf(fmt::format(R"("rope_scaling": {{}}{})", kParameters)),
            "rope:theta=10000 type=linear factor=3");
  // "rope_type" goes before "type".
  EXPECT_EQ(RopeOf(R"("rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2})"),
            "rope:theta=10000 type=linear factor=2");
}

TEST(ConfigTest, BadRotations) {
  const auto expect = [](std::string_view rope, ErrorCode code, std::string_view mentions) {
    for (const std::string_view field : {"rope_scaling", "rope_parameters"}) {
      const std::string text = Minimal("llama", fmt::format("\"{}\": {}", field, rope));
      ExpectError(text, code, field);
      ExpectError(text, code, mentions);
    }
  };
  for (const std::string_view type : {"dynamic", "longrope", "su", "mrope", "proportional"}) {
    expect(fmt::format(R"({{"rope_type": "{}", "factor": 2, "short_factor": [1]}})", type),
           ErrorCode::kUnsupported, type);
  }
  expect(R"({"full_attention": {"rope_type": "default"}})", ErrorCode::kUnsupported,
         "full_attention");
  expect(R"({"rope_type": "default", "mrope_section": [1, 2]})", ErrorCode::kUnsupported,
         "mrope_section");
  expect(R"({"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5})",
         ErrorCode::kUnsupported, "partial_rotary_factor");
  expect(R"({"rope_type": 3})", ErrorCode::kCorrupt, "rope_type");
  expect("[]", ErrorCode::kCorrupt, "object");
  expect(R"({"rope_type": "linear"})", ErrorCode::kCorrupt, "factor");
  for (const std::string_view factor : {"0", "-2", "0.5", "null", "\"2\"", "1e300"}) {
    expect(fmt::format(R"({{"rope_type": "linear", "factor": {}}})", factor), ErrorCode::kCorrupt,
           "factor");
  }
  for (const std::string_view theta : {"0", "-1", "1", "null", "\"1e4\"", "1e300"}) {
    expect(fmt::format(R"({{"rope_type": "default", "rope_theta": {}}})", theta),
           ErrorCode::kCorrupt, "rope_theta");
    ExpectError(Minimal("llama", fmt::format("\"rope_theta\": {}", theta)), ErrorCode::kCorrupt,
                "rope_theta");
  }
  expect(R"({"rope_type": "llama3", "factor": 8, "high_freq_factor": 4})", ErrorCode::kCorrupt,
         "low_freq_factor");
  expect(R"({"rope_type": "llama3", "factor": 8, "high_freq_factor": 4, "low_freq_factor": 4})",
         ErrorCode::kCorrupt, "high_freq_factor");
  expect(R"({"rope_type": "llama3", "factor": 8, "high_freq_factor": 4, "low_freq_factor": 0})",
         ErrorCode::kCorrupt, "low_freq_factor");
  expect(R"({"rope_type": "yarn"})", ErrorCode::kCorrupt, "factor");
  expect(R"({"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2})",
         ErrorCode::kCorrupt, "beta_fast");
  expect(R"({"rope_type": "yarn", "factor": 4, "beta_slow": 0})", ErrorCode::kCorrupt, "beta_slow");
  expect(R"({"rope_type": "yarn", "factor": 4, "truncate": null})", ErrorCode::kCorrupt,
         "truncate");
  expect(R"({"rope_type": "yarn", "factor": 4, "attention_factor": -1})", ErrorCode::kCorrupt,
         "attention_factor");
  expect(R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0})",
         ErrorCode::kCorrupt, "original_max_position_embeddings");
}

}  // namespace
}  // namespace quire::model
