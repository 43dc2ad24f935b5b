// The document of the demo: a page of prose with facts planted in it, and a question for each.
#ifndef QUIRE_APPS_DEMO_DOCUMENT_H_
#define QUIRE_APPS_DEMO_DOCUMENT_H_

#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::app {

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

#endif  // QUIRE_APPS_DEMO_DOCUMENT_H_
