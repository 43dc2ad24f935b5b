// Where the store has the front of a sequence that streams block by block, as it was written from
// memory, it becomes runs: in the background, once.
#ifndef QUIRE_CACHE_BELOW_STREAM_REWRITES_H_
#define QUIRE_CACHE_BELOW_STREAM_REWRITES_H_

#include <cstdint>

#include "base/mutex.h"
#include "cache/below/record_chain.h"
#include "cache/below/record_reads.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// One run at a time is read into memory of its own and given to the store. What fails is left as
/// it is: the sequence reads it block by block.
///
/// Threads:  the transfers' turns
/// Lifetime: the cache must outlive it
class StreamRewrites final : private transfer::Worker {
 public:
  /// Whether there is anything to do for the first `blocks` blocks of a chain.
  static bool IsNeeded(const RecordChain& chain, uint64_t blocks);
  /// Memory that it takes for them.
  static uint64_t Bytes(const LockedState& cache, uint64_t blocks);

  /// Of all blocks of a chain.
  explicit StreamRewrites(RecordChain chain);
  /// What is being read is given up.
  ~StreamRewrites() override;
  StreamRewrites(const StreamRewrites&) = delete;
  StreamRewrites& operator=(const StreamRewrites&) = delete;

 private:
  enum class Doing : uint8_t { kNothing, kReading, kWriting };

  Turned Turn() override;
  bool HasWaiting() override { return false; }  // no flush waits for it
  void ReadNext() QUIRE_REQUIRES(turn_mutex_);
  bool GiveRun() QUIRE_REQUIRES(turn_mutex_);
  void WriteEntry(tier::StoreOutcome end_of_run) QUIRE_REQUIRES(turn_mutex_);
  void OnWritten(tier::StoreOutcome outcome) QUIRE_REQUIRES(turn_mutex_);

  const RecordChain chain_;
  transfer::Transfers& transfers_;
  Mutex turn_mutex_{LockRank::kWorker};
  Doing doing_ QUIRE_GUARDED_BY(turn_mutex_) = Doing::kNothing;
  uint64_t next_ QUIRE_GUARDED_BY(turn_mutex_) = 0;  // block
  RecordReads reads_ QUIRE_GUARDED_BY(turn_mutex_);
  transfer::Ends ends_ QUIRE_GUARDED_BY(turn_mutex_);
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_STREAM_REWRITES_H_
