// What earlier requests tell a policy: which of them the next one goes on with, and what plain
// recency would have hit.
#ifndef QUIRE_EVICT_REQUEST_HISTORY_H_
#define QUIRE_EVICT_REQUEST_HISTORY_H_

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
  /// How far a path was looked at.
  struct Progress {
    uint64_t seen = 0;  // keys, from the last one on
    bool is_found = false;
    Turn turn{};
  };
  /// The same in pieces, each of which looks at `keys_left` keys at most and counts them down.
  /// False: there is more; else `at.turn` is the answer.
  bool NoteSome(std::span<const uint64_t> keys, uint64_t now_ms, uint64_t ends_max, Progress& at,
                uint64_t& keys_left);

  uint64_t size() const { return ends_.size(); }

 private:
  RecentKeys<End> ends_;  // by time
};

/// Runs a cache of the same size by recency, on keys alone, and keeps the balance of hits. While
/// that balance is negative by more than a small share of the blocks used, the policy must go by
/// recency.
///
/// Cost: two lookups per block of a request; kBytesEach per block of the cache
class RecencyJudge {
 private:
  struct Nothing {};

 public:
  static constexpr uint64_t kBytesEach = RecentKeys<Nothing>::kBytesEach;

  /// A request used one path. It asked for the first `asked_blocks`, of which `hit_blocks`
  /// were there. The cache holds `cache_blocks` now that it has the path.
  struct Path {
    std::span<const uint64_t> keys{};  // [blocks], first block first
    uint64_t asked_blocks = 0;
    uint64_t hit_blocks = 0;
    uint64_t cache_blocks = 0;
  };
  void Use(const Path& path);
  /// How far a path was taken in: each step begins when the one before is done.
  struct Progress {
    uint64_t found = 0;  // keys, from the first one on, that recency would have hit
    bool is_found = false;
    uint64_t renewed = 0;  // of these, from the last one on
    uint64_t added = 0;    // of all, from the last one on
  };
  /// The same in pieces, each of which looks at `keys_left` keys at most and counts them down.
  /// False: there is more.
  bool UseSome(const Path& path, Progress& at, uint64_t& keys_left);

  /// The request has ended; so many blocks are there. A path may have had no room.
  void End(uint64_t cache_blocks) { recent_.Trim(cache_blocks); }

  /// Whether the policy may go on.
  bool trusts() const { return trusts_; }
  /// Hits beyond those of recency, lately; negative: it had more.
  double balance() const { return balance_; }
  uint64_t size() const { return recent_.size(); }

 private:
  void Balance(const Path& path, uint64_t found);

  RecentKeys<Nothing> recent_;  // what recency would hold
  double balance_ = 0;
  double uses_ = 0;  // blocks, lately
  bool trusts_ = true;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_REQUEST_HISTORY_H_
