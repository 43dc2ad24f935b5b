#include "serve/keep.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/bits.h"

namespace quire::serve {

std::string_view KeepByName(KeepBy by) {
  switch (by) {
    case KeepBy::kObserved: return "observed";
    case KeepBy::kAccumulated: return "accumulated";
    case KeepBy::kRecent: return "recent";
  }
  return "unknown";
}

std::optional<KeepBy> KeepByOf(std::string_view name) {
  for (const KeepBy by : {KeepBy::kObserved, KeepBy::kAccumulated, KeepBy::kRecent}) {
    if (KeepByName(by) == name) return by;
  }
  return std::nullopt;
}

bool HasWindows(const Geometry& geometry) {
  return std::ranges::any_of(geometry.groups,
                             [](const LayerGroup& group) { return group.window_tokens > 0; });
}

uint64_t ObservedFrom(const KeepOptions& options, uint64_t prompt_tokens) {
  if (options.by != KeepBy::kObserved || options.blocks_max > 0) return 0;
  return prompt_tokens - std::min<uint64_t>(prompt_tokens, options.observe_tokens);
}

std::vector<uint64_t> BlocksToKeep(const KeepOptions& options, uint64_t whole_blocks,
                                   const NumericProfile& profile,
                                   std::span<const double> importance) {
  // With a precision ladder all of them have their open forms, and no block has to be the last.
  const uint64_t read_open = profile.has_ladder() ? 0 : profile.residual_blocks();
  const bool is_bounded = options.blocks_max > 0;
  const auto of_share =
      static_cast<uint64_t>(std::ceil(options.share * static_cast<double>(whole_blocks)));
  const uint64_t asked = is_bounded ? options.blocks_after() : of_share;
  const uint64_t wanted = read_open == 0 ? asked : std::max(asked, read_open + options.sink_blocks);
  uint64_t latest = 1;
  if (is_bounded) {
    latest = options.blocks_max / 4;
  } else if (options.by == KeepBy::kObserved) {
    latest = DivUp(options.observe_tokens, profile.block_tokens);
  }
  const uint64_t at_end = std::max(latest, read_open);
  std::vector<uint64_t> blocks(whole_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  // Sinks, then the end from its last block on, then what is worth most.
  const auto rank = [&](uint64_t block) {
    return block < options.sink_blocks ? 0 : whole_blocks - block <= at_end ? 1 : 2;
  };
  const auto worth = [&](uint64_t block) {
    if (rank(block) < 2 || options.by == KeepBy::kRecent || block >= importance.size()) return 0.0;
    return importance[block];
  };
  std::ranges::sort(blocks, [&](uint64_t a, uint64_t b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    if (worth(a) != worth(b)) return worth(a) > worth(b);
    return a > b;
  });
  blocks.resize(std::min(wanted, whole_blocks));
  std::ranges::sort(blocks);
  return blocks;
}

void KeptBlocks::Begin(uint64_t prompt_tokens) {
  selections_ = 0;
  observer_.reset();
  if (options_.keeps_all() || options_.by == KeepBy::kRecent) return;
  // Of a prompt it chooses once, of a text again and again.
  if (options_.blocks_max == 0 && !choices_.empty()) return;
  observer_.emplace(ObservedFrom(options_, prompt_tokens));
}

void KeptBlocks::ForgetObservedSince(std::optional<model::ImportanceObserver> before) {
  observer_.reset();
  if (before) observer_.emplace(*std::move(before));
}

Result<std::unique_ptr<Sequence>> KeptBlocks::Select(Sequence& whole,
                                                     const NumericProfile& profile) {
  if (selections_ == choices_.size()) {
    choices_.push_back(
        BlocksToKeep(options_, whole.length() / profile.block_tokens, profile,
                     observer_ ? observer_->importance() : std::span<const double>{}));
  }
  const std::vector<uint64_t>& chosen = choices_[selections_];
  QUIRE_ASSIGN(auto kept, whole.Select(chosen));
  if (options_.blocks_max == 0) {
    observer_.reset();
  } else if (observer_) {
    observer_->Keep(chosen);
  }
  dropped_tokens_ = kept->dropped_tokens();
  ++selections_;
  return kept;
}

}  // namespace quire::serve
