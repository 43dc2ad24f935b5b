// What moves blocks between caches and the store below them, behind everybody's back.
#ifndef QUIRE_CACHE_MOVER_H_
#define QUIRE_CACHE_MOVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cache/below.h"
#include "cache/loads.h"
#include "cache/record_io.h"
#include "env/files.h"
#include "quire/disk_store.h"
#include "quire/env.h"
#include "tier/store.h"
#include "tier/warm.h"
#include "transfer/write_pace.h"

namespace quire::cache {

class Storing;
struct LoadJob;

/// The only thing that talks to a store. A state machine: whoever calls Tick moves everything on, a
/// thread of its own in production, a test by hand.
///
/// Written are blocks as they were published, parents before children, each once. Their slots are
/// read while nobody holds them: an eviction goes on, and the slots are free a copy later. What is
/// loaded is the business of Loads.
///
/// Threads:  any
/// Lifetime: the clock must outlive it; caches detach before it ends
class Mover {
 public:
  /// `spread_us`: what is published is written evenly over so long; 0: at once.
  Mover(std::unique_ptr<tier::Store> store, const Clock& clock, uint64_t spread_us = 0);
  /// Waits for what the disk works on.
  ~Mover();

  /// From now on a thread of its own turns it.
  void Start();
  /// Moves everything on; waits up to `wait_us` for the disk where nothing can be done at once.
  /// True: something was done, and there may be more.
  bool Tick(uint64_t wait_us);

  /// Takes what a cache publishes; Detach ends that.
  void Attach(Storing& cache);
  void Detach(Storing& cache);
  /// A cache has something to write.
  void Wake();

  /// Which keys can be loaded. Any thread, without waiting.
  void Find(std::span<const Digest> keys, std::span<tier::Presence> out) const {
    store_->Find(keys, out);
  }
  uint64_t EpochOf(const tier::PublisherId& publisher) const { return store_->EpochOf(publisher); }
  std::vector<tier::RecordRoot> RootsOf(const tier::PublisherId& publisher) const {
    return store_->RootsOf(publisher);
  }
  tier::PublisherUsage UsageOf(const tier::PublisherId& publisher) const {
    return store_->UsageOf(publisher);
  }
  void SetLimits(const tier::PublisherLimits& limits);
  /// Forgets everything of a publisher, for good. Returns when that is durable.
  /// Errors: kIo it is not durable, though nothing of it is found before a restart
  Result<void> Erase(const tier::PublisherId& publisher);
  /// As DiskStore::Flush.
  Result<void> Flush();
  void Load(std::shared_ptr<LoadJob> job);
  /// Returns when the job has ended, or after so long: whether it has.
  bool Await(const LoadJob& job, uint64_t timeout_us);
  /// Begins to read what a sequence streams. Cancel ends that: nothing of the batch is touched any
  /// more.
  void Begin(ReadBatch& batch);
  void Cancel(ReadBatch& batch);
  /// Writes what a sequence streams, in the order of the calls. Forget ends that: it is not looked
  /// at any more.
  void Write(std::shared_ptr<RecordWrite> write);
  void Forget(const RecordWrite& write);
  /// Returns when it is so, or after so long: whether it is. `hurries`: it is about what was
  /// written, which is made durable without waiting for what others write.
  bool Await(const std::function<bool()>& is_so, uint64_t timeout_us, bool hurries = false);
  DiskStoreStats stats() const;
  uint64_t NowMicros() const { return clock_.NowMicros(); }

 private:
  struct Wish {  // of a caller that waits for it
    enum class Kind : uint8_t { kErase, kFlush } kind = Kind::kFlush;
    tier::PublisherId publisher{};
    uint64_t put_back = 0;                        // Mover::put_back_ when a flush was begun
    std::optional<tier::StoreOutcome> outcome{};  // it has ended
  };
  struct Source {  // a cache whose blocks are written
    Storing* cache = nullptr;
    transfer::WritePace pace;
    uint64_t due = 0;  // blocks, in this tick
  };
  struct BlockWrite {
    Storing* cache = nullptr;
    StoredForm form{};
  };

  void Run();
  void Wait();
  template <typename IsDone>
  bool AwaitUntil(uint64_t end_us, const IsDone& is_done);
  tier::StoreOutcome Ask(Wish wish);

