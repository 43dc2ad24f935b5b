// A text, and the token ids of a rank's share of it as its cache sees them.
#ifndef QUIRE_RANKS_SEQUENCE_SHARE_TEXT_H_
#define QUIRE_RANKS_SEQUENCE_SHARE_TEXT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/wiped_vector.h"
#include "quire/error.h"
#include "quire/identity.h"
#include "ranks/sequence/lane_share.h"

namespace quire::ranks::sequence {

/// How the share of a text is told apart from that of other texts with the same own tokens. The
/// first block of each own split is *stamped*: the bits of its token ids that no token of the
/// vocabulary has hold a keyed digest of all tokens of the text before that split. Blocks of one
/// share are found by their ids from the first block on, so a block is found only after the same
/// text.
class Stamps {
 public:
  /// Needs vocab > 0. Errors: kUnsupported the ids leave less than 128 bits in a block
  static Result<Stamps> Create(uint32_t vocab, uint32_t block_tokens, const Digest& secret);

  uint32_t block_tokens() const { return block_tokens_; }
  /// Errors: kInvalidArgument names a token that the vocabulary does not have
  Result<void> Check(std::span<const TokenId> tokens) const;
  /// The digest after no token, and the one after another split.
  Digest First() const;
  Digest Next(const Digest& before, std::span<const TokenId> split) const;
  /// Token `i` of a split whose digest before it is `before`.
  TokenId Stamp(const Digest& before, uint64_t i, TokenId token) const;

 private:
  Stamps(uint32_t vocab, uint32_t token_bits, uint32_t block_tokens, const Digest& secret)
      : vocab_(vocab), token_bits_(token_bits), block_tokens_(block_tokens), secret_(secret) {}

  uint32_t vocab_;
  uint32_t token_bits_;
  uint32_t block_tokens_;
  Digest secret_;
};

/// Threads: as a vector
class ShareText {
 public:
  ShareText(const LaneShare& share, const Stamps& stamps);

  uint64_t size() const { return tokens_.size(); }
  void Append(std::span<const TokenId> tokens);
  /// Needs tokens <= size().
  void Cut(uint64_t tokens);
  /// Tokens [begin, end) of the share, as the cache sees them. Needs end <= share.Before(size()).
  std::vector<TokenId> Share(uint64_t begin, uint64_t end) const;

 private:
  LaneShare share_;
  Stamps stamps_;
  WipedVector<TokenId> tokens_{};  // of the text
  std::vector<Digest> before_;     // of each split that has begun, and of the next one
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_SHARE_TEXT_H_
