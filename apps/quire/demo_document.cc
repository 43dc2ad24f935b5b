#include "apps/quire/demo_document.h"

#include <fmt/format.h>

#include <array>

namespace quire::app {

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
