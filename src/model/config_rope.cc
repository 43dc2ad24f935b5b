#include "model/config_reader.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

namespace quire::model {
namespace {

constexpr double kThetaDefault = 10'000;  // of every family, in transformers too
constexpr double kThetaMax = 1e15;
constexpr double kFactorMax = 1e6;
constexpr uint32_t kPositionsMax = 1 << 30;

struct TypeName {
  RopeType type;
  std::string_view name;
};
constexpr std::array<TypeName, 4> kTypes = {{{RopeType::kDefault, "default"},
                                             {RopeType::kLinear, "linear"},
                                             {RopeType::kLlama3, "llama3"},
                                             {RopeType::kYarn, "yarn"}}};

// "rope_type", or "type" in older files.
Result<RopeType> ReadType(const ConfigReader& rope) {
  const std::string_view field = rope.Has("rope_type") ? "rope_type" : "type";
  if (!rope.Has(field)) return RopeType::kDefault;
  QUIRE_ASSIGN(const std::string name, rope.Text(field, ""));
  std::string supported;
  for (const TypeName& known : kTypes) {
    if (known.name == name) return known.type;
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", known.name);
  }
  return rope.Bad(ErrorCode::kUnsupported, field,
                  fmt::format("\"{}\"; supported: {}", name, supported));
}

Result<double> ReadTheta(const ConfigReader& reader) {
  QUIRE_ASSIGN(const double theta, reader.Number("rope_theta", 1.0, kThetaMax));
  if (theta == 1.0) {
    return reader.Bad(ErrorCode::kCorrupt, "rope_theta", "1 turns every channel alike");
  }
  return theta;
}

Result<void> RefusePartialRotation(const ConfigReader& reader) {
  const Json* partial = reader.Member("partial_rotary_factor");
  if (partial == nullptr || *partial == 1.0) return {};
  return reader.Bad(ErrorCode::kUnsupported, "partial_rotary_factor", "only 1.0 is supported");
}

// A member of the root goes before one of the object, and the trained length is the last resort:
// the order of transformers.
Result<uint32_t> ReadOriginalPositions(const ConfigReader& root, const ConfigReader& rope,
                                       uint32_t positions_max) {
  constexpr std::string_view kField = "original_max_position_embeddings";
  if (root.Has(kField)) return root.Count(kField, kPositionsMax);
  if (rope.Has(kField)) return rope.Count(kField, kPositionsMax);
  return positions_max;
}

Result<void> ReadLlama3(const ConfigReader& rope, RopeConfig& config) {
  QUIRE_ASSIGN(config.low_freq_factor, rope.Number("low_freq_factor", 1e-6, kFactorMax));
  QUIRE_ASSIGN(config.high_freq_factor, rope.Number("high_freq_factor", 1e-6, kFactorMax));
  if (config.high_freq_factor > config.low_freq_factor) return {};
  return rope.Bad(ErrorCode::kCorrupt, "high_freq_factor",
                  fmt::format("{} is not above low_freq_factor {}", config.high_freq_factor,
                              config.low_freq_factor));
}

// Absent and null are nothing.
Result<std::optional<double>> ReadOptional(const ConfigReader& rope, std::string_view field) {
  if (rope.Member(field) == nullptr) return std::nullopt;
  QUIRE_ASSIGN(const double value, rope.Number(field, 0, kFactorMax));
  return value;
}

// Of the YaRN paper, section 3.4, and of DeepSeek when both of its weights are given.
Result<double> ReadAttentionFactor(const ConfigReader& rope, double factor) {
  QUIRE_ASSIGN(const auto given, ReadOptional(rope, "attention_factor"));
  if (given) return *given;
  const auto scale = [factor](double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
  };
  QUIRE_ASSIGN(const auto mscale, ReadOptional(rope, "mscale"));
  QUIRE_ASSIGN(const auto mscale_all_dim, ReadOptional(rope, "mscale_all_dim"));
  if (mscale.value_or(0) == 0 || mscale_all_dim.value_or(0) == 0) return scale(1);
  return scale(*mscale) / scale(*mscale_all_dim);
}

Result<void> ReadYarn(const ConfigReader& rope, uint32_t positions_max, RopeConfig& config) {
  if (rope.Has("factor") && rope.Member("factor") == nullptr) {
    config.factor = static_cast<double>(positions_max) / config.original_positions;
  } else {
    QUIRE_ASSIGN(config.factor, rope.Number("factor", 1, kFactorMax));
  }
  QUIRE_ASSIGN(config.attention_factor, ReadAttentionFactor(rope, config.factor));
  config.beta_fast = 32;
  config.beta_slow = 1;
  if (rope.Member("beta_fast") != nullptr) {
    QUIRE_ASSIGN(config.beta_fast, rope.Number("beta_fast", 1e-6, kFactorMax));
  }
  if (rope.Member("beta_slow") != nullptr) {
    QUIRE_ASSIGN(config.beta_slow, rope.Number("beta_slow", 1e-6, kFactorMax));
  }
  if (config.beta_fast < config.beta_slow) {
    return rope.Bad(ErrorCode::kCorrupt, "beta_fast",
                    fmt::format("{} is below beta_slow {}", config.beta_fast, config.beta_slow));
  }
  // A null would be false in transformers, where absence is true: too easily read the wrong way.
  if (rope.Has("truncate") && rope.Member("truncate") == nullptr) {
    return rope.Bad(ErrorCode::kCorrupt, "truncate", "null");
  }
  QUIRE_ASSIGN(config.truncate, rope.Flag("truncate", true));
  return {};
}

Result<void> ReadVariant(const ConfigReader& root, const ConfigReader& rope, uint32_t positions_max,
                         RopeConfig& config) {
  if (config.type == RopeType::kLlama3 || config.type == RopeType::kYarn) {
    QUIRE_ASSIGN(config.original_positions, ReadOriginalPositions(root, rope, positions_max));
  }
  if (config.type == RopeType::kYarn) return ReadYarn(rope, positions_max, config);
  if (config.type != RopeType::kDefault) {
    QUIRE_ASSIGN(config.factor, rope.Number("factor", 1, kFactorMax));
  }
  if (config.type == RopeType::kLlama3) return ReadLlama3(rope, config);
  return {};
}

}  // namespace

Result<RopeConfig> ReadRope(const ConfigReader& root, uint32_t positions_max) {
  // Of two, transformers takes rope_scaling, and takes an empty one for none.
  Json object = Json::object();
  std::string field;
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const Json* member = root.Member(name);
    if (member == nullptr) continue;
    if (!member->is_object()) {
      return root.Bad(ErrorCode::kCorrupt, name, "must be an object or null");
    }
    if (!field.empty() || member->empty()) continue;
    object = *member;
    field = name;
  }
  const ConfigReader rope(object, fmt::format("{}: {}", root.source(), field));
  RopeConfig config;
  QUIRE_ASSIGN(config.type, ReadType(rope));
  for (const auto& [key, value] : object.items()) {
    if (value.is_structured()) {
      return rope.Bad(ErrorCode::kUnsupported, key, "rotations that differ inside the model");
    }
  }
  QUIRE_TRY(RefusePartialRotation(root));
  QUIRE_TRY(RefusePartialRotation(rope));
  config.theta = kThetaDefault;
  if (rope.Has("rope_theta")) {
    QUIRE_ASSIGN(config.theta, ReadTheta(rope));
  } else if (root.Has("rope_theta")) {
    QUIRE_ASSIGN(config.theta, ReadTheta(root));
  }
  QUIRE_TRY(ReadVariant(root, rope, positions_max, config));
  return config;
}

}  // namespace quire::model
