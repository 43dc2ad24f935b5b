// The device itself, where there is one; elsewhere that its absence is told.
#include "cuda/runtime/cuda_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace quire::cuda {
namespace {

TEST(CudaDevices, OneThatIsNotThereIsToldByItsNumber) {
  const auto device = OpenDevice(999);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(device.error().message.find("cuda:999"), std::string::npos) << device.error().message;
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (ListDevices().empty()) GTEST_SKIP() << "no CUDA device here: nothing of it was tried";
    device_ = OpenDevice(0).value();
    driver_ = MakeCudaDriver(0).value();
    memory_ = MakeGranuleMemory("cuda:0", *driver_, *device_);
  }

  std::vector<std::byte> Read(const std::byte* from, uint64_t bytes) {
    std::vector<std::byte> read(bytes, std::byte{1});
    device_->Copy(from, read.data(), {.bytes = bytes});
    EXPECT_TRUE(device_->Synchronize().has_value());
    return read;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<GranuleDriver> driver_;
  std::unique_ptr<DeviceMemory> memory_;
};

TEST_F(CudaDeviceTest, MemoryIsZeroWhereItIsCommittedAndAgain) {
  const uint64_t granule = driver_->granule_bytes();
  std::byte* const base = memory_->Reserve(8 * granule).value();
  ASSERT_TRUE(memory_->Commit(base, 2 * granule).has_value());
  EXPECT_EQ(Read(base, 2 * granule), std::vector<std::byte>(2 * granule));
  const std::vector<std::byte> sevens(granule, std::byte{7});
  device_->CopyIn(sevens.data(), granule, base + granule);
  EXPECT_EQ(Read(base + granule, granule), sevens);
  memory_->Decommit(base + granule, granule);
  ASSERT_TRUE(memory_->Commit(base + granule, granule).has_value());
  EXPECT_EQ(Read(base + granule, granule), std::vector<std::byte>(granule));
  EXPECT_TRUE(device_->Owns(base));
  EXPECT_FALSE(device_->Owns(sevens.data()));
  memory_->Release(base, 8 * granule);
}

TEST_F(CudaDeviceTest, RefusesMoreThanItHas) {
  const uint64_t bytes = 2 * ListDevices()[0].memory_bytes;
  std::byte* const base = memory_->Reserve(bytes).value();
  const auto refused = memory_->Commit(base, bytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  memory_->Release(base, bytes);
  EXPECT_TRUE(device_->Synchronize().has_value()) << "what was refused spoils nothing";
}

// Both ways on their own streams, after what was written before them.
TEST_F(CudaDeviceTest, CopiesToAndFromPinnedMemory) {
  constexpr uint64_t kBytes = 3 << 20;
  HostAllocator& pinned = device_->host_allocator();
  EXPECT_TRUE(pinned.pinned());
  std::byte* const host = pinned.Allocate(2 * kBytes).value();
  std::fill_n(host, kBytes, std::byte{5});
  void* const memory = device_->Allocate(kBytes).value();
  device_->Zero(memory, {.bytes = kBytes});
  device_->Order(Stream::kCompute, Stream::kIn);
  device_->Copy(host, memory, {.bytes = kBytes}, Stream::kIn);
  device_->Order(Stream::kIn, Stream::kOut);
  device_->Copy(memory, host + kBytes, {.bytes = kBytes}, Stream::kOut);
  const auto fence = device_->Record(Stream::kOut);
  if (fence != nullptr) fence->Wait();
  EXPECT_TRUE(device_->outcome().has_value());
  EXPECT_EQ(std::count(host + kBytes, host + 2 * kBytes, std::byte{5}), int64_t{kBytes});
  EXPECT_FALSE(device_->Owns(host));
  device_->Free(memory);
  pinned.Free(host, 2 * kBytes);
}

TEST_F(CudaDeviceTest, RefusesToPinMoreThanThereIs) {
  const auto refused = device_->host_allocator().Allocate(uint64_t{1} << 50);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(device_->Synchronize().has_value()) << "what was refused spoils nothing";
}

TEST_F(CudaDeviceTest, FencesEnd) {
  void* const memory = device_->Allocate(1 << 20).value();
  device_->Zero(memory, {.bytes = 1 << 20});
  const auto fence = device_->Record();
  if (fence != nullptr) {
    fence->Wait();
    EXPECT_TRUE(fence->IsDone());
  }
  device_->Free(memory);
}

}  // namespace
}  // namespace quire::cuda
