// The tokens of tokenizer.json: model.vocab, the text of every token, in which characters may stand
// for bytes, and added_tokens, names that are tokens wherever they stand in a text.
#ifndef QUIRE_TEXT_TOKENIZER_VOCABULARY_H_
#define QUIRE_TEXT_TOKENIZER_VOCABULARY_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

struct AddedToken {
  TokenId id = 0;
  std::string content{};
  bool special = false;      // left out when decoding
  bool normalized = false;   // looked for after the normalizer, as the normalizer writes it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool single_word = false;  // only where no letter or digit touches it
};

/// Reads the array; absent: none.
/// Errors: kCorrupt a field, a content or an id twice, also beside another in `vocabulary`
Result<std::vector<AddedToken>> ParseAddedTokens(const std::optional<JsonNode>& list,
                                                 const Vocabulary& vocabulary);

/// Finds some of them in texts; of several at one place the longest.
///
/// Threads: any number at once
class AddedTokenFinder {
 public:
  struct Stretch {
    std::string_view text;
    std::optional<TokenId> token;  // nothing: plain text
  };

  AddedTokenFinder() = default;
  /// Contents must not be empty; of two with the same content the smaller id is found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// The pieces of valid `text` in order, none empty. Cost: O(n) times the longest content
  std::vector<Stretch> Split(std::string_view text) const;

 private:
  const AddedToken* LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // by content, ascending
  std::array<bool, 256> begins_{};  // by first byte: one begins with it
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_VOCABULARY_H_
