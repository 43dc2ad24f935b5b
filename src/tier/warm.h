// The warm tier: records in the host's memory, in front of another store or alone.
#ifndef QUIRE_TIER_WARM_H_
#define QUIRE_TIER_WARM_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "env/host_buffer.h"
#include "quire/block_ops.h"
#include "quire/env.h"
#include "tier/arena.h"
#include "tier/store.h"

namespace quire::tier {

struct WarmOptions {
  uint64_t bytes_cap = 0;              // hard: of all records with their bookkeeping
  HostAllocator* allocator = nullptr;  // of the memory they lie in; null: ordinary memory
};

struct WarmStats {
  uint64_t records = 0;
  uint64_t bytes = 0;  // with their bookkeeping
  uint64_t bytes_cap = 0;
  uint64_t pinned_bytes = 0;  // of bytes_cap: all of it, or none
  uint64_t loads = 0;         // answered from memory
  uint64_t evicted = 0;       // the least recently used, for room
  uint64_t damaged = 0;       // their bytes had changed: forgotten
  uint64_t promoted = 0;      // came from the store below when they were loaded whole
};

/// Keeps what is put and what is loaded whole from the store below, the least recently used going
/// first; a record that has gone is still in the store below, if there is one. What a completion
/// says of a Put is what the store below says: durable means there. Alone, it is "durable" for as
/// long as the process lives.
///
/// Quotas hold here as below. Floors hold where there is no store below.
///
/// The memory of records is one arena, taken when the store is made: pinning memory can hold up a
/// device, and is slow. Where records of several lengths leave no stretch for another one, a few
/// more go than their bytes alone ask for.
///
/// Records can be written into the arena by a caller that has their bytes elsewhere, a device for
/// one, and read there (Place, Get with a loan). Such memory counts as any record's; one that is
/// lent is not made room with, and one that was erased meanwhile is overwritten when it comes back:
/// Flush waits for that.
class WarmStore final : public Store {
 public:
  /// `below` may be null. Throws std::bad_alloc.
  WarmStore(const WarmOptions& options, const Clock& clock, std::unique_ptr<Store> below);
  ~WarmStore() override;

