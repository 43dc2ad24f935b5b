#include "evict/request_history.h"

#include <algorithm>

namespace quire::evict {

PathHistory::Turn PathHistory::Note(std::span<const uint64_t> keys, uint64_t now_ms,
                                    uint64_t ends_max) {
  // A first block alone is what all paths share.
  if (keys.size() < 2) return {};
  Turn turn;
  for (size_t i = keys.size(); i-- > 1;) {
    const auto place = ends_.Find(keys[i]);
    if (place.is_none()) continue;
    turn = {.number = ends_[place].turn + 1, .gap_ms = now_ms - ends_[place].time_ms};
    break;
  }
  for (size_t i = std::max<size_t>(1, keys.size() - 2); i < keys.size(); ++i) {
    ends_[ends_.AddOrRenew(keys[i])] = {.turn = turn.number, .time_ms = now_ms};
  }
  ends_.Trim(ends_max);
  return turn;
}

namespace {

constexpr double kMemory = 1e6;  // blocks used, until what happened counts 1/e
constexpr double kLoss = 0.001;  // of the blocks used, that may be lost to recency
constexpr double kUsesLeast =
    65'536;                        // that counts as used from the start: to learn costs a little
constexpr double kCredit = 0.005;  // of the blocks used: what was gained pays for no more losses
constexpr double kBack = 0.5;      // of that loss, when the policy may try again
constexpr size_t kAhead = 8;       // lookups, so that those to come do not wait for memory

}  // namespace

void RecencyJudge::Use(std::span<const uint64_t> keys, uint64_t asked_blocks, uint64_t hit_blocks,
                       uint64_t cache_blocks) {
  size_t found = 0;
  while (found < keys.size()) {
    if (found + kAhead < keys.size()) recent_.Prefetch(keys[found + kAhead]);
    if (recent_.Find(keys[found]).is_none()) break;
    ++found;
  }
  // What was found is leased while room is made for the rest; it ends with the first block as the
  // most recent.
  for (size_t i = found; i-- > 0;) recent_.Renew(recent_.Find(keys[i]));
  const uint64_t added = keys.size() - found;
  recent_.Trim(cache_blocks - std::min(cache_blocks, added));
  for (size_t i = keys.size(); i-- > 0;) recent_.AddOrRenew(keys[i]);

  const double kept = 1 - static_cast<double>(keys.size()) / kMemory;
  uses_ = uses_ * kept + static_cast<double>(keys.size());
  balance_ = balance_ * kept + static_cast<double>(hit_blocks) -
             static_cast<double>(std::min<uint64_t>(found, asked_blocks));
  balance_ = std::min(balance_, kCredit * uses_);
  const double bound = -kLoss * std::max(uses_, kUsesLeast);
  trusts_ = balance_ >= (trusts_ ? bound : bound * kBack);
}

}  // namespace quire::evict
