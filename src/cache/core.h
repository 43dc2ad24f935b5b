// The composition: pools, index, policies and ledger under one lock. In pieces: core.cc (making,
// statistics), admit.cc (plans), room.cc (slots), share.cc (leases), pins.cc, evict.cc, spill.cc,
// seal.cc (publishing, checksums), twins.cc, tenants.cc, misses.cc, resize.cc.
#ifndef QUIRE_CACHE_CORE_H_
#define QUIRE_CACHE_CORE_H_

#include <atomic>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/combining_mutex.h"
#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "base/wiped_vector.h"
#include "cache/block_table.h"
#include "cache/leaving.h"
#include "cache/metadata_charge.h"
#include "cache/owned_slots.h"
#include "cache/reach.h"
#include "cache/tenant.h"
#include "codec/slot_layout.h"
#include "index/radix_tree.h"
#include "pool/pool.h"
#include "quire/cache.h"
#include "quota/ledger.h"

namespace quire::cache {

/// Where a sequence's blocks are published: below the root of its identity.
struct Place {
  Digest root_key{};
  std::shared_ptr<const Domain> domain;  // keys the chain
  TenantId tenant = kDefaultTenant;
  uint32_t epoch = 0;     // of the tenant when the plan was made; a later one: it was erased since
  bool may_evict = true;  // room may be made for it
  bool spill = false;     // and what goes for that is offered to the spill
};

/// The root of an identity's blocks.
struct Root {
  Digest key{};
  std::shared_ptr<const Domain> domain;
};

/// Whose a slot is, and whose bytes are in it.
struct SlotOwner {
  TenantId charged{};  // while it is in use; nobody for what is leaving
  TenantId writer{};   // none: nobody has written to it, or it was zeroed since
  uint32_t epoch = 0;  // of the writer's sequence
};

/// A plan: the pinned path and what the prompt was.
struct PlanState {
  Place place;
  uint64_t prompt_tokens = 0;
  uint64_t resident = 0;                   // tokens found
  WipedVector<TokenId> resident_tokens{};  // [resident]
  std::vector<BlockId> path{};
  PerClass<std::vector<SlotId>> slots{};  // [resident / block_tokens]; none where no query looks
  Lease lease{};                          // on these slots
  std::vector<MissRun> missing{};         // never empty once acquired
};

/// A block of a sequence at the moment it is published.
struct NewBlock {
  BlockId parent{};                 // none for the first block
  std::span<const TokenId> tokens;  // [block_tokens]
  PerClass<SlotId> slots{};         // of each part, held once by the sequence
};

/// Who used a path.
enum class User : uint8_t {
  kRequest = 1,  // it asked for its prompt, and computed the rest
  kPlan = 2,     // it asked for its prompt and went no further
  kOther = 3,    // nobody asked whether the path was there: a fork, or a sequence after a Reset
};

/// How a path of published blocks was used.
struct PathUse {
  std::span<const BlockId> path;  // root first
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  bool asked = true;        // what of it was there
  uint64_t hit_blocks = 0;  // that were
  User user = User::kRequest;
};

/// What became of it.
struct Published {
  BlockId block{};           // none: something stands in the way, the block stays private for now
  PerClass<SlotId> slots{};  // where the block lies, held for the caller; what is another's of
                             // them was deduplicated, and the caller lets its own go
  bool final = false;        // with no block: never try again
};

class SequenceImpl;

class Core final : public Cache {
 public:
  /// With a `shared` ledger the bytes are charged to that too, and others may use it up: a refusal
  /// then may come after something was evicted.
  static Result<std::unique_ptr<Core>> Make(CacheOptions options,
                                            std::unique_ptr<DeviceMemory> memory,
                                            quota::Ledger* shared = nullptr);
  ~Core() override;

  const CacheOptions& options() const override { return options_; }
  uint64_t block_bytes() const override;
  Result<TenantId> AddTenant(const TenantOptions& options) override;
  Result<TenantId> FindTenant(std::string_view name) const override;
  Result<TenantStats> tenant_stats(TenantId tenant) const override;
  Result<EraseReport> Erase(TenantId tenant) override;
  Result<Plan> Acquire(const AcquireRequest& request) override;
  Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) override;
  Result<void> Unpin(const AcquireRequest& request) override;
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override;
  uint64_t Evict(uint64_t blocks) override;
  uint64_t Trim() override;
  Result<void> Resize(uint64_t hot_bytes) override;
  VerifyReport Verify() override;
  CacheStats stats() const override;
  std::string BlockMap() const override;

