#include "model/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "env/file.h"

namespace quire::model {
namespace {

constexpr uint64_t kFileBytesMax = 1 << 26;
constexpr uint64_t kIdMax = 1 << 24;  // the largest vocabulary that config.json may state
constexpr TokenId kNoToken = -1;

// The character that stands for a byte in byte-level vocabularies: printable bytes themselves, the
// others from U+0100 on, in order. Source: GPT-2, bytes_to_unicode.
std::array<std::string, 256> ByteCharacters() {
  std::array<std::string, 256> characters;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const unsigned code = printable ? byte : next++;
    if (code < 0x80) {
      characters[byte] = static_cast<char>(code);
    } else {
      characters[byte] = {static_cast<char>(0xc0 | (code >> 6)),
                          static_cast<char>(0x80 | (code & 0x3f))};
    }
  }
  return characters;
}

// One tokenizer.json being read.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  std::unexpected<Error> Bad(ErrorCode code, std::string_view field, std::string_view why) const {
    return Fail(code, fmt::format("{}: field {}: {}", file_, field, why));
  }

  // The fields outside of the vocabulary: those that would change ids must say that they do not.
  Result<void> CheckPipeline(const Json& root) const {
    for (const char* field : {"normalizer", "truncation", "padding"}) {
      if (!IsNull(root, field)) {
        return Bad(ErrorCode::kUnsupported, field, "only null is supported");
      }
    }
    for (const char* field : {"pre_tokenizer", "decoder"}) {
      if (IsNull(root, field) || TypeOf(root[field]) != "ByteLevel") {
        return Bad(ErrorCode::kUnsupported, field, "only ByteLevel is supported");
      }
    }
    QUIRE_ASSIGN(const bool prefix_space,
                 JsonGetOr<bool>(root["pre_tokenizer"], "add_prefix_space", true, file_));
    if (prefix_space) {
      return Bad(ErrorCode::kUnsupported, "pre_tokenizer.add_prefix_space",
                 "only false is supported");
    }
    if (!IsNull(root, "post_processor") && TypeOf(root["post_processor"]) != "ByteLevel") {
      return Bad(ErrorCode::kUnsupported, "post_processor",
                 "only null and ByteLevel are supported");
    }
    return {};
  }

  Result<void> CheckModel(const Json& model) const {
    if (TypeOf(model) != "BPE") {
      return Bad(ErrorCode::kUnsupported, "model.type", "only BPE is supported");
    }
    const auto merges = model.find("merges");
    if (merges == model.end() || !merges->is_array()) {
      return Bad(ErrorCode::kCorrupt, "model.merges", "must be an array");
    }
    if (!merges->empty()) {
      return Bad(ErrorCode::kUnsupported, "model.merges",
                 fmt::format("{} merges; only byte-level vocabularies without merges are supported",
                             merges->size()));
    }
    for (const char* field :
         {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const bool empty = IsNull(model, field) || model[field] == "";
      if (!empty) {
        return Bad(ErrorCode::kUnsupported, fmt::format("model.{}", field),
                   "only null is supported");
      }
    }
    return {};
  }

  Result<TokenId> Id(const Json& value, std::string_view field) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kIdMax) {
      return Bad(ErrorCode::kCorrupt, field, fmt::format("must be an id in 0..{}", kIdMax));
    }
    return static_cast<TokenId>(value.get<uint64_t>());
  }

  std::string_view file() const { return file_; }

 private:
  static bool IsNull(const Json& object, const char* field) {
    const auto member = object.find(field);
    return member == object.end() || member->is_null();
  }

  static std::string TypeOf(const Json& value) {
    if (!value.is_object()) return "";
    const auto type = value.find("type");
    return type != value.end() && type->is_string() ? type->get<std::string>() : "";
  }

  std::string_view file_;
};

}  // namespace

// Fills the tables of a tokenizer; an id belongs to one token.
class Tokenizer::Builder {
 public:
  explicit Builder(const Reader& reader) : reader_(reader) { tokenizer_.byte_ids_.fill(kNoToken); }

  Result<void> AddBytes(const Json& model) {
    const auto vocab = model.find("vocab");
    if (vocab == model.end() || !vocab->is_object()) {
      return reader_.Bad(ErrorCode::kCorrupt, "model.vocab", "must be an object");
    }
    const std::array<std::string, 256> characters = ByteCharacters();
    for (size_t byte = 0; byte < characters.size(); ++byte) {
      const std::string field = fmt::format("model.vocab[\"{}\"]", characters[byte]);
      const auto entry = vocab->find(characters[byte]);
      if (entry == vocab->end()) {
        return reader_.Bad(ErrorCode::kCorrupt, field, fmt::format("byte {} has no token", byte));
      }
      QUIRE_ASSIGN(tokenizer_.byte_ids_[byte], reader_.Id(*entry, field));
      QUIRE_TRY(Take(tokenizer_.byte_ids_[byte], std::string(1, static_cast<char>(byte)), field));
    }
    if (vocab->size() == characters.size()) return {};
    return reader_.Bad(ErrorCode::kUnsupported, "model.vocab",
                       fmt::format("{} tokens; only the 256 bytes are supported", vocab->size()));
  }

