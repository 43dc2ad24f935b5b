// The device itself, where there is one; elsewhere the report of its absence.
#include "cuda/runtime/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/runtime/kernel_list.h"
#include "cuda/runtime/launched.h"
#include "cuda/runtime/test_asked_device.h"

namespace quire::cuda {
namespace {

TEST(CudaDevices, OneThatIsNotThereIsToldByItsNumber) {
  const auto device = OpenDevice(999);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(device.error().message.find("cuda:999"), std::string::npos) << device.error().message;
}

// A skip would pass for a success where a device was provided for these tests.
TEST(CudaDevices, OneThatIsAskedForAndNotThereFailsTheTest) {
  const char* const asked = AskedDevice();
  const std::string before = asked == nullptr ? "" : asked;
  setenv("QUIRE_CUDA_DEVICE", "999", 1);
  EXPECT_FATAL_FAILURE(EndWithoutDevice(), "QUIRE_CUDA_DEVICE=999: cuda:999: there is no such");
  asked == nullptr ? unsetenv("QUIRE_CUDA_DEVICE") : setenv("QUIRE_CUDA_DEVICE", before.c_str(), 1);
}

TEST(CudaLaunches, TheFirstErrorIsToldWithItsKernel) {
  const auto launch = [](const char* name) {
    return KernelLaunch{.name = name, .grid = {.blocks = 3, .threads = 128, .shared_bytes = 4096}};
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(Launched(launch("RunFirst"), cudaErrorInvalidConfiguration, nullptr),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launched(launch("RunSecond"), cudaErrorLaunchFailure, nullptr), cudaErrorLaunchFailure);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("RunFirst in 3 blocks of 128 threads with 4096 bytes of shared memory: " +
                      std::string(cudaGetErrorString(cudaErrorInvalidConfiguration))),
            std::string::npos)
      << told;
  EXPECT_EQ(told.find("RunSecond"), std::string::npos) << told;
}

void ExpectDone(const Result<void>& outcome) { EXPECT_TRUE(outcome) << outcome.error().message; }

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = OpenAskedDevice();
    if (!device) return EndWithoutDevice();
    device_ = std::move(*device);
    auto driver = MakeCudaDriver(AskedNumber());
    ASSERT_TRUE(driver) << driver.error().message;
    driver_ = std::move(*driver);
    memory_ = MakeGranuleMemory("cuda:0", *driver_, *device_);
  }

  std::vector<std::byte> Read(const std::byte* from, uint64_t bytes) {
    std::vector<std::byte> read(bytes, std::byte{1});
    device_->Copy(from, read.data(), {.bytes = bytes});
    ExpectDone(device_->Synchronize());
    return read;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<GranuleDriver> driver_;
  std::unique_ptr<DeviceMemory> memory_;
};

TEST_F(CudaDeviceTest, EveryKernelIsListedAndHasRoomForABlock) {
  const auto kernels = ListKernels(AskedNumber());
  ASSERT_TRUE(kernels) << kernels.error().message;
  std::set<std::string> names;
  for (const ListedKernel& kernel : *kernels) {
    SCOPED_TRACE(kernel.name + " " + kernel.of);
    names.insert(kernel.name);
    EXPECT_GT(kernel.registers, 0u);
    EXPECT_GT(kernel.blocks, 0u);
    EXPECT_LE(kernel.occupancy, 1.0);
  }
  for (const char* const name :
       {"RunSplits", "RunFold", "RunMmaStates", "RunMmaFolded", "RunWrite", "RunRead", "RunEncode",
        "RunChecksum", "RunMatmul", "RunMmaProduct", "RunEmbed", "RunNorm", "RunHeads", "RunGate",
        "RunAdd"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

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
  const uint64_t bytes = 2 * ListDevices()[AskedNumber()].memory_bytes;
  std::byte* const base = memory_->Reserve(bytes).value();
  const auto refused = memory_->Commit(base, bytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  memory_->Release(base, bytes);
  ExpectDone(device_->Synchronize());  // a refused call leaves no error
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
  ExpectDone(device_->outcome());
  EXPECT_EQ(std::count(host + kBytes, host + 2 * kBytes, std::byte{5}), int64_t{kBytes});
  EXPECT_FALSE(device_->Owns(host));
  device_->Free(memory);
  pinned.Free(host, 2 * kBytes);
}

// Arenas of tens of gigabytes have pieces that lie further apart than one call of CUDA copies.
TEST_F(CudaDeviceTest, CopiesAndZeroesPiecesThatLieGigabytesApart) {
  constexpr uint64_t kStride = (uint64_t{1} << 31) + 64;
  constexpr uint64_t kBytes = 4096;
  const auto memory = device_->Allocate(2 * kStride + kBytes);
  if (!memory) GTEST_SKIP() << memory.error().message;
  std::vector<uint8_t> host(3 * kBytes);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint8_t>(i * 7 + i / kBytes);
  std::vector<uint8_t> back(host.size(), 1);
  const CopyShape in{
      .count = 3, .bytes = kBytes, .from_stride_bytes = kBytes, .to_stride_bytes = kStride};
  const CopyShape out{
      .count = 3, .bytes = kBytes, .from_stride_bytes = kStride, .to_stride_bytes = kBytes};
  device_->Copy(host.data(), *memory, in, Stream::kCompute);
  device_->Copy(*memory, back.data(), out, Stream::kCompute);
  ExpectDone(device_->Synchronize());
  EXPECT_EQ(back, host);
  device_->Zero(*memory, in, Stream::kCompute);
  device_->Copy(*memory, back.data(), out, Stream::kCompute);
  ExpectDone(device_->Synchronize());
  EXPECT_EQ(back, std::vector<uint8_t>(host.size()));
  device_->Free(*memory);
}

TEST_F(CudaDeviceTest, RefusesToPinMoreThanThereIs) {
  const auto refused = device_->host_allocator().Allocate(uint64_t{1} << 50);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  ExpectDone(device_->Synchronize());  // a refused call leaves no error
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

// In a process of its own: the error stays with the process.
using CudaDeviceDeathTest = CudaDeviceTest;
TEST_F(CudaDeviceDeathTest, WithSyncAKernelThatFailsIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [] {
    setenv("QUIRE_CUDA_SYNC", "1", 1);
    const auto device = OpenAskedDevice().value();
    auto* const nowhere = reinterpret_cast<float*>(16);
    device->Launch(AddArgs{.x = nowhere, .y = nowhere, .count = 1});
    const auto outcome = device->outcome();
    std::exit(!outcome && outcome.error().message.find("device") != std::string::npos ? 3 : 4);
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(3), "RunAdd in 1 blocks of");
}

}  // namespace
}  // namespace quire::cuda
