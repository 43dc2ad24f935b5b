// The cache: three state objects under one lock, and the verbs on them. Bytes are copied, hashed
// and zeroed between holds of the lock, never under it.
#ifndef QUIRE_CACHE_CORE_H_
#define QUIRE_CACHE_CORE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/wiped_vector.h"
#include "cache/below.h"
#include "cache/lookup.h"
#include "cache/metadata_charge.h"
#include "cache/owned_slots.h"
#include "cache/publish.h"
#include "cache/records.h"
#include "cache/state.h"
#include "quire/cache.h"

namespace quire::cache {

/// A plan: the pinned path and what the prompt was.
struct PlanState {
  PublishLocation location;
  uint64_t prompt_tokens = 0;
  uint64_t resident = 0;                   // tokens found
  WipedVector<TokenId> resident_tokens{};  // [resident]
  std::vector<BlockId> path{};
  PerClass<std::vector<SlotId>> slots{};  // [resident / block_tokens]; none where no query looks
  Lease lease{};                          // on these slots
  std::vector<MissRun> missing{};         // never empty once acquired
  LoadList load{};                        // what the store has besides
  WipedVector<TokenId> prompt{};          // [prompt_tokens], where there is something to load
};

/// Hears of the holds of the cache's lock, while it is held.
class HoldWatch {
 public:
  virtual ~HoldWatch() = default;
  virtual void Begin() = 0;
  virtual void End() = 0;
};

class SequenceImpl;
class Mover;
struct LoadJob;

/// What sequences, plans and leases are built from, and the public cache on top.
///
/// Threads: any
class Core final : public Cache {
 public:
  static Result<std::unique_ptr<Core>> Make(CacheOptions options);
  /// Waits for the fences that holds were left with.
  ~Core() override;

  const CacheOptions& options() const override { return options_; }
  uint64_t block_bytes() const override;
  Result<TenantId> AddTenant(const TenantOptions& options) override;
  Result<TenantId> FindTenant(std::string_view name) const override;
  Result<TenantStats> tenant_stats(TenantId tenant) const override;
  Result<EraseReport> Erase(TenantId tenant) override;
  Result<void> RemoveTenant(TenantId tenant) override;
  Result<Plan> Acquire(const AcquireRequest& request) override;
  Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) override;
  Result<void> Unpin(const AcquireRequest& request) override;
  Result<Ticket> Load(Plan plan, const LoadOptions& options) override;
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override;
  uint64_t Evict(uint64_t blocks) override;
  uint64_t Trim() override;
  Result<void> Resize(uint64_t hot_bytes) override;
  VerifyReport Verify() override;
  CacheStats stats() const override;
  Result<std::vector<CacheEntry>> Entries(const EntriesRequest& request) override;
  std::string BlockMap() const override;

  // For the mover and tickets (core_load.cc).

  const RecordShapes& shapes() const { return *shapes_; }
  struct Backlog {
    uint64_t queued = 0;      // blocks that wait to be written
    uint64_t lost_total = 0;  // and those that left memory unwritten
  };
  Backlog backlog() const;
  /// The sections of a record, which are there until the call returns.
  struct Sections {
    std::vector<std::span<const std::byte>> bytes{};
    std::vector<uint32_t> crcs{};  // of each
  };
  using Writer = std::function<void(const BlockToWrite& block, const Sections& sections)>;
  /// Calls write() with the next block, if there is one: false. A block that does not have its
  /// checksum any more is quarantined instead.
  bool WriteNext(const Writer& write);
  void EndWrite(const StoredForm& form, Below below, bool again);
  /// What was handed out of memory since the last call and is durable below; some of it, in the
  /// order of use.
  std::vector<StoredForm> TakeUsed();
  /// Of that, the store does not have this any more.
  void OfferAgain(std::span<const StoredForm> lost);
  /// Holds the first `count` entries of a job, which its ticket's holder has published, so that
  /// those after them can be attached. False: they are not all there.
  bool AdoptComputed(LoadJob& job, size_t count);
  /// Publishes entries [first, first + count) of a job, which have been loaded, and holds them for
  /// it. Returns how many; those that follow may not be published.
  size_t AttachLoaded(LoadJob& job, size_t first, size_t count);
  /// The same with the open forms, when all blocks are attached.
  void AttachTwins(LoadJob& job);
  /// As Ticket::Front.
  Plan FrontOf(const LoadJob& job, uint64_t tokens);
  /// The plan of a job that is done, with what came.
  Plan TakeLoaded(LoadJob& job);
  /// Lets go of all that a job that is done has.
  void DropLoad(LoadJob& job);
  static const PlanState& StateOf(const Plan& plan) { return *plan.state_; }
  /// For tickets: until a job is done, or for so long; and to have a change of it looked at.
  static bool Await(const LoadJob& job, uint64_t timeout_us);
  static void Wake(const LoadJob& job);
  static uint64_t NowOf(const LoadJob& job);  // by the store's clock

