// The pre_tokenizer of tokenizer.json: cuts normalized text into the pieces that merges stay in.
#ifndef QUIRE_TEXT_TOKENIZER_PRE_TOKENIZER_H_
#define QUIRE_TEXT_TOKENIZER_PRE_TOKENIZER_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/error.h"
#include "text/json_node.h"
#include "text/regex/regex.h"

namespace quire::model {

/// What becomes of the matches of a split pattern, and of what lies between them.
enum class SplitBehavior : uint8_t {
  kRemoved,             // matches are dropped
  kIsolated,            // every match is a piece
  kMergedWithPrevious,  // a match ends the piece before it
  kMergedWithNext,      // a match begins the piece after it
  kContiguous,          // matches side by side are one piece
};

/// Steps in order: Split, ByteLevel, Metaspace and Digits; Sequence holds more of them.
///
/// Threads: any number at once
class PreTokenizer {
 public:
  PreTokenizer() = default;

  /// Absent: no step, the text is one piece. Errors: kCorrupt; kUnsupported another type, named, or
  /// a step behind ByteLevel
  static Result<PreTokenizer> Parse(const std::optional<JsonNode>& node);

  /// Pieces are bytes, each a token or more: merges begin at bytes, not at characters.
  bool byte_level() const { return byte_level_; }

  /// The pieces of a stretch of text, none empty. `at_start`: it begins the input.
  /// Errors: kNoSpace a pattern's limit
  Result<std::vector<std::string>> Cut(std::string text, bool at_start, RegexBudget& budget) const;

 private:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;  // what lies between matches counts as match
  };
  // Begins a text with a space, unless one is there.
  struct PrefixSpace {};
  // Spaces become `mark`, a character, and one begins the text.
  struct Metaspace {
    enum class Prepend : uint8_t { kNever, kFirst, kAlways };
    std::string mark;
    Prepend prepend;

    std::string Apply(std::string_view piece, bool first) const;
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;

  Result<void> Add(const JsonNode& node, int depth);
  Result<void> AddSplit(const JsonNode& node);
  Result<void> AddByteLevel(const JsonNode& node);
  Result<void> AddMetaspace(const JsonNode& node);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_PRE_TOKENIZER_H_
