// The policy of this project: by facts that a cache of conversations knows, and by recency where
// these do not help.
#ifndef QUIRE_EVICT_QUIRE_H_
#define QUIRE_EVICT_QUIRE_H_

#include <algorithm>
#include <memory>

#include "evict/leaf_order.h"
#include "evict/per_block.h"
#include "evict/policy.h"
#include "evict/request_history.h"
#include "evict/return_model.h"
#include "evict/return_shadow.h"

namespace quire::evict {

/// A prompt is a turn of a conversation that will continue, or will not. From facts that are known
/// when a request ends (lengths, turn, time since the turn before, how many paths share a block,
/// whether the block ends its path) an online model learns how soon its blocks are worth a hit, and
/// the leaf that is worth least goes first. A sample of blocks runs through two caches in
/// miniature; while recency does better there, or has done better in a cache of this size than this
/// one did, the least recently used leaf goes first. So does it when callers leave the facts out,
/// and when there is no memory to learn with.
///
/// Cost: O(log blocks) per call, amortised; 112 bytes per block; of its history 24 KB for a model,
///       34 bytes per block of the cache, and the rest for watched blocks and for ends of paths
/// Source: docs/policies.md; ReturnModel
class QuirePolicy final : public Policy {
 public:
  QuirePolicy();

  std::string_view name() const override { return "quire"; }
  std::unique_ptr<Policy> MakeSibling() const override;
  uint64_t bytes_per_block() const override { return LeafOrder::kBytesEach + sizeof(Record); }
  bool has_history() const override { return true; }
  void SetHistory(uint64_t bytes) override { history_bytes_ = bytes; }
  bool hears_requests() const override { return true; }
  bool hears_time() const override { return true; }
  void Advance(uint64_t time_ms) override { now_ms_ = std::max(now_ms_, time_ms); }
  void Begin(const RequestFacts& request) override;
  bool BeginSome(const RequestFacts& request, std::unique_ptr<Use>& use,
                 uint64_t& keys_left) override;
  void End() override;
  std::unique_ptr<Use> Pause() override;
  void Resume(std::unique_ptr<Use> use) override;
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
  struct Request {
    ReturnFeatures features = {1};
    uint32_t of_class = 0;  // of its blocks that have no features of their own
    uint64_t blocks = 0;
    bool continues = false;
    bool is_under_way = false;
  };
  struct Paused : Use {
    Request request;
  };
  // A request that is being taken in.
  struct Beginning : Use {
    uint64_t cache_blocks = 0;
    RecencyJudge::Progress judged{};
    PathHistory::Progress noted{};
  };
  // The history: what is remembered of blocks that left the cache.
  struct Learner {
    ReturnShadow shadow;
    PathHistory paths;
    RecencyJudge judge;
  };
  // How much of it the history pays for.
  struct Shares {
    uint64_t ends = 0;
    uint64_t watched = 0;
  };

  QuirePolicy(const LeafOrder& order, std::shared_ptr<PerBlock<Record>> records);

  void ShareHistory(uint64_t cache_blocks);
  std::unique_ptr<Beginning> BeginFirst(const RequestFacts& request);
  void SetFeatures(const RequestFacts& request, const PathHistory::Turn& turn);
  uint32_t ClassOf(const ReturnFeatures& features) const;

  LeafOrder order_;  // queue: class; weight: time of the last use
  const std::shared_ptr<PerBlock<Record>> records_;
  std::unique_ptr<LeastWorth> least_worth_;  // null: there has been no learner
  std::unique_ptr<Learner> learner_;         // null: no memory for one
  uint64_t history_bytes_ = UINT64_MAX;
  Shares shares_;
  uint64_t resident_ = 0;
  bool has_evicted_ = false;
  uint64_t now_ms_ = 0;
  uint64_t stamp_ = 0;
  Request request_;  // the one at hand
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_QUIRE_H_
