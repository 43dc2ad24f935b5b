// Requests to a store below memory: one table of those that are under way, and the thread that
// turns it.
#ifndef QUIRE_TRANSFER_TRANSFERS_H_
#define QUIRE_TRANSFER_TRANSFERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "quire/env.h"
#include "tier/store.h"
#include "transfer/write_pace.h"

namespace quire::transfer {

class Transfers;

/// What is to happen when a request has ended.
using AtEnd = std::move_only_function<void(const tier::StoreCompletion&)>;

/// What one client asked for and has ended: the table moves it here, and the client takes it when
/// it likes. What a request says is to happen at its end happens then, on the client's thread.
///
/// Threads:  Run one at a time; the rest any
/// Lifetime: the transfers must outlive it
class Ends {
 public:
  /// `wakes`: the thread runs them, in a worker's turn.
  explicit Ends(Transfers& transfers, bool wakes = false) : transfers_(transfers), wakes_(wakes) {}
  /// As Transfers::Forget.
  ~Ends();
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;

  /// Ends what has ended since the last call, in its order. False: there was nothing.
  bool Run();

 private:
  friend class Transfers;
  struct Request {
    Ends* ends = nullptr;
    std::move_only_function<void(tier::Store&, uint64_t tag)> begin{};  // until it has begun
    AtEnd at_end{};
    bool reads = false;
    tier::StoreCompletion end{};  // once it has ended
  };
  // The entry of a request moves from one of them to the next, which takes no memory.
  using Requests = std::map<uint64_t, Request>;

  Transfers& transfers_;
  const bool wakes_;
  Requests ended_;  // by the order of their ends; under Transfers::mutex_
};

/// What has turns: it gives requests when it is its turn, and takes their ends.
class Worker {
 public:
  struct Turned {
    bool worked = false;              // there may be more
    bool copies = false;              // AwaitCopies has something to wait for
    uint64_t wait_us = ~uint64_t{0};  // after that it has something to do by itself
  };

  virtual ~Worker() = default;
  /// On any thread, with no lock of Transfers held; several at a time may call it.
  virtual Turned Turn() = 0;
  /// Its turn comes before those of workers that write: what they write may push out of a warm tier
  /// what it wants to read.
  virtual bool reads() const { return false; }
  /// It has writes that it did not give yet.
  virtual bool HasWaiting() = 0;
  /// Takes the ends of its writes, and gives nothing. Threads: as Turn
  virtual void TakeEnds() {}
  /// Waits for a device that it copies to; there is nothing else to do. False: for none.
  virtual bool AwaitCopies() { return false; }
};

struct TransferOptions {
  uint64_t spread_us = 0;        // writes in the background take so long to be given; 0: at once
  uint64_t disk_wait_us = 1000;  // what is asked for meanwhile waits so long
  bool steps_back = true;        // the thread stands behind those that compute
};

/// The only thing that talks to a store. It knows records, and nothing of what they are made from:
/// clients call down, and what they asked for comes back into their Ends. Nothing happens by
/// itself: Tick moves everything on, called by a thread of its own in production, by a test by
/// hand.
///
/// Threads:  any. Find, RecordBytesOf, EpochOf, RootsOf, UsageOf, stats, Begin, Wake wait for
///           nothing and may be called with any lock held; the rest may wait until the disk has
///           ended something.
///           No lock of this is held while a worker or an AtEnd is called
/// Lifetime: the clock must outlive it; workers detach before it ends
class Transfers {
 public:
  Transfers(std::unique_ptr<tier::Store> store, const Clock& clock,
            const TransferOptions& options = {});
  /// Waits for what the disk works on.
  ~Transfers();

  // What the store knows.

