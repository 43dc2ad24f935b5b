#include "model/adapter_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "model/config_reader.h"

namespace quire::model {
namespace {

constexpr double kAlphaMax = 1e6;

// How it was trained, and names for people: nothing of these changes what is computed.
constexpr std::array<std::string_view, 19> kHarmless = {"auto_mapping",
                                                        "base_model_name_or_path",
                                                        "ensure_weight_tying",
                                                        "eva_config",
                                                        "exclude_modules",
                                                        "inference_mode",
                                                        "layers_pattern",
                                                        "layers_to_transform",
                                                        "loftq_config",
                                                        "lora_dropout",
                                                        "megatron_core",
                                                        "peft_type",
                                                        "peft_version",
                                                        "qalora_group_size",
                                                        "revision",
                                                        "runtime_config",
                                                        "task_type",
                                                        "r",
                                                        "lora_alpha"};
constexpr std::array<std::string_view, 6> kRead = {
    "use_rslora", "alpha_pattern", "rank_pattern", "target_modules", "bias", "init_lora_weights"};
// Of the ways to begin, those that leave the base model's weights as they were.
constexpr std::array<std::string_view, 3> kBeginnings = {"gaussian", "eva", "orthogonal"};

bool SaysNothing(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// Whole names between dots, at the end of a longer one.
bool EndsAs(std::string_view module, std::string_view suffix) {
  if (!module.ends_with(suffix)) return false;
  return module.size() == suffix.size() || module[module.size() - suffix.size() - 1] == '.';
}

bool Fits(std::string_view module, std::string_view pattern) {
  if (pattern.starts_with('^')) return module == pattern.substr(1);
  return EndsAs(module, pattern);
}

// Patterns are regular expressions to PEFT. A plain name means the same in both.
bool IsPlainPattern(std::string_view pattern) {
  if (pattern.starts_with('^')) pattern.remove_prefix(1);
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  };
  return !pattern.empty() && std::ranges::all_of(pattern, plain);
}

Result<void> CheckFeatures(const ConfigReader& reader) {
  QUIRE_ASSIGN(const std::string bias, reader.Text("bias", "none"));
  if (bias != "none") {
    return reader.Bad(
        ErrorCode::kUnsupported, "bias",
        fmt::format("'{}': biases of adapters are not computed, train with 'none'", bias));
  }
  if (const Json* begins = reader.Member("init_lora_weights");
      begins != nullptr && !begins->is_boolean()) {
    const std::string name = begins->is_string() ? begins->get<std::string>() : begins->dump();
    if (std::ranges::find(kBeginnings, name) == kBeginnings.end()) {
      return reader.Bad(ErrorCode::kUnsupported, "init_lora_weights",
                        fmt::format("'{}' changes the base model's weights; save it with PEFT's "
                                    "path_initial_model_for_weight_conversion",
                                    name));
    }
  }
  for (const auto& [field, value] : reader.object().items()) {
    const bool is_known = std::ranges::find(kHarmless, field) != kHarmless.end() ||
                          std::ranges::find(kRead, field) != kRead.end();
    if (!is_known && !SaysNothing(value)) {
      return reader.Bad(ErrorCode::kUnsupported, field, "this is not computed");
    }
  }
  return {};
}

Result<void> ReadAlphas(const ConfigReader& reader, AdapterConfig& config) {
  const Json* alphas = reader.Member("alpha_pattern");
  if (alphas == nullptr) return {};
  if (!alphas->is_object()) {
    return reader.Bad(ErrorCode::kCorrupt, "alpha_pattern", "must be an object");
  }
  const ConfigReader fields(*alphas, reader.source() + ": field alpha_pattern");
  for (const auto& [pattern, value] : alphas->items()) {
    if (!IsPlainPattern(pattern)) {
      return fields.Bad(ErrorCode::kUnsupported, pattern,
                        "a pattern; only whole names of modules, or their ends, are read");
    }
    QUIRE_ASSIGN(const double alpha, fields.Number(pattern, 0, kAlphaMax));
    config.alphas.emplace_back(pattern, alpha);
  }
  return {};
}

Result<void> ReadModules(const ConfigReader& reader, AdapterConfig& config) {
  const Json* modules = reader.Member("target_modules");
  if (modules == nullptr || modules->is_string()) return {};  // the tensors say which
  if (!modules->is_array()) {
    return reader.Bad(ErrorCode::kCorrupt, "target_modules", "must be a list or a text");
  }
  for (const Json& module : *modules) {
    if (!module.is_string()) {
      return reader.Bad(ErrorCode::kCorrupt, "target_modules", "must be a list of texts");
    }
    config.modules.push_back(module.get<std::string>());
  }
  return {};
}

}  // namespace

Result<float> AdapterConfig::ScaleOf(std::string_view module, uint32_t module_rank,
                                     std::string_view source) const {
  std::optional<double> of_module;
  for (const auto& [pattern, value] : alphas) {
    if (!Fits(module, pattern)) continue;
    if (of_module && *of_module != value) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("{}: field alpha_pattern: two of it fit {}", source, module));
    }
    of_module = value;
  }
  const double divisor = rank_stabilized ? std::sqrt(static_cast<double>(module_rank))
                                         : static_cast<double>(module_rank);
  return static_cast<float>(of_module.value_or(alpha) / divisor);
}

bool AdapterConfig::Names(std::string_view module) const {
  if (modules.empty()) return true;
  return std::ranges::any_of(modules,
                             [&](const std::string& name) { return EndsAs(module, name); });
}

Result<AdapterConfig> ParseAdapterConfig(std::string_view json, std::string_view file_name) {
  QUIRE_ASSIGN(const Json object, ParseJson(json, file_name));
  if (!object.is_object()) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: must be an object", file_name));
  }
  const ConfigReader reader(object, std::string(file_name));
  QUIRE_ASSIGN(const std::string type, JsonGet<std::string>(object, "peft_type", file_name));
  if (type != "LORA") {
    return reader.Bad(ErrorCode::kUnsupported, "peft_type",
                      fmt::format("'{}'; adapters are LORA", type));
  }
  QUIRE_TRY(CheckFeatures(reader));
  AdapterConfig config;
  QUIRE_ASSIGN(config.rank, reader.Count("r", kAdapterRankMax));
  QUIRE_ASSIGN(config.alpha, reader.Number("lora_alpha", 0, kAlphaMax));
  QUIRE_ASSIGN(config.rank_stabilized, reader.Flag("use_rslora", false));
  const Json* ranks = reader.Member("rank_pattern");
  config.has_rank_pattern = ranks != nullptr && !SaysNothing(*ranks);
  QUIRE_TRY(ReadAlphas(reader, config));
  QUIRE_TRY(ReadModules(reader, config));
  return config;
}

}  // namespace quire::model
