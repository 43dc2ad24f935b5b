// How much of a sequence all ranks have room for.
#ifndef QUIRE_RANKS_RESERVED_ROOM_H_
#define QUIRE_RANKS_RESERVED_ROOM_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/bits.h"
#include "quire/cache.h"
#include "quire/error.h"

namespace quire::ranks {

/// A sequence that grows token by token asks for room before each one, and an answer of all ranks
/// takes as long as the slowest one. So they are asked for some blocks at a time, where these have
/// room.
///
/// Threads: one
class ReservedRoom {
 public:
  /// `tokens`: that all ranks have room for already.
  explicit ReservedRoom(const CacheOptions& options, uint64_t tokens = 0)
      : tokens_(tokens),
        tokens_max_(options.tokens_max),
        piece_tokens_(kPieceBlocks * options.profile.block_tokens) {}

  /// Calls `ask` with the tokens that all ranks shall have room for, once or twice, unless they
  /// have it.
  ///
  /// Errors: those of `ask` for exactly `tokens`
  Result<void> Grow(uint64_t tokens, const std::function<Result<void>(uint64_t tokens)>& ask) {
    if (tokens <= tokens_) return {};
    const uint64_t ahead = std::min(RoundUp(tokens, piece_tokens_), tokens_max_);
    if (ahead > tokens && ask(ahead)) {
      tokens_ = ahead;
      return {};
    }
    QUIRE_TRY(ask(tokens));
    tokens_ = tokens;
    return {};
  }
  /// What to ask for before it is needed: with `tokens` nearly all of it is used up.
  std::optional<uint64_t> AskAhead(uint64_t tokens) const {
    if (tokens + kAheadTokens <= tokens_) return std::nullopt;
    const uint64_t ahead = std::min(RoundUp(tokens_ + 1, piece_tokens_), tokens_max_);
    return ahead > tokens_ ? std::optional(ahead) : std::nullopt;
  }
  /// All ranks have room for so many.
  void Have(uint64_t tokens) { tokens_ = std::max(tokens_, tokens); }
  bool Has(uint64_t tokens) const { return tokens <= tokens_; }
  /// What was reserved may be gone.
  void Forget() { tokens_ = 0; }

 private:
  static constexpr uint64_t kPieceBlocks = 4;
  // An answer takes as long as a few steps, each of which makes the sequence longer by a token.
  static constexpr uint64_t kAheadTokens = 8;

  uint64_t tokens_;
  uint64_t tokens_max_;
  uint64_t piece_tokens_;
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_RESERVED_ROOM_H_
