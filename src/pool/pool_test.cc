#include "pool/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/bits.h"
#include "env/faulty_memory.h"
#include "env/machine.h"

namespace quire::pool {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kNone = SlotId::None().number();

class PoolTest : public testing::Test {
 protected:
  std::unique_ptr<Pool> Make(uint64_t slot_bytes, uint32_t slots_max) {
    return Pool::Create({.name = "test", .slot_bytes = slot_bytes, .slots_max = slots_max},
                        *memory_)
        .value();
  }

  const std::unique_ptr<DeviceMemory> memory_ = MakeHostMemory(false);
};

std::vector<SlotId> Allocate(Pool& pool, size_t count) {
  std::vector<SlotId> slots(count);
  EXPECT_TRUE(pool.Allocate(slots));
  return slots;
}

std::vector<uint32_t> Numbers(const std::vector<SlotId>& slots) {
  std::vector<uint32_t> numbers;
  for (const SlotId slot : slots) numbers.push_back(slot.number());
  return numbers;
}

TEST_F(PoolTest, NewSlotsComeInAscendingOrderFreedOnesLastInFirstOut) {
  const auto pool = Make(100, 10);
  const auto first = Allocate(*pool, 4);
  EXPECT_EQ(Numbers(first), (std::vector<uint32_t>{0, 1, 2, 3}));
  for (const uint32_t slot : {1u, 3u, 0u}) EXPECT_TRUE(pool->Release(SlotId(slot)));
  EXPECT_EQ(Numbers(Allocate(*pool, 5)), (std::vector<uint32_t>{0, 3, 1, 4, 5}));
}

TEST_F(PoolTest, AllocateIsAllOrNothing) {
  const auto pool = Make(100, 3);
  std::vector<SlotId> four(4, SlotId(7));
  EXPECT_FALSE(pool->Allocate(four));
  EXPECT_EQ(four, std::vector<SlotId>(4, SlotId(7)));
  EXPECT_EQ(pool->free_count(), 3u);
  EXPECT_EQ(pool->stats().slots_used_peak, 0u);

  EXPECT_EQ(Numbers(Allocate(*pool, 3)), (std::vector<uint32_t>{0, 1, 2}));
  SlotId one;
  EXPECT_FALSE(pool->Allocate({&one, 1}));
  EXPECT_TRUE(pool->Allocate({})) << "nothing always fits";
}

TEST_F(PoolTest, ASlotIsFreeWhenItsLastReferenceGoes) {
  const auto pool = Make(100, 2);
  const SlotId slot = Allocate(*pool, 1)[0];
  EXPECT_EQ(pool->references(slot), 1u);
  pool->Retain(slot);
  EXPECT_EQ(pool->references(slot), 2u);
  EXPECT_FALSE(pool->Release(slot));
  EXPECT_EQ(pool->generation(slot), 0u);
  EXPECT_TRUE(pool->Release(slot));
  EXPECT_EQ(pool->references(slot), 0u);
  EXPECT_EQ(pool->generation(slot), 1u);
  EXPECT_EQ(Allocate(*pool, 1)[0], slot);
  EXPECT_EQ(pool->generation(slot), 1u) << "moves when freed, not when taken";
}

TEST_F(PoolTest, SlotsAreDisjointAlignedAndStay) {
  const auto pool = Make(5000, 4);
  EXPECT_EQ(pool->slot_bytes(), 5000u);
  EXPECT_EQ(pool->slot_stride_bytes(), 8192u);
  EXPECT_EQ(pool->stats().slots_max, 4u);
  const auto slots = Allocate(*pool, 4);
  std::vector<std::byte*> addresses;
  for (const SlotId slot : slots) {
    addresses.push_back(pool->data(slot));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(addresses.back()) % Pool::kSlotAlignment, 0u);
    std::memset(addresses.back(), static_cast<int>(slot.number()) + 1, pool->slot_bytes());
  }
  for (const SlotId slot : slots) {
    EXPECT_EQ(pool->data(slot), addresses[slot.number()]);
    EXPECT_EQ(pool->data(slot)[0], std::byte(slot.number() + 1));
    EXPECT_EQ(pool->data(slot)[4999], std::byte(slot.number() + 1));
  }
}