  void Find(std::span<const Digest> keys, std::span<tier::Presence> out) const {
    store_->Find(keys, out);
  }
  tier::Presence PresenceOf(const Digest& key) const {
    tier::Presence presence = tier::Presence::kAbsent;
    store_->Find({&key, 1}, {&presence, 1});
    return presence;
  }
  std::optional<uint64_t> RecordBytesOf(const Digest& key) const {
    return store_->RecordBytesOf(key);
  }
  uint64_t EpochOf(const tier::PublisherId& publisher) const { return store_->EpochOf(publisher); }
  std::vector<tier::RecordRoot> RootsOf(const tier::PublisherId& publisher) const {
    return store_->RootsOf(publisher);
  }
  tier::PublisherUsage UsageOf(const tier::PublisherId& publisher) const {
    return store_->UsageOf(publisher);
  }
  tier::StoreStats stats() const { return store_->Stats(); }
  const Clock& clock() const { return clock_; }
  uint64_t NowMicros() const { return clock_.NowMicros(); }
  uint64_t spread_us() const { return options_.spread_us; }

  // What ends where it is called.

  void SetLimits(const tier::PublisherLimits& limits) {
    MutexLock lock(store_mutex_);
    store_->SetLimits(limits);
  }
  uint64_t FitRecords(uint64_t record_bytes) {
    MutexLock lock(store_mutex_);
    return store_->FitRecords(record_bytes);
  }
  void Touch(std::span<const tier::RecordUse> uses, std::span<tier::Presence> out) {
    MutexLock lock(store_mutex_);
    store_->Touch(uses, out);
  }
  std::span<std::byte> Place(const tier::RecordIdentity& identity,
                             const tier::RecordLayout& layout) {
    MutexLock lock(store_mutex_);
    return store_->Place(identity, layout);
  }
  void Withdraw(const Digest& key) {
    MutexLock lock(store_mutex_);
    store_->Withdraw(key);
  }
  void Return(const tier::Loan& loan, bool damaged) {
    MutexLock lock(store_mutex_);
    store_->Return(loan, damaged);
  }

  // Requests. Each has one end.

  /// Gives a record to the store; its bytes are the caller's again. One that ended with kBusy is
  /// the caller's to offer once more, before others, when MayWrite says so.
  /// Throws std::bad_alloc; then the store does not have it.
  void Write(tier::PutRequest record, Ends& ends, AtEnd at_end);
  /// The store can take more.
  bool MayWrite() const { return clock_.NowMicros() >= write_after_us_; }
  /// How many of the `queued` writes that wait in the background are to be given now; `lost_total`
  /// as for WritePace. All of them while a flush of everything is waited for; none for a while
  /// after HoldBack.
  uint64_t Due(WritePace& pace, uint64_t queued, uint64_t lost_total) const;
  /// What is written in the background fails.
  void HoldBack();

  /// Begins to read, in the order of the calls. What cannot be begun for want of memory ends with
  /// kCancelled. Returns what Cancel takes.
  uint64_t Read(const tier::LoadRequest& load, uint64_t deadline_us, Ends& ends, AtEnd at_end);
  /// A read ends with kCancelled, unless it has ended. When this returns nothing is read into its
  /// memory any more.
  void Cancel(uint64_t read);
  /// Reads that were begun with these are cancelled, and nothing that has not been run ends there.
  void Forget(Ends& ends);

  /// Everything that was written before is made durable, and what was erased is overwritten.
  void Flush(Ends& ends, AtEnd at_end);
  /// The same, once no worker has anything that waits to be written.
  void FlushAll(Ends& ends, AtEnd at_end);
  /// Another request of the store.
  uint64_t Begin(std::move_only_function<void(tier::Store&, uint64_t tag)> begin, Ends& ends,
                 AtEnd at_end);
  /// What was written before is made durable without waiting for what others write.
  void Hurry() { hurries_ = true; }

  // Requests that the caller waits for.

  /// FlushAll; workers have taken the ends of what was written when it returns. kDeadline: not in
  /// this time.
  tier::StoreOutcome FlushAll(uint64_t timeout_us = UINT64_MAX);
  /// Forgets everything of a publisher, for good.
  tier::StoreOutcome Erase(const tier::PublisherId& publisher);
  /// For a caller that cannot go on without it: it turns the store itself, and its worker. The
  /// thread stands behind those that compute, so it would be late just then.
  struct Turning {
    Worker* worker = nullptr;
  };
  /// Returns when it is so, or after so long: whether it is. Whatever makes it so is told by Notify
  /// or is the end of a request.
  bool Await(const std::function<bool()>& is_so, uint64_t timeout_us,
             const Turning* turning = nullptr);
  /// For a caller that would rather do something else than wait: moves the store on, and `worker`
  /// (which may be null), and returns at once.
  void MoveOn(Worker* worker);
  /// Makes it so, under a lock: callers of Await do not go on before this has looked at everything.
  void Notify(const std::function<void()>& make_so);

