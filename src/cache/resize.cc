// The budget and the arena, up and down while sequences live: everything is checked before anything
// is changed, and after that nothing can fail.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/sync_point.h"
#include "cache/core.h"
#include "cache/sequence_impl.h"

namespace quire::cache {

void Core::AddSequence(const SequenceImpl& sequence) {
  MutexLock lock(sequences_mutex_);
  sequences_.emplace(sequence.id(), &sequence);
  ++sequence_count_;
}

void Core::RemoveSequence(SequenceId id) {
  MutexLock lock(sequences_mutex_);
  sequences_.erase(id);
  --sequence_count_;
}

Result<void> Core::Resize(uint64_t hot_bytes) {
  MutexLock one_at_a_time(resize_mutex_);
  const uint64_t most_bytes = std::max(options_.hot_bytes, options_.hot_bytes_max);
  if (hot_bytes > most_bytes) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("resize: {} bytes, but addresses are reserved for {} (hot_bytes_max)",
                            hot_bytes, most_bytes));
  }
  if (auto holds = CheckHoldsABlock(hot_bytes, block_tokens(), charges_); !holds) {
    return Fail(holds.error().code, "resize: " + holds.error().message);
  }
  const Room to = RoomFor(hot_bytes, class_count(), charges_);
  const auto now_bytes = [this] {
    MutexLock lock(mutex_);
    return room_.hot_bytes;
  };
  return hot_bytes > now_bytes() ? GrowTo(to) : ShrinkTo(to);
}

Result<void> Core::GrowTo(const Room& to) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    auto committed = pools_[c]->CommitSlots(to.slots[c]);
    if (committed) continue;
    for (uint32_t before = 0; before < c; ++before) pools_[before]->GiveBackTail();
    return Fail(committed.error().code,
                fmt::format("resize: to {} bytes: {}", to.hot_bytes, committed.error().message));
  }
  MutexLock lock(mutex_);
  SetRoom(to);
  for (uint32_t c = 0; c < class_count(); ++c) pools_[c]->SetSlots(to.slots[c]);
  ledger_.SetLimit(to.ledger_bytes);
  return {};
}

Result<void> Core::ShrinkTo(const Room& to) {
  std::vector<BlockId> moving;
  InTheWay held;
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckFloors(to));
    held = FindInTheWay(to);
    if (held.slots.empty() && held.least_bytes <= to.ledger_bytes) {
      SetRoom(to);
      EvictDownTo(to.ledger_bytes);
      // As many slots below the end are free now as are in use beyond it, and stay so: the ledger
      // allows no more.
      for (uint32_t c = 0; c < class_count(); ++c) pools_[c]->SetSlots(to.slots[c]);
      ledger_.SetLimit(to.ledger_bytes);
      moving = BlocksBeyondEnd();
      shrinking_ = true;
    }
  }
  if (!held.slots.empty() || held.least_bytes > to.ledger_bytes) return Busy(to, held);

  for (const BlockId block : moving) {
    AtSyncPoint("resize: before a block moves");
    MutexLock lock(mutex_);  // anew for each, so that nobody waits for more than one copy
    if (blocks_.contains(block)) MoveBelowEnd(block);
  }
  {
    MutexLock lock(mutex_);
    shrinking_ = false;
    ForgetOwnersBeyondEnd();
  }
  for (uint32_t c = 0; c < class_count(); ++c) pools_[c]->GiveBackTail();
  return {};
}

Result<void> Core::CheckFloors(const Room& to) const {
  uint64_t floors_bytes = 0;
  std::vector<std::string> names;
  for (const auto& tenant : tenants_) {
    const TenantOptions& options = tenant->options;
    if (options.floor_bytes == 0) continue;
    floors_bytes += options.floor_bytes;
    names.push_back(fmt::format("\"{}\" {}", options.name, options.floor_bytes));
  }
  if (floors_bytes <= to.ledger_bytes) return {};
  return Fail(ErrorCode::kNoSpace,
              fmt::format("resize: {} bytes are less than the floors of {} in all: {}",
                          to.hot_bytes, floors_bytes, fmt::join(names, ", ")));
}

// Nobody but the index, and perhaps a pin, has it, so nobody has a pointer to it.
bool Core::CanMove(SlotId slot) const {
  const BlockId block = blocks_.InSlot(slot);
  if (block.is_none()) return false;
  return references(slot) == (blocks_.at(block).IsPinned(ClassOf(slot)) ? 2U : 1U);
}

