// Granules of a device that is the host: mapped once, taken back whole, zero when they come.
#include "cuda/granule_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <set>

#include "base/check.h"
#include "cuda/host/host_device.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kGranule = 64 << 10;

class FakeDriver final : public GranuleDriver {
 public:
  uint64_t granule_bytes() const override { return kGranule; }
  Result<std::byte*> ReserveAddresses(uint64_t bytes) override {
    void* const at = mmap(nullptr, bytes + kGranule, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    QUIRE_CHECK(at != MAP_FAILED);
    reserved_ += bytes;
    const auto address = reinterpret_cast<uintptr_t>(at);
    return reinterpret_cast<std::byte*>((address + kGranule - 1) / kGranule * kGranule);
  }
  void FreeAddresses(std::byte*, uint64_t bytes) override { reserved_ -= bytes; }
  Result<void> Map(std::byte* granule) override {
    if (mapped_.size() == limit_) return Fail(ErrorCode::kNoSpace, "no granule is left");
    EXPECT_TRUE(mapped_.insert(granule).second) << "mapped twice";
    QUIRE_CHECK(mprotect(granule, kGranule, PROT_READ | PROT_WRITE) == 0);
    std::memset(granule, 0xee, kGranule);  // bytes of an earlier user
    return {};
  }
  void Unmap(std::byte* granule) override {
    EXPECT_EQ(mapped_.erase(granule), 1u);
    QUIRE_CHECK(mprotect(granule, kGranule, PROT_NONE) == 0);
  }

  std::set<std::byte*> mapped_;
  uint64_t reserved_ = 0;
  size_t limit_ = SIZE_MAX;
};

class GranuleMemoryTest : public testing::Test {
 protected:
  bool IsZero(const std::byte* from, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i) {
      if (from[i] != std::byte{0}) return false;
    }
    return true;
  }

  FakeDriver driver_;
  std::unique_ptr<Device> device_ = MakeHostDevice();
  std::unique_ptr<DeviceMemory> memory_ = MakeGranuleMemory("cuda:0", driver_, *device_);
};

TEST_F(GranuleMemoryTest, MapsWhatIsCommittedAndNoMore) {
  std::byte* const base = memory_->Reserve(10 * kGranule).value();
  EXPECT_TRUE(driver_.mapped_.empty());
  ASSERT_TRUE(memory_->Commit(base + kGranule - 1, 2).has_value());
  EXPECT_EQ(driver_.mapped_, (std::set{base, base + kGranule}));
  EXPECT_TRUE(IsZero(base, 2 * kGranule));
  std::memset(base, 7, 2 * kGranule);
  ASSERT_TRUE(memory_->Commit(base, 3 * kGranule).has_value());
  EXPECT_EQ(base[kGranule], std::byte{7}) << "usable already: as before";
  EXPECT_TRUE(IsZero(base + 2 * kGranule, kGranule));
  memory_->Release(base, 10 * kGranule);
  EXPECT_TRUE(driver_.mapped_.empty());
  EXPECT_EQ(driver_.reserved_, 0u);
}

TEST_F(GranuleMemoryTest, TakesBackGranulesThatAreWhollyInside) {
  std::byte* const base = memory_->Reserve(4 * kGranule).value();
  ASSERT_TRUE(memory_->Commit(base, 4 * kGranule).has_value());
  std::memset(base, 7, 4 * kGranule);
  memory_->Decommit(base + 1, 2 * kGranule - 2);
  EXPECT_EQ(driver_.mapped_.size(), 4u) << "the first two are in use in part";
  memory_->Decommit(base + 1, 2 * kGranule - 1);
  EXPECT_EQ(driver_.mapped_.size(), 3u);
  ASSERT_TRUE(memory_->Commit(base + kGranule, 1).has_value());
  EXPECT_TRUE(IsZero(base + kGranule, kGranule));
  memory_->Release(base, 4 * kGranule);
}

TEST_F(GranuleMemoryTest, ACommitThatFailsChangesNothing) {
  std::byte* const base = memory_->Reserve(8 * kGranule).value();
  ASSERT_TRUE(memory_->Commit(base + 3 * kGranule, kGranule).has_value());
  driver_.limit_ = 4;
  const Result<void> refused = memory_->Commit(base, 8 * kGranule);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(refused.error().message.find(std::to_string(8 * kGranule)), std::string::npos);
  EXPECT_EQ(driver_.mapped_, std::set{base + 3 * kGranule});
  memory_->Release(base, 8 * kGranule);
}

TEST_F(GranuleMemoryTest, DiscardZeroesPagesThatAreWhollyInside) {
  std::byte* const base = memory_->Reserve(kGranule).value();
  ASSERT_TRUE(memory_->Commit(base, kGranule).has_value());
  std::memset(base, 7, kGranule);
  memory_->Discard(base + 1, 3 * 4096 - 2);
  EXPECT_EQ(base[4095], std::byte{7});
  EXPECT_TRUE(IsZero(base + 4096, 4096));
  EXPECT_EQ(base[8192], std::byte{7});
  EXPECT_EQ(driver_.mapped_.size(), 1u);
  memory_->Release(base, kGranule);
}

TEST_F(GranuleMemoryTest, ImpossibleReservationsAreRefused) {
  EXPECT_EQ(memory_->Reserve(0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(memory_->Reserve(UINT64_MAX - 5).error().code, ErrorCode::kNoSpace);
}

}  // namespace
}  // namespace quire::cuda
