// tokenizer.json: text to token ids and back.
#ifndef QUIRE_TEXT_TOKENIZER_H_
#define QUIRE_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"
#include "text/unicode/unicode.h"

namespace quire::model {

struct EncodeOptions {
  bool add_special = true;  // the tokens that the file puts around a text, such as BOS
  uint64_t tokens_max = UINT64_MAX;
};

struct DecodeOptions {
  bool skip_special = true;
};

/// Byte-pair encoding as Hugging Face `tokenizers` does it, of bytes (Llama 3, Qwen, Mistral's
/// Tekken) or of characters with bytes to fall back on (Llama 2, Mistral).
///
/// Threads: any number at once
class Tokenizer {
 public:
  /// Reads the file at `path`. Errors: as Parse, and those of reading a file
  static Result<Tokenizer> Load(const std::string& path);

  /// Errors: kCorrupt broken JSON, a field missing or of a wrong type, an id twice, a byte without
  ///         token, a merge of unknown tokens; kUnsupported another kind of tokenizer or component,
  ///         named. The message names file_name and field
  static Result<Tokenizer> Parse(std::string_view json, std::string_view file_name);

  Tokenizer(Tokenizer&& other) noexcept;
  Tokenizer& operator=(Tokenizer&& other) noexcept;
  ~Tokenizer();

  /// Ids of a text. Bytes that are not UTF-8 count as U+FFFD, by the rule of Utf8Stream. An added
  /// token's name in the text becomes that token, special ones too.
  ///
  /// Errors: kTooLarge more than tokens_max, found where the limit is passed; kNoSpace the file's
  ///         pattern needs too many steps on this text, or its normalizer makes too much of it
  Result<std::vector<TokenId>> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  /// The text of tokens: what a TextStream gives. Ids that the file does not know give nothing.
  std::string Decode(std::span<const TokenId> tokens, const DecodeOptions& options = {}) const;

  /// What a token stands for, special or not; it need not be whole characters. Empty for an id that
  /// the file does not know.
  std::string BytesOf(TokenId token) const;

  /// One more than the largest id of the file.
  uint32_t id_end() const;

 private:
  friend class TextStream;
  struct Impl;

  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

/// Text of tokens as they are made: only whole characters come out.
///
/// Threads:  one object on one thread at a time
/// Lifetime: the tokenizer must outlive it
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, const DecodeOptions& options = {})
      : tokenizer_(tokenizer), options_(options) {}

  /// The characters that `token` completes.
  std::string Add(TokenId token);
  /// U+FFFD if the text ends inside a character.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  Utf8Stream utf8_;
  uint64_t stripped_ = 0;  // see Decoder::Strip
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_H_
