// The normalizer of tokenizer.json: what happens to text before it is cut.
#ifndef QUIRE_TEXT_TOKENIZER_NORMALIZER_H_
#define QUIRE_TEXT_TOKENIZER_NORMALIZER_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/error.h"
#include "text/json_node.h"
#include "text/regex/regex.h"

namespace quire::model {

/// Steps in order: NFC, Prepend and Replace; Sequence holds more of them.
///
/// Threads: any number at once
class Normalizer {
 public:
  Normalizer() = default;

  /// Absent: no step. Errors: kCorrupt; kUnsupported another type, named
  static Result<Normalizer> Parse(const std::optional<JsonNode>& node);

  /// Errors: kNoSpace a pattern's limit
  Result<std::string> Normalize(std::string text, RegexBudget& budget) const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string content;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  using Step = std::variant<Nfc, Prepend, Replace>;

  Result<void> Add(const JsonNode& node, int depth);

  std::vector<Step> steps_;
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_NORMALIZER_H_
