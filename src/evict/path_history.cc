#include "evict/path_history.h"

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

}  // namespace quire::evict