  // What sequences and leases are built from. Thread-safe.

  /// Of sealed slots.
  const codec::SlotLayout& layout() const { return layout_; }
  /// Of open slots; the same where codecs store values as they are.
  const codec::SlotLayout& open_layout() const { return open_layout_ ? *open_layout_ : layout_; }
  /// Sealed classes are numbered like the parts; the open one of part p is part_count + p.
  uint32_t class_count() const { return layout_.part_count() * (open_layout_ ? 2 : 1); }
  uint32_t OpenClassOf(uint32_t part) const {
    return open_layout_ ? layout_.part_count() + part : part;
  }
  uint32_t block_tokens() const { return options_.profile.block_tokens; }
  /// Whole blocks before its own that a row reads open; 0 where nothing is encoded.
  uint32_t residual_blocks() const { return options_.profile.residual_blocks(); }
  /// How far back each class is needed. [class_count]
  std::span<const Reach> reaches() const { return {reaches_.data(), class_count()}; }
  /// Slot ids are unique over all classes.
  uint32_t ClassOf(SlotId slot) const { return slot.number() % class_count(); }
  uint64_t slot_bytes(uint32_t slot_class) const { return pools_[slot_class]->slot_bytes(); }
  std::byte* data(SlotId slot) const { return PoolOf(slot).data(Local(slot)); }
  SequenceId NextSequenceId() { return SequenceId(next_sequence_++); }
  /// Live sequences, so that whoever holds what stands in the way can be named.
  void AddSequence(const SequenceImpl& sequence);
  void RemoveSequence(SequenceId id);

  /// Slots with one reference each, of every class, charged to the place's tenant. If it may, it
  /// evicts what nobody holds where that makes it fit, and only then. May wait for the spill: no
  /// lock is held.
  Result<OwnedSlots> AllocateSlots(const Place& place, const PerClass<uint64_t>& counts);
  /// The same with bytes for a sequence's bookkeeping: both or neither.
  struct Allocation {
    OwnedSlots slots;
    MetadataCharge metadata;
  };
  Result<Allocation> Allocate(const Place& place, const PerClass<uint64_t>& counts,
                              uint64_t metadata_bytes);
  /// As MetadataCharge ends.
  void RefundMetadata(TenantId tenant, uint64_t bytes);
  /// `count` slots that follow those of `run`, or any consecutive ones if that is empty. Takes free
  /// slots only. Needs CheckContiguous.
  Result<OwnedSlots> ExtendRun(const Place& place, std::span<const SlotId> run, uint64_t count);
  /// Copies the bytes of one slot to another of the same class.
  void CopySlot(SlotId from, SlotId to) const;
  /// Another holder for each slot, published or private.
  void HoldSlots(std::span<const SlotId> slots);
  /// Drops one hold of each slot. Token order in, so that parents stay more recent than children.
  void ReleaseSlots(std::span<const SlotId> slots);
  /// A use of a path ends: drops a hold of each slot, as ReleaseSlots does, under the same hold of
  /// the lock under which policies hear of it, so that they take no other request's blocks for its.
  void EndUse(const Place& place, const PathUse& use, std::span<const SlotId> slots);
  /// A plan ends of which nothing came. No plan, or one that became a sequence, is fine.
  static void EndPlan(PlanState* plan);
  bool heeds_priorities() const { return heeds_priorities_; }
  uint64_t NowMicros() const { return clock_.NowMicros(); }
  /// Blocks that the caller holds are wanted so much until then; see Sequence::Retain.
  void Retain(std::span<const BlockId> blocks, uint8_t priority, uint64_t until_us);
  Lease MakeLease(std::vector<SlotId> held_slots) { return Lease(this, std::move(held_slots)); }
  uint32_t generation(SlotId slot) const { return PoolOf(slot).generation(Local(slot)); }
  /// Moves the generation of a slot that the caller alone holds, who may then write other bytes to
  /// it. False: others hold it too.
  bool RenewIfAlone(SlotId slot);
  /// Holds slots again that the caller had let go of. Nothing: one has another generation or is
  /// about to move, or its block is not to be handed out any more.
  ///
  /// Shape: generations [slots]
  std::optional<Lease> HoldAgain(std::span<const SlotId> slots,
                                 std::span<const uint32_t> generations);
  /// Empties a lease whose holds someone else has taken over.
  static void Disarm(Lease& lease) { lease.slots_.clear(); }
  /// Holders of a slot: the sequence, leases, and for a published block the index.
  uint32_t references(SlotId slot) const { return PoolOf(slot).references(Local(slot)); }

