#include "model/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "base/json.h"
#include "model/config_reader.h"

namespace quire::model {
namespace {

// Far above any released model, and small enough that no product of two of them overflows and that
// a hostile file cannot ask for absurd memory by a number alone.
constexpr uint32_t kLayersMax = 4096;
constexpr uint32_t kHeadsMax = 4096;
constexpr uint32_t kHeadDimMax = 4096;
constexpr uint32_t kWidthMax = 1 << 20;
constexpr uint32_t kVocabMax = 1 << 24;
constexpr uint32_t kPositionsMax = 1 << 30;
constexpr size_t kEosMax = 64;

struct FamilyEntry {
  Family family;
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array<FamilyEntry, 4> kFamilies = {{
    {Family::kLlama, "llama", "LlamaForCausalLM"},
    {Family::kMistral, "mistral", "MistralForCausalLM"},
    {Family::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    {Family::kQwen3, "qwen3", "Qwen3ForCausalLM"},
}};

std::string SupportedFamilies() {
  std::string list;
  for (const FamilyEntry& entry : kFamilies) {
    if (!list.empty()) list += ", ";
    list += fmt::format("{} ({})", entry.model_type, entry.architecture);
  }
  return list;
}

Result<Family> ReadFamily(const ConfigReader& reader, std::string_view file) {
  QUIRE_ASSIGN(const std::string type, JsonGet<std::string>(reader.object(), "model_type", file));
  const FamilyEntry* found = nullptr;
  for (const FamilyEntry& entry : kFamilies) {
    if (entry.model_type == type) found = &entry;
  }
  if (found == nullptr) {
    return reader.Bad(
        ErrorCode::kUnsupported, "model_type",
        fmt::format("unknown architecture \"{}\"; supported: {}", type, SupportedFamilies()));
  }
  const Json* architectures = reader.Member("architectures");
  if (architectures == nullptr) return found->family;
  if (!architectures->is_array() || architectures->size() != 1 ||
      (*architectures)[0] != found->architecture) {
    return reader.Bad(ErrorCode::kUnsupported, "architectures",
                      fmt::format("must be [\"{}\"] for model_type {}; supported: {}",
                                  found->architecture, type, SupportedFamilies()));
  }
  return found->family;
}

// Fields that would change the result in a way this build does not compute, or that only models of
// other kinds have.
Result<void> RefuseUnsupported(const ConfigReader& reader) {
  QUIRE_ASSIGN(const std::string activation, reader.Text("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return reader.Bad(ErrorCode::kUnsupported, "hidden_act",
                      fmt::format("\"{}\"; supported: silu", activation));
  }
  QUIRE_ASSIGN(const bool causal, reader.Flag("is_causal", true));
  if (!causal) {
    return reader.Bad(ErrorCode::kUnsupported, "is_causal", "only true is supported");
  }
  for (const std::string_view field :
       {"quantization_config", "compression_config", "transformers_weights", "per_layer_config",
        "attn_logit_softcapping", "final_logit_softcapping", "num_experts", "num_local_experts"}) {
    if (reader.Member(field) != nullptr) {
      return reader.Bad(ErrorCode::kUnsupported, field, "not supported");
    }
  }
  return {};
}

// Qwen2 has its biases whatever the file says, and reads no such field.
Result<void> ReadBiases(const ConfigReader& reader, ModelConfig& config) {
  QUIRE_ASSIGN(const bool attention, reader.Flag("attention_bias", false));
  QUIRE_ASSIGN(config.mlp_bias, reader.Flag("mlp_bias", false));
  if (config.family != Family::kQwen2) config.attention_bias = attention;
  if (config.attention_bias && config.family == Family::kMistral) {
    return reader.Bad(ErrorCode::kUnsupported, "attention_bias", "mistral has none");
  }
  if (config.mlp_bias && config.family != Family::kLlama) {
    return reader.Bad(ErrorCode::kUnsupported, "mlp_bias",
                      fmt::format("{} has none", FamilyName(config.family)));
  }
  return {};
}

// What every layer sees, by name: true for a window. Nothing when the file does not say.
Result<std::optional<std::vector<bool>>> ReadLayerTypes(const ConfigReader& reader,
                                                        uint32_t layers) {
  const Json* types = reader.Member("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || types->size() != layers) {
    return reader.Bad(ErrorCode::kCorrupt, "layer_types",
                      fmt::format("must be an array of num_hidden_layers {} names", layers));
  }
  std::vector<bool> windowed;
  for (const Json& type : *types) {
    windowed.push_back(type == "sliding_attention");
    if (!windowed.back() && type != "full_attention") {
      return reader.Bad(ErrorCode::kUnsupported, "layer_types",
                        "supported: full_attention, sliding_attention");
    }
  }
  return windowed;
}

// Window of the layers that have one; 0 for none. The defaults are those of transformers.
Result<uint32_t> ReadWindow(const ConfigReader& reader, Family family) {
  constexpr uint32_t kDefault = 4096;
  constexpr std::string_view kField = "sliding_window";
  if (family == Family::kLlama) {
    // Not a field of Llama: transformers computes on without, which may not be what is meant.
    QUIRE_ASSIGN(const bool use, reader.Flag("use_sliding_window", true));
    if (!use || reader.Member(kField) == nullptr) return 0;
    return reader.Bad(ErrorCode::kUnsupported, kField, "llama has none");
  }
  if (family != Family::kMistral) {
    QUIRE_ASSIGN(const bool use, reader.Flag("use_sliding_window", false));
    if (!use) return 0;
  }
  if (!reader.Has(kField)) return kDefault;
  if (reader.Member(kField) == nullptr) return 0;
  return reader.Count(kField, kPositionsMax);
}

// The first layer with a window when layer_types does not say: all of a Mistral's have it.
Result<uint64_t> ReadFirstWindowed(const ConfigReader& reader, Family family) {
  constexpr uint64_t kDefault = 28;
  if (family == Family::kMistral) return 0;
  return JsonGetOr<uint64_t>(reader.object(), "max_window_layers", kDefault, reader.source());
}

Result<void> ReadWindows(const ConfigReader& reader, ModelConfig& config) {
  QUIRE_ASSIGN(const uint32_t window, ReadWindow(reader, config.family));
  QUIRE_ASSIGN(const uint64_t first_windowed, ReadFirstWindowed(reader, config.family));
  QUIRE_ASSIGN(const auto types, ReadLayerTypes(reader, config.layers));
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    const bool by_number = window != 0 && layer >= first_windowed;
    const bool has_window = types ? (*types)[layer] : by_number;
    if (has_window && window == 0) {
      return reader.Bad(
          ErrorCode::kCorrupt, "layer_types",
          fmt::format("layer {} has sliding_attention without a sliding_window", layer));
    }
    if (config.family == Family::kMistral && has_window != by_number) {
      return reader.Bad(ErrorCode::kUnsupported, "layer_types",
                        fmt::format("layer {} has full_attention; every layer of a mistral has "
                                    "its sliding_window",
                                    layer));
    }
    if (has_window) config.window_layers.push_back(layer);
  }
  if (!config.window_layers.empty()) config.window_tokens = window;
  return {};
}

Result<std::optional<ComputeType>> ReadDtype(const ConfigReader& reader) {
  for (const std::string_view field : {"dtype", "torch_dtype"}) {
    if (reader.Member(field) == nullptr) continue;
    QUIRE_ASSIGN(const std::string name, reader.Text(field, ""));
    if (name == "float32") return ComputeType::kF32;
    if (name == "float16") return ComputeType::kF16;
    if (name == "bfloat16") return ComputeType::kBf16;
    return reader.Bad(ErrorCode::kUnsupported, field,
                      fmt::format("\"{}\"; supported: float32, float16, bfloat16", name));
  }
  return std::nullopt;
}

// Absent, null, one id, or a list of ids.
Result<std::vector<TokenId>> ReadTokens(const ConfigReader& reader, std::string_view field,
                                        uint32_t vocab) {
  std::vector<TokenId> tokens;
  const Json* member = reader.Member(field);
  if (member == nullptr) return tokens;
  const Json list = member->is_array() ? *member : Json::array({*member});
  if (list.size() > kEosMax) {
    return reader.Bad(ErrorCode::kCorrupt, field, fmt::format("more than {} ids", kEosMax));
  }
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab) {
      return reader.Bad(ErrorCode::kCorrupt, field,
                        fmt::format("must be a token id below vocab_size {}", vocab));
    }
    tokens.push_back(static_cast<TokenId>(id.get<uint64_t>()));
  }
  return tokens;
}

// Null, and in a Llama absent, is one KV head for every query head.
Result<uint32_t> ReadKvHeads(const ConfigReader& reader, const ModelConfig& config) {
  constexpr std::string_view kField = "num_key_value_heads";
  const bool optional = config.family == Family::kLlama || reader.Has(kField);
  if (optional && reader.Member(kField) == nullptr) return config.query_heads;
  return reader.Count(kField, kHeadsMax);
}

// Absent or null is hidden / heads, but in a Qwen3, which always says it.
Result<uint32_t> ReadHeadDim(const ConfigReader& reader, const ModelConfig& config) {
  if (config.family == Family::kQwen3 || reader.Member("head_dim") != nullptr) {
    return reader.Count("head_dim", kHeadDimMax);
  }
  if (config.hidden % config.query_heads != 0) {
    return reader.Bad(ErrorCode::kCorrupt, "head_dim",
                      fmt::format("missing, and hidden_size {} is no multiple of "
                                  "num_attention_heads {}",
                                  config.hidden, config.query_heads));
  }
  const uint32_t head_dim = config.hidden / config.query_heads;
  if (head_dim <= kHeadDimMax) return head_dim;
  return reader.Bad(
      ErrorCode::kCorrupt, "head_dim",
      fmt::format("hidden_size / num_attention_heads = {} is above {}", head_dim, kHeadDimMax));
}

Result<void> ReadShape(const ConfigReader& reader, ModelConfig& config) {
  QUIRE_ASSIGN(config.layers, reader.Count("num_hidden_layers", kLayersMax));
  QUIRE_ASSIGN(config.hidden, reader.Count("hidden_size", kWidthMax));
  QUIRE_ASSIGN(config.intermediate, reader.Count("intermediate_size", kWidthMax));
  QUIRE_ASSIGN(config.query_heads, reader.Count("num_attention_heads", kHeadsMax));
  QUIRE_ASSIGN(config.kv_heads, ReadKvHeads(reader, config));
  QUIRE_ASSIGN(config.head_dim, ReadHeadDim(reader, config));
  QUIRE_ASSIGN(config.vocab, reader.Count("vocab_size", kVocabMax));
  QUIRE_ASSIGN(config.positions_max, reader.Count("max_position_embeddings", kPositionsMax));
  if (config.query_heads % config.kv_heads != 0) {
    return reader.Bad(ErrorCode::kCorrupt, "num_key_value_heads",
                      fmt::format("{} does not divide num_attention_heads {}", config.kv_heads,
                                  config.query_heads));
  }
  if (config.head_dim % 2 != 0) {
    return reader.Bad(ErrorCode::kCorrupt, "head_dim",
                      fmt::format("{} is odd; rotary positions need pairs", config.head_dim));
  }
  if (config.query_dim() > kWidthMax) {
    return reader.Bad(ErrorCode::kCorrupt, "head_dim",
                      fmt::format("num_attention_heads * head_dim = {} is above {}",
                                  config.query_dim(), kWidthMax));
  }
  return {};
}

}  // namespace

