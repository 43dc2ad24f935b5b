#include "model/random_model.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "base/json.h"
#include "env/file.h"
#include "model/safetensors.h"
#include "model/tensor_source.h"
#include "model/weights.h"

namespace quire::model {
namespace {

// Value i of a tensor by itself, so that any part can be read: the finisher of splitmix64.
double UnitValue(uint64_t key, uint64_t i) {
  uint64_t z = key + (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;  // [-1, 1)
}

uint64_t TensorKey(uint64_t seed, const std::string& name) {
  Blake2b<16> hash;
  hash.UpdateNumber(seed);
  hash.Update(name);
  const auto digest = hash.Finish();
  uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof(key));
  return key;
}

std::string_view DtypeName(ComputeType type) {
  switch (type) {
    case ComputeType::kF32: return "float32";
    case ComputeType::kF16: return "float16";
    case ComputeType::kBf16: return "bfloat16";
  }
  return "unknown";
}

Json RopeJson(const RopeConfig& rope) {
  Json json = {{"rope_theta", rope.theta}, {"rope_type", "default"}};
  if (rope.type == RopeType::kDefault) return json;
  json["factor"] = rope.factor;
  if (rope.type == RopeType::kLinear) {
    json["rope_type"] = "linear";
    return json;
  }
  json["original_max_position_embeddings"] = rope.original_positions;
  if (rope.type == RopeType::kLlama3) {
    json["rope_type"] = "llama3";
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    return json;
  }
  json["rope_type"] = "yarn";
  json["beta_fast"] = rope.beta_fast;
  json["beta_slow"] = rope.beta_slow;
  json["truncate"] = rope.truncate;
  json["attention_factor"] = rope.attention_factor;
  return json;
}

void AddWindows(const ModelConfig& config, Json& json) {
  json["sliding_window"] = nullptr;
  if (config.window_layers.empty()) return;
  json["sliding_window"] = config.window_tokens;
  json["use_sliding_window"] = true;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    json["layer_types"].push_back(config.window_of(layer) == 0 ? "full_attention"
                                                               : "sliding_attention");
  }
}

}  // namespace

ModelConfig SmallConfig() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 64;
  config.intermediate = 96;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.vocab = 96;
  config.positions_max = 4096;
  config.rope.theta = 10'000;
  config.norm_eps = 1e-6f;
  config.tied_embeddings = true;
  return config;
}

RandomTensors::RandomTensors(const ModelConfig& config, ComputeType type, uint64_t seed)
    : RandomTensors(TensorsOf(config), type, seed) {}

RandomTensors::RandomTensors(std::vector<TensorSpec> specs, ComputeType type, uint64_t seed)
    : seed_(seed) {
  for (TensorSpec& spec : specs) {
    uint64_t bytes = TypeBytes(type);
    for (const uint64_t extent : spec.shape) bytes *= extent;
    tensors_.push_back({.name = std::move(spec.name),
                        .type = type,
                        .shape = std::move(spec.shape),
                        .offset_bytes = 0,
                        .bytes = bytes});
  }
}

Result<void> RandomTensors::Read(const TensorInfo& tensor, uint64_t offset_bytes,
                                 std::span<std::byte> out) const {
  const uint32_t value_bytes = TypeBytes(tensor.type);
  QUIRE_CHECK(offset_bytes % value_bytes == 0 && out.size() % value_bytes == 0);
  const uint64_t key = TensorKey(seed_, tensor.name);
  const bool matrix = tensor.shape.size() == 2;
  const bool bias = tensor.name.ends_with(".bias");
  double scale = matrix ? std::sqrt(3.0 / static_cast<double>(tensor.shape[1])) : 0.1;
  if (bias) scale = 0.5;
  const double middle = matrix || bias ? 0.0 : 1.0;
  for (size_t at = 0; at < out.size(); at += value_bytes) {
    const double unit = UnitValue(key, (offset_bytes + at) / value_bytes);
    StoreValue(tensor.type, static_cast<float>(middle + scale * unit), out.data() + at);
  }
  return {};
}

std::string ConfigJson(const ModelConfig& config) {
  Json json = {{"architectures", {ArchitectureName(config.family)}},
               {"model_type", FamilyName(config.family)},
               {"vocab_size", config.vocab},
               {"hidden_size", config.hidden},
               {"intermediate_size", config.intermediate},
               {"num_hidden_layers", config.layers},
               {"num_attention_heads", config.query_heads},
               {"num_key_value_heads", config.kv_heads},
               {"head_dim", config.head_dim},
               {"hidden_act", "silu"},
               {"rms_norm_eps", static_cast<double>(config.norm_eps)},
               {"rope_parameters", RopeJson(config.rope)},
               {"max_position_embeddings", config.positions_max},
               {"attention_bias", config.attention_bias},
               {"mlp_bias", config.mlp_bias},
               {"tie_word_embeddings", config.tied_embeddings}};
  if (config.family != Family::kLlama) AddWindows(config, json);
  if (config.dtype) json["torch_dtype"] = DtypeName(*config.dtype);
  if (config.bos) json["bos_token_id"] = *config.bos;
  if (!config.eos.empty()) json["eos_token_id"] = config.eos;
  return json.dump(2);
}

namespace {

Result<std::vector<TensorData>> DataOf(const TensorSource& tensors) {
  std::vector<TensorData> data;
  for (const TensorInfo& tensor : tensors.tensors()) {
    TensorData entry = {.name = tensor.name,
                        .type = tensor.type,
                        .shape = tensor.shape,
                        .bytes = std::vector<std::byte>(tensor.bytes)};
    QUIRE_TRY(tensors.Read(tensor, 0, entry.bytes));
    data.push_back(std::move(entry));
  }
  return data;
}

}  // namespace

std::unique_ptr<Adapter> RandomAdapter(const ModelConfig& config, uint32_t rank, ComputeType type,
                                       uint64_t seed) {
  auto adapter = Adapter::Create({.rank = rank, .alpha = static_cast<double>(rank)},
                                 RandomTensors(AdapterTensorsOf(config, rank), type, seed), config);
  QUIRE_CHECK(adapter.has_value());
  return *std::move(adapter);
}

Result<void> WriteAdapter(const ModelConfig& config, uint32_t rank, ComputeType type, uint64_t seed,
                          const std::string& directory) {
  const Json json = {{"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", rank}};
  QUIRE_ASSIGN(const auto data, DataOf(RandomTensors(AdapterTensorsOf(config, rank), type, seed)));
  QUIRE_TRY(WriteFile(directory + "/adapter_config.json", json.dump(2)));
  return WriteFile(directory + "/adapter_model.safetensors", SafetensorsBytes(data));
}

Result<void> WriteModel(const ModelConfig& config, const TensorSource& tensors,
                        const std::string& directory) {
  QUIRE_ASSIGN(const auto data, DataOf(tensors));
  QUIRE_TRY(WriteFile(directory + "/config.json", ConfigJson(config)));
  return WriteFile(directory + "/model.safetensors", SafetensorsBytes(data));
}

}  // namespace quire::model