Core::InTheWay Core::FindInTheWay(const Room& to) const {
  InTheWay held;
  const uint64_t used_bytes = ledger_.used_bytes();
  held.least_bytes = used_bytes - std::min(used_bytes, EvictableFor(nullptr));
  uint64_t least_bytes = 0;  // for the floors, and for a block
  for (const auto& tenant : tenants_) least_bytes += tenant->options.floor_bytes;
  held.least_bytes = std::max(held.least_bytes, least_bytes);
  for (uint32_t c = 0; c < class_count(); ++c) {
    for (const SlotId local : pools_[c]->UsedFrom(to.slots[c])) {
      const SlotId slot = Global(c, local);
      if (CanMove(slot)) continue;
      held.slots.push_back(slot);
      held.least_bytes = std::max(held.least_bytes, (uint64_t{local.number()} + 1) * charges_[c]);
    }
  }
  return held;
}

// Whoever took or let go of something since the look is named, or not, as it is now.
std::unexpected<Error> Core::Busy(const Room& to, const InTheWay& held) const {
  constexpr size_t kNamesMax = 8;
  const std::set<SlotId> slots(held.slots.begin(), held.slots.end());
  std::set<SlotId> unnamed = slots;
  std::vector<std::string> holders;
  uint64_t more = 0;
  uint64_t others = 0;
  {
    MutexLock lock(sequences_mutex_);
    for (const auto& [id, sequence] : sequences_) {
      const std::vector<SlotId> of_it = sequence->HeldOf(slots);
      if (of_it.empty()) continue;
      for (const SlotId slot : of_it) unnamed.erase(slot);
      if (sequence->tenant() != kDefaultTenant) {
        ++others;
      } else if (holders.size() == kNamesMax) {
        ++more;
      } else {
        holders.push_back(fmt::format("sequence {} ({})", id.number(), of_it.size()));
      }
    }
  }
  if (more > 0) holders.push_back(fmt::format("{} more sequences", more));
  if (others > 0) holders.push_back(fmt::format("{} sequences of other tenants", others));
  if (!unnamed.empty()) holders.push_back(fmt::format("plans and views ({})", unnamed.size()));
  const std::string why = slots.empty()
                              ? std::string("what is held or kept by floors is more")
                              : fmt::format("{} slots beyond its end are held and do not move: {}",
                                            slots.size(), fmt::join(holders, ", "));
  return Fail(ErrorCode::kBusy, fmt::format("resize: to {} bytes: {}; {} are possible now",
                                            to.hot_bytes, why, held.least_bytes));
}

void Core::EvictDownTo(uint64_t bytes) {
  while (ledger_.used_bytes() > bytes) {
    const auto victim = VictimFor(nullptr);
    QUIRE_CHECK_MSG(victim.has_value(), "there is less to evict than was counted");
    EvictVictim(*victim, MissReason::kEvicted);
  }
  // What is leased stays hollow until its path ends.
  while (hollow_ > hollow_max_) {
    const auto victim = VictimFor(nullptr);
    if (!victim) return;
    EvictVictim(*victim, MissReason::kEvicted);
  }
}

std::vector<BlockId> Core::BlocksBeyondEnd() const {
  std::vector<BlockId> blocks;
  for (uint32_t c = 0; c < class_count(); ++c) {
    for (const SlotId local : pools_[c]->UsedFrom(room_.slots[c])) {
      blocks.push_back(blocks_.InSlot(Global(c, local)));
    }
  }
  return blocks;
}

// Its id, checksum, account, pins and place in the order of eviction stay as they are.
void Core::MoveBelowEnd(BlockId block) {
  QUIRE_CHECK(blocks_.contains(block));
  for (uint32_t c = 0; c < class_count(); ++c) {
    const SlotId from = blocks_.at(block).slots[c];
    if (from.is_none() || !IsBeyond(from, room_)) continue;
    SlotId local;
    QUIRE_CHECK(pools_[c]->Allocate({&local, 1}));
    const SlotId to = Global(c, local);
    CopySlot(from, to);
    if (to.number() >= owners_.size()) owners_.resize(to.number() + 1);
    owners_[to.number()] = owners_[from.number()];
    blocks_.MoveSlot(block, c, to);
    if (blocks_.at(block).IsPinned(c)) {
      PoolOf(to).Retain(local);
      QUIRE_CHECK(!PoolOf(from).Release(Local(from)));
    }
    QUIRE_CHECK(PoolOf(from).Release(Local(from)));
  }
}

// Their bytes go, so they are nobody's; and nothing must be zeroed where there is no memory.
void Core::ForgetOwnersBeyondEnd() {
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    if (IsBeyond(SlotId(i), room_)) owners_[i] = {};
  }
}

}  // namespace quire::cache
