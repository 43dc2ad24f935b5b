// How a prompt that differs inside a run finds the blocks before the difference: the entry of a run
// is a small record under the key of one of its blocks, which says the tokens of all of them.
#ifndef QUIRE_CACHE_BELOW_RUN_ENTRIES_H_
#define QUIRE_CACHE_BELOW_RUN_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/wiped_vector.h"
#include "cache/below/record_chain.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// The entry of a run.
class RunEntry {
 public:
  /// Of the run that begins with block `first` of a chain.
  RunEntry(const RecordChain& chain, uint64_t first);
  RunEntry(const RunEntry&) = delete;
  RunEntry& operator=(const RunEntry&) = delete;

  /// Once the write of its run has ended: writes it where the store has the run, under the key of
  /// the first of its blocks that has no entry yet. So runs that begin alike form a tree: each is
  /// found at a block that it shares with no run before it, or at its first. A run that the store
  /// had before gets one only if its first block has none. What the store does not take, or there
  /// is no memory for, is left out: prompts find less then.
  /// Threads: that of `ends`
  static void WriteAfter(tier::StoreOutcome end, const std::shared_ptr<const RunEntry>& entry,
                         transfer::Ends& ends);

 private:
  static void WriteAt(const std::shared_ptr<const RunEntry>& entry, size_t number, uint32_t tries,
                      transfer::Ends& ends);

  LockedState& cache_;
  WipedVector<TokenId> tokens_;
  std::vector<tier::RecordIdentity> names_;  // by each of its blocks
};

/// Looks for a run that begins as a chain goes on, and differs from it later.
///
/// Threads:  one at a time
/// Lifetime: the cache must outlive it
class RunEntrySearch {
 public:
  /// Of the chain's first `blocks` blocks it asks for the entries of those in the run that has
  /// block `from`; the store has all before that one.
  /// Lifetime: the chain must outlive it
  RunEntrySearch(const RecordChain& chain, uint64_t from, uint64_t blocks);
  ~RunEntrySearch();
  RunEntrySearch(const RunEntrySearch&) = delete;
  RunEntrySearch& operator=(const RunEntrySearch&) = delete;

  bool IsDone();
  struct Found {
    RecordChain chain;    // as the other one up to `from`, then of the run, which the store has
    uint64_t blocks = 0;  // that both have in common, more than `from`
  };
  /// The run that has the most blocks in common with the chain. Needs IsDone.
  std::optional<Found> Take() const;

 private:
  struct Read {
    WipedVector<TokenId> name{};  // tokens of the block that names it
    WipedVector<TokenId> run{};
    std::span<std::byte> out{};  // its bytes, for the request to point to
    bool came = false;
  };
  uint64_t CommonBlocks(const Read& read) const;

  const RecordChain& chain_;
  const uint64_t first_;  // block of the run
  const uint64_t from_;
  const uint64_t end_;  // of the blocks that may be used
  std::vector<Read> reads_;
  size_t left_ = 0;
  transfer::Ends ends_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_RUN_ENTRIES_H_
