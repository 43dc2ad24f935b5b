// The three state objects under the cache's lock, and how verbs use them. Bytes are copied, hashed
// and zeroed between holds of the lock, never under it.
#ifndef QUIRE_CACHE_STATE_LOCKED_STATE_H_
#define QUIRE_CACHE_STATE_LOCKED_STATE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "cache/below/records.h"
#include "cache/state/state.h"
#include "quire/cache.h"
#include "tier/staging.h"

namespace quire::transfer {
class Transfers;
}  // namespace quire::transfer

namespace quire::cache {

struct StoreState;

/// Blocks of one load that are requested at once.
inline constexpr uint32_t kLoadBlocksInFlight = 64;

/// The state that all verbs of a cache work on.
///
/// Threads: any
class LockedState {
 public:
  /// `shared` is charged too; it and `store` may be null.
  /// Errors: as Slots::Create; with a store as RecordShapes::Create, kNoSpace no host memory
  static Result<std::unique_ptr<LockedState>> Create(CacheOptions options, SlotClasses classes,
                                                     quota::Ledger* shared, StoreState* store);
  /// Waits for the fences of released slots.
  ~LockedState();

  const CacheOptions& options() const { return options_; }
  uint64_t NowMicros() const { return clock_.NowMicros(); }
  bool heeds_priorities() const { return heeds_priorities_; }
  const SlotClasses& classes() const { return classes_; }
  const codec::SlotLayout& layout() const { return classes_.layout(); }
  const codec::SlotLayout& open_layout() const { return classes_.open_layout(); }
  uint32_t block_tokens() const { return classes_.block_tokens(); }
  /// The bytes of slots that the caller holds, and their other holders.
  Slots& slots() { return *slots_; }
  const Slots& slots() const { return *slots_; }
  /// The store below; null: there is none.
  StoreState* store() const { return store_; }
  transfer::Transfers* transfers() const;
  /// Needs a store.
  const RecordShapes& shapes() const { return *shapes_; }
  /// Before anything is written: the store takes records of so many bytes.
  void FitRuns(uint64_t record_bytes_max) { shapes_->FitRuns(record_bytes_max); }
  /// Host memory for blocks on their way to and from the store, in chunks of a record; null where
  /// the store reads and writes slots in place. Writing needs reading_mutex; only Loading reads.
  tier::Staging* write_staging() { return write_staging_ ? &*write_staging_ : nullptr; }
  tier::Staging* load_staging() { return load_staging_ ? &*load_staging_ : nullptr; }
  /// Held while State::reading is in use.
  Mutex& reading_mutex() { return reading_mutex_; }

  /// Runs a verb under the lock, and does the work that it left after the lock is released. First
  /// drops the references whose fences are done.
  template <typename Verb>
  auto With(const Verb& verb) QUIRE_EXCLUDES(mutex_) {
    if (fences_.load(std::memory_order_relaxed) > 0) ReleaseDone();
    return Hold(verb);
  }
  /// The same for a verb that only looks, and leaves no work.
  template <typename Verb>
  auto Look(const Verb& verb) const QUIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return verb(static_cast<const State&>(*state_));
  }
  /// Calls piece(begin, end) for [0, count) in pieces that fit one hold of the lock.
  template <typename Piece>
  static void ForPieces(size_t count, const Piece& piece, size_t most = kBlocksPerHold) {
    for (size_t begin = 0; begin < count; begin += most) {
      piece(begin, std::min<size_t>(count, begin + most));
    }
  }
  /// Drops one reference of each slot. `slots` are in token order, so that parents stay more recent
  /// than children.
  void ReleaseSlots(std::span<const SlotId> slots);
  /// The same once the fence is done; null: now. Waits for it only if memory runs out.
  void ReleaseAfter(std::shared_ptr<Fence> fence, std::vector<SlotId> slots);
  void ZeroAll(std::span<const SlotId> slots) const;

  /// Most block records that one hold of the lock has touched. For tests.
  uint32_t most_touched() const;

 private:
  LockedState(CacheOptions options, SlotClasses classes, StoreState* store);
  Result<void> MakeStaging();

  /// As With, without looking at fences.
  template <typename Verb>
  auto Hold(const Verb& verb) QUIRE_EXCLUDES(mutex_) {
    struct SettleAtEnd {
      ~SettleAtEnd() {
        if (any) cache.Settle();
      }
      LockedState& cache;
      bool any = false;
    } settle{.cache = *this};
    return HoldOnce(verb, settle.any);
  }
  /// One hold of the lock. `any`: the verb left work.
  template <typename Verb>
  auto HoldOnce(const Verb& verb, bool& any) QUIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    state_->directory.touched().Take();
    struct AtEnd {
      ~AtEnd() {
        any = !state.draining.empty() || state.has_work();
        most_touched = std::max(most_touched, state.directory.touched().Take());
        state.accounts.order().EndHold();
      }
      State& state;
      bool& any;
      uint32_t& most_touched;
    } at_end{.state = *state_, .any = any, .most_touched = most_touched_};
    return verb(*state_);
  }
  void Settle() QUIRE_EXCLUDES(mutex_);
  void ReleaseDone() QUIRE_EXCLUDES(mutex_);

  const CacheOptions options_;
  const Clock& clock_;
  SlotClasses classes_;  // const once the arenas are placed
  const bool heeds_priorities_;
  StoreState* const store_;
  std::unique_ptr<Slots> slots_;          // set once, by Create
  std::optional<RecordShapes> shapes_{};  // with a store
  std::optional<tier::Staging> write_staging_{};
  std::optional<tier::Staging> load_staging_{};

  Mutex reading_mutex_{LockRank::kReading};
  std::atomic<uint64_t> fences_ = 0;  // size of State::fenced, so that most calls need not take the
                                      // lock for it
  mutable Mutex mutex_{LockRank::kCache};
  std::unique_ptr<State> state_ QUIRE_PT_GUARDED_BY(mutex_);  // set once, by Create
  uint32_t most_touched_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_LOCKED_STATE_H_
