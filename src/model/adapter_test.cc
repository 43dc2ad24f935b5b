// Adapters as PEFT writes them: what is read, what is refused, and by which name.
#include "model/adapter.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "env/file.h"
#include "model/random_model.h"
#include "model/safetensors.h"

namespace quire::model {
namespace {

// As peft 0.21.2 writes one.
Json PeftConfig() {
  return {{"alora_invocation_tokens", nullptr},
          {"alpha_pattern", Json::object()},
          {"arrow_config", nullptr},
          {"auto_mapping", {{"base_model_class", "Qwen3ForCausalLM"}}},
          {"base_model_name_or_path", "somebody/model"},
          {"bias", "none"},
          {"corda_config", nullptr},
          {"ensure_weight_tying", false},
          {"eva_config", nullptr},
          {"exclude_modules", nullptr},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"layer_replication", nullptr},
          {"layers_pattern", nullptr},
          {"layers_to_transform", nullptr},
          {"loftq_config", Json::object()},
          {"lora_alpha", 8},
          {"lora_bias", false},
          {"lora_dropout", 0.1},
          {"megatron_config", nullptr},
          {"megatron_core", "megatron.core"},
          {"modules_to_save", nullptr},
          {"peft_type", "LORA"},
          {"peft_version", "0.21.2"},
          {"qalora_group_size", 16},
          {"r", 4},
          {"rank_pattern", Json::object()},
          {"revision", nullptr},
          {"target_modules",
           {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
          {"target_parameters", nullptr},
          {"task_type", "CAUSAL_LM"},
          {"trainable_token_indices", nullptr},
          {"use_dora", false},
          {"use_qalora", false},
          {"use_rslora", false}};
}

Result<AdapterConfig> Parse(const Json& json) { return ParseAdapterConfig(json.dump(), "a.json"); }

std::string RefusalOf(const std::string& field, const Json& value, ErrorCode code) {
  Json json = PeftConfig();
  json[field] = value;
  const auto parsed = Parse(json);
  if (parsed) return "not refused";
  EXPECT_EQ(parsed.error().code, code) << parsed.error().message;
  return parsed.error().message;
}

TEST(AdapterConfig, WhatPeftWritesIsRead) {
  const auto config = Parse(PeftConfig());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->rank, 4u);
  EXPECT_EQ(config->modules.size(), 7u);
  EXPECT_EQ(*config->ScaleOf("model.layers.0.self_attn.q_proj", 4, "a"), 2.0f);
}

TEST(AdapterConfig, WhatIsNotComputedIsRefusedByName) {
  const std::vector<std::pair<std::string, Json>> features = {
      {"peft_type", "LOHA"},
      {"bias", "lora_only"},
      {"use_dora", true},
      {"lora_bias", true},
      {"fan_in_fan_out", true},
      {"modules_to_save", {"lm_head"}},
      {"layer_replication", {{0, 2}}},
      {"trainable_token_indices", {1, 2}},
      {"target_parameters", {"experts.gate_up_proj"}},
      {"use_qalora", true},
      {"alora_invocation_tokens", {7}},
      {"arrow_config", {{"top_k", 3}}},
      {"init_lora_weights", "pissa_niter_4"},
      {"what_comes_next_year", true}};
  for (const auto& [field, value] : features) {
    const std::string message = RefusalOf(field, value, ErrorCode::kUnsupported);
    EXPECT_NE(message.find("a.json: field " + field), std::string::npos) << message;
  }
  Json json = PeftConfig();
  json["init_lora_weights"] = "gaussian";
  EXPECT_TRUE(Parse(json).has_value());
}

TEST(AdapterConfig, FieldsOutOfRangeAreNamed) {
  const std::vector<std::pair<std::string, Json>> fields = {{"r", 0},
                                                            {"r", 257},
                                                            {"r", "4"},
                                                            {"lora_alpha", -1},
                                                            {"lora_alpha", "x"},
                                                            {"target_modules", 3},
                                                            {"alpha_pattern", 1},
                                                            {"use_rslora", "yes"},
                                                            {"target_modules", Json::array({1})}};
  for (const auto& [field, value] : fields) {
    const std::string message = RefusalOf(field, value, ErrorCode::kCorrupt);
    EXPECT_NE(message.find(field), std::string::npos) << message;
  }
  EXPECT_FALSE(ParseAdapterConfig("[1]", "a.json").has_value());
  EXPECT_FALSE(ParseAdapterConfig("{", "a.json").has_value());
}

TEST(AdapterConfig, ScalesFollowPatternsAndTheRoot) {
  Json json = PeftConfig();
  json["use_rslora"] = true;
  json["alpha_pattern"] = {{"layers.1.mlp.down_proj", 3}, {"^model.layers.0.mlp.up_proj", 5}};
  const auto config = Parse(json);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  const auto scale = [&](const char* module) { return *config->ScaleOf(module, 4, "a"); };
  EXPECT_EQ(scale("model.layers.0.mlp.down_proj"), 4.0f);
  EXPECT_EQ(scale("model.layers.1.mlp.down_proj"), 1.5f);
  EXPECT_EQ(scale("model.layers.11.mlp.down_proj"), 4.0f);
  EXPECT_EQ(scale("model.layers.0.mlp.up_proj"), 2.5f);

  json["alpha_pattern"] = {{"down_proj", 3}, {"mlp.down_proj", 5}};
  EXPECT_EQ(Parse(json)->ScaleOf("model.layers.0.mlp.down_proj", 4, "a").error().code,
            ErrorCode::kUnsupported);
  json["alpha_pattern"] = {{".*down_proj", 3}};
  EXPECT_EQ(Parse(json).error().code, ErrorCode::kUnsupported);
}

// Tensors in memory that a test may change.
class ListedTensors final : public TensorSource {
 public:
  void Add(const std::string& name, std::vector<uint64_t> shape,
           ComputeType type = ComputeType::kF32) {
    uint64_t bytes = TypeBytes(type);
    for (const uint64_t extent : shape) bytes *= extent;
    tensors_.push_back({.name = name, .type = type, .shape = std::move(shape), .bytes = bytes});
    std::ranges::sort(tensors_, {}, &TensorInfo::name);
  }
  const std::string& path() const override { return path_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  Result<void> Read(const TensorInfo&, uint64_t, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{1});
    return {};
  }

