// added_tokens of tokenizer.json: names that are tokens wherever they stand in a text.
#ifndef QUIRE_TEXT_TOKENIZER_ADDED_TOKENS_H_
#define QUIRE_TEXT_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"
#include "text/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace quire::model {

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

#endif  // QUIRE_TEXT_TOKENIZER_ADDED_TOKENS_H_
