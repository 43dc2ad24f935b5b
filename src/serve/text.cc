#include "serve/text.h"

#include <algorithm>

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
  return std::span(tokens_).subspan(position, std::min(stop - position, tokens_max));
}

uint64_t Text::LogitsOf(uint64_t position, uint64_t tokens) const {
  if (request_.all_logits) return tokens;
  return request_.max_tokens > 0 && position + tokens == goal() ? 1 : 0;
}

}  // namespace quire::serve
