// tokenizer.json: text to token ids and back.
#ifndef QUIRE_MODEL_TOKENIZER_H_
#define QUIRE_MODEL_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/utf8.h"
#include "quire/error.h"
#include "quire/ids.h"

namespace quire::model {

/// A byte-level vocabulary: one token per byte and added tokens beside them.
///
/// Threads: any number at once
class Tokenizer {
 public:
  /// Reads the file at `path`. Errors: as Parse, and those of reading a file
  static Result<Tokenizer> Load(const std::string& path);

  /// Errors: kCorrupt broken JSON, a field missing or of a wrong type, an id twice, a byte without
  ///         token; kUnsupported another kind of tokenizer. The message names file_name and field
  static Result<Tokenizer> Parse(std::string_view json, std::string_view file_name);

  /// Ids of a text. An added token's name in the text becomes that token; the longest name wins.
  std::vector<TokenId> Encode(std::string_view text) const;

  /// The bytes of tokens; special tokens and ids that the file does not know give none. They need
  /// not be whole UTF-8: see TextStream.
  std::string Decode(std::span<const TokenId> tokens) const;

  /// Bytes of one token, as Decode.
  std::string_view TokenBytes(TokenId token) const;

  /// One more than the largest id of the file.
  uint32_t id_end() const { return static_cast<uint32_t>(bytes_of_.size()); }

 private:
  struct Added {
    std::string name;
    TokenId id;
  };
  class Builder;

  Tokenizer() = default;

  std::array<TokenId, 256> byte_ids_{};
  std::vector<Added> added_;           // longest name first
  std::vector<std::string> bytes_of_;  // by id; empty for special tokens and holes
};

/// Text of tokens as they are made: only whole characters come out.
/// Lifetime: the tokenizer must outlive it
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// The characters that `token` completes.
  std::string Add(TokenId token) { return utf8_.Add(tokenizer_.TokenBytes(token)); }
  /// U+FFFD if the text ends inside a character.
  std::string Finish() { return utf8_.Finish(); }

 private:
  const Tokenizer& tokenizer_;
  Utf8Stream utf8_;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_TOKENIZER_H_