  void Put(std::span<const PutRequest> requests) override;
  std::span<std::byte> Place(const RecordIdentity& identity, const RecordLayout& layout) override;
  void Withdraw(const Digest& key) override;
  void Find(std::span<const Digest> keys, std::span<Presence> out) const override;
  std::vector<RecordRoot> RootsOf(const PublisherId& publisher) const override;
  void SetLimits(const PublisherLimits& limits) override;
  uint64_t FitRecords(uint64_t record_bytes) override;
  void Touch(std::span<const RecordUse> uses, std::span<Presence> out) override;
  void Get(std::span<const LoadRequest> loads, uint64_t deadline_us) override;
  void Return(const Loan& loan, bool damaged) override;
  void Cancel(uint64_t tag) override;
  void Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) override;
  void Remove(const Digest& key, uint64_t tag) override;
  std::optional<uint64_t> RecordBytesOf(const Digest& key) const override;
  uint64_t EpochOf(const PublisherId& publisher) const override;
  void Flush(uint64_t tag) override;
  void Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) override;
  /// Of the store below if there is one, with this one's memory and loads.
  StoreStats Stats() const override;
  PublisherUsage UsageOf(const PublisherId& publisher) const override;
  WarmStats warm_stats() const;

  /// Where a record's bytes lie, for tests that damage them; empty: it is not here.
  std::span<std::byte> BytesOfForTest(const Digest& key);

 private:
  struct Record {
    Digest key{};
    PublisherId publisher{};
    uint64_t erase_epoch = 0;
    RecordRoot root{};  // block_tokens 0: no first block
    RecordLocation location{};
    uint64_t at = 0;  // in the arena: header, then payload
    uint64_t size_bytes = 0;
    uint32_t loans = 0;      // that have not come back
    bool forgotten = false;  // it goes with the last of them
  };
  using Records = std::list<Record>;  // least recently used first
  struct DigestHash {
    size_t operator()(const Digest& digest) const;
  };
  /// Room for a record that is being made.
  struct Placed {
    PublisherId publisher{};
    uint64_t at = 0;
    uint64_t size_bytes = 0;
  };
  struct Publisher {
    PublisherUsage usage{};
    uint64_t bytes_quota = ~uint64_t{0};
    uint64_t bytes_floor = 0;
    std::map<RecordRoot, uint64_t> roots{};  // of first blocks, and how many there are
  };

  /// Epochs are asked for before the lock is taken: those below have their own.
  StoreOutcome Insert(const PutRequest& request, uint64_t epoch) QUIRE_REQUIRES(mutex_);
  /// kOk: nothing but want of room is in its way.
  StoreOutcome Admit(const RecordIdentity& identity, const RecordLayout& layout, uint64_t epoch)
      QUIRE_REQUIRES(mutex_);
  /// A place for a record, which counts from now on. Nothing: there is no room, and nothing went.
  std::optional<Placed> TakePlace(const PublisherId& publisher, uint64_t size_bytes)
      QUIRE_REQUIRES(mutex_);
  void GivePlace(const Placed& place) QUIRE_REQUIRES(mutex_);
  /// Where a record may lie. Nothing: there is no room, and nothing went for it.
  std::optional<uint64_t> MakeRoom(const PublisherId& publisher, uint64_t size_bytes)
      QUIRE_REQUIRES(mutex_);
  /// It is not found any more, and its memory goes when it is not lent any more.
  void Forget(Records::iterator record) QUIRE_REQUIRES(mutex_);
  void Unlist(Records::iterator record) QUIRE_REQUIRES(mutex_);
  /// A place that does not count any more. Overwrites what lies in it, but for what another record
  /// will overwrite, which has [begin, end) from now on.
  void Clear(const Placed& place, uint64_t begin, uint64_t end) QUIRE_REQUIRES(mutex_);
  static bool IsLent(const Record& record);
  static Placed PlaceOf(const Record& record) {
    return {.publisher = record.publisher, .at = record.at, .size_bytes = record.size_bytes};
  }
  std::span<std::byte> BytesOf(const Record& record) const {
    return memory_.bytes().subspan(record.at, record.size_bytes);
  }
  /// The answer to a load from memory. Nothing: the store below is to be asked.
  bool Answer(const LoadRequest& load, uint64_t epoch, StoreCompletion* completion)
      QUIRE_REQUIRES(mutex_);
  void Promote(const LoadRequest& load);
  /// Takes a record out, and keeps what is being loaded of it from coming in. False: it was not
  /// here.
  bool Drop(const Digest& key);

  const WarmOptions options_;
  const Clock& clock_;
  const std::unique_ptr<Store> below_;
  const HostBuffer memory_;

  mutable Mutex mutex_{LockRank::kLeaf};
  Arena arena_ QUIRE_GUARDED_BY(mutex_);  // of memory_
  Records records_ QUIRE_GUARDED_BY(mutex_);
  Records forgotten_ QUIRE_GUARDED_BY(mutex_);  // that are lent
  std::map<Digest, Placed> placed_ QUIRE_GUARDED_BY(mutex_);
  std::map<uint64_t, Records::iterator> loans_ QUIRE_GUARDED_BY(mutex_);
  uint64_t next_loan_ QUIRE_GUARDED_BY(mutex_) = 1;
  std::unordered_map<Digest, Records::iterator, DigestHash> by_key_ QUIRE_GUARDED_BY(mutex_);
  std::map<PublisherId, Publisher> publishers_ QUIRE_GUARDED_BY(mutex_);
  std::map<PublisherId, uint64_t> epochs_ QUIRE_GUARDED_BY(mutex_);  // without a store below
  uint64_t sequence_ QUIRE_GUARDED_BY(mutex_) = 0;
  WarmStats stats_ QUIRE_GUARDED_BY(mutex_);
  StoreStats alone_ QUIRE_GUARDED_BY(mutex_);  // outcomes that are this store's own
  std::vector<StoreCompletion> done_;          // of the driver's thread
  std::vector<LoadRequest> below_loads_;       // whole records that are being loaded below
  std::vector<uint64_t> below_flushes_;        // by tag
  struct Removal {
    Digest key{};
    bool was_here = false;
  };
  std::map<uint64_t, Removal> below_removals_;  // by tag
  std::vector<StoreCompletion> flushed_;        // but for what is lent and forgotten
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_WARM_H_