  void TurnRecords() QUIRE_EXCLUDES(tick_mutex_);
  bool TickLocked(uint64_t wait_us, std::vector<std::shared_ptr<LoadJob>>& ended)
      QUIRE_EXCLUDES(tick_mutex_);
  bool TakeWishes() QUIRE_REQUIRES(tick_mutex_);
  bool TakeLoads() QUIRE_REQUIRES(tick_mutex_);
  bool TakeRecords() QUIRE_REQUIRES(tick_mutex_);
  void TouchUsed() QUIRE_REQUIRES(tick_mutex_);
  bool FindDue() QUIRE_REQUIRES(tick_mutex_);
  bool WriteSome() QUIRE_REQUIRES(tick_mutex_);
  RecordSink SinkOf(Source& source, uint32_t& put) QUIRE_REQUIRES(tick_mutex_);
  void Put(Storing& cache, const BlockToWrite& block, const RecordSections& sections)
      QUIRE_REQUIRES(tick_mutex_);
  void EndUnread(uint64_t count, const Error& error) QUIRE_REQUIRES(tick_mutex_);
  bool StartFlushes() QUIRE_REQUIRES(tick_mutex_);
  void EndWrite(const tier::StoreCompletion& ended) QUIRE_REQUIRES(tick_mutex_);
  void HandleDone() QUIRE_REQUIRES(tick_mutex_);
  void Handle(const tier::StoreCompletion& ended) QUIRE_REQUIRES(tick_mutex_);

  const std::unique_ptr<tier::Store> store_;
  const Clock& clock_;
  const uint64_t spread_us_;

  Mutex tick_mutex_{LockRank::kMover};
  std::vector<Source> sources_ QUIRE_GUARDED_BY(tick_mutex_);
  size_t next_source_ QUIRE_GUARDED_BY(tick_mutex_) = 0;  // whose turn it is to write
  uint64_t next_tag_ QUIRE_GUARDED_BY(tick_mutex_) = 1;
  uint64_t write_after_us_ QUIRE_GUARDED_BY(tick_mutex_) = 0;
  bool warned_ QUIRE_GUARDED_BY(tick_mutex_) = false;
  std::map<uint64_t, BlockWrite> writes_ QUIRE_GUARDED_BY(tick_mutex_);  // by tag
  std::map<uint64_t, Wish*> asked_ QUIRE_GUARDED_BY(tick_mutex_);
  std::vector<tier::StoreCompletion> done_ QUIRE_GUARDED_BY(tick_mutex_);  // not handled yet
  // Blocks that the store could not take just then.
  uint64_t put_back_ QUIRE_GUARDED_BY(tick_mutex_) = 0;
  std::vector<Wish*> flushes_ QUIRE_GUARDED_BY(tick_mutex_);  // that wait for the queues
  Loads::Counters load_counters_;
  Loads loads_ QUIRE_GUARDED_BY(tick_mutex_);
  RecordIo records_ QUIRE_GUARDED_BY(tick_mutex_);

  mutable Mutex mutex_{LockRank::kLeaf};
  CondVar changed_;  // for the thread
  CondVar ended_;    // for callers
  bool woken_ QUIRE_GUARDED_BY(mutex_) = false;
  bool stops_ QUIRE_GUARDED_BY(mutex_) = false;
  std::string device_error_ QUIRE_GUARDED_BY(mutex_);  // of blocks that were not written
  std::vector<Wish*> wishes_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Loads::ActiveLoad>> new_loads_ QUIRE_GUARDED_BY(mutex_);
  std::vector<ReadBatch*> new_reads_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<RecordWrite>> new_writes_ QUIRE_GUARDED_BY(mutex_);
  uint32_t hurries_ QUIRE_GUARDED_BY(mutex_) = 0;  // callers that wait for what they wrote

  std::atomic<bool> records_ended_ = false;  // since callers were told
  std::atomic<bool> holds_back_ = false;     // blocks whose turn comes later
  std::atomic<uint64_t> written_ = 0;
  std::atomic<uint64_t> dropped_ = 0;
  std::atomic<tier::StoreOutcome> last_drop_ = tier::StoreOutcome::kOk;  // why
  std::thread thread_;
};

/// What a DiskStore is.
struct StoreState {
  std::string directory;
  Digest secret{};  // without a directory
  std::unique_ptr<Files> files;
  const tier::WarmStore* warm = nullptr;  // the mover's; null: none
  std::unique_ptr<Mover> mover;

  /// For tests: a store that nobody turns but they.
  static std::unique_ptr<DiskStore> Wrap(std::unique_ptr<Mover> mover);
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_MOVER_H_
