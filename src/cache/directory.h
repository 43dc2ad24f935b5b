// What exists: published blocks by their tokens, who leases them, and why others are gone. Knows no
// bytes and no budgets.
#ifndef QUIRE_CACHE_DIRECTORY_H_
#define QUIRE_CACHE_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/ghosts.h"
#include "cache/slot_classes.h"
#include "index/radix_tree.h"
#include "quire/identity.h"

namespace quire::cache {

/// Whether a block may be handed out.
enum class BlockState : uint8_t {
  kGood = 1,
  kDamaged = 2,  // it or a block before it failed a re-check
  kPassed = 3,   // it or a block before it was passed by every window, and there are too many such
  kErased = 4,   // whoever published it, or a block before it, was erased
};

/// What of a block the store below has.
enum class Below : uint8_t {
  kNothing = 0,
  kWriting = 1,  // it was given to the store, and is not durable yet
  kDurable = 2,
};

/// A published block.
struct BlockRecord {
  PerClass<SlotId> slots{};  // none: no such group, or a window has passed it and it is gone; of an
                             // open class a twin, or none
  PerClass<uint32_t> crcs{};  // CRC32C of each slot's bytes when it was published
  uint32_t leases = 0;        // holders besides the index, and leased children
  uint32_t pins = 0;          // paths that Pin keeps and that go through it
  TenantId account{};         // who pays for it: the tenant, or the domain it was published to
  TenantId publisher{};
  uint32_t epoch = 0;                          // of the publisher
  BlockState block_state = BlockState::kGood;  // as far as it was marked, see BlockStateOf
  uint8_t pinned_classes = 0;                  // a bit for each slot that pins hold
  Below sealed_below = Below::kNothing;
  Below twins_below = Below::kNothing;
  bool loaded = false;       // from the store, where any member of its domain may have written it
  uint32_t published_s = 0;  // when, by the cache's clock
  uint64_t below_epoch = 0;  // as its publisher's PublishLocation says
  Digest key{};              // identity in stores, chained from the root key

  bool is_good() const { return block_state == BlockState::kGood; }
  bool IsPinned(uint32_t slot_class) const { return ((pinned_classes >> slot_class) & 1U) != 0; }
  /// None of its bytes is left; blocks after it are found through it.
  bool is_empty() const {
    for (const SlotId slot : slots) {
      if (!slot.is_none()) return false;
    }
    return true;
  }
};

/// Most block records that one hold of the cache's lock may touch, and most blocks of a path that a
/// verb is asked to go over in one hold: longer work goes in pieces. A verb that cannot tell how
/// many a step touches begins none after the first half of them: Directory::MayGoOn.
inline constexpr uint32_t kRecordsPerHold = 256;
inline constexpr uint32_t kBlocksPerHold = 48;

/// Published blocks in a tree below the roots of their identities. Block ids are dense and reused.
///
/// Errors:   calls against the contract stop (QUIRE_CHECK). std::bad_alloc: nothing changes
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: `classes` must outlive it
class Directory {
 public:
  /// What the blocks of one identity hang below.
  struct Root {
    Digest key{};
    std::shared_ptr<const Domain> domain;
  };

  explicit Directory(const SlotClasses& classes);

  // What is there.

  uint64_t size() const { return entries_.size() - free_.size(); }
  bool contains(BlockId block) const {
    return block.number() < entries_.size() && entries_[block.number()].used;
  }
  const BlockRecord& at(BlockId block) const {
    QUIRE_DCHECK(contains(block));
    return entries_[block.number()].record;
  }
  /// Ids that were ever given have lower numbers.
  uint32_t ids_end() const { return static_cast<uint32_t>(entries_.size()); }
  /// The published block in a slot, or none.
  BlockId InSlot(SlotId slot) const {
    return slot.number() < block_of_slot_.size() ? block_of_slot_[slot.number()] : BlockId::None();
  }
  BlockId parent(BlockId block) const { return index_.parent(block); }
  uint32_t depth(BlockId block) const { return index_.depth(block); }
  bool has_children(BlockId block) const { return index_.has_children(block); }
  /// As of the tree: a way over what continues a block.
  BlockId first_child(BlockId block) const { return index_.first_child(block); }
  BlockId next_sibling(BlockId block) const { return index_.next_sibling(block); }
  BlockId AncestorAt(BlockId block, uint32_t depth) const {
    return index_.AncestorAt(block, depth);
  }
  /// All its sealed slots are there.
  bool IsWhole(BlockId block) const;

