// Which requests go on where an earlier one ended, though its blocks may be gone.
#ifndef QUIRE_EVICT_PATH_HISTORY_H_
#define QUIRE_EVICT_PATH_HISTORY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

namespace quire::evict {

/// The ends of recent paths. A path ends with its last block and with the one before: the last is
/// often partial, and then the next turn does not contain it.
///
/// Cost: one hash lookup per block that the longest known path does not cover; about 100 bytes per
///       end
class PathHistory {
 public:
  PathHistory();
  ~PathHistory();
  PathHistory(const PathHistory&) = delete;
  PathHistory& operator=(const PathHistory&) = delete;

  struct Turn {
    uint32_t number = 0;  // 0: starts a conversation
    uint64_t gap_ms = 0;  // since the turn before
  };

  /// Finds out which turn a path is, and remembers its own ends, the latest `ends_max` of all.
  ///
  /// Shape: keys [blocks], first block first; ends_max at least 2
  Turn Note(std::span<const uint64_t> keys, uint64_t now_ms, uint64_t ends_max);

 private:
  struct Ends;
  struct Noted {
    uint64_t key;
    uint64_t serial;
  };

  const std::unique_ptr<Ends> ends_;
  std::deque<Noted> noted_;  // oldest first; void if the end was noted again
  uint64_t serial_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_PATH_HISTORY_H_
