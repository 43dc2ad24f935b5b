// The decoder of tokenizer.json: what bytes a token stands for, and what a whole text loses.
#ifndef QUIRE_TEXT_TOKENIZER_DECODER_H_
#define QUIRE_TEXT_TOKENIZER_DECODER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "text/json_node.h"

namespace quire::model {

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

#endif  // QUIRE_TEXT_TOKENIZER_DECODER_H_