  // For sequences and leases.

  const SlotClasses& classes() const { return classes_; }
  const codec::SlotLayout& layout() const { return classes_.layout(); }
  const codec::SlotLayout& open_layout() const { return classes_.open_layout(); }
  uint32_t block_tokens() const { return classes_.block_tokens(); }
  /// The bytes of slots that the caller holds; it may ask who else does.
  const Slots& slots() const { return *slots_; }
  SequenceId NextSequenceId() { return SequenceId(next_sequence_++); }
  /// Live sequences, so that whoever holds what stands in the way can be named.
  void AddSequence(const SequenceImpl& sequence);
  void RemoveSequence(SequenceId id);

  /// Slots with one reference each, of every class, and bytes for a sequence's bookkeeping, charged
  /// to the place's tenant: all or nothing. If it may, it evicts what nobody holds where that makes
  /// it fit, and only then.
  struct Allocation {
    OwnedSlots slots;
    MetadataCharge metadata;
  };
  Result<Allocation> Allocate(const PublishLocation& location, const PerClass<uint64_t>& counts,
                              uint64_t metadata_bytes);
  /// As MetadataCharge ends.
  void RefundMetadata(TenantId tenant, uint64_t bytes);
  /// `count` slots that follow those of `run`, or any consecutive ones if that is empty. Takes free
  /// slots only. Needs a cache that can hold contiguous sequences.
  Result<OwnedSlots> ExtendRun(const PublishLocation& location, std::span<const SlotId> run,
                               uint64_t count);
  /// Another holder for each slot, published or private.
  void HoldSlots(std::span<const SlotId> slots);
  /// Drops one hold of each slot. Token order in, so that parents stay more recent than children.
  void ReleaseSlots(std::span<const SlotId> slots);
  /// The same once the fence is done; null: now. Waits for it only if memory runs out.
  void ReleaseAfter(std::shared_ptr<Fence> fence, std::vector<SlotId> slots);
  /// A use of a path ends: drops a hold of each slot, as ReleaseSlots does. Policies take what that
  /// makes evictable for used by it, and nothing else.
  void EndUse(const PublishLocation& location, std::span<const BlockId> path, PathUse use,
              std::span<const SlotId> slots);
  /// A plan ends of which nothing came. No plan, or one that became a sequence, is fine.
  static void EndPlan(PlanState* plan);
  Lease MakeLease(std::vector<SlotId> held_slots) { return Lease(this, std::move(held_slots)); }
  /// Empties a lease whose holds someone else has taken over.
  static void Disarm(Lease& lease) { lease.slots_.clear(); }
  /// Holds slots again that the caller had let go of. Nothing: one has another generation, or its
  /// block is not to be handed out any more.
  ///
  /// Shape: generations [slots]
  std::optional<Lease> HoldAgain(std::span<const SlotId> slots,
                                 std::span<const uint32_t> generations);
  /// Moves the generation of a slot that the caller alone holds, who may then write other bytes to
  /// it. False: others hold it too.
  bool RenewIfAlone(SlotId slot);

