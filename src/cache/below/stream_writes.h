// The writing half of a sequence that streams: its blocks go to the store as soon as they are
// whole, where there are runs as soon as a run is, and may leave memory when they are durable.
#ifndef QUIRE_CACHE_BELOW_STREAM_WRITES_H_
#define QUIRE_CACHE_BELOW_STREAM_WRITES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/wiped_vector.h"
#include "cache/below/record_chain.h"
#include "cache/below/run_entries.h"
#include "quire/error.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// Threads:  one at a time, the sequence's writer
/// Lifetime: the chain must outlive it
class StreamWrites final : private transfer::Worker {
 public:
  /// The store has the first `durable` blocks; those after its last whole run are written again.
  StreamWrites(const RecordChain& chain, uint64_t durable);
  /// As Cut(0, 0).
  ~StreamWrites() override;
  StreamWrites(const StreamWrites&) = delete;
  StreamWrites& operator=(const StreamWrites&) = delete;

  /// Blocks that were given to the store, or that it had.
  uint64_t begun() const;
  /// Writes the blocks after these, which the chain has, as one record: a run, or one block. Their
  /// slots stay as they are until they are durable or cut.
  /// Shape: slots [1 or RecordShapes::run_blocks], of all groups
  void Write(std::vector<PerClass<SlotId>> slots);
  /// Returns whether the first `blocks` blocks are durable, waiting so long for it.
  bool Await(uint64_t blocks, uint64_t timeout_us);
  /// Moves what was given on, to be durable soon, and waits so long, not for what has failed.
  /// Whether the first `blocks` blocks are durable.
  bool MoveOn(uint64_t blocks, uint64_t wait_us);
  /// Blocks that are durable, each with all before it.
  uint64_t durable() const;
  /// Blocks from here on, with what is one record with them, are not its own any more; their slots
  /// are not read when it returns. What is under way has so long to become durable.
  void Cut(uint64_t blocks, uint64_t timeout_us);
  /// Why the block after the durable ones is not, as far as is known. Empty: nothing failed.
  std::string failure() const;

 private:
  /// A record on its way. What it is stays as it is; the rest is under `mutex_`.
  struct Record {
    Record(const RecordChain& chain, uint64_t first_block, std::vector<PerClass<SlotId>> of)
        : first(first_block), slots(std::move(of)) {
      const auto its = chain.TokensOf(first, slots.size());
      tokens.assign(its.begin(), its.end());
      identity = is_run() ? chain.IdentityOfRun(first, tokens) : chain.IdentityOf(first, tokens);
      if (is_run()) entry = std::make_shared<RunEntry>(chain, first);
    }
    bool is_run() const { return slots.size() > 1; }
    uint64_t end() const { return first + slots.size(); }

    const uint64_t first;  // block
    const std::vector<PerClass<SlotId>> slots;
    WipedVector<TokenId> tokens;
    tier::RecordIdentity identity;
    std::shared_ptr<const RunEntry> entry{};      // of a run
    bool waits = true;                            // to be given to the store
    std::optional<tier::StoreOutcome> outcome{};  // it has ended
  };

  Turned Turn() override;
  bool HasWaiting() override { return FirstWaiting() != nullptr; }
  void TakeEnds() override {
    MutexLock turn(turn_mutex_);
    ends_.Run();
  }

  std::shared_ptr<Record> FirstWaiting() const;
  void Give(const std::shared_ptr<Record>& record) QUIRE_REQUIRES(turn_mutex_);
  bool GiveBlock(const std::shared_ptr<Record>& record) QUIRE_REQUIRES(turn_mutex_);
  bool GiveRun(const std::shared_ptr<Record>& record) QUIRE_REQUIRES(turn_mutex_);
  bool CopyOut(const Record& record, WipedVector<std::byte>& to) const;
  transfer::AtEnd AtEndOf(const std::shared_ptr<Record>& record) QUIRE_REQUIRES(turn_mutex_);
  void AwaitEnds(uint64_t first, uint64_t count, uint64_t timeout_us);
  void TakeEnded() QUIRE_REQUIRES(mutex_);
  bool IsDurable(uint64_t blocks);

  const RecordChain& chain_;
  transfer::Transfers& transfers_;
  std::atomic<bool> hurries_ = false;  // its sequence waits
  Mutex turn_mutex_{LockRank::kWorker};
  transfer::Ends ends_ QUIRE_GUARDED_BY(turn_mutex_);
  mutable Mutex mutex_{LockRank::kLeaf};
  uint64_t durable_ QUIRE_GUARDED_BY(mutex_);
  // Of blocks [durable_, begun()).
  std::deque<std::shared_ptr<Record>> records_ QUIRE_GUARDED_BY(mutex_);
  std::optional<tier::StoreOutcome> failure_ QUIRE_GUARDED_BY(mutex_);  // of the first of them
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_STREAM_WRITES_H_
