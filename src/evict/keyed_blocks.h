// What a policy remembers of blocks that are in the cache, whether evictable or leased.
#ifndef QUIRE_EVICT_KEYED_BLOCKS_H_
#define QUIRE_EVICT_KEYED_BLOCKS_H_

#include <cstdint>
#include <memory>

#include "base/check.h"
#include "evict/per_block.h"
#include "quire/identity.h"

namespace quire::evict {

/// A T for every block id, fresh when the id stands for another block than before.
///
/// Cost: kBytesEach per block id, once for all that share the table
template <typename T>
class KeyedBlocks {
 private:
  struct Entry {
    uint64_t key = 0;
    T value = {};
    bool present = false;
  };

 public:
  static constexpr uint64_t kBytesEach = sizeof(Entry);

  struct Place {
    T& value;
    bool is_new;
  };

  KeyedBlocks() : entries_(std::make_shared<PerBlock<Entry>>()) {}
  /// With the table of another one: a block is known to one of them at a time.
  explicit KeyedBlocks(const std::shared_ptr<PerBlock<Entry>>& table) : entries_(table) {}
  const std::shared_ptr<PerBlock<Entry>>& table() const { return entries_; }

  /// Shape: key is BlockFacts::key
  Place At(BlockId block, uint64_t key) {
    QUIRE_CHECK(!block.is_none());
    Entry& entry = entries_->At(block);
    const bool is_new = !entry.present || entry.key != key;
    if (!entry.present) ++count_;
    if (is_new) entry = {.key = key, .value = {}, .present = true};
    return {entry.value, is_new};
  }

  /// The block will be asked for soon. Any id will do.
  void Prefetch(BlockId block) const { entries_->Prefetch(block); }

  /// Of a block that is known.
  const T& operator[](BlockId block) const { return (*entries_)[block].value; }
  T& operator[](BlockId block) { return (*entries_)[block].value; }
  uint64_t key(BlockId block) const { return (*entries_)[block].key; }

  void Forget(BlockId block) {
    (*entries_)[block] = {};
    --count_;
  }

  /// Known blocks: those that are in the cache.
  uint64_t size() const { return count_; }

 private:
  const std::shared_ptr<PerBlock<Entry>> entries_;
  uint64_t count_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_KEYED_BLOCKS_H_
