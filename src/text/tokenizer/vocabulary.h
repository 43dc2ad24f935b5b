// model.vocab of tokenizer.json: the text of every token, in which characters may stand for bytes.
#ifndef QUIRE_TEXT_TOKENIZER_VOCABULARY_H_
#define QUIRE_TEXT_TOKENIZER_VOCABULARY_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "quire/identity.h"
#include "text/json_node.h"

namespace quire::model {

/// Tokens by id and by text; text as in the file, so byte-level tokens are characters.
///
/// Threads: any number at once
class Vocabulary {
 public:
  /// Errors: kCorrupt no object, an id out of range or twice
  static Result<Vocabulary> Parse(const JsonNode& vocab);

  Vocabulary(Vocabulary&& other) noexcept;
  Vocabulary& operator=(Vocabulary&& other) noexcept;
  ~Vocabulary();

  std::optional<TokenId> Find(std::string_view text) const;
  /// Nothing for an id that no token has. Lives as long as the vocabulary.
  std::optional<std::string_view> Text(TokenId id) const;
  /// Every token once, in no order.
  void ForEach(const std::function<void(TokenId, std::string_view)>& visit) const;

 private:
  struct Tables;

  explicit Vocabulary(std::unique_ptr<const Tables> tables);

  std::unique_ptr<const Tables> tables_;
};

/// The character of one byte: printable bytes stand for themselves, the others follow from U+0100
/// on, in order. Source: GPT-2, bytes_to_unicode.
std::string_view ByteCharacter(unsigned char byte);

/// Every byte as its character.
std::string BytesToCharacters(std::string_view bytes);

/// The bytes of valid text made of such characters; nothing when another one is in it.
std::optional<std::string> CharactersToBytes(std::string_view text);

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_VOCABULARY_H_
