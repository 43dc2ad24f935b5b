// The composition: pool, index, policy and ledger under one lock. Parts: core.cc (making,
// statistics), admit.cc (plans, room), share.cc (leases, eviction), seal.cc (publishing,
// checksums).
#ifndef QUIRE_CACHE_CORE_H_
#define QUIRE_CACHE_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "cache/block_table.h"
#include "codec/slot_layout.h"
#include "evict/policy.h"
#include "index/radix_tree.h"
#include "pool/pool.h"
#include "quire/cache.h"
#include "quota/ledger.h"

namespace quire::cache {

/// Where a sequence's blocks are published: below the root of its identity.
struct Place {
  Digest root_key{};
  std::shared_ptr<const Domain> domain;  // keys the chain
};

/// A plan: the pinned path and what the prompt was.
struct PlanState {
  Place place;
  uint64_t prompt_tokens = 0;
  std::vector<TokenId> resident_tokens;  // [path.size() * block_tokens]
  std::vector<BlockId> path;
  Lease lease;  // on the path's slots
  MissReason reason = MissReason::kNeverSeen;
};

/// A block of a sequence at the moment it is published.
struct NewBlock {
  BlockId parent;                   // none for the first block
  std::span<const TokenId> tokens;  // [block_tokens]
  SlotId slot;                      // held once by the sequence
};

/// What became of it.
struct Published {
  BlockId block{};            // none: damage stands in the way, the block stays private for now
  SlotId slot{};              // where the block lies
  bool deduplicated = false;  // `slot` is another's and held for the caller, who lets its own go
};

class Core final : public Cache {
 public:
  static Result<std::unique_ptr<Core>> Make(CacheOptions options,
                                            std::unique_ptr<DeviceMemory> memory);
  ~Core() override;

  const CacheOptions& options() const override { return options_; }
  uint64_t block_bytes() const override { return layout_.slot_bytes(); }
  Result<Plan> Acquire(const AcquireRequest& request) override;
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override;
  uint64_t Evict(uint64_t blocks) override;
  uint64_t Trim() override { return sealed_->Trim(); }
  VerifyReport Verify() override;
  CacheStats stats() const override;
  std::string BlockMap() const override;

  // What sequences and leases are built from. Thread-safe.

  const codec::SlotLayout& layout() const { return layout_; }
  uint32_t block_tokens() const { return options_.profile.block_tokens; }
  std::byte* data(SlotId slot) const { return sealed_->data(slot); }
  SequenceId NextSequenceId() { return SequenceId(next_sequence_++); }
  void AddSequence() { ++sequences_; }
  void RemoveSequence() { --sequences_; }

  /// Slots with one reference each; evicts unleased blocks if that makes it fit, and only then.
  Result<std::vector<SlotId>> AllocateSlots(uint64_t count);
  /// Another holder for each slot, published or private.
  void HoldSlots(std::span<const SlotId> slots);
  /// Drops one hold of each slot. Token order in, so that parents stay more recent than children.
  void ReleaseSlots(std::span<const SlotId> slots);
  Lease MakeLease(std::vector<SlotId> held_slots) { return Lease(this, std::move(held_slots)); }
  /// The holds of a lease, which is empty afterwards.
  static std::vector<SlotId> TakeSlots(Lease& lease) { return std::exchange(lease.slots_, {}); }
  /// Holders of a slot: the sequence, leases, and for a published block the index.
  uint32_t references(SlotId slot) const { return sealed_->references(slot); }

  /// Makes a whole block findable. If another sequence published the same tokens first, the answer
  /// is that block: the bits are equal. Nothing is published in the place of a quarantined block or
  /// after one.
  Published Publish(const Place& place, const NewBlock& block);
  /// Compares a slot that the caller holds with the checksum of the block published in it, if any,
  /// and quarantines that if they differ.
  bool Intact(SlotId slot);

 private:
  Core(CacheOptions options, codec::SlotLayout layout, uint64_t charge_bytes,
       std::unique_ptr<DeviceMemory> memory, std::unique_ptr<pool::Pool> sealed);

  void HoldSlot(SlotId slot) QUIRE_REQUIRES(mutex_);
  void ReleaseSlot(SlotId slot) QUIRE_REQUIRES(mutex_);
  void FreeIfLast(SlotId slot) QUIRE_REQUIRES(mutex_);
  void AddLease(BlockId block) QUIRE_REQUIRES(mutex_);
  void DropLease(BlockId block) QUIRE_REQUIRES(mutex_);
  void EvictOne() QUIRE_REQUIRES(mutex_);
  void Drop(BlockId block) QUIRE_REQUIRES(mutex_);
  void Quarantine(BlockId block) QUIRE_REQUIRES(mutex_);
  std::optional<Published> FindPublished(const Place& place, const NewBlock& block)
      QUIRE_REQUIRES(mutex_);

  const CacheOptions options_;
  const codec::SlotLayout layout_;
  const uint64_t charge_bytes_;  // what one slot costs the budget, see ChargeBytes
  const std::unique_ptr<DeviceMemory> memory_;
  const std::unique_ptr<pool::Pool> sealed_;
  quota::Ledger ledger_;

  mutable Mutex mutex_{LockRank{20}};
  mutable BlockTable blocks_ QUIRE_GUARDED_BY(mutex_);
  index::RadixTree index_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Digest> root_keys_ QUIRE_GUARDED_BY(mutex_);  // by RootId, of roots with blocks
  std::unique_ptr<evict::Policy> policy_ QUIRE_GUARDED_BY(mutex_);
  CacheStats counters_ QUIRE_GUARDED_BY(mutex_);  // the *_total fields and lookups

  std::atomic<uint64_t> next_sequence_{1};
  std::atomic<uint64_t> sequences_{0};
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_CORE_H_