TEST_F(PoolTest, ContentsOutliveReuseButNotTrim) {
  const auto pool = Make(4096, 2);
  const auto slots = Allocate(*pool, 2);
  for (const SlotId slot : slots) pool->data(slot)[0] = std::byte{9};
  pool->Release(slots[0]);
  EXPECT_EQ(pool->Trim(), 4096u);
  EXPECT_EQ(pool->data(slots[0])[0], std::byte{0});
  EXPECT_EQ(pool->data(slots[1])[0], std::byte{9}) << "a used slot must keep its bytes";
  EXPECT_EQ(pool->Trim(), 0u) << "nothing was used since";

  EXPECT_EQ(Allocate(*pool, 1)[0], slots[0]);
  pool->data(slots[0])[0] = std::byte{8};
  pool->Release(slots[0]);
  EXPECT_EQ(Allocate(*pool, 1)[0], slots[0]);
  EXPECT_EQ(pool->data(slots[0])[0], std::byte{8}) << "the pool does not spend time on zeroing";
}

TEST_F(PoolTest, TrimFindsEveryRunOfFreeSlots) {
  const auto pool = Make(1 * kMiB, 200);  // runs longer than one hold of the lock
  const auto slots = Allocate(*pool, 100);
  uint64_t freed = 0;
  for (const SlotId slot : slots) {
    const bool keep = slot.number() % 40 == 0 || (slot.number() > 90 && slot.number() % 2 == 0);
    pool->data(slot)[0] = std::byte{1};
    if (!keep) freed += pool->Release(slot) ? 1 : 0;
  }
  EXPECT_EQ(pool->Trim(), freed * kMiB);
  for (const SlotId slot : slots) {
    EXPECT_EQ(pool->data(slot)[0], std::byte(pool->references(slot) > 0 ? 1 : 0)) << slot.number();
  }
}

// It waits for several thousand at once, and needs no memory for more.
TEST_F(PoolTest, TrimTakesManySlotsInTurn) {
  constexpr uint32_t kSlots = 9000;
  const auto pool = Make(4096, kSlots);
  for (const SlotId slot : Allocate(*pool, kSlots)) {
    pool->data(slot)[0] = std::byte{9};
    pool->Release(slot);
  }
  int waits = 0;
  EXPECT_EQ(pool->Trim([&] { ++waits; }), kSlots * uint64_t{4096});
  EXPECT_EQ(waits, 3);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    ASSERT_EQ(pool->data(SlotId(slot))[0], std::byte{0}) << slot;
  }
}

// While Trim waits for operations on free slots, other slots are freed: Trim did not wait for
// operations on these.
TEST_F(PoolTest, TrimLeavesWhatWasFreedAfterItLooked) {
  const auto pool = Make(4096, 4);
  const auto slots = Allocate(*pool, 4);
  for (const SlotId slot : slots) pool->data(slot)[0] = std::byte{9};
  for (const uint32_t free : {0u, 1u, 3u}) pool->Release(SlotId(free));
  const uint64_t trimmed_bytes = pool->Trim([&] {
    const SlotId again = Allocate(*pool, 1)[0];
    ASSERT_EQ(again, SlotId(3));
    pool->Release(again);
    pool->Release(SlotId(2));
  });
  EXPECT_EQ(trimmed_bytes, 2 * 4096u);
  for (const uint32_t kept : {2u, 3u}) EXPECT_EQ(pool->data(SlotId(kept))[0], std::byte{9});
  for (const uint32_t gone : {0u, 1u}) EXPECT_EQ(pool->data(SlotId(gone))[0], std::byte{0});
  EXPECT_EQ(pool->Trim(), 2 * 4096u);
}

// No operation works on a slot any more whose memory is about to go.
TEST_F(PoolTest, SlotsWithoutMemoryAreNotFree) {
  const auto pool = Make(4096, 4);
  pool->SetSlots(2);
  const auto use = [&](uint32_t slot) { return pool->IfFree(SlotId(slot), [] {}); };
  EXPECT_TRUE(use(3)) << "its bytes are there";
  EXPECT_EQ(pool->GiveBackTail([&] {
    EXPECT_FALSE(use(3));
    EXPECT_TRUE(use(1));
  }),
            2 * 4096u);
  EXPECT_FALSE(use(2));
}

