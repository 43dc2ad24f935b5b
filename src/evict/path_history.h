// Which requests go on where an earlier one ended, though its blocks may be gone.
#ifndef QUIRE_EVICT_PATH_HISTORY_H_
#define QUIRE_EVICT_PATH_HISTORY_H_

#include <cstdint>
#include <span>

#include "evict/recent_keys.h"

namespace quire::evict {

/// The ends of recent paths. A path ends with its last block and with the one before: the last is
/// often partial, and then the next turn does not contain it.
///
/// Cost: one lookup per block that the longest known path does not cover; kBytesEach per end
class PathHistory {
 private:
  struct End {
    uint32_t turn = 0;
    uint64_t time_ms = 0;
  };

 public:
  static constexpr uint64_t kBytesEach = RecentKeys<End>::kBytesEach;

  struct Turn {
    uint32_t number = 0;  // 0: starts a conversation
    uint64_t gap_ms = 0;  // since the turn before
  };

  /// Finds out which turn a path is, and remembers its own ends, the latest `ends_max` of all.
  ///
  /// Shape: keys [blocks], first block first
  Turn Note(std::span<const uint64_t> keys, uint64_t now_ms, uint64_t ends_max);

  uint64_t size() const { return ends_.size(); }

 private:
  RecentKeys<End> ends_;  // by time
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_PATH_HISTORY_H_