std::string_view FamilyName(Family family) {
  for (const FamilyEntry& entry : kFamilies) {
    if (entry.family == family) return entry.model_type;
  }
  return "unknown";
}

std::string_view ArchitectureName(Family family) {
  for (const FamilyEntry& entry : kFamilies) {
    if (entry.family == family) return entry.architecture;
  }
  return "unknown";
}

uint32_t ModelConfig::window_of(uint32_t layer) const {
  return std::ranges::binary_search(window_layers, layer) ? window_tokens : 0;
}

Result<ModelConfig> ParseConfig(std::string_view json, std::string_view file_name) {
  QUIRE_ASSIGN(const Json root, ParseJson(json, file_name));
  if (!root.is_object()) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: not a JSON object", file_name));
  }
  const ConfigReader reader(root, std::string(file_name));
  ModelConfig config;
  QUIRE_ASSIGN(config.family, ReadFamily(reader, file_name));
  QUIRE_TRY(ReadShape(reader, config));
  QUIRE_TRY(RefuseUnsupported(reader));
  QUIRE_TRY(ReadBiases(reader, config));
  QUIRE_TRY(ReadWindows(reader, config));
  QUIRE_ASSIGN(config.rope, ReadRope(reader, config.positions_max));
  QUIRE_ASSIGN(const double eps, JsonGet<double>(root, "rms_norm_eps", file_name));
  if (!(eps > 0.0 && eps < 1.0) || static_cast<float>(eps) == 0.0f) {
    return reader.Bad(ErrorCode::kCorrupt, "rms_norm_eps",
                      fmt::format("{} is not between 0 and 1", eps));
  }
  config.norm_eps = static_cast<float>(eps);
  QUIRE_ASSIGN(config.tied_embeddings, reader.Flag("tie_word_embeddings", false));
  QUIRE_ASSIGN(config.dtype, ReadDtype(reader));
  QUIRE_ASSIGN(const std::vector<TokenId> bos, ReadTokens(reader, "bos_token_id", config.vocab));
  if (!bos.empty()) config.bos = bos.front();
  QUIRE_ASSIGN(config.eos, ReadTokens(reader, "eos_token_id", config.vocab));
  return config;
}

