// The slots of a sequence alone, with windows, sinks and open forms, under random calls of its
// owner: none is lost or held twice, the slots it asks for are enough, and the blocks that queries
// see are there.
#include "cache/sequence/sequence_slots.h"

#include <algorithm>
#include <set>

#include "base/bits.h"
#include "base/prng.h"
#include "cache/state/lock_step.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kSequenceSlotsBlock = 16;
constexpr uint64_t kBlocksMax = 40;

struct Layers {
  bool all_windows = false;  // else the first one attends to everything
  bool encode = false;
};

SlotClasses Classes(const Layers& layers) {
  Geometry geometry = SmallGeometry();
  if (!layers.all_windows) {
    geometry.groups[0].layers = {0};
    geometry.groups.push_back(geometry.groups[0]);
    geometry.groups[1].layers = {1};
  }
  geometry.groups.back().kind = LayerKind::kWindow;
  geometry.groups.back().window_tokens = 40;
  geometry.groups.back().sink_tokens = 20;
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  if (layers.encode) {
    for (CodecRule& rule : profile.codecs) rule.codec = Codec::kInt8;
    profile.residual_tokens = 20;
  }
  return Must(SlotClasses::Create(
      {.geometry = geometry, .profile = profile, .hot_bytes = 1 << 24, .tokens_max = 1 << 12}));
}

/// The owner of a sequence, with a number for each slot that it ever gave it.
class Owner {
 public:
  explicit Owner(const Layers& layers)
      : classes_(Classes(layers)), slots_(classes_, NewList(), 0, 0) {}

  void Step(Prng& prng) {
    switch (prng.NextBelow(10)) {
      case 0:
      case 1: Reserve(prng); break;
      case 2:
      case 3:
      case 4:
      case 5: Append(prng); break;
      case 6:
      case 7: Pass(); break;
      case 8: Rollback(prng); break;
      default:
        if (!prng.NextChance(8)) break;
        GiveBack(slots_.Clear(NewList()));
        length_ = 0;
        ASSERT_TRUE(given_.empty()) << "it kept some";
    }
    Compare();
  }

