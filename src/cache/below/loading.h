// Loads: what of a prompt the store has and memory lacks is read into slots, and attached block by
// block, in the order of the prompt. By layer a block is read in slices, and attached when it has
// all of them.
#ifndef QUIRE_CACHE_BELOW_LOADING_H_
#define QUIRE_CACHE_BELOW_LOADING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "cache/below/arrival.h"
#include "cache/below/layer_slices.h"
#include "cache/below/store_state.h"
#include "cache/verbs/admit.h"
#include "cache/verbs/holds.h"
#include "cache/verbs/lookup.h"
#include "cache/verbs/publish.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "tier/record.h"
#include "transfer/transfers.h"

namespace quire::cache {

class Loading;

/// A load between the ticket, which waits for it, and the thread, which does it. Entries are the
/// blocks of the prompt from the plan's end to where a hit could be.
///
/// Threads: the atomics any; the rest is the thread's until `left`, then the ticket's
struct LoadJob {
  LoadJob(Loading& of, Plan from, const LoadOptions& with, bool with_ticket)
      : loading(of),
        plan(std::move(from)),
        options(with),
        has_ticket(with_ticket),
        meets(with.order == LoadOrder::kFromEnd) {}
  LoadJob(const LoadJob&) = delete;
  LoadJob& operator=(const LoadJob&) = delete;

  /// The record that entry `i` of `slots` is, or the run that it is read with (which may be null),
  /// but for the fingerprints; it points into the plan.
  tier::RecordIdentity RecordAt(size_t i, const LoadList::Run* run) const;
  /// The run that entry `i` is read with; null: it is a record by itself.
  const LoadList::Run* RunOf(size_t i) const;
  /// The first entry of a run, and the one after its last.
  size_t FirstOf(const LoadList::Run& run) const;
  size_t EndOf(const LoadList::Run& run) const;
  /// Which block of a run an entry is.
  size_t NumberIn(const LoadList::Run& run, size_t entry) const;
  /// Tokens of the prompt before that block, and how many entries end within so many tokens.
  uint64_t TokensBefore(size_t i) const;
  size_t EntriesIn(uint64_t tokens) const;
  /// Returns when it has left, or after so long: whether it has.
  bool Await(uint64_t timeout_us) const;
  bool IsWanted(size_t first, size_t count) const { return first + count > front && first < end; }
  /// Whether an entry has been asked for, or is the next.
  bool HasReached(size_t entry) const {
    return layers != nullptr ? layers->HasReached(entry) : entry <= started;
  }

  Loading& loading;
  std::optional<Plan> plan;  // until the ticket ends
  const LoadOptions options;
  const bool has_ticket;               // else what came is let go of at its end
  std::atomic<uint64_t> begin_us = 0;  // of what it reads itself, by the store's clock
  uint64_t deadline_us = 0;            // 0: none
  tier::PublisherId publisher{};

  std::vector<PerClass<SlotId>> slots{};   // where each block is loaded; none: that one is not
  std::vector<PerClass<uint32_t>> crcs{};  // of what was loaded there
  std::vector<FormError> errors{};         // the same, with a precision ladder
  struct Durable {
    bool sealed = true;
    bool twins = true;
  };
  std::vector<Durable> durable{};  // what came of each is durable below
  std::vector<SlotId> held{};      // of blocks that were published
  std::vector<BlockId> path{};     // these
  BlockId leased{};  // the last of them, with all before it: of some blocks no slot is held
  // Why the block after `path` did not come; kNeverSeen: it did, or it may not be published.
  MissReason failure = MissReason::kNeverSeen;

  // Under way: entries, and how far each side is.
  struct Get;
  std::vector<uint8_t> pending{};  // records of each that are being loaded
  size_t started = 0;
  size_t attached = 0;
  size_t end = 0;  // those before it may still come
  // A load that began earlier reads what this one begins with too: it is waited for.
  std::shared_ptr<LoadJob> ahead{};
  size_t ahead_first = 0;  // its entry that is our first
  size_t ahead_count = 0;  // entries that both have from there on
  // From the end, until it has met what was computed.
  bool meets;
  size_t next = 0;                              // those from here on were started
  size_t came = 0;                              // and those from here on have come
  size_t front = 0;                             // those before this one came otherwise
  uint32_t gets = 0;                            // records that are being loaded
  std::vector<std::shared_ptr<Get>> reading{};  // of these, what the store has not ended
  // By layer; null: records are read whole.
  std::unique_ptr<LayerSlices> layers{};
  std::shared_ptr<Arrival> arrival{};  // set by Begin
  uint32_t telling = 0;                // threads that call on_layers
  bool twins_failed = false;
  bool device_failed = false;  // what came is not in its slots

  std::atomic<uint64_t> blocks_ready = 0;
  std::atomic<uint64_t> adopted = 0;   // entries that another load brought
  std::atomic<uint64_t> unread = 0;    // entries before those that came, from the end
  std::atomic<uint64_t> computed = 0;  // entries that the ticket's holder has published itself
  std::atomic<uint64_t> end_us = 0;    // 0: it has not ended
  std::atomic<bool> cancelled = false;
  std::atomic<bool> done = false;  // what came stands
  std::atomic<bool> left = false;  // and the thread looks at nothing of this any more
};

/// The loads of a cache. Records go into slots of the job, which are published in the order of the
/// path when the store has verified them: as they come, or, of a load from the end, when they meet
/// what its caller has computed and published from the front.
///
/// Threads:  any; of one job the ticket or the thread
/// Lifetime: the cache must outlive it, and it all loads
class Loading final : private transfer::Worker {
 public:
  Loading(Search& search, Admission& admission, const SequenceVerbs& verbs);
  ~Loading() override;

