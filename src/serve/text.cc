#include "serve/text.h"

#include <algorithm>
#include <utility>

namespace quire::serve {

uint64_t Text::tokens_at_most() const {
  // The last generated token is never fed back, so its K and V need no room.
  return prompt_tokens_ + std::max<uint64_t>(request_.max_tokens, 1) - 1;
}

uint64_t Text::goal() const {
  // The logits after a session's last token are for the turn that generates: it feeds that token.
  const bool feeds_only = !request_.session.is_none() && request_.max_tokens == 0;
  return tokens_.size() - (feeds_only ? 1 : 0);
}

void Text::PutBefore(std::span<const TokenId> earlier) {
  tokens_.insert(tokens_.begin(), earlier.begin(), earlier.end());
  earlier_tokens_ = earlier.size();
  prompt_tokens_ = tokens_.size();
}

std::span<const TokenId> Text::Next(uint64_t position, uint64_t tokens_max) const {
  // What is kept of a prompt is chosen where the prompt ends, so a step ends there.
  const bool ends_with_prompt = !request_.publishes() && position < prompt_tokens_;
  const uint64_t end = ends_with_prompt ? prompt_tokens_ : goal();
  const uint64_t stop = std::max(position, std::min(end, stop_at_));
  if (request_.prompt_logprobs && position < prompt_tokens_) {
    tokens_max = std::min(tokens_max, kLogprobTokensMax);
  }
  return std::span(tokens_).subspan(position, std::min(stop - position, tokens_max));
}

uint64_t Text::LogitsOf(uint64_t position, uint64_t tokens) const {
  if (AllLogitsAt(position)) return tokens;
  return request_.max_tokens > 0 && position + tokens == goal() ? 1 : 0;
}

void Origins::Start(uint64_t position, std::vector<MissRun> missing, uint64_t loaded_tokens) {
  if (std::exchange(started_, true)) {
    SkipTo(position);
    return;
  }
  furthest_ = position;
  reused_tokens_ = position;
  loaded_tokens_ = loaded_tokens;
  missing_ = std::move(missing);
}

void Origins::Join(uint64_t position, std::vector<MissRun> missing) {
  loaded_tokens_ += SkipTo(position);
  if (preemptions_ == 0 && !missing.empty()) missing_ = std::move(missing);
}

// What lies between where it was and where it is now was not computed for it. Returns the tokens.
uint64_t Origins::SkipTo(uint64_t position) {
  if (generates_ || position <= furthest_) return 0;
  const uint64_t tokens = position - furthest_;
  furthest_ = position;
  reused_tokens_ += tokens;
  return tokens;
}

uint64_t Origins::Advance(uint64_t tokens, uint64_t position) {
  const uint64_t again = std::min(tokens, furthest_ - std::min(furthest_, position - tokens));
  furthest_ = std::max(furthest_, position);
  recomputed_tokens_ += again;
  if (!generates_ && again < tokens) computed_tokens_ = furthest_ - reused_tokens_;
  return tokens - again;
}

void Origins::Tell(Response& response) && {
  response.reused_tokens = reused_tokens_;
  response.loaded_tokens = loaded_tokens_;
  response.computed_tokens = computed_tokens_;
  response.recomputed_tokens = recomputed_tokens_;
  response.preemptions = preemptions_;
  if (!missing_.empty()) response.miss_reason = missing_.front().reason;
  response.missing = std::move(missing_);
}

}  // namespace quire::serve
