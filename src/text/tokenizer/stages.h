// The stages of tokenizer.json, in the order in which a text passes them: normalizer,
// pre_tokenizer, model, post_processor, and back: decoder.
#ifndef QUIRE_TEXT_TOKENIZER_STAGES_H_
#define QUIRE_TEXT_TOKENIZER_STAGES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"
#include "text/json_node.h"
#include "text/regex/regex.h"
#include "text/tokenizer/vocabulary.h"

namespace quire::model {

// The normalizer of tokenizer.json: what happens to text before it is cut.

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

// The pre_tokenizer of tokenizer.json: cuts normalized text into the pieces that merges stay in.

/// What happens to the matches of a split pattern, and to the text between them.
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

// Byte-pair encoding: the model of tokenizer.json.

/// Threads: any number at once
class Bpe {
 public:
  /// Reads `model`, whose tokens are in `vocabulary`. `byte_level`: a piece begins as bytes, each
  /// with a token; otherwise as characters, and one without a token as the tokens <0xHH> of its
  /// bytes when the model has byte_fallback, else as unk_token, else as nothing.
  ///
  /// Errors: kCorrupt no array of merges, a merge of unknown tokens or of another form, a byte
  ///         without token; kUnsupported another kind of model, dropout, prefixes and suffixes
  static Result<Bpe> Parse(const JsonNode& model, Vocabulary vocabulary, bool byte_level);

  Bpe(Bpe&& other) noexcept;
  Bpe& operator=(Bpe&& other) noexcept;
  ~Bpe();

  /// Appends the ids of one piece of valid text. Cost: O(n log n)
  void Encode(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  struct Tables;
  class Builder;
  class Word;

  explicit Bpe(std::unique_ptr<const Tables> tables);

  std::unique_ptr<const Tables> tables_;
};

// The post_processor of tokenizer.json: the special tokens around a text.

struct PostProcessor {
  std::vector<TokenId> before{};
  std::vector<TokenId> behind{};

  /// Reads TemplateProcessing (its form for one text), ByteLevel (which moves offsets, not ids) or
  /// a Sequence of them. Absent: none. Errors: kCorrupt; kUnsupported another type, named, a
  /// template that has the text twice or not at all
  static Result<PostProcessor> Parse(const std::optional<JsonNode>& node);

 private:
  Result<void> Add(const JsonNode& node, int depth);
  Result<void> AddTemplate(const JsonNode& node);
};

// The decoder of tokenizer.json: the bytes of a token, and the bytes that a whole text loses.

/// ByteLevel; or a Sequence of Replace, ByteFallback, Fuse and Strip.
///
/// Threads: any number at once
class Decoder {
 public:
  /// Reads the member "decoder" of the file. Errors: kCorrupt; kUnsupported absent, another type or
  /// order, a replacement by more than was there
  static Result<Decoder> Parse(const JsonNode& root);

  /// The bytes of a token; `text` is as in the file.
  std::string BytesOf(std::string_view text) const;

  /// Takes from the start of a text, whole characters in, what the decoder strips there. `stripped`
  /// counts over the pieces of a text and begins as 0.
  std::string_view Strip(std::string_view text, uint64_t& stripped) const;

 private:
  Result<void> Add(const JsonNode& node, int depth);
  Result<void> AddReplace(const JsonNode& node);
  Result<void> AddStrip(const JsonNode& node);

  bool byte_level_ = false;
  bool byte_fallback_ = false;  // <0xHH> is a byte
  bool fused_ = false;          // the rest of the steps see the text, not tokens
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string strip_;        // a character
  uint64_t strip_most_ = 0;  // how often it is taken from the start of the text
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_STAGES_H_