  /// Of a job, that are one record.
  struct Entries {
    size_t first = 0;
    size_t count = 1;
  };

  LockedState& cache() { return cache_; }
  /// As Cache::Load.
  Result<Ticket> Load(Plan plan, const LoadOptions& options);
  /// As Cache::Prefetch, of its plan.
  Result<uint64_t> Prefetch(Plan plan);
  /// As Ticket::Front.
  Plan FrontOf(const LoadJob& job, uint64_t tokens);
  /// As Ticket::Arriving.
  Result<Plan> ArrivingOf(const LoadJob& job);
  /// The plan of a job that is done, with what came.
  Plan Take(LoadJob& job);
  /// Lets go of all that a job that is done has.
  void Drop(LoadJob& job);

 private:
  using Get = LoadJob::Get;

  Result<std::shared_ptr<LoadJob>> Begin(Plan plan, const LoadOptions& options, bool has_ticket);

  void EndPrefetches();
  void CutByLayer(LoadJob& job) const;

  // What the thread does: loads.cc.

  Turned Turn() override;
  bool reads() const override { return true; }
  bool HasWaiting() override { return false; }
  bool AwaitCopies() override;
  bool TakeNew() QUIRE_REQUIRES(mutex_);
  void FindAhead(LoadJob& job) QUIRE_REQUIRES(mutex_);
  bool WaitsForAhead(LoadJob& job) QUIRE_REQUIRES(mutex_);
  bool Advance() QUIRE_REQUIRES(mutex_);
  static std::optional<Entries> NextToStart(LoadJob& job);
  void StartGets(LoadJob& job) QUIRE_REQUIRES(mutex_);
  void StartSlices(LoadJob& job) QUIRE_REQUIRES(mutex_);
  bool StartGet(LoadJob& job, const Entries& entries, bool twins, size_t slice = 0)
      QUIRE_REQUIRES(mutex_);
  void AskFor(LoadJob& job, const Entries& entries, bool twins, size_t slice)
      QUIRE_REQUIRES(mutex_);
  void AskForBlock(Get& get, tier::LoadRequest& request) QUIRE_REQUIRES(mutex_);
  void AskForSlice(Get& get, tier::LoadRequest& request) QUIRE_REQUIRES(mutex_);
  void AskForRun(Get& get, tier::LoadRequest& request) QUIRE_REQUIRES(mutex_);
  void EndGet(const std::shared_ptr<Get>& get, const tier::StoreCompletion& ended)
      QUIRE_REQUIRES(mutex_);
  void NotComing(LoadJob& job, size_t entry, bool twins, MissReason reason) QUIRE_REQUIRES(mutex_);
  std::unique_ptr<Fence> TakeIn(Get& get);
  void TakeRunIn(Get& get);
  void CopyOfRunIn(Get& get, uint32_t block, uint32_t group, SlotId slot);
  void ReencodeIn(const Get& get);
  void NoLongerPending(Get& get) QUIRE_REQUIRES(mutex_);
  bool Land() QUIRE_REQUIRES(mutex_);
  void EndLanding(Get& get) QUIRE_REQUIRES(mutex_);
  void TakeComputed(LoadJob& job) QUIRE_REQUIRES(mutex_);
  void GiveBack(LoadJob& job, size_t entry);
  /// Drops the job's holds of slots that it read into.
  void Release(const LoadJob& job, std::span<const SlotId> slots);
  void MeetComputed(LoadJob& job);
  bool AttachReady(LoadJob& job) QUIRE_REQUIRES(mutex_);
  void CancelGets(LoadJob& job) QUIRE_REQUIRES(mutex_);
  void End(LoadJob& job);

  // What comes of it in the cache: loading.cc.

  bool loads_from_end() const;
  /// Holds the first `count` entries of a job, which its ticket's holder has published, or another
  /// load, so that those after them can be attached. False: they are not all there.
  bool Adopt(LoadJob& job, size_t count);
  /// Publishes entries [first, first + count) of a job, which have been loaded, and holds them for
  /// it. Returns how many; those that follow may not be published.
  size_t AttachLoaded(LoadJob& job, size_t first, size_t count);
  size_t AttachRun(LoadJob& job, size_t first, size_t count);
  /// The same with the open forms, when all blocks are attached.
  void AttachTwins(LoadJob& job);

  LockedState& cache_;
  Search& search_;
  Admission& admission_;
  const SequenceVerbs& verbs_;
  transfer::Transfers* const transfers_;  // null: there is no store

  Mutex mutex_{LockRank::kWorker};
  size_t gets_ QUIRE_GUARDED_BY(mutex_) = 0;  // under way, those that land included
  std::vector<std::shared_ptr<Get>> landing_ QUIRE_GUARDED_BY(mutex_);  // has room for all of them
  std::vector<std::shared_ptr<LoadJob>> jobs_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<LoadJob>> ended_ QUIRE_GUARDED_BY(mutex_);  // room for all of them
  std::vector<std::shared_ptr<LoadJob>> grown_ QUIRE_GUARDED_BY(mutex_);  // the same
  std::optional<transfer::Ends> ends_ QUIRE_GUARDED_BY(mutex_);           // with a store

  Mutex new_mutex_{LockRank::kLeaf};
  std::vector<std::shared_ptr<LoadJob>> new_jobs_ QUIRE_GUARDED_BY(new_mutex_);
  std::atomic<uint64_t> prefetches_ = 0;  // jobs without a ticket
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_LOADING_H_
