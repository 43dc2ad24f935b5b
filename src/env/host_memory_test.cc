#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "env/faulty_memory.h"
#include "env/machine.h"
#include "quire/env.h"

namespace quire {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kMiB = 1 << 20;

std::byte* Usable(DeviceMemory& memory, uint64_t bytes) {
  std::byte* const base = memory.Reserve(bytes).value();
  EXPECT_TRUE(memory.Commit(base, bytes).has_value());
  return base;
}

class HostMemoryWith : public testing::TestWithParam<bool> {
 protected:
  const std::unique_ptr<DeviceMemory> memory_ = MakeHostMemory(GetParam());
};

TEST_P(HostMemoryWith, IsZeroAlignedAndWritable) {
  for (const uint64_t bytes : {uint64_t{1}, kPageBytes, 3 * kMiB + 5}) {
    std::byte* const base = Usable(*memory_, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % (GetParam() ? 2 * kMiB : kPageBytes), 0u);
    EXPECT_EQ(base[0], std::byte{0});
    EXPECT_EQ(base[bytes - 1], std::byte{0});
    std::memset(base, 1, bytes);
    memory_->Release(base, bytes);
  }
  EXPECT_EQ(memory_->name(), "cpu");
  EXPECT_TRUE(memory_->host_accessible());
}

TEST_P(HostMemoryWith, DiscardZeroesWholePagesInsideTheRangeOnly) {
  constexpr uint64_t kBytes = 4 * kPageBytes;
  std::byte* const base = Usable(*memory_, kBytes);
  std::memset(base, 7, kBytes);
  memory_->Discard(base + 1, 3 * kPageBytes - 2);  // pages 1 only: 0 and 2 are partly outside
  for (uint64_t i = 0; i < kBytes; ++i) {
    ASSERT_EQ(base[i], std::byte(i / kPageBytes == 1 ? 0 : 7)) << "byte " << i;
  }
  memory_->Discard(base + 10, 100);  // no whole page
  EXPECT_EQ(base[10], std::byte{7});
  memory_->Release(base, kBytes);
}

TEST_P(HostMemoryWith, LockedPagesReadAsZeroAfterDiscardToo) {
  std::byte* const base = Usable(*memory_, 2 * kPageBytes);
  std::memset(base, 7, 2 * kPageBytes);
  if (mlock(base, 2 * kPageBytes) != 0) GTEST_SKIP() << "this process may not lock memory";
  memory_->Discard(base, kPageBytes);
  EXPECT_EQ(base[0], std::byte{0});
  EXPECT_EQ(base[kPageBytes], std::byte{7});
  memory_->Release(base, 2 * kPageBytes);
}

TEST_P(HostMemoryWith, ImpossibleReservationsAreRefused) {
  EXPECT_EQ(memory_->Reserve(0).error().code, ErrorCode::kInvalidArgument);
  const uint64_t max = std::numeric_limits<uint64_t>::max();
  for (const uint64_t bytes : {uint64_t{1} << 62, max / 2, max / 2 + 1, max - 1, max}) {
    const auto refused = memory_->Reserve(bytes);
    ASSERT_FALSE(refused) << bytes;
    EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
    EXPECT_NE(refused.error().message.find(std::to_string(bytes)), std::string::npos);
  }
}

TEST_P(HostMemoryWith, CommitsPagesAroundAndDecommitsPagesInside) {
  constexpr uint64_t kBytes = 8 * kPageBytes;
  std::byte* const base = memory_->Reserve(kBytes).value();
  ASSERT_TRUE(memory_->Commit(base + kPageBytes + 5, 2 * kPageBytes).has_value());  // pages 1 to 3
  std::memset(base + kPageBytes, 7, 3 * kPageBytes);
  ASSERT_TRUE(memory_->Commit(base, 5 * kPageBytes).has_value());
  EXPECT_EQ(base[0], std::byte{0});
  EXPECT_EQ(base[kPageBytes], std::byte{7}) << "what was usable keeps its bytes";
  memory_->Decommit(base + kPageBytes + 1, 2 * kPageBytes);  // page 2
  EXPECT_EQ(base[2 * kPageBytes - 1], std::byte{7});
  EXPECT_EQ(base[3 * kPageBytes], std::byte{7});
  ASSERT_TRUE(memory_->Commit(base + 2 * kPageBytes, 1).has_value());
  EXPECT_EQ(base[2 * kPageBytes], std::byte{0});
  memory_->Release(base, kBytes);
}

TEST_P(HostMemoryWith, UncommittedMemoryCannotBeTouched) {
  std::byte* const base = memory_->Reserve(3 * kPageBytes).value();
  ASSERT_TRUE(memory_->Commit(base, 2 * kPageBytes).has_value());
  volatile std::byte* const touched = base;
  touched[2 * kPageBytes - 1] = std::byte{1};
  EXPECT_DEATH(touched[2 * kPageBytes] = std::byte{1}, "");
  memory_->Decommit(base + kPageBytes, kPageBytes);
  EXPECT_DEATH(touched[kPageBytes] = std::byte{1}, "");
  memory_->Release(base, 3 * kPageBytes);
}

INSTANTIATE_TEST_SUITE_P(HugePages, HostMemoryWith, testing::Bool());

TEST(HostMemory, ResidentSetFollowsUseAndDiscard) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const auto memory = MakeHostMemory(false);
  constexpr uint64_t kReserved = 64'000'000'000;
  constexpr uint64_t kUsed = 32 * kMiB;
  const uint64_t before = ResidentBytes().value();
  std::byte* const base = Usable(*memory, kReserved);
  EXPECT_LT(ResidentBytes().value(), before + 2 * kMiB) << "reserving must not touch";

