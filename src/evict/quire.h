// The policy of this project: by what a cache of conversations knows, and by recency where that
// does not help.
#ifndef QUIRE_EVICT_QUIRE_H_
#define QUIRE_EVICT_QUIRE_H_

#include <algorithm>
#include <vector>

#include "evict/leaf_order.h"
#include "evict/least_worth.h"
#include "evict/path_history.h"
#include "evict/policy.h"
#include "evict/return_shadow.h"

namespace quire::evict {

/// A prompt is a turn of a conversation that will go on, or will not. From what is known when a
/// request ends (lengths, turn, time since the turn before, how many paths share a block, whether
/// the block ends its path) an online model learns how soon its blocks are worth a hit, and the
/// leaf that is worth least goes first. A sample of blocks runs through two caches in miniature;
/// while recency does better there, the least recently used leaf goes first. So does it when
/// callers leave the facts out.
///
/// Cost: O(log blocks) per call, amortised; per block about 60 bytes, 72 more per leaf and 30 for
///       what is watched, which takes 2 MB in small caches; about 200 per remembered path
/// Source: docs/policies.md; ReturnModel
class QuirePolicy final : public Policy {
 public:
  std::string_view name() const override { return "quire"; }
  bool hears_requests() const override { return true; }
  bool hears_time() const override { return true; }
  void Advance(uint64_t time_ms) override { now_ms_ = std::max(now_ms_, time_ms); }
  void Begin(const RequestFacts& request) override;
  void End() override { in_request_ = false; }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override;
  void Remove(BlockId block) override { order_.Remove(block); }
  void Evict(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return order_.size(); }

 private:
  // Of a block that is in the cache, evictable or not.
  struct Record {
    uint64_t key = 0;
    uint32_t branches = 0;  // requests that shared the block and then went another way
    bool resident = false;
  };

  LeafOrder order_{ReturnModel::kClasses};  // queue: class; weight: time of the last use
  mutable LeastWorth least_worth_;
  ReturnShadow shadow_;
  PathHistory paths_;
  std::vector<Record> records_;  // by block id
  uint64_t resident_ = 0;
  uint64_t now_ms_ = 0;
  uint64_t stamp_ = 0;
  // Of the request at hand.
  ReturnFeatures features_ = {1};
  uint32_t class_ = 0;  // of its blocks that have no features of their own
  uint64_t blocks_ = 0;
  bool continues_ = false;
  bool in_request_ = false;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_QUIRE_H_