 private:
  BlockList NewList() const {
    return BlockList(classes_.count(), kSequenceSlotsBlock, /*keeps_tokens=*/false);
  }
  SequenceSlots::Steps steps() const {
    return {.tokens = kSequenceSlotsBlock, .in_prompt = length_ < 100};
  }
  SlotId Give(uint32_t c) {
    const SlotId slot = classes_.Global(c, SlotId(next_++));
    given_.insert(slot);
    return slot;
  }
  void GiveBack(const std::vector<SlotId>& slots) {
    for (const SlotId slot : slots) ASSERT_EQ(given_.erase(slot), 1u) << slot.number();
  }
  // Room for so many blocks, and slots to write one group up to a block.
  void GrowTo(uint64_t blocks, uint32_t group, uint64_t write_end) {
    blocks = std::max(blocks, slots_.list().size());
    const PerClass<uint64_t> lacking = slots_.Lacking(blocks, group, write_end, steps());
    PerClass<std::vector<SlotId>> added;
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      for (uint64_t i = 0; i < lacking[c]; ++i) added[c].push_back(Give(c));
    }
    slots_.Grow(blocks, added);
    ASSERT_EQ(slots_.Lacking(blocks, group, write_end, steps()), PerClass<uint64_t>{});
    slots_.AssignUpTo(group, write_end);
  }
  void Reserve(Prng& prng) { GrowTo(prng.NextBelow(kBlocksMax), 0, 0); }
  // All groups get to the same length, as a commit wants it.
  void Append(Prng& prng) {
    const uint64_t end = length_ + 1 + prng.NextBelow(kSequenceSlotsBlock);
    if (end > kBlocksMax * kSequenceSlotsBlock) return;
    const uint64_t blocks = DivUp(end, kSequenceSlotsBlock);
    for (uint32_t group = 0; group < classes_.group_count(); ++group) {
      GrowTo(blocks, group, blocks);
      for (uint64_t block = length_ / kSequenceSlotsBlock; block < blocks; ++block) {
        ASSERT_FALSE(slots_.at(group, block).is_none());
        ASSERT_FALSE(slots_.at(classes_.OpenClassOf(group), block).is_none());
      }
    }
    length_ = end;
  }
  void Pass() {
    std::vector<SlotId> passed;
    const PerClass<uint64_t> wanted = slots_.TakePassed(length_, UINT64_MAX, steps(), passed);
    GiveBack(passed);
    PerClass<std::vector<SlotId>> added;
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      for (uint64_t i = 0; i < wanted[c]; ++i) added[c].push_back(Give(c));
    }
    slots_.Grow(slots_.list().size(), added);
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      const WindowReach& reach = classes_.reach(c);
      for (uint64_t block = reach.sink_blocks(); block < reach.first_needed(length_); ++block) {
        ASSERT_TRUE(slots_.at(c, block).is_none());
      }
      if (passed.empty() || !reach.windowed()) continue;
      ASSERT_EQ(slots_.spare(c).size(), Waiting(c)) << c;
    }
  }
  // Spare slots, which with those held are no more than live at once.
  uint64_t Waiting(uint32_t c) const {
    const uint64_t blocks = slots_.list().size();
    uint64_t held = 0;
    for (uint64_t block = 0; block < blocks; ++block) held += slots_.at(c, block).is_none() ? 0 : 1;
    const bool one_token = !classes_.is_sealed(c) && !steps().in_prompt;
    const uint64_t live = classes_.reach(c).blocks_max(one_token ? 1 : steps().tokens);
    return std::min(blocks - DivUp(length_, kSequenceSlotsBlock), live - std::min(live, held));
  }
  // Slots beyond the cut go back, or stay as spare ones; the cut blocks have no other holder.
  void Rollback(Prng& prng) {
    const uint64_t position = prng.NextBelow(length_ + 1);
    bool all = true;  // whether a query there sees all its blocks
    const uint64_t kept = DivUp(position, kSequenceSlotsBlock);
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      const uint64_t needed = classes_.reach(c).first_needed(position);
      for (uint64_t block = needed; block < kept; ++block) {
        all = all && !slots_.at(c, block).is_none();
      }
    }
    ASSERT_EQ(slots_.Sees(position), all) << position << " of " << length_;
    if (!all) return;
    slots_.ReserveSpare(slots_.list().size());
    PerClass<std::vector<SlotId>> room;
    uint64_t size = kept;
    const bool stays = prng.NextChance(2);
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      for (uint64_t block = kept; block < slots_.list().size(); ++block) {
        const SlotId slot = slots_.at(c, block);
        if (slot.is_none()) continue;
        if (stays) {
          room[c].push_back(slot);
        } else {
          GiveBack({slot});
        }
      }
      if (!classes_.reach(c).windowed()) size = kept + room[c].size();
    }
    slots_.Cut(position, size, room);
    length_ = position;
  }

  void Compare() const {
    std::vector<SlotId> held = slots_.Held(slots_.list().size());
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      for (const SlotId slot : slots_.spare(c)) {
        ASSERT_EQ(classes_.ClassOf(slot), c);
        held.push_back(slot);
      }
    }
    const std::set<SlotId> once(held.begin(), held.end());
    ASSERT_EQ(once.size(), held.size()) << "one twice";
    ASSERT_EQ(once, given_);
    ASSERT_TRUE(slots_.Sees(length_));
  }

  const SlotClasses classes_;
  SequenceSlots slots_;
  std::set<SlotId> given_;  // and not given back
  uint64_t length_ = 0;
  uint32_t next_ = 0;
};

void Run(const Layers& layers, const std::vector<uint64_t>& seeds) {
  Owner owner(layers);
  StepFromSeeds(owner, seeds, 4);
}

RC_GTEST_PROP(SequenceSlotsProperty, LoseNoneUnderWindows, (const std::vector<uint64_t>& seeds)) {
  Run({}, seeds);
}
RC_GTEST_PROP(SequenceSlotsProperty, LoseNoneWhereAllHaveWindows,
              (const std::vector<uint64_t>& seeds)) {
  Run({.all_windows = true}, seeds);
}
RC_GTEST_PROP(SequenceSlotsProperty, LoseNoneOfOpenForms, (const std::vector<uint64_t>& seeds)) {
  Run({.encode = true}, seeds);
}
RC_GTEST_PROP(SequenceSlotsProperty, LoseNoneOfOpenFormsWhereAllHaveWindows,
              (const std::vector<uint64_t>& seeds)) {
  Run({.all_windows = true, .encode = true}, seeds);
}

}  // namespace
}  // namespace quire::cache
