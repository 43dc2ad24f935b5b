#include "evict/request_history.h"

#include <algorithm>

namespace quire::evict {

PathHistory::Turn PathHistory::Note(std::span<const uint64_t> keys, uint64_t now_ms,
                                    uint64_t ends_max) {
  Progress at;
  uint64_t keys_left = UINT64_MAX;
  NoteSome(keys, now_ms, ends_max, at, keys_left);
  return at.turn;
}

bool PathHistory::NoteSome(std::span<const uint64_t> keys, uint64_t now_ms, uint64_t ends_max,
                           Progress& at, uint64_t& keys_left) {
  // A first block alone is what all paths share.
  for (; !at.is_found && at.seen + 1 < keys.size(); ++at.seen, --keys_left) {
    if (keys_left == 0) return false;
    const auto place = ends_.Find(keys[keys.size() - 1 - at.seen]);
    if (place.is_none()) continue;
    at.turn = {.number = ends_[place].turn + 1, .gap_ms = now_ms - ends_[place].time_ms};
    at.is_found = true;
  }
  for (size_t i = std::max<size_t>(3, keys.size()) - 2; i < keys.size(); ++i) {
    ends_[ends_.AddOrRenew(keys[i])] = {.turn = at.turn.number, .time_ms = now_ms};
  }
  if (keys.size() > 1) ends_.Trim(ends_max);
  return true;
}

namespace {

constexpr double kMemory = 1e6;  // blocks used, until what happened counts 1/e
constexpr double kLoss = 0.001;  // of the blocks used, that may be lost to recency
constexpr double kUsesLeast =
    65'536;                        // that counts as used from the start: to learn costs a little
constexpr double kCredit = 0.005;  // of the blocks used: gains pay for no more losses
constexpr double kBack = 0.5;      // of that loss, when the policy may try again
constexpr size_t kAhead = 8;       // lookups, so that those to come do not wait for memory

}  // namespace

void RecencyJudge::Use(const Path& path) {
  Progress at;
  uint64_t keys_left = UINT64_MAX;
  UseSome(path, at, keys_left);
}

bool RecencyJudge::UseSome(const Path& path, Progress& at, uint64_t& keys_left) {
  const std::span<const uint64_t> keys = path.keys;
  for (; !at.is_found && keys_left > 0; --keys_left) {
    if (at.found + kAhead < keys.size()) recent_.Prefetch(keys[at.found + kAhead]);
    at.is_found = at.found == keys.size() || recent_.Find(keys[at.found]).is_none();
    if (!at.is_found) ++at.found;
  }
  if (!at.is_found) return false;
  // Found blocks are leased while room is made for the others; afterwards the first block is the
  // most recent.
  for (; at.renewed < at.found && keys_left > 0; --keys_left) {
    const auto place = recent_.Find(keys[at.found - 1 - at.renewed++]);
    if (!place.is_none()) recent_.Renew(place);  // else it left between two pieces
  }
  if (at.renewed < at.found) return false;
  const uint64_t added = keys.size() - at.found;
  const uint64_t room = path.cache_blocks - std::min(path.cache_blocks, added);
  for (; at.added == 0 && recent_.size() > room; --keys_left) {
    if (keys_left == 0) return false;
    recent_.Remove(recent_.Oldest());
  }
  for (; at.added < keys.size() && keys_left > 0; --keys_left) {
    recent_.AddOrRenew(keys[keys.size() - 1 - at.added++]);
  }
  if (at.added < keys.size()) return false;
  Balance(path, at.found);
  return true;
}

void RecencyJudge::Balance(const Path& path, uint64_t found) {
  const auto blocks = static_cast<double>(path.keys.size());
  const double kept = 1 - blocks / kMemory;
  uses_ = uses_ * kept + blocks;
  balance_ = balance_ * kept + static_cast<double>(path.hit_blocks) -
             static_cast<double>(std::min(found, path.asked_blocks));
  balance_ = std::min(balance_, kCredit * uses_);
  const double bound = -kLoss * std::max(uses_, kUsesLeast);
  trusts_ = balance_ >= (trusts_ ? bound : bound * kBack);
}

}  // namespace quire::evict
