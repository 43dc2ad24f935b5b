// Blocks on their way to the store: verbs under the lock, and what runs them. Bytes are read and
// checked between holds.
#ifndef QUIRE_CACHE_BELOW_WRITE_BACK_H_
#define QUIRE_CACHE_BELOW_WRITE_BACK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cache/below/outgoing_record.h"
#include "cache/state/locked_state.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// Most blocks that wait for the store to hear of their use.
inline constexpr size_t kUsedBelowMax = 4096;

/// A form of a published block: all its sealed slots, or its open ones.
struct StoredForm {
  BlockId block{};
  Digest key{};  // of the block; its id may be another's later
  uint64_t block_index = 0;
  bool twins = false;
};

/// What the store is to be given.
struct BlockToWrite {
  StoredForm form{};
  Digest parent_key{};
  uint64_t erase_epoch = 0;  // of the account in the store when it was published
  std::string account{};     // that pays for it, by name; empty: the default tenant
  std::vector<TokenId> tokens{};
  PerClass<SlotId> slots{};   // of the form
  PerClass<uint32_t> crcs{};  // of each
  FormError error{};          // of the sealed form
  bool is_last = true;        // no other form of the block waits
};

/// A block is to be written, as far as the store lacks it: unless its account keeps nothing below
/// memory, or the block before it will not be there either.
void Offer(State& state, BlockId block);
/// Whether the store has all that memory has of a block, for good.
bool IsDurable(const State& state, BlockId block);
/// Takes the next block out of the queue. Its slots are State::reading, beside those of others that
/// were taken, until EndReading.
std::optional<BlockToWrite> NextWrite(State& state);
/// A block is handed out: the store shall hear of it.
void NoteUsed(State& state, BlockId block);
/// What of the blocks that were used since is durable below, as far as is remembered; some of it.
std::vector<StoredForm> TakeUsed(State& state);
/// The store lost this, which was durable: it is to be written again.
void OfferAgain(State& state, std::span<const StoredForm> lost);
/// What became of what NextWrite gave. kNothing with `again`: it is the next one again.
void EndWrite(State& state, const StoredForm& form, Below below, bool again);

/// Writes what a cache publishes, as it was published, parents before children, each once. The
/// slots are read without a hold of the lock: an eviction goes on, and they are free a copy later.
///
/// Threads:  any
/// Lifetime: the cache must outlive it
class WriteBack final : private transfer::Worker {
 public:
  /// Needs a store.
  explicit WriteBack(LockedState& cache);
  ~WriteBack() override;

 private:
  struct Backlog {
    uint64_t queued = 0;      // blocks that wait to be written
    uint64_t lost_total = 0;  // and those that left memory unwritten
  };
  /// A form on its way: taken out of the queue, until it is given to the store or put back.
  struct Taken {
    std::optional<BlockToWrite> block{};
    std::optional<OutgoingRecord> record{};
  };
  struct Coming;

  Turned Turn() override;
  bool HasWaiting() override { return backlog().queued > 0; }
  void TakeEnds() override {
    MutexLock lock(mutex_);
    ends_.Run();
  }

  Backlog backlog() const;
  void TouchUsed() QUIRE_REQUIRES(mutex_);
  bool WriteSome(uint64_t due) QUIRE_REQUIRES(mutex_);
  Result<uint32_t> WriteNext(uint64_t& due) QUIRE_REQUIRES(mutex_);
  bool TakeNext(Taken& taken);
  bool EndTaken(Taken& taken);
  void LetGo(Taken& taken, bool again);
  static bool IsIntact(const LockedState& cache, const Taken& taken);
  void QuarantineDamaged(const StoredForm& form);
  void EndWrite(const StoredForm& form, tier::StoreOutcome outcome);

  LockedState& cache_;
  StoreState& store_;
  transfer::Transfers& transfers_;
  Mutex mutex_{LockRank::kWorker};
  transfer::WritePace pace_ QUIRE_GUARDED_BY(mutex_);
  transfer::Ends ends_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_WRITE_BACK_H_
