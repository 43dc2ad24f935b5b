#include "text/generation_config.h"

#include <fmt/core.h>

#include <limits>
#include <utility>

#include "base/json.h"
#include "env/file.h"
#include "text/json_node.h"

namespace quire::model {
namespace {

constexpr uint64_t kFileBytesMax = 1 << 20;
constexpr size_t kEosMax = 64;

// Fields that have no effect at this value.
constexpr std::pair<std::string_view, double> kNeutral[] = {
    {"repetition_penalty", 1},
    {"encoder_repetition_penalty", 1},
    {"typical_p", 1},
    {"no_repeat_ngram_size", 0},
    {"min_p", 0},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"num_beams", 1},
    {"min_length", 0},
    {"penalty_alpha", 0},
    {"min_new_tokens", 0},
};

Result<double> Number(const JsonNode& root, std::string_view key, double fallback, double above,
                      double most) {
  const auto member = root.Find(key);
  if (!member) return fallback;
  if (!member->value().is_number()) return member->Corrupt("must be a number");
  const auto value = member->value().get<double>();
  if (value > above && value <= most) return value;
  return member->Corrupt(fmt::format("{} is not above {} and at most {}", value, above, most));
}

Result<std::vector<TokenId>> Ids(const JsonNode& root, std::string_view key) {
  std::vector<TokenId> ids;
  const auto member = root.Find(key);
  if (!member) return ids;
  if (!member->value().is_array()) {
    QUIRE_ASSIGN(const TokenId id, member->Id());
    return std::vector{id};
  }
  if (member->value().size() > kEosMax) {
    return member->Corrupt(fmt::format("more than {} ids", kEosMax));
  }
  QUIRE_ASSIGN(const std::vector<JsonNode> elements, member->Elements());
  for (const JsonNode& element : elements) {
    QUIRE_ASSIGN(const TokenId id, element.Id());
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

Result<GenerationConfig> GenerationConfig::Load(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  const Result<std::string> text = ReadFile(path, kFileBytesMax);
  if (text) return Parse(*text, path);
  if (text.error().code == ErrorCode::kNotFound) return GenerationConfig();
  return std::unexpected(text.error());
}

Result<GenerationConfig> GenerationConfig::Parse(std::string_view json,
                                                 std::string_view file_name) {
  QUIRE_ASSIGN(const Json value, ParseJson(json, file_name));
  const JsonNode root(value, file_name);
  if (!root.is_object()) return root.Corrupt("not a JSON object");
  GenerationConfig config;
  QUIRE_ASSIGN(const std::vector<TokenId> bos, Ids(root, "bos_token_id"));
  if (!bos.empty()) config.bos = bos.front();
  QUIRE_ASSIGN(config.eos, Ids(root, "eos_token_id"));
  QUIRE_ASSIGN(config.do_sample, root.Flag("do_sample", false));
  // Some files state temperature 0 beside do_sample false.
  QUIRE_ASSIGN(const double temperature, Number(root, "temperature", 1, -1e-9, 1e6));
  QUIRE_ASSIGN(const double top_p, Number(root, "top_p", 1, 0, 1));
  QUIRE_ASSIGN(const uint64_t top_k, root.Count("top_k", 0));
  if (top_k > std::numeric_limits<uint32_t>::max()) {
    return root.Member("top_k").Corrupt(fmt::format("{} is above 2^32-1", top_k));
  }
  config.temperature = static_cast<float>(temperature);
  config.top_p = static_cast<float>(top_p);
  config.top_k = static_cast<uint32_t>(top_k);
  for (const auto& [field, neutral] : kNeutral) {
    const auto member = root.Find(field);
    if (member && member->value() != neutral) config.ignored.emplace_back(field);
  }
  return config;
}

}  // namespace quire::model
