#include "text/tokenizer/vocabulary.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <set>
#include <utility>

#include "text/unicode/unicode.h"

namespace quire::model {
namespace {

constexpr size_t kContentBytesMax = 4096;

Result<AddedToken> ParseAddedToken(const JsonNode& node) {
  AddedToken token;
  QUIRE_ASSIGN(const JsonNode id, node.Get("id"));
  QUIRE_ASSIGN(token.id, id.Id());
  QUIRE_ASSIGN(token.content, node.Text("content"));
  if (token.content.empty()) return node.Corrupt("content must not be empty");
  if (token.content.size() > kContentBytesMax) {
    return node.Unsupported(
        fmt::format("content of {} bytes, above {}", token.content.size(), kContentBytesMax));
  }
  QUIRE_ASSIGN(token.special, node.Flag("special", false));
  QUIRE_ASSIGN(token.normalized, node.Flag("normalized", !token.special));
  QUIRE_ASSIGN(token.lstrip, node.Flag("lstrip", false));
  QUIRE_ASSIGN(token.rstrip, node.Flag("rstrip", false));
  QUIRE_ASSIGN(token.single_word, node.Flag("single_word", false));
  return token;
}

// \w of Unicode: letters with circled ones, marks, decimal digits, connectors, joiners.
// Source: Unicode Technical Standard 18, annex C
bool IsWordCharacter(char32_t code) {
  const bool circled = (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
                       (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
  if (circled || code == 0x200c || code == 0x200d) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

// No character of a word touches [begin, end) of the text.
bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    size_t before = PreviousCharacter(text, begin);
    if (IsWordCharacter(NextCharacter(text, before))) return false;
  }
  return end == text.size() || !IsWordCharacter(NextCharacter(text, end));
}

// Where the white space at the end of `text` begins.
size_t SpaceAtEnd(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const size_t previous = PreviousCharacter(text, begin);
    size_t at = previous;
    if (!IsWhiteSpace(NextCharacter(text, at))) break;
    begin = previous;
  }
  return begin;
}

// Where the white space at its beginning ends.
size_t SpaceAtStart(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size() && IsWhiteSpace(NextCharacter(text, at));) end = at;
  return end;
}

}  // namespace

Result<std::vector<AddedToken>> ParseAddedTokens(const std::optional<JsonNode>& list,
                                                 const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (!list) return tokens;
  std::set<std::string> contents;
  std::set<TokenId> ids;
  QUIRE_ASSIGN(const std::vector<JsonNode> elements, list->Elements());
  for (const JsonNode& node : elements) {
    QUIRE_ASSIGN(AddedToken token, ParseAddedToken(node));
    if (!contents.insert(token.content).second) {
      return node.Corrupt(fmt::format("content \"{}\" appears twice", token.content));
    }
    // A token of the vocabulary may be added too, as itself.
    const auto known_id = vocabulary.Find(token.content);
    const auto known_text = vocabulary.Text(token.id);
    const bool taken = known_id ? *known_id != token.id : known_text.has_value();
    if (taken || !ids.insert(token.id).second) {
      return node.Corrupt(
          fmt::format("id {} or content \"{}\" belongs to another token", token.id, token.content));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, [](const AddedToken& a, const AddedToken& b) {
    return std::pair(std::string_view(a.content), a.id) <
           std::pair(std::string_view(b.content), b.id);
  });
  for (const AddedToken& token : tokens_) {
    begins_[static_cast<unsigned char>(token.content[0])] = true;
  }
}

const AddedToken* AddedTokenFinder::LongestAt(std::string_view text) const {
  if (!begins_[static_cast<unsigned char>(text[0])]) return nullptr;
  const AddedToken* longest = nullptr;
  auto begin = tokens_.begin();  // of those that begin as the text does
  auto end = tokens_.end();
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    // Those that are no longer stand first; they have been looked at.
    const auto byte_of = [&](const AddedToken& token) {
      return token.content.size() > bytes ? static_cast<unsigned char>(token.content[bytes]) : -1;
    };
    const auto range = std::ranges::equal_range(begin, end, static_cast<unsigned char>(text[bytes]),
                                                std::ranges::less(), byte_of);
    if (range.empty()) break;
    begin = range.begin();
    end = range.end();
    if (begin->content.size() == bytes + 1) longest = &*begin;
  }
  return longest;
}

std::vector<AddedTokenFinder::Stretch> AddedTokenFinder::Split(std::string_view text) const {
  std::vector<Stretch> stretches;
  size_t done = 0;  // the stretches so far end here
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = LongestAt(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->single_word && !StandsAlone(text, begin, end)) continue;
    if (token->lstrip) begin = done + SpaceAtEnd(text.substr(done, begin - done));
    if (token->rstrip) end += SpaceAtStart(text.substr(end));
    if (begin > done) stretches.push_back({text.substr(done, begin - done), std::nullopt});
    stretches.push_back({text.substr(begin, end - begin), token->id});
    done = at = end;
  }
  if (done < text.size()) stretches.push_back({text.substr(done), std::nullopt});
  return stretches;
}

}  // namespace quire::model
