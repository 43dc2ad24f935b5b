// The directory alone, in lock step with a naive one: a map of blocks that know their parent and
// their tokens. Leases and the state in the store are objects of their own, with tests of their
// own.
#include "cache/state/directory.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/prng.h"
#include "cache/state/lock_step.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint32_t kLetters = 3;  // different blocks after one parent
constexpr uint32_t kDirectorySlots = 60;

// A root belongs to one account; the first two are of one domain.
struct NaiveRoot {
  Digest key{};
  TenantId account{};
  std::shared_ptr<const Domain> domain{};
};

struct NaiveBlock {
  uint32_t root = 0;
  BlockId parent{};
  uint32_t letter = 0;
  BlockRecord record;
};

SlotClasses Classes() {
  Geometry geometry = SmallGeometry();
  geometry.groups[0].layers = {0};
  geometry.groups.push_back(geometry.groups[0]);
  geometry.groups[1].layers = {1};
  geometry.groups[1].kind = LayerKind::kWindow;
  geometry.groups[1].window_tokens = 40;
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  for (CodecRule& rule : profile.codecs) rule.codec = Codec::kInt8;
  profile.residual_tokens = 20;
  return Must(SlotClasses::Create(
      {.geometry = geometry, .profile = profile, .hot_bytes = 1 << 24, .tokens_max = 1 << 12}));
}

class DirectoryLockStep {
 public:
  DirectoryLockStep() {
    for (uint32_t i = 0; i < 4; ++i) {
      roots_.push_back({.key = KeyOf(1'000'000 + i), .account = TenantId(i / 3)});
      roots_[i].domain = std::make_shared<Domain>(Domain{.name = i < 2 ? "a" : "b"});
    }
    for (uint32_t i = 0; i < kDirectorySlots; ++i) free_slots_.insert(SlotId(i));
  }

  void Step(Prng& prng) {
    switch (prng.NextBelow(9)) {
      case 0:
      case 1:
      case 2: Add(prng); break;
      case 3: Remove(prng); break;
      case 4: RemoveSlot(prng); break;
      case 5: AddSlot(prng); break;
      case 6: MoveSlot(prng); break;
      case 7: Pin(prng); break;
      default: Mark(prng);
    }
    Compare();
    Lookup(prng);
  }

 private:
  static Digest KeyOf(uint64_t number) {
    Digest key{};
    for (size_t i = 0; i < 8; ++i) key[i] = static_cast<uint8_t>(number >> (8 * i));
    return key;
  }
  static std::vector<TokenId> TokensOf(std::span<const uint32_t> letters) {
    std::vector<TokenId> tokens;
    for (const uint32_t letter : letters) {
      for (uint32_t i = 0; i < kBlock; ++i) tokens.push_back(static_cast<TokenId>(i + letter));
    }
    return tokens;
  }

  // The naive directory.

  std::optional<BlockId> Child(uint32_t root, BlockId parent, uint32_t letter) const {
    for (const auto& [id, block] : blocks_) {
      if (block.root == root && block.parent == parent && block.letter == letter) return id;
    }
    return std::nullopt;
  }
  std::vector<BlockId> Path(uint32_t root, std::span<const uint32_t> letters) const {
    std::vector<BlockId> path;
    for (const uint32_t letter : letters) {
      const auto next = Child(root, path.empty() ? BlockId::None() : path.back(), letter);
      if (!next) break;
      path.push_back(*next);
    }
    return path;
  }
  bool HasChildren(BlockId parent) const {
    return std::ranges::any_of(blocks_, [&](const auto& b) { return b.second.parent == parent; });
  }
  std::optional<BlockId> Any(Prng& prng) const {
    if (blocks_.empty()) return std::nullopt;
    auto block = blocks_.begin();
    std::advance(block, static_cast<int64_t>(prng.NextBelow(blocks_.size())));
    return block->first;
  }
  SlotId FreeSlot(uint32_t slot_class) const {
    for (const SlotId slot : free_slots_) {
      if (classes_.ClassOf(slot) == slot_class) return slot;
    }
    return SlotId::None();
  }

  // Makes the same call on both.

