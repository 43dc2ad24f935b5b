// Policies that others are measured against in replays: least frequently used, S3-FIFO and ARC. No
// cache can be made with one.
#ifndef QUIRE_EVICT_BASELINES_BASELINES_H_
#define QUIRE_EVICT_BASELINES_BASELINES_H_

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "evict/leaf_order.h"
#include "evict/per_block.h"
#include "evict/policy.h"
#include "evict/recent_keys.h"

namespace quire::evict {

std::span<const std::string_view> BaselineNames();

/// A new one; null for a name that is not in BaselineNames().
std::unique_ptr<Policy> MakeBaseline(std::string_view name);

/// Least frequently used first.
///
/// Uses are counted while a block is in the cache; of equal counts the least recent goes first.
///
/// Cost: O(log leaves) per call; 120 bytes per block
class LfuPolicy final : public Policy {
 public:
  LfuPolicy() : order_(1) {}

  std::string_view name() const override { return "lfu"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new LfuPolicy(order_, uses_));
  }
  uint64_t bytes_per_block() const override {
    return LeafOrder::kBytesEach + KeyedBlocks<uint64_t>::kBytesEach;
  }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override {
    const uint64_t uses = ++uses_.At(block, facts.key).value;
    order_.Add(block, facts.parent, {.queue = 0, .weight = uses, .stamp = ++stamp_});
  }
  void Remove(BlockId block) override { order_.Remove(block); }
  void Evict(BlockId block) override {
    order_.Remove(block);
    uses_.Forget(block);
  }
  std::optional<BlockId> Victim() const override { return order_.First(); }
  uint64_t size() const override { return order_.size(); }

 private:
  LfuPolicy(const LeafOrder& order, const KeyedBlocks<uint64_t>& uses)
      : order_(1, order), uses_(uses.table()) {}

  LeafOrder order_;  // weight: uses
  KeyedBlocks<uint64_t> uses_;
  uint64_t stamp_ = 0;
};

/// Three queues, first in, first out: blocks used once leave soon.
///
/// New blocks wait in a small queue, a tenth of the cache; those used again there move to the main
/// queue, the others go and are remembered, and come back into the main queue. Whatever stands
/// first in the main queue and was used since gets another round. Uses move nothing.
///
/// Cost: O(log leaves) per call, amortised; 128 bytes per block, 34 for each that is remembered: at
///       most as many as are there
/// Source: Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023; with leaves
///         only as victims
class S3FifoPolicy final : public Policy {
 public:
  S3FifoPolicy() : order_(2) {}

  std::string_view name() const override { return "s3fifo"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new S3FifoPolicy(order_, entries_));
  }
  uint64_t bytes_per_block() const override {
    return LeafOrder::kBytesEach + KeyedBlocks<Entry>::kBytesEach;
  }
  bool has_history() const override { return true; }
  void SetHistory(uint64_t bytes) override;
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override;
  void Remove(BlockId block) override;
  void Evict(BlockId block) override;
  void Forget(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return order_.size(); }

 private:
  enum Queue : uint8_t { kSmall, kMain };
  struct Entry {
    uint64_t stamp = 0;
    Queue queue = kSmall;
    uint8_t uses = 0;  // since it came or got another round; counts to kUsesMax

    Rank rank() const { return {.queue = queue, .weight = 0, .stamp = stamp}; }
  };

  S3FifoPolicy(const LeafOrder& order, const KeyedBlocks<Entry>& entries)
      : order_(2, order), entries_(entries.table()) {}

  Queue Turn() const;
  void Settle();

  LeafOrder order_;                   // by queue
  std::array<uint64_t, 2> blocks_{};  // evictable, by queue
  KeyedBlocks<Entry> entries_;
  GhostKeys ghosts_;
  uint64_t ghosts_max_ = UINT64_MAX;
  uint64_t stamp_ = 0;
};

/// Adaptive replacement: recency and frequency, balanced by blocks that were evicted too early.
///
/// Two LRU lists: blocks used once, and more often. A block that comes back soon after it was
/// evicted from one of them makes that list larger. Needs BlockFacts::key to know it again.
///
/// Cost: O(log leaves) per call; 112 bytes per block, and 34 for each one remembered, at most
///       as many of each list as are there
/// Source: Megiddo and Modha, ARC, FAST 2003; with leaves only as victims
class ArcPolicy final : public Policy {
 public:
  ArcPolicy() : order_(2) {}

  std::string_view name() const override { return "arc"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new ArcPolicy(order_, known_));
  }
  uint64_t bytes_per_block() const override {
    return LeafOrder::kBytesEach + KeyedBlocks<uint8_t>::kBytesEach;
  }
  bool has_history() const override { return true; }
  void SetHistory(uint64_t bytes) override;
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override;
  void Remove(BlockId block) override;
  void Evict(BlockId block) override;
  void Forget(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return order_.size(); }

 private:
  enum List : uint32_t { kOnce, kOften };

  ArcPolicy(const LeafOrder& order, const KeyedBlocks<uint8_t>& known)
      : order_(2, order), known_(known.table()) {}

  List ListOf(bool is_new, uint64_t key);

  LeafOrder order_;                   // by list
  std::array<uint64_t, 2> blocks_{};  // evictable, by list
  std::array<GhostKeys, 2> ghosts_;   // evicted, by list
  uint64_t ghosts_max_ = UINT64_MAX;  // in each of them
  KeyedBlocks<uint8_t> known_;        // the blocks in the cache, with no other data
  double once_target_ = 0;            // target length of the list kOnce, in blocks
  uint64_t stamp_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_BASELINES_BASELINES_H_
