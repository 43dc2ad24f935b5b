// Which records the blocks of one sequence are: its tokens, and keys chained forward from the root.
#ifndef QUIRE_CACHE_BELOW_RECORD_CHAIN_H_
#define QUIRE_CACHE_BELOW_RECORD_CHAIN_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/wiped_vector.h"
#include "cache/state/locked_state.h"
#include "cache/verbs/tenants.h"
#include "tier/record.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// The tokens of a sequence, and the keys of its whole blocks.
///
/// Threads:  as a vector
/// Lifetime: `cache`, which has a store, must outlive it
class RecordChain {
 public:
  RecordChain(LockedState& cache, PublishLocation location)
      : cache_(&cache),
        location_(std::move(location)),
        publisher_(PublisherOf(cache, location_.tenant)) {}

  /// What a block takes here at most: vectors grow by doubling.
  static uint64_t BlockBytes(uint32_t block_tokens) {
    return 2 * (sizeof(Digest) + block_tokens * sizeof(TokenId));
  }

  LockedState& cache() const { return *cache_; }
  /// Whole blocks.
  uint64_t blocks() const { return keys_.size(); }
  const Digest& key(uint64_t block) const { return keys_[block]; }
  /// Of `count` blocks. Valid until the next Add.
  std::span<const TokenId> TokensOf(uint64_t block, uint64_t count = 1) const {
    const uint64_t block_tokens = cache_->block_tokens();
    return std::span<const TokenId>(tokens_).subspan(block * block_tokens, count * block_tokens);
  }
  void Add(std::span<const TokenId> tokens) {
    const uint32_t block_tokens = cache_->block_tokens();
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    while ((blocks() + 1) * block_tokens <= tokens_.size()) {
      const TokenId* const next = tokens_.data() + blocks() * block_tokens;
      keys_.push_back(ChildKey(*location_.domain, ParentOf(blocks()), next, block_tokens));
    }
  }
  /// Only the first so many tokens are known any more.
  void Cut(uint64_t tokens) {
    tokens_.resize(std::min<uint64_t>(tokens, tokens_.size()));
    keys_.resize(std::min<uint64_t>(tokens_.size() / cache_->block_tokens(), blocks()));
  }
  /// `tokens` are those of the block, and must outlive what is made of them.
  tier::RecordIdentity IdentityOf(uint64_t block, std::span<const TokenId> tokens) const {
    return cache_->shapes().IdentityOf({.key = keys_[block],
                                        .parent = ParentOf(block),
                                        .publisher = publisher_,
                                        .erase_epoch = location_.below_epoch,
                                        .block_index = block,
                                        .tokens = tokens},
                                       /*of_twins=*/false);
  }
  /// The same of the run that begins with a block. `tokens`: of all blocks of the run.
  tier::RecordIdentity IdentityOfRun(uint64_t block, std::span<const TokenId> tokens) const {
    const RecordShapes& shapes = cache_->shapes();
    return shapes.IdentityOf({.key = RunKey(keys_[block + shapes.run_blocks() - 1]),
                              .publisher = publisher_,
                              .erase_epoch = location_.below_epoch,
                              .block_index = block,
                              .tokens = tokens},
                             /*of_twins=*/false);
  }
  /// The same of the entry of a run that a block names.
  tier::RecordIdentity IdentityOfEntry(uint64_t block, std::span<const TokenId> tokens) const {
    tier::RecordIdentity identity = IdentityOf(block, tokens);
    identity.key = RunEntryKey(keys_[block]);
    return identity;
  }
  /// The store has the run that begins with a block. False where its last key is not known.
  bool HasRun(uint64_t block) const {
    const uint64_t count = cache_->shapes().run_blocks();
    if (count == 1 || block % count != 0 || block + count > blocks()) return false;
    const Digest key = RunKey(keys_[block + count - 1]);
    return cache_->transfers()->PresenceOf(key) == tier::Presence::kPresent;
  }

 private:
  const Digest& ParentOf(uint64_t block) const {
    return block == 0 ? location_.root_key : keys_[block - 1];
  }

  LockedState* cache_;
  PublishLocation location_;
  tier::PublisherId publisher_;
  WipedVector<TokenId> tokens_;
  std::vector<Digest> keys_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_RECORD_CHAIN_H_
