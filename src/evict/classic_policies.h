// Policies of one plain rule each: least recently used, and the largest request first.
#ifndef QUIRE_EVICT_CLASSIC_POLICIES_H_
#define QUIRE_EVICT_CLASSIC_POLICIES_H_

#include <memory>
#include <optional>
#include <utility>

#include "evict/leaf_order.h"
#include "evict/policy.h"

namespace quire::evict {

/// Least recently used first.
///
/// Cost: O(1) per call; 8 bytes per block
class LruPolicy final : public Policy {
 public:
  LruPolicy() : order_(1) {}

  std::string_view name() const override { return "lru"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new LruPolicy(order_));
  }
  uint64_t bytes_per_block() const override { return Rings::kBytesEach; }
  using Policy::Add;
  void Add(BlockId block) override;
  void Remove(BlockId block) override;
  std::optional<BlockId> Victim() const override;
  uint64_t size() const override { return block_count_; }

 private:
  explicit LruPolicy(const Rings& siblings) : order_(1, siblings) {}

  Rings order_;
  uint64_t block_count_ = 0;
};

/// Blocks of the longest prompt go first, from its end; of equal prompts the least recent. A shared
/// block counts with its latest prompt; what no request used goes last. For users that limit tokens
/// and would rather compute one giant again than many small requests.
///
/// Cost: O(log leaves) per call; 96 bytes per block
class TokenLimitPolicy final : public Policy {
 public:
  TokenLimitPolicy() : order_(1) {}

  std::string_view name() const override { return "token_limit"; }
  std::unique_ptr<Policy> MakeSibling() const override {
    return std::unique_ptr<Policy>(new TokenLimitPolicy(order_));
  }
  uint64_t bytes_per_block() const override { return LeafOrder::kBytesEach; }
  bool hears_requests() const override { return true; }
  void Begin(const RequestFacts& request) override { prompt_tokens_ = request.prompt_tokens; }
  void End() override { prompt_tokens_.reset(); }
  std::unique_ptr<Use> Pause() override {
    auto paused = std::make_unique<Paused>();
    paused->prompt_tokens = std::exchange(prompt_tokens_, std::nullopt);
    return paused;
  }
  void Resume(std::unique_ptr<Use> use) override {
    prompt_tokens_ = static_cast<Paused&>(*use).prompt_tokens;
  }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const BlockFacts& facts) override {
    const auto former = order_.FormerRank(block);
    const uint64_t weight = prompt_tokens_ ? UINT64_MAX - *prompt_tokens_
                            : former       ? former->weight
                                           : UINT64_MAX;
    order_.Add(block, facts.parent, {.queue = 0, .weight = weight, .stamp = ++stamp_});
  }
  void Remove(BlockId block) override { order_.Remove(block); }
  void Evict(BlockId block) override {
    order_.Remove(block);
    order_.Forget(block);
  }
  std::optional<BlockId> Victim() const override { return order_.First(); }
  uint64_t size() const override { return order_.size(); }

 private:
  struct Paused : Use {
    std::optional<uint64_t> prompt_tokens;
  };

  explicit TokenLimitPolicy(const LeafOrder& order) : order_(1, order) {}

  LeafOrder order_;                        // weight: what the prompt leaves of all tokens
  std::optional<uint64_t> prompt_tokens_;  // of the request at hand
  uint64_t stamp_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_CLASSIC_POLICIES_H_
