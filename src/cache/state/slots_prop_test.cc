// The slots alone, in lock step with naive ones: a map from each slot that was ever taken to its
// holders, its generation, its writer and its bytes.
#include "cache/state/slots.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "base/hash.h"
#include "base/prng.h"
#include "cache/state/lock_step.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

struct NaiveSlot {
  uint32_t references = 0;
  uint32_t generation = 0;
  SlotWriters::Writer writer;
  uint8_t bytes = 0;  // all of them
};

class SlotsLockStep {
 public:
  // Arrays of pieces and runs; or two classes in one piece each.
  explicit SlotsLockStep(bool encodes)
      : options_(Options(encodes)),
        classes_(Must(SlotClasses::Create(options_))),
        slots_(Must(Slots::Create(classes_, options_))),
        capacity_(classes_.CapacityFor(options_.hot_bytes)) {}

  void Step(Prng& prng) {
    switch (prng.NextBelow(12)) {
      case 0:
      case 1:
      case 2: Take(prng); break;
      case 3: TakeRun(prng); break;
      case 4:
      case 5: Release(prng); break;
      case 6: Retain(prng); break;
      case 7: Write(prng); break;
      case 8: Copy(prng); break;
      case 9: Forget(prng); break;
      case 10: Resize(prng); break;
      default: slots_->Trim();
    }
    Compare();
  }

 private:
  static CacheOptions Options(bool encodes) {
    NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    if (encodes) {
      for (CodecRule& rule : profile.codecs) rule.codec = Codec::kInt8;
    }
    const uint64_t charge_bytes = ChargePerSlot(SmallGeometry(), profile);
    return {.geometry = SmallGeometry(),
            .profile = profile,
            .layout = encodes ? ArenaLayout::kBlockMajor : ArenaLayout::kHeadMajor,
            .placement = encodes ? Placement::kFreeList : Placement::kFirstFit,
            .hot_bytes = 12 * charge_bytes,
            .hot_bytes_max = 20 * charge_bytes,
            .tokens_max = 1 << 12};
  }

  bool IsBeyond(SlotId slot, const Capacity& capacity) const {
    return slot.number() / classes_.count() >= capacity.slots[classes_.ClassOf(slot)];
  }
  // Slots below the end that can be taken.
  uint32_t FreeCount(uint32_t c) const {
    uint32_t used = 0;
    for (const auto& [slot, naive] : naive_) {
      if (classes_.ClassOf(slot) == c && naive.references > 0 && !IsBeyond(slot, capacity_)) ++used;
    }
    return capacity_.slots[c] - used;
  }
  std::vector<SlotId> Held() const {
    std::vector<SlotId> held;
    for (const auto& [slot, naive] : naive_) {
      if (naive.references > 0) held.push_back(slot);
    }
    return held;
  }
  std::optional<SlotId> AnyHeld(Prng& prng) const {
    const std::vector<SlotId> held = Held();
    if (held.empty()) return std::nullopt;
    return held[prng.NextBelow(held.size())];
  }
  bool AnyBeyond() const {
    return std::ranges::any_of(Held(), [&](SlotId slot) { return IsBeyond(slot, capacity_); });
  }
  // A new slot has its writer's bytes from then on, whatever bytes were in it.
  void Claim(Prng& prng, SlotId slot) {
    NaiveSlot& naive = naive_[slot];
    ASSERT_EQ(naive.references, 0u) << "somebody has it";
    ASSERT_FALSE(IsBeyond(slot, capacity_));
    naive.references = 1;
    const SlotWriters::Writer writer = {
        .tenant = TenantId(static_cast<uint32_t>(prng.NextBelow(3))),
        .epoch = static_cast<uint32_t>(prng.NextBelow(2))};
    const bool others = !naive.writer.tenant.is_none() && naive.writer != writer;
    ASSERT_EQ(slots_->writers().Claim(slot, writer), others);
    naive.writer = writer;
    SetBytes(slot, static_cast<uint8_t>(prng.NextBelow(256)));
  }
  void SetBytes(SlotId slot, uint8_t byte) {
    const pool::Pool& pool = slots_->pool(classes_.ClassOf(slot));
    for (uint32_t piece = 0; piece < pool.pieces(); ++piece) {
      std::memset(slots_->data(slot) + piece * pool.piece_stride_bytes(), byte,
                  pool.slot_bytes() / pool.pieces());
    }
    naive_.at(slot).bytes = byte;
  }