  void Add(Prng& prng) {
    const auto root = static_cast<uint32_t>(prng.NextBelow(roots_.size()));
    BlockId parent;
    if (const auto any = Any(prng); any && blocks_.at(*any).root == root && !prng.NextChance(4)) {
      parent = *any;
      if (!blocks_.at(parent).record.is_good()) return;
    }
    const auto letter = static_cast<uint32_t>(prng.NextBelow(kLetters));
    if (Child(root, parent, letter)) return;
    NaiveBlock block{.root = root, .parent = parent, .letter = letter, .record = {}};
    for (uint32_t group = 0; group < classes_.group_count(); ++group) {
      block.record.slots[group] = FreeSlot(group);
      if (block.record.slots[group].is_none()) return;
      block.record.crcs[group] = static_cast<uint32_t>(prng.Next64());
    }
    block.record.account = roots_[root].account;
    block.record.publisher = TenantId(static_cast<uint32_t>(prng.NextBelow(5)));
    block.record.key = KeyOf(next_key_++);

    const std::array<uint32_t, 1> letters = {letter};
    const BlockId id = directory_.Add(roots_[root].key, roots_[root].domain, parent,
                                      TokensOf(letters), block.record);
    ASSERT_FALSE(blocks_.contains(id));
    for (const SlotId slot : block.record.slots) free_slots_.erase(slot);
    ASSERT_EQ(directory_.leases().of(id), 0u);
    blocks_.emplace(id, block);
  }

  void Remove(Prng& prng) {
    const auto id = Any(prng);
    if (!id || HasChildren(*id)) return;
    const NaiveBlock& block = blocks_.at(*id);
    for (const SlotId slot : block.record.slots) {
      if (!slot.is_none()) free_slots_.insert(slot);
    }
    directory_.Remove(*id);
    blocks_.erase(*id);
  }

  void RemoveSlot(Prng& prng) {
    const auto id = Any(prng);
    const auto c = static_cast<uint32_t>(prng.NextBelow(classes_.count()));
    if (!id || blocks_.at(*id).record.slots[c].is_none()) return;
    directory_.RemoveSlot(*id, c);
    free_slots_.insert(std::exchange(blocks_.at(*id).record.slots[c], SlotId::None()));
  }
  void AddSlot(Prng& prng) {
    const auto id = Any(prng);
    const auto c = static_cast<uint32_t>(prng.NextBelow(classes_.count()));
    const SlotId slot = FreeSlot(c);
    if (!id || slot.is_none() || !blocks_.at(*id).record.slots[c].is_none()) return;
    BlockRecord& record = blocks_.at(*id).record;
    record.slots[c] = slot;
    record.crcs[c] = static_cast<uint32_t>(prng.Next64());
    directory_.AddSlot(*id, slot, record.crcs[c]);
    free_slots_.erase(slot);
  }
  void MoveSlot(Prng& prng) {
    const auto id = Any(prng);
    const auto c = static_cast<uint32_t>(prng.NextBelow(classes_.count()));
    const SlotId to = FreeSlot(c);
    if (!id || to.is_none() || blocks_.at(*id).record.slots[c].is_none()) return;
    directory_.MoveSlot(*id, c, to);
    free_slots_.erase(to);
    free_slots_.insert(std::exchange(blocks_.at(*id).record.slots[c], to));
  }

  void Pin(Prng& prng) {
    const auto id = Any(prng);
    if (!id) return;
    BlockRecord& record = blocks_.at(*id).record;
    switch (prng.NextBelow(3)) {
      case 0: {
        const auto c = static_cast<uint32_t>(prng.NextBelow(classes_.count()));
        ASSERT_EQ(directory_.AddPin(*id), record.pins == 0);
        directory_.PinClass(*id, c);
        ++record.pins;
        record.pinned_classes |= static_cast<uint8_t>(1U << c);
        return;
      }
      case 1:
        if (record.pins == 0) return;
        --record.pins;
        ASSERT_EQ(directory_.DropPin(*id), record.pins == 0);
        return;
      default: directory_.ClearPinnedClasses(*id); record.pinned_classes = 0;
    }
  }

  void Mark(Prng& prng) {
    const auto asked = Any(prng);
    if (!asked) return;
    const auto block_state = static_cast<BlockState>(2 + prng.NextBelow(3));
    BlockState& now = blocks_.at(*asked).record.block_state;
    const bool changes =
        now == BlockState::kGood || (block_state == BlockState::kErased && now != block_state);
    ASSERT_EQ(directory_.Mark(*asked, block_state), changes);
    if (changes) now = block_state;
  }

  // Compares all visible state.