  // What turns it.

  /// From now on a thread of its own does, until Stop. Throws std::system_error.
  void Start();
  void Stop();
  /// A worker has something to do.
  void Wake();
  /// Moves everything on; waits up to `wait_us` for the disk where nothing can be done at once.
  /// True: something was done, and there may be more.
  bool Tick(uint64_t wait_us);
  void Attach(Worker& worker);
  /// When it returns the worker is not called any more.
  void Detach(Worker& worker);

 private:
  struct Attached {
    Worker* worker = nullptr;
    uint32_t calls = 0;  // under way
    bool leaves = false;
  };
  using Request = Ends::Request;
  class Walk;

  void Run();
  void Wait();
  uint64_t BeginAs(Request request);
  Worker::Turned TurnWorkers();
  bool StartFlushes();
  bool TickStore(uint64_t wait_us) QUIRE_EXCLUDES(store_mutex_);
  bool BeginNew() QUIRE_REQUIRES(store_mutex_);
  bool TakeDone() QUIRE_REQUIRES(store_mutex_);
  void OnBusy() QUIRE_REQUIRES(store_mutex_);
  void End(Ends::Requests::node_type request, const tier::StoreCompletion& end)
      QUIRE_REQUIRES(mutex_);
  uint64_t events() const;
  bool TurnHere(const Turning& turning);
  tier::StoreOutcome Ask(const std::function<void(Ends&, AtEnd)>& begin,
                         uint64_t timeout_us = UINT64_MAX);

  const std::unique_ptr<tier::Store> store_;
  const Clock& clock_;
  const TransferOptions options_;

  Mutex store_mutex_{LockRank::kTransfers};
  Ends::Requests under_way_ QUIRE_GUARDED_BY(store_mutex_);  // by tag
  std::vector<tier::StoreCompletion> done_ QUIRE_GUARDED_BY(store_mutex_);
  uint64_t hurry_tag_ QUIRE_GUARDED_BY(store_mutex_) = 0;  // 0: none is under way
  // Something was on its way to the disk since the store was too busy.
  bool awaits_arrival_ QUIRE_GUARDED_BY(store_mutex_) = false;

  friend class Ends;
  mutable Mutex mutex_{LockRank::kLeaf};
  CondVar changed_;                               // for the thread
  CondVar ended_;                                 // for callers
  uint64_t events_ QUIRE_GUARDED_BY(mutex_) = 0;  // that callers may have waited for
  uint64_t ends_count_ QUIRE_GUARDED_BY(mutex_) = 0;
  bool woken_ QUIRE_GUARDED_BY(mutex_) = false;
  bool stops_ QUIRE_GUARDED_BY(mutex_) = false;
  Ends::Requests new_ QUIRE_GUARDED_BY(mutex_);      // by tag: in the order of the calls
  Ends::Requests flushes_ QUIRE_GUARDED_BY(mutex_);  // that wait for workers
  std::list<Attached> workers_ QUIRE_GUARDED_BY(mutex_);

  std::atomic<uint64_t> next_tag_ = 1;
  std::atomic<bool> hurries_ = false;
  std::atomic<uint32_t> ticking_ = 0;  // threads in TickStore
  std::atomic<uint32_t> flushes_waiting_ = 0;
  std::atomic<uint64_t> write_after_us_ = 0;       // the store is too busy
  std::atomic<uint64_t> background_after_us_ = 0;  // it is full, or fails
  std::atomic<bool> copies_ = false;               // of the last turn
  std::atomic<uint64_t> turn_wait_us_ = 0;         //
  std::thread thread_;
};

}  // namespace quire::transfer

#endif  // QUIRE_TRANSFER_TRANSFERS_H_
