// What a request changes in the logits before its next token is drawn (docs/numerics.md section 4).
#ifndef QUIRE_MODEL_LOGIT_RULES_H_
#define QUIRE_MODEL_LOGIT_RULES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

struct LogitBias {
  TokenId token = 0;
  float bias = 0.0f;  // added to its logit
};

/// The defaults change nothing.
struct LogitRules {
  // Above 0. Logits of tokens in the prompt or the answer: positive ones divided by it, others
  // multiplied with it.
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;   // subtracted for tokens in the answer
  float frequency_penalty = 0.0f;  // subtracted for each time that they are there
  uint32_t tokens_min = 0;         // before the answer has so many, no stop token is drawn
  std::vector<LogitBias> bias{};

  bool change_nothing() const;
};

/// Errors: kInvalidArgument a number is out of its range or not finite, or a token not in the
///         vocabulary; the message names it
Result<void> CheckLogitRules(const LogitRules& rules, TokenId vocab);

/// What the rules are applied to.
struct LogitContext {
  std::span<const TokenId> prompt{};
  std::span<const TokenId> answer{};       // so far
  std::span<const TokenId> stop_tokens{};  // those out of the vocabulary count for nothing
};

/// Applies rules to the logits of one sequence, in the order that vLLM has: tokens_min, bias,
/// repetition, frequency and presence.
///
/// Threads: one object on one thread at a time
class LogitProcessor {
 public:
  /// The logits that the rules leave; the same ones where nothing changes. Valid until the next
  /// call, and as long as `logits` are.
  ///
  /// Shape: logits [vocab]; tokens of the context and of the bias are below vocab
  /// Cost:  O(vocab + tokens of the context)
  std::span<const float> Apply(const LogitRules& rules, std::span<const float> logits,
                               const LogitContext& context);

 private:
  void Penalize(const LogitRules& rules, const LogitContext& context);

  std::vector<float> logits_;    // [vocab]
  std::vector<uint32_t> times_;  // [vocab] in the answer
  std::vector<bool> repeated_;   // [vocab] in prompt or answer
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_LOGIT_RULES_H_
