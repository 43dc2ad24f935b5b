#include "evict/path_history.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>

namespace quire::evict {

struct PathHistory::Ends {
  struct End {
    uint32_t turn;
    uint64_t time_ms;
    uint64_t serial;
  };
  // Keys are uniform bits as they come.
  struct Bits {
    size_t operator()(uint64_t key) const { return key; }
  };
  absl::flat_hash_map<uint64_t, End, Bits> by_key;  // never walked: its order decides nothing
};

PathHistory::PathHistory() : ends_(std::make_unique<Ends>()) {}

PathHistory::~PathHistory() = default;

PathHistory::Turn PathHistory::Note(std::span<const uint64_t> keys, uint64_t now_ms,
                                    uint64_t ends_max) {
  // A first block alone is what all paths share.
  if (keys.size() < 2) return {};
  auto& ends = ends_->by_key;
  Turn turn;
  for (size_t i = keys.size(); i-- > 1;) {
    const auto end = ends.find(keys[i]);
    if (end == ends.end()) continue;
    turn = {.number = end->second.turn + 1, .gap_ms = now_ms - end->second.time_ms};
    break;
  }
  for (size_t i = std::max<size_t>(1, keys.size() - 2); i < keys.size(); ++i) {
    ends[keys[i]] = {.turn = turn.number, .time_ms = now_ms, .serial = ++serial_};
    noted_.push_back({keys[i], serial_});
  }
  // Entries that are void pile up only where the same paths come back and back.
  while (ends.size() > ends_max || noted_.size() > 2 * ends_max) {
    const auto oldest = ends.find(noted_.front().key);
    if (oldest != ends.end() && oldest->second.serial == noted_.front().serial) {
      ends.erase(oldest);
    }
    noted_.pop_front();
  }
  return turn;
}

}  // namespace quire::evict
