// Byte-pair encoding: the model of tokenizer.json.
#ifndef QUIRE_TEXT_TOKENIZER_BPE_H_
#define QUIRE_TEXT_TOKENIZER_BPE_H_

#include <memory>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"
#include "text/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace quire::model {

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

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_BPE_H_
