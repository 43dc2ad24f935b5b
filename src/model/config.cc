#include "model/config.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <string>

#include "base/json.h"

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
constexpr std::array<FamilyEntry, 1> kFamilies = {{
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

// One config.json being read: getters that name file and field when something is wrong.
class Reader {
 public:
  Reader(const Json& json, std::string_view file) : json_(json), file_(file) {}

  const Json& json() const { return json_; }

  std::unexpected<Error> Bad(ErrorCode code, std::string_view field, std::string_view why) const {
    return Fail(code, fmt::format("{}: field {}: {}", file_, field, why));
  }

  Result<uint32_t> Count(std::string_view field, uint32_t max) const {
    QUIRE_ASSIGN(const uint64_t value, JsonGet<uint64_t>(json_, field, file_));
    if (value == 0 || value > max) {
      return Bad(ErrorCode::kCorrupt, field, fmt::format("{} is outside 1..{}", value, max));
    }
    return static_cast<uint32_t>(value);
  }

  Result<bool> Flag(std::string_view field, bool fallback) const {
    return JsonGetOr<bool>(json_, field, fallback, file_);
  }

  Result<std::string> Text(std::string_view field, std::string_view fallback) const {
    return JsonGetOr<std::string>(json_, field, std::string(fallback), file_);
  }

  // The member, or null when it is absent or null.
  const Json* Member(std::string_view field) const {
    const auto member = json_.find(std::string(field));
    return member == json_.end() || member->is_null() ? nullptr : &*member;
  }

 private:
  const Json& json_;
  std::string_view file_;
};

Result<Family> ReadFamily(const Reader& reader, std::string_view file) {
  QUIRE_ASSIGN(const std::string type, JsonGet<std::string>(reader.json(), "model_type", file));
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

Result<double> ReadTheta(const Reader& reader, const Json& object, std::string_view field) {
  const auto member = object.find("rope_theta");
  if (member == object.end() || !member->is_number()) {
    return reader.Bad(ErrorCode::kCorrupt, field, "missing or not a number");
  }
  const double theta = member->get<double>();
  if (!std::isfinite(theta) || theta < 1.0 || theta > 1e15) {
    return reader.Bad(ErrorCode::kCorrupt, field, fmt::format("{} is outside 1..1e15", theta));
  }
  return theta;
}

// Older files have rope_theta and rope_scaling at the top, newer ones rope_parameters with both.
Result<double> ReadRope(const Reader& reader) {
  for (const std::string_view field : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = reader.Member(field);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      return reader.Bad(ErrorCode::kCorrupt, field, "must be an object or null");
    }
    std::string type = "default";
    for (const char* key : {"type", "rope_type"}) {
      const auto member = rope->find(key);
      if (member == rope->end()) continue;
      if (!member->is_string()) {
        return reader.Bad(ErrorCode::kCorrupt, fmt::format("{}.{}", field, key),
                          "must be a string");
      }
      type = member->get<std::string>();
    }
    if (type != "default") {
      return reader.Bad(ErrorCode::kUnsupported, fmt::format("{}.rope_type", field),
                        fmt::format("\"{}\"; supported: default", type));
    }
    const auto partial = rope->find("partial_rotary_factor");
    if (partial != rope->end() && *partial != 1.0) {
      return reader.Bad(ErrorCode::kUnsupported, fmt::format("{}.partial_rotary_factor", field),
                        "only 1.0 is supported");
    }
    if (rope->contains("rope_theta")) {
      return ReadTheta(reader, *rope, fmt::format("{}.rope_theta", field));
    }
  }
  return ReadTheta(reader, reader.json(), "rope_theta");
}

// Fields that would change the result in a way this build does not compute.
Result<void> RefuseUnsupported(const Reader& reader, uint32_t layers) {
  for (const std::string_view field : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    QUIRE_ASSIGN(const bool on, reader.Flag(field, false));
    if (on) return reader.Bad(ErrorCode::kUnsupported, field, "only false is supported");
  }
  QUIRE_ASSIGN(const std::string activation, reader.Text("hidden_act", "silu"));
  if (activation != "silu") {
    return reader.Bad(ErrorCode::kUnsupported, "hidden_act",
                      fmt::format("\"{}\"; supported: silu", activation));
  }
  if (const Json* types = reader.Member("layer_types")) {
    if (!types->is_array() || types->size() != layers) {
      return reader.Bad(ErrorCode::kCorrupt, "layer_types",
                        fmt::format("must be an array of num_hidden_layers {} names", layers));
    }
    for (const Json& type : *types) {
      if (type != "full_attention") {
        return reader.Bad(ErrorCode::kUnsupported, "layer_types",
                          "only full_attention is supported");
      }
    }
  }
  const Json* partial = reader.Member("partial_rotary_factor");
  if (partial != nullptr && *partial != 1.0) {
    return reader.Bad(ErrorCode::kUnsupported, "partial_rotary_factor", "only 1.0 is supported");
  }
  if (reader.Member("quantization_config") != nullptr) {
    return reader.Bad(ErrorCode::kUnsupported, "quantization_config",
                      "quantized weights are not supported");
  }
  return {};
}

Result<std::optional<ComputeType>> ReadDtype(const Reader& reader) {
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
Result<std::vector<TokenId>> ReadTokens(const Reader& reader, std::string_view field,
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

Result<void> ReadShape(const Reader& reader, ModelConfig& config) {
  QUIRE_ASSIGN(config.layers, reader.Count("num_hidden_layers", kLayersMax));
  QUIRE_ASSIGN(config.hidden, reader.Count("hidden_size", kWidthMax));
  QUIRE_ASSIGN(config.intermediate, reader.Count("intermediate_size", kWidthMax));
  QUIRE_ASSIGN(config.query_heads, reader.Count("num_attention_heads", kHeadsMax));
  QUIRE_ASSIGN(config.kv_heads, reader.Count("num_key_value_heads", kHeadsMax));
  QUIRE_ASSIGN(config.head_dim, reader.Count("head_dim", kHeadDimMax));
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

Result<ModelConfig> ParseConfig(std::string_view json, std::string_view file_name) {
  QUIRE_ASSIGN(const Json root, ParseJson(json, file_name));
  if (!root.is_object()) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: not a JSON object", file_name));
  }
  const Reader reader(root, file_name);
  ModelConfig config;
  QUIRE_ASSIGN(config.family, ReadFamily(reader, file_name));
  QUIRE_TRY(ReadShape(reader, config));
  QUIRE_TRY(RefuseUnsupported(reader, config.layers));
  QUIRE_ASSIGN(config.rope_theta, ReadRope(reader));
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

Geometry GeometryOf(const ModelConfig& config) {
  return Geometry::Uniform(config.layers, config.kv_heads, config.head_dim);
}

}  // namespace quire::model
