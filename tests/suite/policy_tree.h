// A tree of blocks used as the cache uses it, without the cache: the judge of eviction policies.
#ifndef QUIRE_TESTS_SUITE_POLICY_TREE_H_
#define QUIRE_TESTS_SUITE_POLICY_TREE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "evict/policy.h"

namespace quire::evict {

/// Keeps both promises of Policy. Every choice comes from `below`, a source of numbers below a
/// bound, so the same numbers make the same calls.
class PolicyTree {
 public:
  static constexpr uint32_t kNoParent = UINT32_MAX;

  struct Block {
    bool present = false;
    uint32_t parent = kNoParent;
    uint32_t depth = 0;
    uint32_t leases = 0;
    uint64_t key = 0;
  };

  PolicyTree(Policy& policy, std::function<uint64_t(uint64_t)> below)
      : policy_(policy), below_(std::move(below)) {}

  void Step() {
    const uint64_t choice = below_(16);
    if (choice < 3) return Lease();
    if (choice < 7) return Publish();
    if (choice < 11) return EndLease();
    if (choice < 12) return policy_.Advance(time_ms_ += below_(5000));
    if (choice < 13) return Forget();
    Evict();
  }

  void EndAllLeases() {
    while (!leases_.empty()) EndLease();
  }

  /// The block evicted, if one was.
  std::optional<uint32_t> Evict() {
    const auto victim = policy_.Victim();
    if (!victim) return std::nullopt;
    policy_.Evict(*victim);
    blocks_[victim->number()].present = false;
    return victim->number();
  }

  /// Some leaf without leases goes for another reason.
  void Forget() {
    std::vector<uint32_t> leaves;
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (IsEvictableLeaf(BlockId(i))) leaves.push_back(i);
    }
    if (leaves.empty()) return;
    const uint32_t gone = leaves[below_(leaves.size())];
    policy_.Forget(BlockId(gone));
    blocks_[gone].present = false;
  }

  bool IsEvictableLeaf(BlockId id) const {
    if (id.number() >= blocks_.size()) return false;
    const Block& block = blocks_[id.number()];
    return block.present && block.leases == 0 &&
           std::ranges::none_of(blocks_, [&](const Block& other) {
             return other.present && other.parent == id.number();
           });
  }

  uint64_t evictable() const {
    return static_cast<uint64_t>(std::ranges::count_if(
        blocks_, [](const Block& block) { return block.present && block.leases == 0; }));
  }

  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  // A request finds a random path.
  void Lease() {
    std::vector<uint32_t> path;
    for (uint32_t at = SomePresent(); at != kNoParent; at = blocks_[at].parent) path.push_back(at);
    std::ranges::reverse(path);
    for (const uint32_t block : path) {
      if (blocks_[block].leases++ == 0) policy_.Remove(BlockId(block));
    }
    leases_.push_back(std::move(path));
  }

  void Publish() {
    if (leases_.empty()) return;
    auto& lease = leases_[below_(leases_.size())];
    const auto unused = std::ranges::find(blocks_, false, &Block::present);
    const auto number = static_cast<uint32_t>(unused - blocks_.begin());
    if (unused == blocks_.end()) blocks_.emplace_back();
    blocks_[number] = {.present = true,
                       .parent = lease.empty() ? kNoParent : lease.back(),
                       .depth = static_cast<uint32_t>(lease.size()),
                       .leases = 1,
                       .key = 1 + below_(400)};  // some come back
    lease.push_back(number);
  }

  void EndLease() {
    if (leases_.empty()) return;
    const auto lease = leases_.begin() + static_cast<int64_t>(below_(leases_.size()));
    time_ms_ += below_(5000);
    std::vector<uint64_t> keys;
    for (const uint32_t block : *lease) keys.push_back(blocks_[block].key);
    // A view or a pin that ends is no request.
    if (below_(4) > 0)
      policy_.Begin({.time_ms = time_ms_,
                     .keys = keys,
                     .prompt_tokens = keys.size() * 16 + below_(16),
                     .output_tokens = below_(300)});
    std::ranges::reverse(*lease);  // deepest first
    for (const uint32_t number : *lease) {
      Block& block = blocks_[number];
      if (--block.leases > 0) continue;
      policy_.Add(BlockId(number),
                  {.key = block.key,
                   .parent = block.parent == kNoParent ? BlockId::None() : BlockId(block.parent),
                   .depth = block.depth,
                   .priority = static_cast<uint8_t>(below_(101)),
                   .expires_ms = below_(2) == 0 ? 0 : time_ms_ + below_(20'000)});
    }
    policy_.End();
    leases_.erase(lease);
  }

  uint32_t SomePresent() const {
    std::vector<uint32_t> present = {kNoParent};
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].present) present.push_back(i);
    }
    return present[below_(present.size())];
  }

  Policy& policy_;
  const std::function<uint64_t(uint64_t)> below_;
  std::vector<Block> blocks_;  // by id
  std::vector<std::vector<uint32_t>> leases_;
  uint64_t time_ms_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_TESTS_SUITE_POLICY_TREE_H_
