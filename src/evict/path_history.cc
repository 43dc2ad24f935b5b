#include "evict/path_history.h"

#include <algorithm>

namespace quire::evict {

PathHistory::Turn PathHistory::Note(std::span<const uint64_t> keys, uint64_t now_ms,
                                    uint64_t ends_max) {
  // A first block alone is what all paths share.
  if (keys.size() < 2) return {};
  Turn turn;
  for (size_t i = keys.size(); i-- > 1;) {
    const auto end = ends_.find(keys[i]);
    if (end == ends_.end()) continue;
    turn = {.number = end->second.turn + 1, .gap_ms = now_ms - end->second.time_ms};
    break;
  }
  for (size_t i = std::max<size_t>(1, keys.size() - 2); i < keys.size(); ++i) {
    ends_[keys[i]] = {.turn = turn.number, .time_ms = now_ms, .serial = ++serial_};
    noted_.push_back({keys[i], serial_});
  }
  // Entries that are void pile up only where the same paths come back and back.
  while (ends_.size() > ends_max || noted_.size() > 2 * ends_max) {
    const auto oldest = ends_.find(noted_.front().key);
    if (oldest != ends_.end() && oldest->second.serial == noted_.front().serial) {
      ends_.erase(oldest);
    }
    noted_.pop_front();
  }
  return turn;
}

}  // namespace quire::evict
