// Prose with facts planted in it, asked for at its end: the retrieval test of
// models/tiny/README.md, and the document of the demo.
#ifndef QUIRE_APPS_RETRIEVAL_H_
#define QUIRE_APPS_RETRIEVAL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::app {

/// A document, as a recipe: a slice of a text and the facts planted in it.
struct RetrievalDocument {
  struct Fact {
    uint64_t at = 0;  // bytes from the slice's start
    std::string name{};
    std::string value{};

    /// What follows the document when this fact is asked for, and what must come next.
    std::string Question() const;
    std::string Answer() const { return value + "."; }
  };
  uint64_t start = 0;         // bytes of the text
  uint64_t length = 0;        // bytes
  std::vector<Fact> facts{};  // ascending
};

/// Reads documents, one JSON object a line, for slices of a text of text_bytes; those with the most
/// facts first, otherwise as they come.
/// Errors: kCorrupt names source, line and field
Result<std::vector<RetrievalDocument>> ParseRetrieval(std::string_view lines,
                                                      const std::string& source,
                                                      uint64_t text_bytes);

/// The slice with its facts. `text` is what the document was parsed for.
std::string RetrievalText(const RetrievalDocument& document, std::string_view text);

struct Fact {
  std::string name;
  std::string value;

  // The wording the bundled model was trained on (models/tiny/README.md).
  std::string Question() const { return " The secret number of " + name + "="; }
  std::string Answer() const { return value + "."; }
  std::string Sentence() const { return Question() + Answer(); }
};

struct Document {
  std::string text;
  std::vector<Fact> facts;  // in the order they stand in the text
};

/// Takes about `bytes` bytes of whole sentences from `prose` and plants the demo's facts between
/// them. Errors: kCorrupt the prose has too few sentences
Result<Document> MakeDocument(std::string_view prose, size_t bytes);

}  // namespace quire::app

#endif  // QUIRE_APPS_RETRIEVAL_H_