  void Take(Prng& prng) {
    PerClass<std::vector<SlotId>> taken;
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      taken[c].resize(prng.NextBelow(std::min(4u, FreeCount(c) + 1)));
    }
    const bool fails = prng.NextChance(4);
    uint32_t reserved = 0;
    const auto reserve = [&](uint32_t end) {
      if (fails) throw std::bad_alloc();
      reserved = end;
    };
    if (fails) {
      ASSERT_THROW(slots_->Take(taken, reserve), std::bad_alloc);
      // The slots were taken for a moment, and have another generation.
      for (const auto& of_class : taken) {
        for (const SlotId slot : of_class) ++naive_[slot].generation;
      }
      return;
    }
    slots_->Take(taken, reserve);
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      for (const SlotId slot : taken[c]) {
        ASSERT_EQ(classes_.ClassOf(slot), c);
        ASSERT_LT(slot.number(), reserved);
        Claim(prng, slot);
      }
    }
  }

  void TakeRun(Prng& prng) {
    PerClass<std::vector<SlotId>> added;
    const auto count = static_cast<uint32_t>(1 + prng.NextBelow(5));
    added[0].reserve(count);
    std::vector<SlotId> run;
    if (const auto first = AnyHeld(prng); first && prng.NextChance(2)) run = {*first};
    if (!run.empty() && IsBeyond(run[0], capacity_)) return;
    const auto done = slots_->TakeRun(run, count, added, [](uint32_t) {});
    if (classes_.count() > 1) {
      ASSERT_EQ(done.error().code, ErrorCode::kUnsupported);
      return;
    }
    const auto fits = [&](uint32_t first) {
      for (uint32_t i = first; i < first + count; ++i) {
        const auto known = naive_.find(SlotId(i));
        if (known != naive_.end() && known->second.references > 0) return false;
        if (i >= capacity_.slots[0]) return false;
      }
      return true;
    };
    bool any = false;
    for (uint32_t i = 0; i < capacity_.slots[0]; ++i) any = any || fits(i);
    ASSERT_EQ(done.has_value(), run.empty() ? any : fits(run[0].number() + 1));
    if (!done) {
      ASSERT_EQ(done.error().code, ErrorCode::kNoSpace);
      ASSERT_TRUE(added[0].empty());
      return;
    }
    ASSERT_EQ(added[0].size(), count);
    for (uint32_t i = 0; i < count; ++i) {
      if (!run.empty()) {
        ASSERT_EQ(added[0][i].number(), run[0].number() + 1 + i);
      }
      if (i > 0) {
        ASSERT_EQ(added[0][i].number(), added[0][i - 1].number() + 1);
      }
      Claim(prng, added[0][i]);
    }
  }

  void Release(Prng& prng) {
    for (uint64_t i = prng.NextBelow(4); i > 0; --i) {
      const auto slot = AnyHeld(prng);
      if (!slot) return;
      NaiveSlot& naive = naive_.at(*slot);
      --naive.references;
      ASSERT_EQ(slots_->Release(*slot), naive.references == 0);
      if (naive.references == 0) ++naive.generation;
    }
  }
  void Retain(Prng& prng) {
    const auto slot = AnyHeld(prng);
    if (!slot) return;
    slots_->Retain(*slot);
    ++naive_.at(*slot).references;
    if (!prng.NextChance(2)) return;
    slots_->Renew(*slot);
    ++naive_.at(*slot).generation;
  }
  void Write(Prng& prng) {
    if (const auto slot = AnyHeld(prng)) SetBytes(*slot, static_cast<uint8_t>(prng.Next64()));
  }
  void Copy(Prng& prng) {
    const auto from = AnyHeld(prng);
    const auto to = AnyHeld(prng);
    if (!from || *from == *to || classes_.ClassOf(*from) != classes_.ClassOf(*to)) return;
    slots_->Copy(*from, *to);
    naive_.at(*to).bytes = naive_.at(*from).bytes;
  }
  // The bytes of a held slot are zeroed; those of a free one, where it has memory.
  void Forget(Prng& prng) {
    if (naive_.empty()) return;
    auto any = naive_.begin();
    std::advance(any, static_cast<int64_t>(prng.NextBelow(naive_.size())));
    auto& [slot, naive] = *any;
    if (slot.number() >= slots_->writers().end())
      return;  // it was given back before it had a writer
    if (naive.references == 0 && IsBeyond(slot, capacity_)) return;  // without memory
    ASSERT_EQ(slots_->ZeroIfFree(slot), naive.references == 0);
    if (naive.references > 0) slots_->Zero(slot);
    slots_->writers().Forget(slot);
    naive.bytes = 0;
    naive.writer = {};
  }

  void Resize(Prng& prng) {
    if (AnyBeyond()) return MoveTail();
    const uint64_t charge_bytes = options_.hot_bytes / 12;
    const Capacity to = classes_.CapacityFor((2 + prng.NextBelow(19)) * charge_bytes);
    const std::vector<SlotId> used = slots_->UsedBeyond(to);
    std::set<SlotId> expected;
    for (const SlotId slot : Held()) {
      if (IsBeyond(slot, to)) expected.insert(slot);
    }
    ASSERT_EQ(std::set<SlotId>(used.begin(), used.end()), expected);
    Must(slots_->Commit(to));
    slots_->SetCapacity(to);
    capacity_ = to;
  }
  // Slots beyond the end move below it, as far as there is room; then the end is given back.
  void MoveTail() {
    for (const SlotId from : Held()) {
      const uint32_t c = classes_.ClassOf(from);
      if (!IsBeyond(from, capacity_) || FreeCount(c) == 0) continue;
      const SlotId to = slots_->TakeFor(from);
      ASSERT_EQ(classes_.ClassOf(to), c);
      ASSERT_FALSE(IsBeyond(to, capacity_));
      NaiveSlot& naive = naive_[to];
      ASSERT_EQ(naive.references, 0u);
      naive.references = 1;
      naive.writer = naive_.at(from).writer;
      slots_->Copy(from, to);
      naive.bytes = naive_.at(from).bytes;
      for (NaiveSlot& old = naive_.at(from); old.references > 0; --old.references) {
        ASSERT_EQ(slots_->Release(from), old.references == 1);
      }
      ++naive_.at(from).generation;
    }
    if (AnyBeyond()) return;
    slots_->ForgetWritersBeyondEnd();
    slots_->GiveBackTail();
    for (auto& [slot, naive] : naive_) {
      if (IsBeyond(slot, capacity_)) naive.writer = {};
    }
  }

  void Compare() const {
    PerClass<uint64_t> used{};
    for (const auto& [slot, naive] : naive_) {
      ASSERT_EQ(slots_->references(slot), naive.references);
      ASSERT_EQ(slots_->generation(slot), naive.generation);
      ASSERT_EQ(slots_->IsBeyondEnd(slot), IsBeyond(slot, capacity_));
      if (slot.number() < slots_->writers().end()) {
        ASSERT_EQ(slots_->writers().of(slot), naive.writer);
      } else {
        ASSERT_TRUE(naive.writer.tenant.is_none());
      }
      if (naive.references == 0) continue;
      const uint32_t c = classes_.ClassOf(slot);
      ++used[c];
      const std::vector<std::byte> bytes(classes_.slot_bytes(c), std::byte{naive.bytes});
      uint32_t crc = 0;
      slots_->Checksum(slot, &crc);
      ASSERT_EQ(crc, Crc32c(bytes));
    }
    for (uint32_t c = 0; c < classes_.count(); ++c) {
      ASSERT_EQ(slots_->capacity().slots[c], capacity_.slots[c]);
      ASSERT_EQ(slots_->pool(c).stats().slots_used, used[c]);
      ASSERT_EQ(slots_->pool(c).stats().slots_max, capacity_.slots[c]);
    }
  }

  const CacheOptions options_;
  SlotClasses classes_;
  const std::unique_ptr<Slots> slots_;
  Capacity capacity_;
  std::map<SlotId, NaiveSlot> naive_;
};

void Run(bool encodes, const std::vector<uint64_t>& seeds) {
  SlotsLockStep both(encodes);
  StepFromSeeds(both, seeds, 3);
}

RC_GTEST_PROP(SlotsProperty, RunsOfPiecesAgreeWithNaiveOnes, (const std::vector<uint64_t>& seeds)) {
  Run(/*encodes=*/false, seeds);
}
RC_GTEST_PROP(SlotsProperty, TwoClassesAgreeWithNaiveOnes, (const std::vector<uint64_t>& seeds)) {
  Run(/*encodes=*/true, seeds);
}

}  // namespace
}  // namespace quire::cache
