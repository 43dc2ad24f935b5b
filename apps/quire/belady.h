// The offline bound: what a cache could hit that knew every request to come.
#ifndef QUIRE_APPS_BELADY_H_
#define QUIRE_APPS_BELADY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "evict/leaf_order.h"
#include "evict/policy.h"

namespace quire::app {

/// What is used again latest goes first, and what would be used later than all that is here does
/// not come in. A parent is used whenever its child is, so leaves come first by themselves.
///
/// Source: Belady, IBM Systems Journal 5(2), 1966; with bypass, as the caller may leave a block out
class BeladyPolicy final : public evict::Policy {
 public:
  using Policy::Add;

  /// `next_uses` has, for every block of every request in order, the number of the next request
  /// that uses it (UINT64_MAX: none), and must outlive this.
  explicit BeladyPolicy(const std::vector<uint64_t>& next_uses) : next_uses_(next_uses) {}

  std::string_view name() const override { return "belady"; }
  std::unique_ptr<evict::Policy> MakeSibling() const override {
    return std::make_unique<BeladyPolicy>(next_uses_);
  }
  uint64_t bytes_per_block() const override { return evict::LeafOrder::kBytesEach; }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const evict::BlockFacts& facts) override;
  void Remove(BlockId block) override { order_.Remove(block); }
  std::optional<BlockId> Victim() const override { return order_.First(); }
  uint64_t size() const override { return order_.size(); }

  /// The next request, with so many blocks, begins: what it adds is placed by its next uses.
  void Start(uint64_t blocks);
  /// Of the request at hand: whether its block at this depth deserves the victim's place.
  bool Admits(uint32_t depth) const;

 private:
  uint64_t RankOf(uint32_t depth) const { return UINT64_MAX - next_uses_[first_ + depth]; }

  const std::vector<uint64_t>& next_uses_;
  evict::LeafOrder order_{1};
  uint64_t first_ = 0;  // of the request at hand, in next_uses_
  uint64_t next_ = 0;   // of the one after it
  uint64_t added_ = 0;
};

}  // namespace quire::app

#endif  // QUIRE_APPS_BELADY_H_