  std::memset(base + kReserved / 2, 1, kUsed);
  const uint64_t used = ResidentBytes().value();
  EXPECT_GT(used, before + kUsed - 2 * kMiB);
  EXPECT_LT(used, before + kUsed + 4 * kMiB);

  memory->Discard(base, kReserved);
  EXPECT_LT(ResidentBytes().value(), before + 4 * kMiB);
  memory->Release(base, kReserved);
}

TEST(HostMemory, DecommittedPagesAreNotResident) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const auto memory = MakeHostMemory(false);
  std::byte* const base = Usable(*memory, 64 * kMiB);
  std::memset(base, 1, 64 * kMiB);
  const uint64_t before = ResidentBytes().value();
  memory->Decommit(base + 32 * kMiB, 32 * kMiB);
  EXPECT_LT(ResidentBytes().value(), before - 30 * kMiB);
  memory->Release(base, 64 * kMiB);
}

// A process that may have no more private memory gets an error from Commit, not a signal later.
TEST(HostMemory, CommitSaysNoWhereTheSystemDoes) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer needs private memory of its own";
  const auto memory = MakeHostMemory(false);
  constexpr uint64_t kBytes = uint64_t{16} << 30;
  std::byte* const base = memory->Reserve(kBytes).value();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = uint64_t{8} << 30;
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  const auto refused = memory->Commit(base, kBytes);
  const auto smaller = memory->Commit(base, kMiB);
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(refused.error().message.find("cannot commit 17179869184 bytes"), std::string::npos);
  EXPECT_TRUE(smaller.has_value());
  EXPECT_TRUE(memory->Commit(base, kBytes).has_value());
  memory->Release(base, kBytes);
}

// The kernel sees three neighbours as one mapping, and there is none left to cut it in two.
TEST(HostMemory, GivesPagesBackWhereTheProcessMayHaveNoMoreMappings) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer needs mappings of its own";
  const auto memory = MakeHostMemory(false);
  std::array<std::byte*, 3> bases{};
  for (std::byte*& base : bases) base = Usable(*memory, kMiB);
  std::ranges::sort(bases);
  if (bases[0] + kMiB != bases[1] || bases[1] + kMiB != bases[2]) GTEST_SKIP() << "no neighbours";
  bases[1][0] = std::byte{1};

  uint64_t mappings_max = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> mappings_max;
  const uint64_t bytes = 2 * mappings_max * kPageBytes;
  void* const many = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          /*fd=*/-1, 0);
  ASSERT_NE(many, MAP_FAILED);
  bool full = false;
  for (uint64_t page = 0; page < 2 * mappings_max && !full; page += 2) {
    full = mprotect(static_cast<std::byte*>(many) + page * kPageBytes, kPageBytes, PROT_READ) != 0;
  }
  memory->Release(bases[1], kMiB);
  unsigned char resident = 0;
  const bool mapped = mincore(bases[1], kPageBytes, &resident) == 0;
  munmap(many, bytes);
  memory->Release(bases[0], kMiB);
  memory->Release(bases[2], kMiB);
  if (!full) GTEST_SKIP() << "this system does not count mappings";
  EXPECT_TRUE(mapped) << "the limit was not reached";
  EXPECT_EQ(resident & 1, 0);
  if (mapped) munmap(bases[1], kMiB);
}

// Small pages must stay small: 64 bytes written 2 MiB apart make 64 pages resident, not 128 MiB.
TEST(HostMemory, SmallPagesStaySmall) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const auto memory = MakeHostMemory(false);
  std::byte* const base = Usable(*memory, 128 * kMiB);
  const uint64_t before = ResidentBytes().value();
  for (uint64_t i = 0; i < 64; ++i) base[i * 2 * kMiB] = std::byte{1};
  EXPECT_LT(ResidentBytes().value(), before + 4 * kMiB);
  memory->Release(base, 128 * kMiB);
}

TEST(FaultyMemory, FailsOneCallAndCountsTheRest) {
  const auto host = MakeHostMemory(false);
  FaultyMemory memory(*host, 1);
  std::byte* const first = memory.Reserve(100).value();
  EXPECT_FALSE(memory.failed());
  EXPECT_EQ(memory.Reserve(100).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(memory.failed());
  EXPECT_TRUE(memory.Commit(first, 100).has_value());
  EXPECT_EQ(memory.committed_pages().size(), 1u);
  memory.Decommit(first, 100);
  EXPECT_EQ(memory.committed_pages().size(), 1u) << "the rest of the page may be in use";
  memory.FailCall(0);
  EXPECT_EQ(memory.Commit(first, 100).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(memory.failed());
  std::byte* const third = memory.Reserve(50).value();
  EXPECT_EQ(memory.reserved_bytes(), 150u);
  memory.Release(first, 100);
  memory.Release(third, 50);
  EXPECT_EQ(memory.reserved_bytes(), 0u);
  EXPECT_TRUE(memory.committed_pages().empty());
}

TEST(ResidentBytes, CountsBytesNotPages) {
  const uint64_t resident = ResidentBytes().value();
  EXPECT_GT(resident, kMiB);
  EXPECT_LT(resident, 100'000'000'000u);
}

TEST(LastLevelCacheBytes, IsThatOfARealMachine) {
  const uint64_t bytes = LastLevelCacheBytes();
  EXPECT_GE(bytes, 128u << 10);
  EXPECT_LE(bytes, uint64_t{4} << 30);
  EXPECT_GE(SecondLevelCacheBytes(), 64u << 10);
  EXPECT_LE(SecondLevelCacheBytes(), std::max(bytes, uint64_t{512} << 10));
}

}  // namespace
}  // namespace quire
