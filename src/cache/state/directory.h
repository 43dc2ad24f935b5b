// The published blocks: found by their tokens, with their leases and their state in the store.
// Knows no bytes and no budgets.
#ifndef QUIRE_CACHE_STATE_DIRECTORY_H_
#define QUIRE_CACHE_STATE_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cache/state/form_error.h"
#include "cache/state/lease_counts.h"
#include "cache/state/slot_classes.h"
#include "cache/state/told_blocks.h"
#include "cache/state/touched_records.h"
#include "cache/state/write_behind.h"
#include "index/radix_tree.h"
#include "quire/identity.h"

namespace quire::cache {

/// Whether a block may be handed out.
enum class BlockState : uint8_t {
  kGood = 1,
  kDamaged = 2,  // it or a block before it failed a re-check
  kPassed = 3,   // it or a block before it is outside every window, and there are too many such
                 // blocks
  kErased = 4,   // the publisher of it, or of a block before it, was erased
};

/// A published block.
struct BlockRecord {
  PerClass<SlotId> slots{};  // none: no such group, or its bytes were evicted after a window passed
                             // it; of an open class a twin, or none
  PerClass<uint32_t> crcs{};  // CRC32C of each slot's bytes when it was published
  uint32_t pins = 0;          // paths pinned by Pin that contain it
  TenantId account{};         // the account that pays for it: the tenant, or the domain it was
                              // published to
  TenantId publisher{};
  uint32_t epoch = 0;                          // of the publisher
  BlockState block_state = BlockState::kGood;  // as marked so far, see BlockStateOf
  uint8_t pinned_classes = 0;                  // a bit for each slot that pins keep
  bool loaded = false;       // from the store, where any member of its domain may have written it
  bool announced = false;    // as its publisher's PublishLocation says
  uint32_t published_s = 0;  // when, by the cache's clock
  uint64_t below_epoch = 0;  // as its publisher's PublishLocation says
  Digest key{};              // identity in stores, chained from the root key
  FormError error{};         // of the sealed form

  bool is_good() const { return block_state == BlockState::kGood; }
  bool IsPinned(uint32_t slot_class) const { return ((pinned_classes >> slot_class) & 1U) != 0; }
  /// Whether it has no bytes left; blocks after it are found through it.
  bool is_empty() const {
    for (const SlotId slot : slots) {
      if (!slot.is_none()) return false;
    }
    return true;
  }
};

/// Published blocks in a tree below the roots of their identities. Block ids are dense and reused.
///
/// Errors:   calls against the contract stop (QUIRE_CHECK). std::bad_alloc: nothing changes
/// Threads:  not synchronised; the caller holds its lock
/// Lifetime: `classes` must outlive it
class Directory {
 public:
  /// The blocks of one identity are below one root.
  struct Root {
    Digest key{};
    std::shared_ptr<const Domain> domain;
  };

  /// `announces`: keeps account of what followers must be told.
  explicit Directory(const SlotClasses& classes, bool announces = false);
  Directory(const Directory&) = delete;  // its parts know each other
  Directory& operator=(const Directory&) = delete;

  // Looking up.

  uint64_t size() const { return entries_.size() - free_.size(); }
  bool contains(BlockId block) const {
    return block.number() < entries_.size() && entries_[block.number()].used;
  }
  const BlockRecord& at(BlockId block) const {
    QUIRE_DCHECK(contains(block));
    return entries_[block.number()].record;
  }
  /// All ids that were ever used are lower.
  uint32_t ids_end() const { return static_cast<uint32_t>(entries_.size()); }
  /// The published block in a slot, or none.
  BlockId InSlot(SlotId slot) const {
    return slot.number() < block_of_slot_.size() ? block_of_slot_[slot.number()] : BlockId::None();
  }
  /// The tree: from a block to its parent, its descendants and its tokens.
  const index::RadixTree& tree() const { return index_; }
  /// Whether all its sealed slots are present.
  bool IsWhole(BlockId block) const;

