// The text of a request: which of it is fed next, and where its tokens came from.
#ifndef QUIRE_SERVE_TEXT_H_
#define QUIRE_SERVE_TEXT_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "serve/request.h"

namespace quire::serve {

/// The prompt, behind what its session had before, and what is generated. All of it but the last
/// generated token has to be in the sequence before the next token can be drawn. Positions are
/// numbers of tokens that are there.
///
/// Threads:  one
/// Lifetime: the request must outlive it
class Text {
 public:
  /// Takes the prompt out of the request: it may be long.
  explicit Text(Request& request)
      : request_(request),
        tokens_(std::exchange(request.prompt, {})),
        prompt_tokens_(tokens_.size()) {}

  std::span<const TokenId> tokens() const { return tokens_; }
  uint64_t prompt_tokens() const { return prompt_tokens_; }
  uint64_t generated_tokens() const { return tokens_.size() - prompt_tokens_; }
  /// That a sequence of it may hold in all.
  uint64_t tokens_at_most() const;
  /// Tokens that must be there before it can draw, or end.
  uint64_t goal() const;

  /// The text of its session belongs to the prompt and stands before what is there.
  void PutBefore(std::span<const TokenId> earlier);
  void Append(TokenId token) {
    // Not twice as much: the prompt may be long.
    if (tokens_.size() == tokens_.capacity()) {
      tokens_.reserve(tokens_.size() + std::max<size_t>(16, tokens_.size() / 8));
    }
    tokens_.push_back(token);
  }
  /// Of a session: as it was before this request.
  void Undo() { tokens_.resize(earlier_tokens_); }
  /// Leaves nothing.
  std::vector<TokenId> Take() { return std::exchange(tokens_, {}); }

  /// It is read no further for now than to here.
  void StopAt(uint64_t position) { stop_at_ = position; }
  /// What comes after `position`, at most `tokens_max`.
  std::span<const TokenId> Next(uint64_t position, uint64_t tokens_max) const;
  /// Rows of logits that a step over so many of them has to give: all, the last, or none.
  uint64_t LogitsOf(uint64_t position, uint64_t tokens) const;
  /// A step that begins at `position` gives those of all its tokens.
  bool AllLogitsAt(uint64_t position) const {
    return request_.all_logits || (request_.prompt_logprobs && position < prompt_tokens_);
  }

 private:
  // A step with the logits of so many tokens takes 40 MB with a vocabulary of 152k.
  static constexpr uint64_t kLogprobTokensMax = 64;

  const Request& request_;
  std::vector<TokenId> tokens_;
  uint64_t earlier_tokens_ = 0;
  uint64_t prompt_tokens_;
  uint64_t stop_at_ = UINT64_MAX;
};

/// Where the tokens of a text came from: found, loaded, computed, or computed again. Counts each
/// prompt token once, by what brought it first, however often the request loses its sequence.
///
/// Threads: one
class Origins {
 public:
  /// It has a sequence of so many tokens. The first time these were found, and `missing` says why
  /// others were not; later what it has not had yet came without being computed for it.
  void Start(uint64_t position, std::vector<MissRun> missing, uint64_t loaded_tokens);
  /// What was loaded while it computed ends here.
  void Join(uint64_t position, std::vector<MissRun> missing);
  void Preempt() { ++preemptions_; }
  /// From now on nothing counts as found.
  void Generate() { generates_ = true; }
  /// A step over `tokens` tokens ended here. Returns how many were computed for the first time.
  uint64_t Advance(uint64_t tokens, uint64_t position);

  void Tell(Response& response) &&;

 private:
  uint64_t SkipTo(uint64_t position);

  bool started_ = false;
  bool generates_ = false;
  uint64_t furthest_ = 0;  // position that was reached, also before it was preempted
  uint64_t reused_tokens_ = 0;
  uint64_t loaded_tokens_ = 0;
  uint64_t computed_tokens_ = 0;    // of the prompt
  uint64_t recomputed_tokens_ = 0;  // of all
  uint32_t preemptions_ = 0;
  std::vector<MissRun> missing_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_TEXT_H_