  /// Makes whole blocks findable, each the child of the one before; the first says its parent, the
  /// others' are filled in. Where another sequence published the same tokens first, the answer is
  /// that block: the bits are equal. Nothing is published in the place of a quarantined block or
  /// after one: the answers end with the first block that was not published, as they do where
  /// memory runs out.
  ///
  /// Cost: the lock twice, for as long as `blocks` take; hashing is done between
  void Publish(const Place& place, std::span<NewBlock> blocks, std::vector<Published>& answers);
  /// Adds the open forms of blocks that the caller published, or that others did, so that a prompt
  /// may go on after them. It is not done where their account has no room for them.
  ///
  /// Shape: blocks a path's last ones; slots [part][blocks], held by the caller
  void KeepTwins(const Place& place, std::span<const BlockId> blocks,
                 const PerPart<std::vector<SlotId>>& slots);
  /// Compares a slot that the caller holds with the checksum of the block published in it, if any,
  /// and quarantines that if they differ.
  bool Intact(SlotId slot);
  /// Stops if anything about the index is wrong. For tests.
  void CheckIndex() const;

 private:
  struct Parts {
    codec::SlotLayout layout;
    std::optional<codec::SlotLayout> open_layout;
    PerClass<uint64_t> charges{};  // what one slot costs the budget, see ChargeBytes
    uint64_t history_bytes = 0;    // of a sealed one: what its policy may remember
    std::unique_ptr<DeviceMemory> memory;
    PerClass<std::unique_ptr<pool::Pool>> pools{};  // null beyond the class count
    uint32_t codec_fallbacks = 0;
  };

  // What a budget pays for.
  struct Room {
    uint64_t hot_bytes = 0;
    uint64_t ledger_bytes = 0;   // less where there are no ids for more slots
    PerClass<uint32_t> slots{};  // of each pool
  };

  Core(CacheOptions options, Parts parts, quota::Ledger* shared);
  static Room RoomFor(uint64_t hot_bytes, uint32_t classes, const PerClass<uint64_t>& charges);
  static Result<void> CheckHoldsABlock(uint64_t hot_bytes, uint32_t block_tokens,
                                       const PerClass<uint64_t>& charges);
  static Result<Parts> MakeParts(const CacheOptions& options);
  static Result<void> MakePools(const CacheOptions& options, Parts& parts);

  pool::Pool& PoolOf(SlotId slot) const { return *pools_[ClassOf(slot)]; }
  SlotId Local(SlotId slot) const { return SlotId(slot.number() / class_count()); }
  SlotId Global(uint32_t slot_class, SlotId local) const {
    return SlotId(local.number() * class_count() + slot_class);
  }
  uint32_t Checksum(SlotId slot) const;

  // What the index has of a prompt.
  struct Path {
    std::vector<BlockId> blocks{};     // those that can be used
    std::vector<MissReason> beyond{};  // of each block found after them: why it cannot
    Digest last_key{};                 // of the last block found, or of the root
    uint64_t elsewhere = 0;            // blocks that the account has under another root
  };
  Path FindPath(std::span<const TokenId> prompt, const Place& place) QUIRE_REQUIRES(mutex_);
  void Explain(std::span<const TokenId> prompt, const Path& path, PlanState& state);
  std::vector<Ghost> FindGhosts(std::span<const TokenId> tokens, Digest key, const Place& place);

  Result<void> CheckRequest(const AcquireRequest& request, std::string_view what) const;
  Result<Place> MakePlace(const AcquireRequest& request) const;
  Tenant& TenantOf(TenantId id) const QUIRE_REQUIRES(mutex_) { return *tenants_[id.number()]; }
  /// Who pays for what is published there.
  Tenant& AccountOf(const Place& place) const QUIRE_REQUIRES(mutex_) {
    return TenantOf(TenantOf(place.tenant).account_id);
  }
  Result<void> CheckTenant(TenantId tenant) const QUIRE_REQUIRES(mutex_);
  uint64_t MemoryPerSlot() const;
  void ShareMemory() QUIRE_REQUIRES(mutex_);
  uint32_t SamplesPerTenant() const QUIRE_REQUIRES(mutex_);
  void AddOwners(const PerClass<std::vector<SlotId>>& slots, uint64_t bytes) QUIRE_REQUIRES(mutex_);
  void Claim(const Place& place, std::span<const SlotId> slots, std::vector<SlotId>& to_zero)
      QUIRE_REQUIRES(mutex_);
  void Zero(SlotId slot) const;
  uint64_t ZeroFreeSlots(TenantId tenant);
  void MoveCharge(SlotId slot, Tenant& to) QUIRE_REQUIRES(mutex_);
  bool MakeRoomInAccount(const Place& place, uint64_t bytes, Leaving& leaving)
      QUIRE_REQUIRES(mutex_);