// Slots of several pieces share pages: one goes with the last of its slots, and no sooner.
TEST_F(PoolTest, TrimKeepsThePagesThatSlotsInUseShare) {
  constexpr uint64_t kPieceBytes = 1024;
  constexpr uint64_t kSlotsPerPage = 4096 / kPieceBytes;
  const auto pool =
      Pool::Create({.name = "p", .slot_bytes = 4 * kPieceBytes, .slots_max = 64, .pieces = 4},
                   *memory_)
          .value();
  const auto bytes = [&](SlotId slot, uint32_t piece) {
    return std::span(pool->data(slot) + piece * pool->piece_stride_bytes(), kPieceBytes);
  };
  const auto all = [&](SlotId slot, std::byte byte) {
    for (uint32_t piece = 0; piece < 4; ++piece) {
      for (const std::byte one : bytes(slot, piece)) {
        if (one != byte) return false;
      }
    }
    return true;
  };
  const auto slots = Allocate(*pool, 64);
  for (const SlotId slot : slots) {
    for (uint32_t piece = 0; piece < 4; ++piece)
      std::ranges::fill(bytes(slot, piece), std::byte{7});
  }
  // In use: the first of a page, the last of one, a whole page, one amid, the first and the last.
  const std::set<uint32_t> used = {0, 8, 19, 24, 25, 26, 27, 38, 63};
  for (const SlotId slot : slots) {
    if (!used.contains(slot.number())) {
      EXPECT_TRUE(pool->Release(slot));
    }
  }
  EXPECT_EQ(pool->Trim(), (64 - used.size()) * 4 * kPieceBytes);
  for (const SlotId slot : slots) {
    const uint64_t page = slot.number() / kSlotsPerPage;
    const bool kept =
        std::ranges::any_of(used, [&](uint32_t other) { return other / kSlotsPerPage == page; });
    EXPECT_TRUE(all(slot, kept ? std::byte{7} : std::byte{0})) << slot.number();
  }
  // A slot that is freed later takes its page along, with the slots that were given back before.
  EXPECT_TRUE(pool->Release(SlotId(38)));
  EXPECT_EQ(pool->Trim(), 4 * kPieceBytes);
  for (const uint32_t slot : {36u, 37u, 38u, 39u}) EXPECT_TRUE(all(SlotId(slot), std::byte{0}));
  EXPECT_TRUE(all(SlotId(27), std::byte{7}));
}

TEST_F(PoolTest, StatsCountUseAndPeak) {
  const auto pool = Make(5000, 10);
  const auto slots = Allocate(*pool, 6);
  for (int i = 0; i < 4; ++i) pool->Release(slots[i]);
  Allocate(*pool, 1);
  const SlotClassStats stats = pool->stats();
  EXPECT_EQ(stats.slot_bytes, 5000u);
  EXPECT_EQ(stats.slots_max, 10u);
  EXPECT_EQ(stats.slots_used, 3u);
  EXPECT_EQ(stats.slots_used_peak, 6u);
  EXPECT_EQ(pool->free_count(), 7u);
}

