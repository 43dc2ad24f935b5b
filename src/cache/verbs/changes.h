// What changed in the cache, for the follower that publishes it.
#ifndef QUIRE_CACHE_VERBS_CHANGES_H_
#define QUIRE_CACHE_VERBS_CHANGES_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/state/locked_state.h"
#include "quire/events.h"

namespace quire::cache {

/// The changes of one cache; see there.
class Changes final : public ChangeFeed {
 public:
  explicit Changes(LockedState& cache) : cache_(cache) {}

  uint32_t block_tokens() const override { return cache_.block_tokens(); }
  bool Take(BlockChanges& changes) override;
  void ForEachTold(const std::function<void(const BlockChanges&)>& visit) override;
  void InStore(std::span<const Digest> keys, std::span<bool> out) override;

 private:
  // A block that was told, when it was looked at.
  struct Told {
    uint32_t depth = 0;  // in its path
    BlockId block{};
    uint64_t key = 0;  // the first bits of it
  };

  std::vector<Told> ListTold();

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_VERBS_CHANGES_H_