  bool IsNeeded(uint32_t slot_class, uint64_t block, uint64_t resident) const;
  uint64_t EvictableBytesOf(std::span<const BlockId> path) const QUIRE_REQUIRES(mutex_);
  Result<void> CheckRoomToOpen(const PlanState& state, std::span<const BlockId> path,
                               const SequenceOptions& options) QUIRE_REQUIRES(mutex_);
  Result<void> CheckContiguous(uint64_t resident_tokens) const;
  PerClass<uint64_t> OwnSlots(uint64_t shared, uint64_t blocks, uint64_t step_tokens) const;
  uint64_t SequenceBytes(uint64_t shared, uint64_t blocks, const SequenceOptions& options) const;
  uint64_t FittingBlocks(const PlanState& state, uint64_t blocks, const SequenceOptions& options);
  Result<void> CheckCanFit(const Place& place, uint64_t tokens, uint64_t blocks,
                           uint64_t step_tokens, uint64_t metadata_bytes);
  Result<void> GrowTo(const Room& to);
  Result<void> ShrinkTo(const Room& to);
  Result<void> CheckFloors(const Room& to) const QUIRE_REQUIRES(mutex_);
  bool IsBeyond(SlotId slot, const Room& to) const {
    return Local(slot).number() >= to.slots[ClassOf(slot)];
  }
  bool CanMove(SlotId slot) const QUIRE_REQUIRES(mutex_);
  struct InTheWay {
    std::vector<SlotId> slots{};  // held, and beyond the end
    uint64_t leaving = 0;         // of these, on their way to the spill
    uint64_t least_bytes = 0;     // that it can go down to now
  };
  InTheWay FindInTheWay(const Room& to) const QUIRE_REQUIRES(mutex_);
  std::unexpected<Error> Busy(const Room& to, const InTheWay& held) const;
  void SetRoom(const Room& to) QUIRE_REQUIRES(mutex_);
  void EvictDownTo(uint64_t bytes) QUIRE_REQUIRES(mutex_);
  std::vector<BlockId> BlocksBeyondEnd() const QUIRE_REQUIRES(mutex_);
  void MoveBelowEnd(BlockId block) QUIRE_REQUIRES(mutex_);
  void ForgetOwnersBeyondEnd() QUIRE_REQUIRES(mutex_);

  uint64_t Charge(const PerClass<uint64_t>& counts) const;
  /// Evicting `needed` bytes where `unused` are left: how many must then be free.
  uint64_t RoomWanted(evict::BatchSize& batch, uint64_t needed, uint64_t unused,
                      uint64_t capacity) const;
  uint64_t RoomBytes(const Place& place) const QUIRE_REQUIRES(mutex_);
  Result<void> CheckRoom(const Place& place, uint64_t bytes) const QUIRE_REQUIRES(mutex_);
  Result<void> MakeRoom(const Place& place, uint64_t bytes, Leaving& leaving)
      QUIRE_REQUIRES(mutex_);
  Result<void> TakeSlots(const Place& place, uint64_t bytes, uint64_t metadata_bytes,
                         PerClass<std::vector<SlotId>>& slots, std::vector<SlotId>& to_zero)
      QUIRE_REQUIRES(mutex_);
  Result<void> TakeRun(const Place& place, std::span<const SlotId> run, uint64_t count,
                       PerClass<std::vector<SlotId>>& added, std::vector<SlotId>& to_zero);
  void CountRefusal(const Place& place, const PerClass<uint64_t>& counts, Error& error)
      QUIRE_REQUIRES(mutex_);
  std::string RoomMessage(const Place& place, const PerClass<uint64_t>& counts) const
      QUIRE_REQUIRES(mutex_);
  void HoldSlot(SlotId slot) QUIRE_REQUIRES(mutex_);
  void ReleaseSlot(SlotId slot) QUIRE_REQUIRES(mutex_);
  void FreeIfLast(SlotId slot) QUIRE_REQUIRES(mutex_);
  void AddLease(BlockId block) QUIRE_REQUIRES(mutex_);
  void DropLease(BlockId block) QUIRE_REQUIRES(mutex_);
  uint64_t PolicyKey(BlockId block) const QUIRE_REQUIRES(mutex_);
  void BeginUse(Tenant& account, const Place& place, const PathUse& use) QUIRE_REQUIRES(mutex_);
  evict::BlockFacts FactsOf(BlockId block) const QUIRE_REQUIRES(mutex_);
  void List(BlockId block) QUIRE_REQUIRES(mutex_);
  // Whether a block that leaves its list stays in the cache. What goes because room was needed
  // teaches a policy something.
  enum class Stays : uint8_t { kYes = 1, kNo = 2, kEvicted = 3 };
  void Unlist(BlockId block, Stays stays = Stays::kYes) QUIRE_REQUIRES(mutex_);

