#include "text/vocabulary.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/core.h>

#include <utility>

namespace quire::model {

struct Vocabulary::Tables {
  absl::flat_hash_map<TokenId, std::string> texts;
  absl::flat_hash_map<std::string_view, TokenId> ids;  // into texts, which therefore never grows
};

Vocabulary::Vocabulary(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Vocabulary::Vocabulary(Vocabulary&& other) noexcept = default;
Vocabulary& Vocabulary::operator=(Vocabulary&& other) noexcept = default;
Vocabulary::~Vocabulary() = default;

Result<Vocabulary> Vocabulary::Parse(const JsonNode& vocab) {
  if (!vocab.is_object()) return vocab.Corrupt("must be an object");
  auto tables = std::make_unique<Tables>();
  tables->texts.reserve(vocab.value().size());
  tables->ids.reserve(vocab.value().size());
  for (const auto& [text, value] : vocab.value().items()) {
    const Result<TokenId> id = ToTokenId(value);
    if (!id) return vocab.Member(text).Corrupt(id.error().message);
    const auto [entry, is_new] = tables->texts.emplace(*id, text);
    if (!is_new) {
      return vocab.Member(text).Corrupt(fmt::format("id {} is \"{}\" too", *id, entry->second));
    }
    tables->ids.emplace(entry->second, *id);
  }
  return Vocabulary(std::move(tables));
}

std::optional<TokenId> Vocabulary::Find(std::string_view text) const {
  const auto found = tables_->ids.find(text);
  if (found == tables_->ids.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string_view> Vocabulary::Text(TokenId id) const {
  const auto found = tables_->texts.find(id);
  if (found == tables_->texts.end()) return std::nullopt;
  return found->second;
}

void Vocabulary::ForEach(const std::function<void(TokenId, std::string_view)>& visit) const {
  for (const auto& [id, text] : tables_->texts) visit(id, text);
}

}  // namespace quire::model