  void Compare() {
    directory_.CheckInvariants();
    ASSERT_EQ(directory_.size(), blocks_.size());
    std::map<SlotId, BlockId> in_slot;
    uint64_t empty_blocks = 0;
    uint64_t twins = 0;
    std::array<uint64_t, 3> of_account{};
    for (uint32_t i = 0; i < directory_.ids_end() + 2; ++i) {
      ASSERT_EQ(directory_.contains(BlockId(i)), blocks_.contains(BlockId(i)));
    }
    for (const auto& [id, block] : blocks_) {
      ASSERT_TRUE(directory_.contains(id));
      const BlockRecord& record = directory_.at(id);
      ASSERT_EQ(record.slots, block.record.slots);
      bool whole = true;
      uint32_t held = 0;
      for (uint32_t c = 0; c < classes_.count(); ++c) {
        if (record.slots[c].is_none()) {
          whole = whole && !classes_.is_sealed(c);
          continue;
        }
        ++held;
        ASSERT_EQ(record.crcs[c], block.record.crcs[c]);
        in_slot[record.slots[c]] = id;
        if (!classes_.is_sealed(c)) ++twins;
      }
      if (held == 0) ++empty_blocks;
      ++of_account[record.account.number()];
      ASSERT_EQ(directory_.IsWhole(id), whole);
      ASSERT_EQ(record.is_empty(), held == 0);
      ASSERT_EQ(record.pins, block.record.pins);
      ASSERT_EQ(record.pinned_classes, block.record.pinned_classes);
      ASSERT_EQ(record.account, block.record.account);
      ASSERT_EQ(record.publisher, block.record.publisher);
      ASSERT_EQ(record.block_state, block.record.block_state);
      ASSERT_EQ(record.key, block.record.key);
      ASSERT_EQ(directory_.tree().parent(id), block.parent);
      ASSERT_EQ(directory_.tree().depth(id),
                block.parent.is_none() ? 0 : directory_.tree().depth(block.parent) + 1);
      ASSERT_EQ(directory_.tree().has_children(id), HasChildren(id));
    }
    for (uint32_t i = 0; i < kDirectorySlots + 4; ++i) {
      const auto found = in_slot.find(SlotId(i));
      ASSERT_EQ(directory_.InSlot(SlotId(i)),
                found == in_slot.end() ? BlockId::None() : found->second);
    }
    ASSERT_EQ(directory_.empty_count(), empty_blocks);
    ASSERT_EQ(directory_.twin_slots(), twins);
    for (uint32_t i = 0; i < of_account.size(); ++i) {
      ASSERT_EQ(directory_.block_count(TenantId(i)), of_account[i]);
    }
  }

  void Lookup(Prng& prng) {
    std::vector<uint32_t> letters(prng.NextBelow(6));
    for (uint32_t& letter : letters) letter = static_cast<uint32_t>(prng.NextBelow(kLetters));
    std::vector<TokenId> tokens = TokensOf(letters);
    if (prng.NextChance(2)) tokens.resize(tokens.size() + prng.NextBelow(kBlock), 1);
    std::vector<std::vector<BlockId>> paths;
    for (uint32_t root = 0; root < roots_.size(); ++root) {
      paths.push_back(Path(root, letters));
      std::vector<BlockId> found = {BlockId(77)};  // blocks that are in the list already stay
      directory_.Find(roots_[root].key, BlockId::None(), tokens, found);
      ASSERT_EQ(found.front(), BlockId(77));
      found.erase(found.begin());
      ASSERT_EQ(found, paths[root]);
    }
    if (!letters.empty()) {
      const uint32_t root = static_cast<uint32_t>(prng.NextBelow(roots_.size()));
      const BlockId parent = paths[root].empty() ? BlockId::None() : paths[root].front();
      ASSERT_EQ(
          directory_.FindChild(roots_[root].key, parent, TokensOf(std::span(letters).last(1))),
          Child(root, parent, letters.back()));
    }
    for (uint32_t account = 0; account < 2; ++account) {
      std::set<Digest> expected;
      for (const auto& [id, block] : blocks_) {
        if (block.record.account == TenantId(account)) expected.insert(roots_[block.root].key);
      }
      std::set<Digest> listed;
      for (size_t i = 0; i < directory_.root_count(TenantId(account)); ++i) {
        const Directory::Root& root = directory_.root(TenantId(account), i);
        ASSERT_TRUE(listed.insert(root.key).second);
        const auto known = std::ranges::find(roots_, root.key, &NaiveRoot::key);
        ASSERT_EQ(*root.domain, *known->domain);
      }
      ASSERT_EQ(listed, expected);
    }
  }

  const SlotClasses classes_ = Classes();
  Directory directory_{classes_};
  std::vector<NaiveRoot> roots_;
  std::map<BlockId, NaiveBlock> blocks_;
  std::set<SlotId> free_slots_;
  uint64_t next_key_ = 0;
};

RC_GTEST_PROP(DirectoryProperty, AgreesWithANaiveOne, (const std::vector<uint64_t>& seeds)) {
  DirectoryLockStep both;
  StepFromSeeds(both, seeds, 3);
}

}  // namespace
}  // namespace quire::cache