  // A pin is a lease on a path, by its last block and who asked for it.
  struct PinKey {
    BlockId last;
    TenantId tenant;
    auto operator<=>(const PinKey&) const = default;
  };
  struct PinState {
    uint32_t count = 0;
    uint64_t until_us = 0;
  };
  Result<std::vector<BlockId>> PathOfPin(const AcquireRequest& request, const Place& place)
      QUIRE_REQUIRES(mutex_);
  uint64_t PinLimit(const Tenant& account) const QUIRE_REQUIRES(mutex_);
  void ReleasePin(BlockId last) QUIRE_REQUIRES(mutex_);
  void EndPinsOfBadBlocks() QUIRE_REQUIRES(mutex_);
  void LetTimePass() QUIRE_REQUIRES(mutex_);

  enum class Goes : uint8_t {
    kWhole = 1,
    kPassed = 2,  // what windows have passed, and twins, of a leased block
    kTwins = 3,   // of a block that nobody leases: they go before it
  };
  struct Victim {
    BlockId block;
    Goes goes;
    uint64_t stamp;
    uint64_t bytes;
  };
  std::optional<Victim> VictimOf(const Tenant& tenant) const QUIRE_REQUIRES(mutex_);
  // At the expense of others' blocks above their floors; nobody's (null): of all blocks.
  std::optional<Victim> VictimFor(const Tenant* tenant) const QUIRE_REQUIRES(mutex_);
  uint64_t EvictableFor(const Tenant* tenant) const QUIRE_REQUIRES(mutex_);
  // With `leaving`, what has sealed bytes joins that instead of being free at once.
  void EvictVictim(const Victim& victim, MissReason reason, Leaving* leaving = nullptr)
      QUIRE_REQUIRES(mutex_);
  void EvictParts(BlockId block, Leaving* leaving) QUIRE_REQUIRES(mutex_);
  void EvictTwins(BlockId block) QUIRE_REQUIRES(mutex_);
  uint64_t TwinBytes(const BlockRecord& record) const;
  void LimitHollow(BlockId block, Leaving* leaving) QUIRE_REQUIRES(mutex_);
  void Expire(Tenant& account) QUIRE_REQUIRES(mutex_);
  void Drop(BlockId block, MissReason reason, Leaving* leaving = nullptr) QUIRE_REQUIRES(mutex_);
  void DropOne(BlockId block, MissReason reason, Leaving* leaving) QUIRE_REQUIRES(mutex_);

  friend class Leaving;
  std::optional<LeavingRecord> Describe(BlockId block, const PerPart<SlotId>& slots,
                                        Leaving* leaving) const QUIRE_REQUIRES(mutex_);
  void Depart(LeavingRecord record, Leaving& leaving) QUIRE_REQUIRES(mutex_);
  bool Promise(const Place& place, uint64_t bytes, Leaving& leaving) QUIRE_REQUIRES(mutex_);
  void Offer(Leaving& leaving) noexcept;
  void FindDamage(Leaving& leaving);
  bool Store(const LeavingRecord& record);
  void LetGo(Leaving& leaving) QUIRE_REQUIRES(mutex_);
  void OfferAndLetGo(Leaving& leaving);