 private:
  std::string path_ = "some.safetensors";
  std::vector<TensorInfo> tensors_;
};

const std::string kQ = "base_model.model.model.layers.0.self_attn.q_proj.";

// One with a right q_proj of rank 4, and what a test does besides.
Result<std::unique_ptr<Adapter>> WithQ(ListedTensors tensors,
                                       const AdapterConfig& config = {.rank = 4, .alpha = 4}) {
  const ModelConfig model = SmallConfig();
  tensors.Add(kQ + "lora_A.weight", {4, model.hidden});
  tensors.Add(kQ + "lora_B.weight", {model.query_dim(), 4});
  return Adapter::Create(config, tensors, model);
}

void ExpectRefused(const Result<std::unique_ptr<Adapter>>& adapter, ErrorCode code,
                   const std::string& names) {
  ASSERT_FALSE(adapter.has_value()) << names;
  EXPECT_EQ(adapter.error().code, code) << adapter.error().message;
  EXPECT_NE(adapter.error().message.find(names), std::string::npos) << adapter.error().message;
}

TEST(Adapter, EveryShapeIsCheckedAgainstTheModel) {
  const ModelConfig model = SmallConfig();
  ASSERT_TRUE(WithQ({}).has_value());
  const std::string k = "base_model.model.model.layers.0.self_attn.k_proj.";
  const auto with = [&](std::vector<uint64_t> down, std::vector<uint64_t> up) {
    ListedTensors tensors;
    tensors.Add(k + "lora_A.weight", std::move(down));
    tensors.Add(k + "lora_B.weight", std::move(up));
    return WithQ(std::move(tensors));
  };
  EXPECT_TRUE(with({4, model.hidden}, {model.kv_dim(), 4}).has_value());
  ExpectRefused(with({4, model.hidden + 1}, {model.kv_dim(), 4}), ErrorCode::kCorrupt,
                k + "lora_A.weight");
  ExpectRefused(with({5, model.hidden}, {model.kv_dim(), 5}), ErrorCode::kCorrupt,
                k + "lora_A.weight");
  ExpectRefused(with({4, model.hidden}, {model.query_dim(), 4}), ErrorCode::kCorrupt,
                k + "lora_B.weight");
  ExpectRefused(with({}, {model.kv_dim(), 4}), ErrorCode::kCorrupt, k + "lora_A.weight");
}

TEST(Adapter, WhatTheModelHasNoProductForIsRefused) {
  for (const std::string& name :
       {kQ + "lora_magnitude_vector", kQ + "lora_B.bias",
        std::string("base_model.model.model.embed_tokens.lora_embedding_A"),
        std::string("base_model.model.lm_head.weight"),
        std::string("base_model.model.model.layers.2.mlp.up_proj.lora_A.weight")}) {
    ListedTensors tensors;
    tensors.Add(name, {4, 64});
    ExpectRefused(WithQ(std::move(tensors)), ErrorCode::kUnsupported, name);
  }
  ListedTensors half;
  half.Add("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", {64, 4});
  ExpectRefused(WithQ(std::move(half)), ErrorCode::kCorrupt, "mlp.down_proj.lora_B.weight");
  ListedTensors other_type;
  other_type.Add("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", {4, 96},
                 ComputeType::kF16);
  other_type.Add("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", {64, 4},
                 ComputeType::kF16);
  ExpectRefused(WithQ(std::move(other_type)), ErrorCode::kUnsupported, "one type");
  ExpectRefused(Adapter::Create({.rank = 4}, ListedTensors(), SmallConfig()), ErrorCode::kCorrupt,
                "no tensors");
}

TEST(Adapter, TheConfigsListOfModulesMustAgree) {
  ExpectRefused(WithQ({}, {.rank = 4, .modules = {"v_proj"}}), ErrorCode::kCorrupt, kQ);
  ExpectRefused(WithQ({}, {.rank = 4, .modules = {"q_proj", "lm_head"}}), ErrorCode::kUnsupported,
                "lm_head");
  EXPECT_TRUE(WithQ({}, {.rank = 4, .modules = {"self_attn.q_proj"}}).has_value());
}

TEST(Adapter, RanksOfAPatternAreThoseOfTheTensors) {
  ListedTensors tensors;
  tensors.Add("base_model.model.model.layers.1.mlp.up_proj.lora_A.weight", {7, 64});
  tensors.Add("base_model.model.model.layers.1.mlp.up_proj.lora_B.weight", {96, 7});
  const auto adapter = WithQ(tensors, {.rank = 4, .has_rank_pattern = true, .alpha = 7});
  ASSERT_TRUE(adapter.has_value()) << adapter.error().message;
  EXPECT_EQ((*adapter)->rank(), 7u);
  EXPECT_EQ((*adapter)->layers()[1].gate_up.front().scale, 1.0f);
  EXPECT_EQ((*adapter)->layers()[1].gate_up.front().first_column, 96u);
  EXPECT_EQ((*adapter)->layers()[0].qkv.front().scale, 1.75f);
}

TEST(Adapter, ItsDigestIsOfWeightsAndScales) {
  const ModelConfig model = SmallConfig();
  const auto digest = [&](uint64_t seed, uint32_t rank = 4, double alpha = 4) {
    auto adapter = Adapter::Create(
        {.rank = rank, .alpha = alpha},
        RandomTensors(AdapterTensorsOf(model, rank), ComputeType::kBf16, seed), model);
    EXPECT_TRUE(adapter.has_value());
    return (*adapter)->digest();
  };
  EXPECT_EQ(digest(1), digest(1));
  EXPECT_NE(digest(1), digest(2));
  EXPECT_NE(digest(1), digest(1, 5));
  EXPECT_NE(digest(1), digest(1, 4, 8));
}

class AdapterFiles : public testing::Test {
 protected:
  AdapterFiles() { std::filesystem::create_directories(directory_); }
  ~AdapterFiles() override { std::filesystem::remove_all(directory_); }
  const std::string directory_ = testing::TempDir() + "/adapter_test";
};

TEST_F(AdapterFiles, ADirectoryIsReadAsItWasWritten) {
  const ModelConfig model = SmallConfig();
  ASSERT_TRUE(WriteAdapter(model, 5, ComputeType::kF16, 3, directory_).has_value());
  const auto adapter = Adapter::Load(directory_, model);
  ASSERT_TRUE(adapter.has_value()) << adapter.error().message;
  EXPECT_EQ((*adapter)->digest(), RandomAdapter(model, 5, ComputeType::kF16, 3)->digest());
  EXPECT_EQ((*adapter)->modules(), 14u);
  EXPECT_EQ((*adapter)->bytes(), AdapterBytes(model, 5, ComputeType::kF16));
  ExpectRefused(Adapter::Load(directory_, model, (*adapter)->bytes() - 1), ErrorCode::kTooLarge,
                "adapter_model.safetensors");
}

TEST_F(AdapterFiles, WhatIsMissingIsNamed) {
  ExpectRefused(Adapter::Load(directory_, SmallConfig()), ErrorCode::kNotFound,
                "adapter_config.json");
  ASSERT_TRUE(WriteFile(directory_ + "/adapter_config.json", PeftConfig().dump()).has_value());
  ASSERT_TRUE(WriteFile(directory_ + "/adapter_model.bin", "x").has_value());
  ExpectRefused(Adapter::Load(directory_, SmallConfig()), ErrorCode::kNotFound,
                "adapter_model.safetensors");
}

}  // namespace
}  // namespace quire::model