  bool heeds_priorities() const { return heeds_priorities_; }
  uint64_t NowMicros() const { return clock_.NowMicros(); }
  /// Blocks that the caller holds are wanted so much until then; see Sequence::Retain.
  void Retain(std::span<const BlockId> blocks, uint8_t priority, uint64_t until_us);
  /// Makes whole blocks findable, each the child of the one before; the first says its parent, the
  /// others' are filled in. Where another sequence published the same tokens first, the answer is
  /// that block: the bits are equal. Nothing is published in the place of a quarantined block or
  /// after one: the answers end with the first block that was not published, as they do where
  /// memory runs out.
  ///
  /// Cost: the lock twice, for as long as `blocks` take; hashing is done between
  void Publish(const PublishLocation& location, std::span<NewBlock> blocks,
               std::vector<Published>& answers);
  /// Adds the open forms of blocks that the caller published, or that others did, so that a prompt
  /// may go on after them. It is not done where their account has no room for them.
  ///
  /// Shape: blocks a path's last ones; slots [group][blocks], held by the caller
  void KeepTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                 const PerGroup<std::vector<SlotId>>& slots);
  /// Compares a slot that the caller holds with the checksum of the block published in it, if any,
  /// and quarantines that if they differ.
  bool Intact(SlotId slot);
  /// Most block records that one hold of the lock has touched. For tests.
  uint32_t most_touched() const;
  /// Stops if anything about the directory is wrong. For tests.
  void CheckDirectory() const;
  /// Says when verbs take the lock and let go of it, to nobody if it is null. For benchmarks.
  void Watch(HoldWatch* watch);

 private:
  Core(CacheOptions options, SlotClasses classes);

  /// Runs a verb under the lock, and settles what it left to be done when the lock is released.
  /// Before that the holds end whose fences are done.
  template <typename Verb>
  auto With(const Verb& verb) QUIRE_EXCLUDES(mutex_) {
    if (fences_.load(std::memory_order_relaxed) > 0) ReleaseDone();
    return Hold(verb);
  }
  /// The same, whatever fences say.
  template <typename Verb>
  auto Hold(const Verb& verb) QUIRE_EXCLUDES(mutex_) {
    struct SettleAtEnd {
      ~SettleAtEnd() {
        if (any) core.Settle();
      }
      Core& core;
      bool any = false;
    } settle{.core = *this};
    return HoldOnce(verb, settle.any);
  }
  /// One hold of the lock. `any`: the verb left something to be done.
  template <typename Verb>
  auto HoldOnce(const Verb& verb, bool& any) QUIRE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (watch_ != nullptr) [[unlikely]]
      watch_->Begin();
    state_->directory.TakeTouched();
    struct Look {
      ~Look() {
        any = !state.draining.empty() || state.has_work();
        most_touched = std::max(most_touched, state.directory.TakeTouched());
        state.accounts.EndHold();
        if (watch != nullptr) [[unlikely]]
          watch->End();
      }
      State& state;
      bool& any;
      uint32_t& most_touched;
      HoldWatch* const watch;
    } look{.state = *state_, .any = any, .most_touched = most_touched_, .watch = watch_};
    return verb(*state_);
  }
  /// Calls piece(begin, end) for [0, count) in pieces that one hold may go over.
  template <typename Piece>
  static void ForPieces(size_t count, const Piece& piece, size_t most = kBlocksPerHold) {
    for (size_t begin = 0; begin < count; begin += most) {
      piece(begin, std::min<size_t>(count, begin + most));
    }
  }
  void Settle() QUIRE_EXCLUDES(mutex_);
  void ReleaseDone() QUIRE_EXCLUDES(mutex_);
  void ZeroAll(std::span<const SlotId> slots) const;

  /// What a plan is made for, and what a load before it could not bring.
  struct PlanFor {
    bool reuse = true;
    const SequenceOptions* open_as = nullptr;
    bool looks_below = true;
    const LoadList* failed = nullptr;
    MissReason failure = MissReason::kNeverSeen;  // of `failed`
  };
  Result<void> FillPlan(PlanState& plan, std::span<const TokenId> prompt, const PlanFor& what);
  void Count(const PlanState& plan, int64_t sign, uint64_t computed_tokens = 0);
  uint64_t FindElsewhereBelow(std::span<const TokenId> prompt,
                              const PublishLocation& location) const;
  void FindBelow(std::span<const TokenId> prompt, const PublishLocation& location,
                 const FoundPath& path, LoadList& load) const;
  bool loads_from_end() const;
  std::string PublisherName(TenantId tenant) const;
  uint64_t DisownLoaded(TenantId erased);
  void WriteAgain(TenantId erased);
  size_t AttachRun(LoadJob& job, size_t first, size_t count);
  Result<void> CheckRequest(const AcquireRequest& request, std::string_view what) const;
  Result<PublishLocation> MakeLocation(const AcquireRequest& request) const;
  std::vector<Ghost> FindGhosts(std::span<const TokenId> tokens, Digest key,
                                const PublishLocation& location);
  Result<void> CheckContiguous(uint64_t resident_tokens) const;
  uint64_t SequenceBytes(uint64_t shared, uint64_t blocks, const SequenceOptions& options) const;
  uint64_t BytesOfSequence(uint64_t shared, uint64_t blocks, const SequenceOptions& options) const;
  uint64_t FittingBlocks(const PlanState& plan, uint64_t blocks, const SequenceOptions& options);
  Result<void> CheckCapacityToOpen(const PublishLocation& location, uint64_t prompt_tokens,
                                   std::span<const BlockId> path, const SequenceOptions& options);
  FoundPath FindPath(std::span<const TokenId> prompt, const PublishLocation& location);
  FoundPath FindBlocks(std::span<const TokenId> tokens, const PublishLocation& location,
                       bool explains);
  void LetTimePass();
  Result<FoundPath> FindToPin(const AcquireRequest& request, const PublishLocation& location);
  Result<bool> PinPath(const PublishLocation& location, const FoundPath& path, uint64_t until_us);
  static void MarkNotLoaded(const LoadList& load, MissReason reason, FoundPath& path);
  bool LeasePath(FoundPath& path, std::vector<SlotId>& held);
  void KeepSomeTwins(const PublishLocation& location, std::span<const BlockId> blocks,
                     const PerGroup<std::vector<SlotId>>& slots);
  void PublishSome(const PublishLocation& location, std::span<NewBlock> blocks,
                   std::vector<Published>& answers);
  uint64_t MarkErased();
  uint64_t ZeroFreeSlots(TenantId tenant);
  Result<void> GrowTo(const Capacity& to) QUIRE_REQUIRES(resize_mutex_);
  Result<void> ShrinkTo(const Capacity& to) QUIRE_REQUIRES(resize_mutex_);
  bool MoveTail() QUIRE_REQUIRES(resize_mutex_);
  std::vector<SlotId> InTheWay(const Capacity& to);
  std::unexpected<Error> Busy(const Capacity& to, std::span<const SlotId> held,
                              uint64_t least_bytes) const;

  const CacheOptions options_;
  const Clock& clock_;
  SlotClasses classes_;  // const once the arenas are placed
  const bool heeds_priorities_;
  std::unique_ptr<Slots> slots_;          // set once, by Make
  Mover* mover_ = nullptr;                // set once, by Make; null: there is no store
  std::optional<RecordShapes> shapes_{};  // with a mover

  Mutex resize_mutex_{LockRank::kCacheResize};  // one Resize at a time
  Mutex pin_mutex_{LockRank::kCachePin};        // one Pin at a time
  Mutex reading_mutex_{
      LockRank::kReading};  // held while State::reading is in use: one block at a time
  mutable Mutex sequences_mutex_{LockRank::kSequences};
  std::map<SequenceId, const SequenceImpl*> sequences_ QUIRE_GUARDED_BY(sequences_mutex_);
  std::atomic<uint64_t> sequence_count_{0};
  std::atomic<uint64_t> next_sequence_{1};

  std::atomic<uint64_t> fences_ = 0;  // State::fenced, for who has nothing to look at
  mutable Mutex mutex_{LockRank::kCache};
  mutable std::unique_ptr<State> state_ QUIRE_PT_GUARDED_BY(mutex_);  // set once, by Make
  uint32_t most_touched_ QUIRE_GUARDED_BY(mutex_) = 0;
  HoldWatch* watch_ QUIRE_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_CORE_H_
