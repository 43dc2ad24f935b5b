// Speculative decoding: a small model guesses, the large one checks all guesses in one pass, and
// the cache goes back to where they part.
#include <quire/cache.h>

#include <functional>
#include <vector>

namespace example {

using namespace quire;

struct Target {
  uint32_t layers = 0;
  /// K and V of some tokens at the sequence's end, for one layer. The rows live until the next
  /// call.
  std::function<LayerRows(uint32_t layer, std::span<const TokenId> tokens)> rows;
  /// The token that the model puts after each of these; [tokens].
  std::function<std::vector<TokenId>(const Sequence& sequence, std::span<const TokenId> tokens)>
      next;
};

// `last` is the newest token, not yet in the sequence; `guesses` are meant to follow it. Returns
// the tokens that are certain now; the last of them is the next `last`.
Result<std::vector<TokenId>> Step(Sequence& sequence, const Target& target, TokenId last,
                                  std::span<const TokenId> guesses) {
  std::vector<TokenId> tokens = {last};
  tokens.insert(tokens.end(), guesses.begin(), guesses.end());
  for (uint32_t layer = 0; layer < target.layers; ++layer) {
    // The rows are written but not seen yet: only Commit makes tokens visible.
    QUIRE_TRY(sequence.Append(layer, target.rows(layer, tokens)));
  }
  const std::vector<TokenId> next = target.next(sequence, tokens);

  uint64_t accepted = 1;  // `last` itself
  while (accepted < tokens.size() && next[accepted - 1] == tokens[accepted]) ++accepted;
  QUIRE_TRY(sequence.Commit(std::span(tokens).first(accepted)));
  QUIRE_TRY(sequence.Rollback(sequence.length()));  // the rejected rows go, from every layer

  std::vector<TokenId> certain(tokens.begin() + 1, tokens.begin() + static_cast<int64_t>(accepted));
  certain.push_back(next[accepted - 1]);
  return certain;
}

// Several continuations of one prompt to choose from: each shares its whole blocks.
Result<std::vector<std::unique_ptr<Sequence>>> Branches(Sequence& sequence, uint32_t count) {
  std::vector<std::unique_ptr<Sequence>> branches;
  for (uint32_t i = 0; i < count; ++i) {
    QUIRE_ASSIGN(branches.emplace_back(), sequence.Fork());
  }
  return branches;
}

}  // namespace example
