// What recency would have hit in the same cache, and how a policy does beside it.
#ifndef QUIRE_EVICT_RECENCY_JUDGE_H_
#define QUIRE_EVICT_RECENCY_JUDGE_H_

#include <cstdint>
#include <span>

#include "evict/recent_keys.h"

namespace quire::evict {

/// Runs a cache of the same size by recency, on keys alone, and keeps the balance of hits. While
/// that is in the red by more than a small share of the blocks used, the policy has to stand back.
///
/// Cost: two lookups per block of a request; kBytesEach per block of the cache
class RecencyJudge {
 private:
  struct Nothing {};

 public:
  static constexpr uint64_t kBytesEach = RecentKeys<Nothing>::kBytesEach;

  /// A request used one path. It asked for the first `asked_blocks`, of which `hit_blocks`
  /// were there. The cache holds `cache_blocks` now that it has the path.
  ///
  /// Shape: keys [blocks], first block first
  void Use(std::span<const uint64_t> keys, uint64_t asked_blocks, uint64_t hit_blocks,
           uint64_t cache_blocks);

  /// The request has ended; so many blocks are there. A path may have had no room.
  void End(uint64_t cache_blocks) { recent_.Trim(cache_blocks); }

  /// Whether the policy may go on.
  bool trusts() const { return trusts_; }
  /// Hits beyond those of recency, lately; negative: it had more.
  double balance() const { return balance_; }
  uint64_t size() const { return recent_.size(); }

 private:
  RecentKeys<Nothing> recent_;  // what recency would hold
  double balance_ = 0;
  double uses_ = 0;  // blocks, lately
  bool trusts_ = true;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_RECENCY_JUDGE_H_