  /// Appends the blocks of the longest known prefix of `tokens` after a block (none: the root).
  void Find(const Digest& root_key, BlockId after, std::span<const TokenId> tokens,
            std::vector<BlockId>& path) const;
  /// The block after `parent` (none: the first of the root) with these tokens.
  std::optional<BlockId> FindChild(const Digest& root_key, BlockId parent,
                                   std::span<const TokenId> tokens) const;
  /// The roots below which an account has blocks, in any order.
  size_t root_count(TenantId account) const {
    return account.number() < accounts_.size() ? accounts_[account.number()].roots.size() : 0;
  }
  const Root& root(TenantId account, size_t i) const {
    return roots_[accounts_[account.number()].roots[i].number()];
  }

  // Blocks come and go.

  /// Adds a good block after `parent` (none: at the root), which gets a lease by it. Its record has
  /// slots, checksums, account, publisher, key and leases.
  BlockId Add(const Digest& root_key, std::shared_ptr<const Domain> domain, BlockId parent,
              std::span<const TokenId> tokens, const BlockRecord& record);
  /// Takes out a block that nobody leases and that has no children. Its slots are none of its own
  /// afterwards; the lease on the block before it is the caller's to drop.
  void Remove(BlockId block);
  /// The block has another slot; ReserveSlot takes the memory for it.
  void ReserveSlot(SlotId slot);
  void AddSlot(BlockId block, SlotId slot, uint32_t crc);
  void RemoveSlot(BlockId block, uint32_t slot_class);
  /// The same bytes are in another slot.
  void MoveSlot(BlockId block, uint32_t slot_class, SlotId to);

  // Who needs them. A leased block leases its parent. Whoever holds a block mostly holds its path
  // too, but a view that was taken before its blocks were published may hold other copies of the
  // parents, and a window lets go of them; counting here keeps the policies' promise in every case:
  // what is evictable has no leased descendant.

  /// More holders. changed(block) is called for each block that got its first, the block first.
  template <typename Changed>
  void AddLease(BlockId block, const Changed& changed, uint32_t holders = 1) {
    while (!block.is_none()) {
      ++touched_;
      uint32_t& leases = Record(block).leases;
      if (std::exchange(leases, leases + std::exchange(holders, 1)) > 0) return;
      changed(block);
      block = index_.parent(block);
    }
  }
  /// Of the blocks of the path to this one, itself included, the first so many are leased.
  ///
  /// Cost: O(log depth) records
  uint32_t LeasedBlocks(BlockId block) const;
  /// One less. changed(block) is called for each block that lost its last, and may remove it. Where
  /// that goes on for long it is interrupted: TakeDeferred tells from which blocks a lease is still
  /// to be dropped; until then they count as leased.
  template <typename Changed>
  void DropLease(BlockId block, const Changed& changed) {
    while (!block.is_none()) {
      if (touched_ >= kRecordsPerHold - kBlocksPerHold) return deferred_.push_back(block);
      ++touched_;
      BlockRecord& record = Record(block);
      QUIRE_CHECK(record.leases > 0);
      if (--record.leases > 0) return;
      const BlockId parent = index_.parent(block);
      changed(block);
      block = parent;
    }
  }
  bool has_deferred() const { return !deferred_.empty(); }
  BlockId TakeDeferred() {
    const BlockId block = deferred_.back();
    deferred_.pop_back();
    return block;
  }
  /// A path that goes through it is pinned, or no longer. True: that was the first, or the last.
  bool AddPin(BlockId block) {
    ++touched_;
    return Record(block).pins++ == 0;
  }
  bool DropPin(BlockId block) {
    ++touched_;
    QUIRE_CHECK(at(block).pins > 0);
    return --Record(block).pins == 0;
  }
  /// Pins hold this slot of it.
  void PinClass(BlockId block, uint32_t slot_class) {
    Record(block).pinned_classes |= static_cast<uint8_t>(1U << slot_class);
  }
  void ClearPinnedClasses(BlockId block) { Record(block).pinned_classes = 0; }

  /// A block alone is not to be handed out any more. What was erased may not be called damaged any
  /// more. False: it was marked already.
  bool Mark(BlockId block, BlockState block_state);