TEST_F(PoolTest, ImpossiblePoolsAreRefused) {
  const auto code = [this](uint64_t slot_bytes, uint32_t slots_max) {
    const auto pool = Pool::Create(
        {.name = "sealed", .slot_bytes = slot_bytes, .slots_max = slots_max}, *memory_);
    EXPECT_FALSE(pool.has_value());
    EXPECT_NE(pool.error().message.find("pool sealed"), std::string::npos);
    return pool.error().code;
  };
  const uint64_t max = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(code(0, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(1, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(1, kNone), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(max, 1), ErrorCode::kNoSpace);
  EXPECT_EQ(code(max / 2 + 1, 2), ErrorCode::kNoSpace);
  EXPECT_EQ(code(uint64_t{1} << 60, 4), ErrorCode::kNoSpace);
}

// Fails the k-th reserve or commit until none fails: each time an error, and nothing stays
// reserved.
TEST_F(PoolTest, FailureSweep) {
  uint64_t k = 0;
  for (;; ++k) {
    FaultyMemory faulty(*memory_, k);
    {
      const auto pool = Pool::Create({.name = "p", .slot_bytes = 10, .slots_max = 5}, faulty);
      EXPECT_EQ(pool.has_value(), !faulty.failed());
      if (!pool) {
        EXPECT_EQ(pool.error().code, ErrorCode::kNoSpace);
      }
    }
    EXPECT_EQ(faulty.reserved_bytes(), 0u) << "call " << k;
    if (!faulty.failed()) break;
  }
  EXPECT_EQ(k, 4u) << "the arena and the metadata, reserved and committed";
}

TEST_F(PoolTest, GrowsInPlaceUpToItsAddresses) {
  for (const uint32_t pieces : {1u, 4u}) {
    const auto pool =
        Pool::Create(
            {.name = "p", .slot_bytes = 1000, .slots = 3, .slots_max = 50, .pieces = pieces},
            *memory_)
            .value();
    auto slots = Allocate(*pool, 3);
    SlotId none;
    EXPECT_FALSE(pool->Allocate({&none, 1}));
    std::byte* const first = pool->data(slots[0]);
    std::memset(first, 7, 1000 / pieces);
    const auto refused = pool->CommitSlots(51);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(pool->CommitSlots(50).has_value());
    EXPECT_FALSE(pool->Allocate({&none, 1})) << "committed, but not handed out yet";
    pool->SetSlots(50);
    for (const SlotId slot : Allocate(*pool, 47)) {
      for (uint32_t piece = 0; piece < pieces; ++piece) {
        std::memset(pool->data(slot) + piece * pool->piece_stride_bytes(), 1, 1000 / pieces);
      }
    }
    EXPECT_EQ(pool->data(slots[0]), first);
    EXPECT_EQ(first[1000 / pieces - 1], std::byte{7});
  }
}

// Pieces share pages: removed slots read as zero when they come back, the others keep their bytes.
TEST_F(PoolTest, ShrinksToAnyNumberOfSlots) {
  for (const uint32_t pieces : {1u, 4u}) {
    const auto pool =
        Pool::Create({.name = "p", .slot_bytes = 4000, .slots_max = 20, .pieces = pieces}, *memory_)
            .value();
    const uint64_t piece_bytes = 4000 / pieces;
    const auto slots = Allocate(*pool, 20);
    for (uint32_t keep = 19; keep >= 1; --keep) {
      for (const SlotId slot : slots) {
        for (uint32_t piece = 0; piece < pieces; ++piece) {
          std::memset(pool->data(slot) + piece * pool->piece_stride_bytes(), 9, piece_bytes);
        }
      }
      for (uint32_t slot = keep; slot < 20; ++slot) pool->Release(SlotId(slot));
      pool->SetSlots(keep);
      EXPECT_EQ(pool->stats().slots_max, keep);
      EXPECT_EQ(pool->GiveBackTail(), (20 - keep) * pool->slot_stride_bytes() * pieces);
      EXPECT_EQ(pool->GiveBackTail(), 0u);
      ASSERT_TRUE(pool->CommitSlots(20).has_value());
      pool->SetSlots(20);
      EXPECT_EQ(Numbers(Allocate(*pool, 20 - keep)).front(), keep);
      for (const SlotId slot : slots) {
        for (uint32_t piece = 0; piece < pieces; ++piece) {
          const std::byte* bytes = pool->data(slot) + piece * pool->piece_stride_bytes();
          const auto expected = std::byte(slot.number() < keep ? 9 : 0);
          ASSERT_EQ(bytes[0], expected) << slot.number() << " of " << keep;
          ASSERT_EQ(bytes[piece_bytes - 1], expected) << slot.number() << " of " << keep;
        }
      }
    }
  }
}

TEST_F(PoolTest, SlotsInUseBeyondTheEndStayUntilReleased) {
  const auto pool = Make(100, 6);
  const auto slots = Allocate(*pool, 6);
  *pool->data(slots[5]) = std::byte{5};
  pool->Release(slots[1]);
  pool->Release(slots[4]);
  pool->SetSlots(3);
  EXPECT_EQ(pool->free_count(), 1u);
  EXPECT_EQ(Numbers(pool->UsedFrom(3)), (std::vector<uint32_t>{3, 5}));
  EXPECT_EQ(*pool->data(slots[5]), std::byte{5});
  EXPECT_EQ(Numbers(Allocate(*pool, 1)), std::vector<uint32_t>{1});
  EXPECT_TRUE(pool->Release(slots[3]));
  EXPECT_EQ(pool->free_count(), 0u) << "it is not handed out again";
  EXPECT_DEATH(pool->GiveBackTail(), "slots beyond 3 are in use");
  EXPECT_DEATH(pool->SetSlots(6), "slots beyond 3 are in use");
  EXPECT_TRUE(pool->Release(slots[5]));
  EXPECT_EQ(pool->GiveBackTail(), 3 * pool->slot_stride_bytes());
}

TEST_F(PoolTest, ACommitThatFailsChangesNothing) {
  uint64_t failures = 0;
  for (uint64_t k = 0;; ++k) {
    FaultyMemory faulty(*memory_, std::numeric_limits<uint64_t>::max());
    const auto pool =
        Pool::Create({.name = "p", .slot_bytes = 4000, .slots = 3, .slots_max = 9, .pieces = 4},
                     faulty)
            .value();
    const auto slots = Allocate(*pool, 3);
    const std::set<uint64_t> before = faulty.committed_pages();
    faulty.FailCall(k);
    const auto grown = pool->CommitSlots(9);
    ASSERT_EQ(grown.has_value(), !faulty.failed());
    if (grown) {
      EXPECT_GT(faulty.committed_pages().size(), before.size());
      break;
    }
    ++failures;
    EXPECT_EQ(grown.error().code, ErrorCode::kNoSpace);
    EXPECT_NE(grown.error().message.find("9 slots of 4000 bytes instead of 3"), std::string::npos);
    EXPECT_EQ(pool->stats().slots_max, 3u);
    EXPECT_EQ(faulty.committed_pages(), before) << "what was committed before the failure";
    ASSERT_TRUE(pool->CommitSlots(9).has_value()) << "it can be tried again";
  }
  EXPECT_EQ(failures, 4u) << "one for each piece";
}

// Memory of a device whose bytes the host must not touch.
class DeviceOnlyMemory final : public DeviceMemory {
 public:
  std::string_view name() const override { return "device"; }
  bool host_accessible() const override { return false; }
  Result<std::byte*> Reserve(uint64_t) override {
    return reinterpret_cast<std::byte*>(uint64_t{0x10000});  // never mapped
  }
  Result<void> Commit(std::byte*, uint64_t) override { return {}; }
  void Decommit(std::byte*, uint64_t) override {}
  void Release(std::byte*, uint64_t) override {}
  void Discard(std::byte* begin, uint64_t bytes) override {
    EXPECT_EQ(begin, reinterpret_cast<std::byte*>(uint64_t{0x10000}));
    discarded_bytes += bytes;
  }

  uint64_t discarded_bytes = 0;
};

TEST(Pool, NeverTouchesMemoryTheHostCannotReach) {
  DeviceOnlyMemory device;
  const auto pool =
      Pool::Create({.name = "gpu", .slot_bytes = 4096, .slots_max = 3}, device).value();
  const auto slots = Allocate(*pool, 3);
  EXPECT_EQ(pool->data(slots[1]) - pool->data(slots[0]), 4096);
  pool->Retain(slots[0]);
  for (const uint32_t slot : {0u, 0u, 1u}) pool->Release(SlotId(slot));
  EXPECT_EQ(pool->Trim(), 8192u);
  EXPECT_EQ(device.discarded_bytes, 8192u);
}

// SPEC M1: memory follows use, not the limit.
TEST_F(PoolTest, ResidentSetFollowsTheSlotsInUse) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  constexpr uint64_t kSlotBytes = 1'835'008;  // 16 tokens of Qwen3-0.6B in f16
  const uint64_t before = ResidentBytes().value();
  const auto pool = Make(kSlotBytes, 100'000'000'000 / kSlotBytes);
  const auto slots = Allocate(*pool, 7);
  for (const SlotId slot : slots) std::memset(pool->data(slot), 1, kSlotBytes);
  const uint64_t used = ResidentBytes().value();
  EXPECT_GE(used, before + 7 * kSlotBytes - kMiB);
  EXPECT_LT(used, before + 50'000'000);

  for (const SlotId slot : slots) pool->Release(slot);
  EXPECT_EQ(pool->Trim(), 7 * kSlotBytes);
  EXPECT_LT(ResidentBytes().value(), before + 2 * kMiB);
}

TEST_F(PoolTest, MetadataOfMillionsOfSlotsIsNotTouchedBeforeUse) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const uint64_t before = ResidentBytes().value();
  const auto pool = Make(4096, 64'000'000);  // 1 GB of metadata when all are used
  for (const SlotId slot : Allocate(*pool, 100)) pool->Release(slot);
  EXPECT_EQ(pool->generation(SlotId(63'999'999)), 0u);
  EXPECT_EQ(pool->free_count(), 64'000'000u);
  EXPECT_LT(ResidentBytes().value(), before + 2 * kMiB);
}

class PoolDeathTest : public PoolTest {};

TEST_F(PoolDeathTest, UsingAFreeSlotIsABug) {
  const auto pool = Make(100, 3);
  const SlotId slot = Allocate(*pool, 2)[1];
  pool->Release(slot);
  EXPECT_DEATH(pool->Release(slot), "pool test: slot 1 of 3 is free");
  EXPECT_DEATH(pool->Retain(slot), "pool test: slot 1 of 3 is free");
  EXPECT_DEATH(pool->Release(SlotId(2)), "slot 2 of 3 is free") << "never used";
}

TEST_F(PoolDeathTest, ASlotOfNoPoolIsABug) {
  const auto pool = Make(100, 3);
  EXPECT_DEATH(pool->Release(SlotId(3)), "slot 3 of 3 out of range");
  EXPECT_DEATH(pool->Retain(SlotId::None()), "out of range");
  EXPECT_DEATH(pool->data(SlotId(3)), "out of range");
  EXPECT_DEATH(pool->references(SlotId(3)), "out of range");
  EXPECT_DEATH(pool->generation(SlotId(3)), "out of range");
}

}  // namespace
}  // namespace quire::pool
