// Blocks with the lowest priority go first.
#ifndef QUIRE_EVICT_PRIORITY_H_
#define QUIRE_EVICT_PRIORITY_H_

#include <memory>
#include <set>
#include <utility>

#include "evict/leaf_order.h"
#include "evict/per_block.h"
#include "evict/policy.h"

namespace quire::evict {

/// By BlockFacts::priority; of equal priorities blocks that only one request used go before
/// prefixes that several shared, and old ones before recent ones. A priority that has expired
/// counts as unset.
///
/// Cost: O(log leaves) per call, amortised; 128 bytes per block, 64 more if its priority expires
class PriorityPolicy final : public Policy {
 public:
  PriorityPolicy() : order_(1) {}

  std::string_view name() const override { return "priority"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new PriorityPolicy(order_, entries_));
  }
  uint64_t bytes_per_block() const override {
    return LeafOrder::kBytesEach + KeyedBlocks<Entry>::kBytesEach + kExpiryBytes;
  }
  bool hears_requests() const override { return true; }
  bool heeds_priorities() const override { return true; }
  bool hears_time() const override { return true; }
  void Advance(uint64_t time_ms) override;
  void Begin(const RequestFacts& request) override {
    Advance(request.time_ms);
    in_request_ = true;
  }
  void End() override { in_request_ = false; }
  std::unique_ptr<Use> Pause() override {
    return std::exchange(in_request_, false) ? std::make_unique<Use>() : nullptr;
  }
  void Resume(std::unique_ptr<Use> use) override { in_request_ = use != nullptr; }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override;
  void Remove(BlockId block) override;
  void Evict(BlockId block) override;
  std::optional<BlockId> Victim() const override { return order_.First(); }
  uint64_t size() const override { return order_.size(); }

 private:
  static constexpr uint64_t kExpiryBytes = 64;  // of a node of expiries_, on the heap

  struct Entry {
    uint32_t uses = 0;        // by requests
    uint64_t expires_ms = 0;  // of a priority that counts; 0: never
  };
  struct Expiry {
    uint64_t time_ms;
    BlockId block;
    auto operator<=>(const Expiry&) const = default;
  };

  PriorityPolicy(const LeafOrder& order, const KeyedBlocks<Entry>& entries)
      : order_(1, order), entries_(entries.table()) {}

  LeafOrder order_;  // weight: the priority, and then whether it is shared
  KeyedBlocks<Entry> entries_;
  std::set<Expiry> expiries_;  // of evictable blocks
  uint64_t now_ms_ = 0;
  uint64_t stamp_ = 0;
  bool in_request_ = false;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_PRIORITY_H_