  std::vector<BlockId> Mark(std::span<const BlockId> blocks, Standing standing)
      QUIRE_REQUIRES(mutex_);
  void Quarantine(BlockId block, Standing standing) QUIRE_REQUIRES(mutex_);
  Standing StandingBefore(const Place& place, const NewBlock& block) const QUIRE_REQUIRES(mutex_);
  std::optional<Published> JoinWhole(const Place& place, const NewBlock& block)
      QUIRE_REQUIRES(mutex_);
  Published PublishOne(const Place& place, const NewBlock& block, const BlockRecord& record,
                       Leaving& leaving) QUIRE_REQUIRES(mutex_);
  std::optional<BlockId> FindSame(const Place& place, const NewBlock& block) QUIRE_REQUIRES(mutex_);
  Published Join(BlockId same, const NewBlock& block, const PerClass<uint32_t>& crcs)
      QUIRE_REQUIRES(mutex_);
  void PublishSome(const Place& place, std::span<NewBlock> blocks, std::vector<Published>& answers);
  Published AddToIndex(const Place& place, const NewBlock& block, BlockRecord record)
      QUIRE_REQUIRES(mutex_);
  BlockId ReserveInIndex(index::RootId root, Tenant& account, const NewBlock& block,
                         const Digest& root_key) QUIRE_REQUIRES(mutex_);
  bool IsWhole(const BlockRecord& record) const;
  /// The caller's slot, held by others too, becomes that of a published block.
  void AddPublishedSlot(BlockId block, SlotId slot, uint32_t crc) QUIRE_REQUIRES(mutex_);

  const CacheOptions options_;
  const codec::SlotLayout layout_;
  const std::optional<codec::SlotLayout> open_layout_;
  const PerClass<uint64_t> charges_;
  const uint64_t history_bytes_;  // of each of them, for the policy's history
  const bool heeds_priorities_;
  const bool hears_time_;  // the policy
  const Clock& clock_;
  const std::unique_ptr<DeviceMemory> memory_;
  const PerClass<std::unique_ptr<pool::Pool>> pools_;
  PerClass<Reach> reaches_{};
  quota::Ledger ledger_;  // charged and moved under mutex_

  Mutex resize_mutex_{LockRank{5}};  // one Resize at a time
  mutable Mutex sequences_mutex_{LockRank{6}};
  std::map<SequenceId, const SequenceImpl*> sequences_ QUIRE_GUARDED_BY(sequences_mutex_);
  std::atomic<uint64_t> sequence_count_{0};
  std::atomic<uint64_t> next_sequence_{1};

  // What every request does goes through Run, so that contending threads do not pull index, policy
  // and counters from core to core; what is rare takes the lock itself.
  mutable CombiningMutex mutex_{LockRank{20}};
  Room room_ QUIRE_GUARDED_BY(mutex_);
  bool shrinking_ QUIRE_GUARDED_BY(mutex_) = false;  // blocks beyond the end are moving below it
  mutable BlockTable blocks_ QUIRE_GUARDED_BY(mutex_);
  index::RadixTree index_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Root> roots_ QUIRE_GUARDED_BY(mutex_);  // by RootId, of roots with blocks
  std::vector<std::unique_ptr<Tenant>> tenants_ QUIRE_GUARDED_BY(mutex_);  // by TenantId
  std::vector<SlotOwner> owners_ QUIRE_GUARDED_BY(mutex_);  // by SlotId, up to the highest used
  std::map<PinKey, PinState> pins_ QUIRE_GUARDED_BY(mutex_);
  uint64_t next_pin_end_us_ QUIRE_GUARDED_BY(mutex_) = UINT64_MAX;  // or earlier
  evict::BatchSize batch_ QUIRE_GUARDED_BY(mutex_);                 // of what goes for the budget
  std::vector<uint64_t> keys_ QUIRE_GUARDED_BY(mutex_);             // of a path that was used
  uint64_t hollow_ QUIRE_GUARDED_BY(mutex_) = 0;                    // blocks without any bytes
  uint64_t twin_slots_ QUIRE_GUARDED_BY(mutex_) = 0;
  uint64_t spilling_bytes_ QUIRE_GUARDED_BY(mutex_) = 0;  // leaving, or promised for it
  uint64_t sequence_bytes_ QUIRE_GUARDED_BY(mutex_) = 0;  // of MetadataCharges
  uint64_t hollow_max_ QUIRE_GUARDED_BY(mutex_) = 0;      // that the charges pay for
  uint64_t ghosts_max_ QUIRE_GUARDED_BY(mutex_) = 0;  // sealed slots whose charges pay for memory
  uint64_t share_ QUIRE_GUARDED_BY(mutex_) = 0;       // of ghosts_max_, for each tenant
  uint64_t next_stamp_ QUIRE_GUARDED_BY(mutex_) = 0;
  CacheStats counters_ QUIRE_GUARDED_BY(mutex_);  // the *_total fields and lookups
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_CORE_H_