  /// CommonTokens is as in RadixTree, over as many children as one hold may look at. Find appends
  /// the blocks of the longest known prefix of `tokens` after a block (none: the root).
  std::optional<uint32_t> CommonTokens(const Digest& root_key, BlockId after,
                                       std::span<const TokenId> tokens) const;
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
  const Digest& RootKeyOf(BlockId block) const { return roots_[index_.root(block).number()].key; }

  // Adding and removing blocks.

  /// Adds a good block after `parent` (none: at the root), without leases. Its record has slots,
  /// checksums, account, publisher and key.
  BlockId Add(const Digest& root_key, std::shared_ptr<const Domain> domain, BlockId parent,
              std::span<const TokenId> tokens, const BlockRecord& record);
  /// Removes a block without leases and children. Afterwards its slots belong to no block; the
  /// caller drops the lease on the block before it.
  void Remove(BlockId block);
  /// Adds a slot to a block; ReserveSlot takes the memory for it.
  void ReserveSlot(SlotId slot);
  void AddSlot(BlockId block, SlotId slot, uint32_t crc);
  void RemoveSlot(BlockId block, uint32_t slot_class);
  /// The bytes of a slot were moved to another slot.
  void MoveSlot(BlockId block, uint32_t slot_class, SlotId to);

  // Leases and pins.

  LeaseCounts& leases() { return leases_; }
  const LeaseCounts& leases() const { return leases_; }
  /// A pinned path contains the block, or does no longer. True: it was the first one, or the last.
  bool AddPin(BlockId block) {
    touched_.Count(1);
    return Record(block).pins++ == 0;
  }
  bool DropPin(BlockId block) {
    touched_.Count(1);
    QUIRE_CHECK(at(block).pins > 0);
    return --Record(block).pins == 0;
  }
  /// Pins keep this slot of the block.
  void PinClass(BlockId block, uint32_t slot_class) {
    Record(block).pinned_classes |= static_cast<uint8_t>(1U << slot_class);
  }
  void ClearPinnedClasses(BlockId block) { Record(block).pinned_classes = 0; }

  /// Marks one block: it is not handed out any more. An erased block is not marked as damaged.
  /// False: it was marked already.
  bool Mark(BlockId block, BlockState block_state);

  // The blocks' state in the store.

  WriteBehind& write_behind() { return write_behind_; }
  const WriteBehind& write_behind() const { return write_behind_; }
  /// As WriteBehind::SetBelow; followers are told of a block that is durable.
  void SetBelow(BlockId block, bool twins, Below below);
  void SetBelowEpoch(BlockId block, uint64_t epoch) { Record(block).below_epoch = epoch; }
  void SetLoaded(BlockId block) { Record(block).loaded = true; }
  void SetPublisher(BlockId block, TenantId publisher, uint32_t epoch) {
    Record(block).publisher = publisher;
    Record(block).epoch = epoch;
  }

  // What followers know of the blocks.

  ToldBlocks& told() { return told_; }
  const ToldBlocks& told() const { return told_; }

  uint64_t block_count(TenantId account) const {
    return account.number() < accounts_.size() ? accounts_[account.number()].block_count : 0;
  }
  /// Blocks without any bytes, and open forms of published blocks.
  uint64_t empty_count() const { return empty_count_; }
  uint64_t twin_slots() const { return twin_slots_; }

  /// Code that looks at records one by one counts them here.
  TouchedRecords& touched() const { return touched_; }

  /// Stops if anything is wrong. For tests.
  void CheckInvariants() const;

 private:
  static constexpr size_t kEntriesMin = 8;

  struct Entry {
    BlockRecord record;
    bool used = false;
  };
  struct Account {
    std::vector<index::RootId> roots;  // with blocks
    uint64_t block_count = 0;
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
  uint64_t empty_count_ = 0;
  uint64_t twin_slots_ = 0;
  mutable TouchedRecords touched_;
  LeaseCounts leases_{index_, touched_};
  WriteBehind write_behind_;
  ToldBlocks told_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_DIRECTORY_H_
