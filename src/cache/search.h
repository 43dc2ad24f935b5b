// What of a prompt the cache and its store have: searched piece by piece, and leased when it is found.
#ifndef QUIRE_CACHE_SEARCH_H_
#define QUIRE_CACHE_SEARCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cache/locked_state.h"
#include "cache/lookup.h"

namespace quire::cache {

/// Threads: any
class Search {
 public:
  explicit Search(LockedState& cache) : cache_(cache) {}

  /// What memory has of a prompt, and whether there is more under another root.
  FoundPath FindPath(std::span<const TokenId> prompt, const PublishLocation& location);
  /// What memory has of these tokens. `explains`: says of what is missing whether it is there under
  /// another root.
  FoundPath FindBlocks(std::span<const TokenId> tokens, const PublishLocation& location,
                       bool explains);
  /// What of a prompt the store has besides a path that was found. Needs a mover.
  void FindBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                 const FoundPath& path, LoadList& load) const;
  /// How many blocks of a prompt the account has below under another root. Needs a mover.
  uint64_t FindElsewhereBelow(std::span<const TokenId> prompt,
                              const PublishLocation& location) const;
  /// What is remembered of the blocks after the one with `key`, up to the first that is not.
  std::vector<Ghost> FindGhosts(std::span<const TokenId> tokens, Digest key,
                                const PublishLocation& location);
  /// Holds what a query after a path that was found needs. False: some of it went since it was
  /// found, and nothing is held.
  bool LeasePath(const FoundPath& path, std::vector<SlotId>& held);

 private:
  std::vector<Digest> KeysBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                                const FoundPath& path) const;

  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEARCH_H_
