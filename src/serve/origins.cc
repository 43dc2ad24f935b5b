#include "serve/origins.h"

#include <algorithm>
#include <utility>

namespace quire::serve {

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