  // What the store below has, and what is to be written there: a queue through the blocks
  // themselves, which takes no memory. Blocks that go leave it.

  void SetBelow(BlockId block, bool twins, Below below) {
    BlockRecord& record = Record(block);
    stored_ -= record.sealed_below == Below::kDurable ? 1 : 0;
    (twins ? record.twins_below : record.sealed_below) = below;
    stored_ += record.sealed_below == Below::kDurable ? 1 : 0;
  }
  void SetBelowEpoch(BlockId block, uint64_t epoch) { Record(block).below_epoch = epoch; }
  void SetLoaded(BlockId block) { Record(block).loaded = true; }
  void SetPublisher(BlockId block, TenantId publisher, uint32_t epoch) {
    Record(block).publisher = publisher;
    Record(block).epoch = epoch;
  }
  /// Puts a block at the end of the queue, or at its start. One that is in it stays where it is.
  void QueueWrite(BlockId block, bool first = false);
  bool IsQueued(BlockId block) const { return entries_[block.number()].queued; }
  void Unqueue(BlockId block);
  /// None: the queue is empty.
  BlockId first_queued() const { return queue_first_; }
  uint64_t queued() const { return queued_; }
  /// Sealed forms that the store has too.
  uint64_t stored() const { return stored_; }
  const Digest& RootKeyOf(BlockId block) const { return roots_[index_.root(block).number()].key; }
  std::span<const TokenId> TokensOf(BlockId block) const { return index_.tokens(block); }

  // What is gone.

  /// What is remembered of blocks of an account that went.
  Ghosts& ghosts(TenantId account) { return OfAccount(account).ghosts; }
  /// How many each account may remember.
  void SetGhosts(uint64_t each);
  /// Accounts come, and go when they have no blocks.
  void AddAccount(TenantId account) { OfAccount(account).is_live = true; }
  void ForgetAccount(TenantId account) {
    QUIRE_CHECK(OfAccount(account).block_count == 0);
    OfAccount(account) = {};
  }

  uint64_t block_count(TenantId account) const {
    return account.number() < accounts_.size() ? accounts_[account.number()].block_count : 0;
  }
  /// Blocks without any bytes, and open forms of published blocks.
  uint64_t empty_count() const { return empty_count_; }
  uint64_t twin_slots() const { return twin_slots_; }

  /// For who looks at records one by one.
  void CountTouched(uint32_t records) const { touched_ += records; }
  /// Records that were touched since the last call, to be found, changed, leased or let go of.
  uint32_t TakeTouched() { return std::exchange(touched_, 0); }
  /// Another step may begin in this hold of the lock.
  bool MayGoOn(uint32_t records = kRecordsPerHold / 2) const { return touched_ < records; }

  /// Stops if anything is wrong. For tests.
  void CheckInvariants() const;

 private:
  static constexpr size_t kEntriesMin = 8;

  struct Entry {
    BlockRecord record;
    bool used = false;
    bool queued = false;
    BlockId before{};  // in the queue
    BlockId after{};
  };
  struct Account {
    std::vector<index::RootId> roots;  // with blocks
    uint64_t block_count = 0;
    Ghosts ghosts;
    bool is_live = false;
  };

  BlockRecord& Record(BlockId block) {
    QUIRE_DCHECK(contains(block));
    return entries_[block.number()].record;
  }
  Account& OfAccount(TenantId account);
  BlockId Reserve(index::RootId root, const Digest& root_key, Account& account, BlockId parent,
                  std::span<const TokenId> tokens, std::span<const SlotId> slots);
  void Link(SlotId slot, BlockId block);

  const SlotClasses& classes_;
  index::RadixTree index_;
  std::vector<Root> roots_;  // by RootId, of roots with blocks
  std::vector<Entry> entries_;
  std::vector<BlockId> free_;
  std::vector<BlockId> block_of_slot_;  // grows with the highest slot used
  std::vector<Account> accounts_;       // by TenantId
  std::vector<BlockId> deferred_;       // of each a lease is still to be dropped
  BlockId queue_first_{};
  BlockId queue_last_{};
  uint64_t queued_ = 0;
  uint64_t stored_ = 0;
  uint64_t empty_count_ = 0;
  uint64_t twin_slots_ = 0;
  mutable uint32_t touched_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_DIRECTORY_H_
