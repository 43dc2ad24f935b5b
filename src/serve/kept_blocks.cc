#include "serve/kept_blocks.h"

#include <span>
#include <utility>

namespace quire::serve {

void KeptBlocks::Begin(uint64_t prompt_tokens) {
  observer_.reset();
  if (options_.keeps_all() || options_.by == KeepBy::kRecent || chosen_) return;
  observer_.emplace(ObservedFrom(options_, prompt_tokens));
}

void KeptBlocks::ForgetObservedSince(std::optional<model::ImportanceObserver> before) {
  observer_.reset();
  if (before) observer_.emplace(*std::move(before));
}

Result<std::unique_ptr<Sequence>> KeptBlocks::Select(Sequence& whole,
                                                     const NumericProfile& profile) {
  if (!chosen_) {
    chosen_ = BlocksToKeep(options_, whole.length() / profile.block_tokens, profile,
                           observer_ ? observer_->importance() : std::span<const double>{});
    observer_.reset();
  }
  QUIRE_ASSIGN(auto kept, whole.Select(*chosen_));
  dropped_tokens_ = kept->dropped_tokens();
  return kept;
}

}  // namespace quire::serve
