#include "model/logit_rules.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>

namespace quire::model {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

bool LogitRules::change_nothing() const {
  return repetition_penalty == 1.0f && presence_penalty == 0.0f && frequency_penalty == 0.0f &&
         tokens_min == 0 && bias.empty();
}

Result<void> CheckLogitRules(const LogitRules& rules, TokenId vocab) {
  const auto within = [](std::string_view name, float value, float least,
                         float most) -> Result<void> {
    if (value >= least && value <= most) return {};
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}, must be from {} to {}", name, value, least, most));
  };
  constexpr float kMost = 1e6f;  // more would be no use, and less far from the limits of f32
  if (!(rules.repetition_penalty > 0.0f)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("repetition_penalty is {}, must be above 0", rules.repetition_penalty));
  }
  QUIRE_TRY(within("repetition_penalty", rules.repetition_penalty, 1.0f / kMost, kMost));
  QUIRE_TRY(within("presence_penalty", rules.presence_penalty, -kMost, kMost));
  QUIRE_TRY(within("frequency_penalty", rules.frequency_penalty, -kMost, kMost));
  for (const LogitBias& each : rules.bias) {
    QUIRE_TRY(within("logit_bias", each.bias, -kMost, kMost));
    if (each.token < 0 || each.token >= vocab) {
      return Fail(
          ErrorCode::kInvalidArgument,
          fmt::format("logit_bias: token {} is not in the vocabulary of {}", each.token, vocab));
    }
  }
  return {};
}

std::span<const float> LogitProcessor::Apply(const LogitRules& rules, std::span<const float> logits,
                                             const LogitContext& context) {
  if (rules.change_nothing()) return logits;
  logits_.assign(logits.begin(), logits.end());
  if (context.answer.size() < rules.tokens_min) {
    for (const TokenId token : context.stop_tokens) {
      if (token >= 0 && static_cast<size_t>(token) < logits_.size()) {
        logits_[static_cast<size_t>(token)] = kNever;
      }
    }
  }
  for (const LogitBias& each : rules.bias) logits_[static_cast<size_t>(each.token)] += each.bias;
  Penalize(rules, context);
  return logits_;
}

void LogitProcessor::Penalize(const LogitRules& rules, const LogitContext& context) {
  if (rules.repetition_penalty != 1.0f) {
    repeated_.assign(logits_.size(), false);
    for (const TokenId token : context.prompt) repeated_[static_cast<size_t>(token)] = true;
    for (const TokenId token : context.answer) repeated_[static_cast<size_t>(token)] = true;
    for (size_t id = 0; id < logits_.size(); ++id) {
      if (!repeated_[id]) continue;
      logits_[id] = logits_[id] > 0.0f ? logits_[id] / rules.repetition_penalty
                                       : logits_[id] * rules.repetition_penalty;
    }
  }
  if (rules.presence_penalty == 0.0f && rules.frequency_penalty == 0.0f) return;
  times_.assign(logits_.size(), 0);
  for (const TokenId token : context.answer) ++times_[static_cast<size_t>(token)];
  for (const TokenId token : context.answer) {
    const auto id = static_cast<size_t>(token);
    if (times_[id] == 0) continue;  // done
    logits_[id] -=
        rules.frequency_penalty * static_cast<float>(times_[id]) + rules.presence_penalty;
    times_[id] = 0;
  }
}

}  // namespace quire::model
