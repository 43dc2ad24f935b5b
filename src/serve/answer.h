// What a request generates: drawn, hashed, timed and said, each token once.
#ifndef QUIRE_SERVE_ANSWER_H_
#define QUIRE_SERVE_ANSWER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "model/sampling.h"
#include "quire/env.h"
#include "serve/mailbox.h"
#include "serve/request.h"

namespace quire::serve {

/// Threads:  one
/// Lifetime: all it is made with must outlive it
class Answer {
 public:
  struct Drawn {
    TokenId token;
    std::optional<Finish> ends{};  // the answer, with this token
  };

  Answer(RequestId id, const Request& request, uint64_t submitted_us, Mailbox& mailbox,
         const Clock& clock)
      : id_(id),
        request_(request),
        submitted_us_(submitted_us),
        mailbox_(mailbox),
        clock_(clock),
        sampler_(request.sampling) {}

  /// The sampler of its session, in place of the request's.
  void SetSampler(const model::SamplerState& state) { sampler_ = model::Sampler(state); }
  model::SamplerState sampler() const { return sampler_.state(); }

  /// Computes the next token for the Draw that follows, from the logits after `text`: all tokens
  /// before it.
  ///
  /// Shape:   logits [vocab]
  /// Threads: any, beside other answers'
  void Choose(std::span<const float> logits, std::span<const TokenId> text) noexcept;
  /// The next token, from the same logits and text; Choose may have been called.
  ///
  /// Errors: kCorrupt the logits are not all finite; kNoSpace. Nothing is drawn then
  Result<Drawn> Draw(std::span<const float> logits, std::span<const TokenId> text);

  /// Says how likely tokens of the prompt were, the first of them at `position`, by the logits
  /// before each.
  ///
  /// Shape:  tokens [n], logits [n, vocab]
  /// Errors: as Draw
  Result<void> SayPrompt(std::span<const TokenId> tokens, uint64_t position,
                         std::span<const float> logits);

  /// Tokens, times and digest; the rest is not its own. The last call.
  Response Take(Finish finish);

 private:
  Result<NewToken> Compute(std::span<const float> logits, std::span<const TokenId> text);

  const RequestId id_;
  const Request& request_;
  const uint64_t submitted_us_;
  Mailbox& mailbox_;
  const Clock& clock_;
  model::Sampler sampler_;
  model::LogitProcessor processor_;
  Blake2b<16> digest_;
  std::optional<Result<NewToken>> chosen_;  // by Choose
  bool has_no_memory_ = false;              // to choose, nor for an error that says so
  std::vector<TokenId> tokens_;
  uint64_t first_us_ = 0;  // of the first token
  uint64_t last_us_ = 0;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ANSWER_H_
