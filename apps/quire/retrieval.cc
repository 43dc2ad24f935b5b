#include "apps/quire/retrieval.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/json.h"

namespace quire::app {
namespace {

std::unexpected<Error> Bad(const std::string& at, std::string_view field, std::string_view why) {
  return Fail(ErrorCode::kCorrupt, fmt::format("{}: {}: {}", at, field, why));
}

// A fact is [at, name, value].
Result<RetrievalDocument::Fact> ParseFact(const Json& fact, const std::string& at) {
  if (!fact.is_array() || fact.size() != 3 || !fact[0].is_number_unsigned() ||
      !fact[1].is_string() || !fact[2].is_string()) {
    return Bad(at, "facts", "must be lists of a place, a name and a value");
  }
  return RetrievalDocument::Fact{.at = fact[0].get<uint64_t>(),
                                 .name = fact[1].get<std::string>(),
                                 .value = fact[2].get<std::string>()};
}

Result<RetrievalDocument> ParseDocument(std::string_view line, const std::string& at,
                                        uint64_t text_bytes) {
  QUIRE_ASSIGN(const Json object, ParseJson(line, at));
  RetrievalDocument document;
  QUIRE_ASSIGN(document.start, JsonGet<uint64_t>(object, "start", at));
  QUIRE_ASSIGN(document.length, JsonGet<uint64_t>(object, "length", at));
  if (document.start > text_bytes || document.length > text_bytes - document.start) {
    return Bad(at, "length",
               fmt::format("{} bytes from {} on are not in a text of {}", document.length,
                           document.start, text_bytes));
  }
  const auto facts = object.find("facts");
  if (facts == object.end() || !facts->is_array()) return Bad(at, "facts", "must be a list");
  uint64_t last = 0;
  for (const Json& fact : *facts) {
    QUIRE_ASSIGN(auto planted, ParseFact(fact, at));
    if (planted.at < last || planted.at > document.length) {
      return Bad(at, "facts", fmt::format("place {} is out of order or the slice", planted.at));
    }
    last = planted.at;
    document.facts.push_back(std::move(planted));
  }
  return document;
}

}  // namespace

std::string RetrievalDocument::Fact::Question() const {
  return fmt::format(" The secret number of {}=", name);
}

Result<std::vector<RetrievalDocument>> ParseRetrieval(std::string_view lines,
                                                      const std::string& source,
                                                      uint64_t text_bytes) {
  std::vector<RetrievalDocument> documents;
  for (uint64_t number = 1; !lines.empty(); ++number) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    if (line.empty()) continue;
    QUIRE_ASSIGN(auto document,
                 ParseDocument(line, fmt::format("{}: line {}", source, number), text_bytes));
    documents.push_back(std::move(document));
  }
  std::ranges::stable_sort(documents, std::greater(),
                           [](const RetrievalDocument& d) { return d.facts.size(); });
  return documents;
}

std::string RetrievalText(const RetrievalDocument& document, std::string_view text) {
  const std::string_view slice = text.substr(document.start, document.length);
  std::string planted;
  uint64_t done = 0;
  for (const RetrievalDocument::Fact& fact : document.facts) {
    planted += slice.substr(done, fact.at - done);
    planted += fact.Question() + fact.Answer();
    done = fact.at;
  }
  planted += slice.substr(done);
  return planted;
}

namespace {

// Names the bundled model has not been trained on.
constexpr std::array<std::pair<const char*, const char*>, 5> kFacts = {{{"Martha", "48213"},
                                                                        {"Oswald", "90376"},
                                                                        {"Priscilla", "15824"},
                                                                        {"Humphrey", "67041"},
                                                                        {"Naomi", "32598"}}};

/// End of the first sentence at or after `from`; npos if there is none.
size_t SentenceEnd(std::string_view text, size_t from) {
  for (size_t i = text.find(". ", from); i != std::string_view::npos; i = text.find(". ", i + 1)) {
    const bool capital_follows = i + 2 < text.size() && text[i + 2] >= 'A' && text[i + 2] <= 'Z';
    // Three small letters before the stop spare "Mr. Knightley".
    bool word_before = i >= 3;
    for (size_t k = 1; word_before && k <= 3; ++k) {
      word_before = text[i - k] >= 'a' && text[i - k] <= 'z';
    }
    if (capital_follows && word_before) return i + 1;
  }
  return std::string_view::npos;
}

}  // namespace

Result<Document> MakeDocument(std::string_view prose, size_t bytes) {
  Document document;
  size_t begin = SentenceEnd(prose, 0);
  const size_t first = begin;
  for (size_t i = 0; i <= kFacts.size(); ++i) {
    const size_t end = begin == std::string_view::npos
                           ? begin
                           : SentenceEnd(prose, first + bytes * (i + 1) / (kFacts.size() + 1));
    if (end == std::string_view::npos) {
      return Fail(ErrorCode::kCorrupt,
                  fmt::format("the text for the demo's document ends before {} bytes", bytes));
    }
    document.text += prose.substr(begin, end - begin);
    if (i < kFacts.size()) {
      document.facts.push_back({kFacts[i].first, kFacts[i].second});
      document.text += document.facts.back().Sentence();
    }
    begin = end;
  }
  document.text.erase(0, document.text.find_first_not_of(' '));
  return document;
}

}  // namespace quire::app