Result<void> SetWindow(const Window& window, ModelConfig& config) {
  if (window.window_tokens == 0) {
    if (window.sink_tokens == 0) return {};
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("sink_tokens {}: without window_tokens all tokens are seen",
                            window.sink_tokens));
  }
  if (!config.window_layers.empty()) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("window_tokens {}: the model has a window of its own, of {} tokens",
                            window.window_tokens, config.window_tokens));
  }
  config.window_tokens = window.window_tokens;
  config.sink_tokens = window.sink_tokens;
  config.window_layers.resize(config.layers);
  std::iota(config.window_layers.begin(), config.window_layers.end(), 0u);
  return {};
}

Geometry GeometryOf(const ModelConfig& config) {
  Geometry geometry = Geometry::Uniform(config.layers, config.kv_heads, config.head_dim);
  if (config.window_layers.empty()) return geometry;
  LayerGroup& full = geometry.groups.front();
  std::erase_if(full.layers, [&](uint32_t layer) { return config.window_of(layer) != 0; });
  const LayerGroup window = {.kind = LayerKind::kWindow,
                             .layers = config.window_layers,
                             .window_tokens = config.window_tokens,
                             .sink_tokens = config.sink_tokens,
                             .streams = full.streams};
  if (full.layers.empty()) geometry.groups.clear();
  geometry.groups.push_back(window);
  return geometry;
}

}  // namespace quire::model