  Result<void> AddNamed(const Json& root) {
    const auto added = root.find("added_tokens");
    if (added == root.end()) return {};
    if (!added->is_array()) {
      return reader_.Bad(ErrorCode::kCorrupt, "added_tokens", "must be an array");
    }
    for (size_t i = 0; i < added->size(); ++i) {
      QUIRE_TRY(AddNamed((*added)[i], fmt::format("added_tokens[{}]", i)));
    }
    // Names of one length never compete for a place in the text, unless they are the same.
    std::vector<Added>& names = tokenizer_.added_;
    std::ranges::sort(names, std::ranges::greater(), [](const Added& token) {
      return std::pair<size_t, std::string_view>(token.name.size(), token.name);
    });
    const auto twice = std::ranges::adjacent_find(names, {}, &Added::name);
    if (twice != names.end()) {
      return reader_.Bad(ErrorCode::kCorrupt, "added_tokens",
                         fmt::format("content \"{}\" appears twice", twice->name));
    }
    return {};
  }

  Tokenizer Take() { return std::move(tokenizer_); }

 private:
  Result<void> AddNamed(const Json& entry, const std::string& field) {
    const std::string source = fmt::format("{}: {}", reader_.file(), field);
    QUIRE_ASSIGN(std::string name, JsonGet<std::string>(entry, "content", source));
    QUIRE_ASSIGN(const bool special, JsonGetOr<bool>(entry, "special", false, source));
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      QUIRE_ASSIGN(const bool on, JsonGetOr<bool>(entry, flag, false, source));
      if (on) {
        return reader_.Bad(ErrorCode::kUnsupported, field + "." + flag, "only false is supported");
      }
    }
    if (name.empty() || !entry.contains("id")) {
      return reader_.Bad(ErrorCode::kCorrupt, field, "needs an id and a content that is not empty");
    }
    QUIRE_ASSIGN(const TokenId id, reader_.Id(entry["id"], field + ".id"));
    QUIRE_TRY(Take(id, special ? std::string() : name, field));
    tokenizer_.added_.push_back({std::move(name), id});
    return {};
  }

  Result<void> Take(TokenId id, std::string bytes, std::string_view field) {
    const auto index = static_cast<size_t>(id);
    if (index >= taken_.size()) {
      taken_.resize(index + 1);
      tokenizer_.bytes_of_.resize(index + 1);
    }
    if (taken_[index]) {
      return reader_.Bad(ErrorCode::kCorrupt, field, fmt::format("id {} appears twice", id));
    }
    taken_[index] = true;
    tokenizer_.bytes_of_[index] = std::move(bytes);
    return {};
  }

  const Reader& reader_;
  Tokenizer tokenizer_;
  std::vector<bool> taken_;  // by id
};

Result<Tokenizer> Tokenizer::Load(const std::string& path) {
  QUIRE_ASSIGN(const std::string text, ReadFile(path, kFileBytesMax));
  return Parse(text, path);
}

Result<Tokenizer> Tokenizer::Parse(std::string_view json, std::string_view file_name) {
  QUIRE_ASSIGN(const Json root, ParseJson(json, file_name));
  const Reader reader(file_name);
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object()) {
    return reader.Bad(ErrorCode::kCorrupt, "model", "missing, or not an object");
  }
  QUIRE_TRY(reader.CheckModel(root["model"]));
  QUIRE_TRY(reader.CheckPipeline(root));
  Builder builder(reader);
  QUIRE_TRY(builder.AddBytes(root["model"]));
  QUIRE_TRY(builder.AddNamed(root));
  return builder.Take();
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text) const {
  std::vector<TokenId> tokens;
  tokens.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto added = std::ranges::find_if(
        added_, [&](const Added& token) { return text.substr(at).starts_with(token.name); });
    if (added != added_.end()) {
      tokens.push_back(added->id);
      at += added->name.size();
    } else {
      tokens.push_back(byte_ids_[static_cast<unsigned char>(text[at++])]);
    }
  }
  return tokens;
}

std::string Tokenizer::Decode(std::span<const TokenId> tokens) const {
  std::string bytes;
  for (const TokenId token : tokens) bytes += TokenBytes(token);
  return bytes;
}

std::string_view Tokenizer::TokenBytes(TokenId token) const {
  if (token < 0 || static_cast<size_t>(token) >= bytes_of_.size()) return {};
  return bytes_of_[static_cast<size_t>(token)];
}

}  // namespace quire::model
