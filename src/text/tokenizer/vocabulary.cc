#include "text/tokenizer/vocabulary.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <utility>

#include "text/unicode/unicode.h"

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

namespace {

constexpr char32_t kCodeEnd = 0x144;  // 256 and the 68 bytes that are not printable

struct ByteTables {
  std::array<std::string, 256> characters;
  std::array<int16_t, kCodeEnd> bytes{};  // by code point; -1: stands for none

  ByteTables() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      const char32_t code = printable ? byte : next++;
      AppendUtf8(code, characters[byte]);
      bytes[code] = static_cast<int16_t>(byte);
    }
  }
};

const ByteTables& Bytes() {
  static const ByteTables tables;
  return tables;
}

}  // namespace

std::string_view ByteCharacter(unsigned char byte) { return Bytes().characters[byte]; }

std::string BytesToCharacters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += ByteCharacter(static_cast<unsigned char>(byte));
  return text;
}

std::optional<std::string> CharactersToBytes(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const char32_t code = NextCharacter(text, at);
    if (code >= kCodeEnd || Bytes().bytes[code] < 0) return std::nullopt;
    bytes += static_cast<char>(Bytes().bytes[code]);
  }
  return bytes;
}

}  // namespace quire::model
