// What a policy remembers of blocks that are in the cache, whether evictable or leased.
#ifndef QUIRE_EVICT_KEYED_BLOCKS_H_
#define QUIRE_EVICT_KEYED_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "quire/ids.h"

namespace quire::evict {

/// A T for every block id, fresh when the id stands for another block than before.
template <typename T>
class KeyedBlocks {
 public:
  struct Place {
    T& value;
    bool is_new;
  };

  /// Shape: key is BlockFacts::key
  Place At(BlockId block, uint64_t key) {
    QUIRE_CHECK(!block.is_none());
    if (block.number() >= entries_.size()) entries_.resize(block.number() + size_t{1});
    Entry& entry = entries_[block.number()];
    const bool is_new = !entry.present || entry.key != key;
    if (!entry.present) ++count_;
    if (is_new) entry = {.key = key, .value = {}, .present = true};
    return {entry.value, is_new};
  }

  /// The block will be asked for soon. Any id will do.
  void Prefetch(BlockId block) const {
    if (block.number() < entries_.size()) __builtin_prefetch(&entries_[block.number()]);
  }

  /// Of a block that is known.
  const T& operator[](BlockId block) const { return entries_[block.number()].value; }
  T& operator[](BlockId block) { return entries_[block.number()].value; }
  uint64_t key(BlockId block) const { return entries_[block.number()].key; }

  void Forget(BlockId block) {
    entries_[block.number()] = {};
    --count_;
  }

  /// Known blocks: those that are in the cache.
  uint64_t size() const { return count_; }

 private:
  struct Entry {
    uint64_t key = 0;
    T value = {};
    bool present = false;
  };

  std::vector<Entry> entries_;  // by block id
  uint64_t count_ = 0;
};

}  // namespace quire::evict

#endif  // QUIRE_EVICT_KEYED_BLOCKS_H_
