// Physical memory behind reserved addresses, by the driver's interface.
#include <cuda.h>
#include <fmt/format.h>

#include "cuda/runtime/cuda_device.h"
#include "cuda/runtime/driver_call.h"

namespace quire::cuda {
namespace {

struct DriverCalls {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
};

CUdeviceptr Address(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

class CudaDriver final : public GranuleDriver {
 public:
  CudaDriver(const DriverCalls& calls, int device, uint64_t granule_bytes)
      : calls_(calls), granule_bytes_(granule_bytes) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  }

  uint64_t granule_bytes() const override { return granule_bytes_; }

  Result<std::byte*> ReserveAddresses(uint64_t bytes) override {
    CUdeviceptr base = 0;
    if (calls_.reserve(&base, bytes, granule_bytes_, 0, 0) != CUDA_SUCCESS) {
      return Fail(ErrorCode::kNoSpace, fmt::format("cuda: cannot reserve {} bytes", bytes));
    }
    return reinterpret_cast<std::byte*>(base);
  }
  void FreeAddresses(std::byte* base, uint64_t bytes) override {
    calls_.free(Address(base), bytes);
  }

  Result<void> Map(std::byte* granule) override {
    CUmemGenericAllocationHandle handle = 0;
    if (calls_.create(&handle, granule_bytes_, &properties_, 0) != CUDA_SUCCESS) {
      return Fail(ErrorCode::kNoSpace, "the device has no memory left");
    }
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (calls_.map(Address(granule), granule_bytes_, 0, handle, 0) != CUDA_SUCCESS) {
      calls_.release(handle);
      return Fail(ErrorCode::kNoSpace, "the device cannot map memory");
    }
    // The mapping keeps the memory; it goes with it.
    calls_.release(handle);
    if (calls_.set_access(Address(granule), granule_bytes_, &access, 1) != CUDA_SUCCESS) {
      calls_.unmap(Address(granule), granule_bytes_);
      return Fail(ErrorCode::kNoSpace, "the device cannot use mapped memory");
    }
    return {};
  }
  void Unmap(std::byte* granule) override { calls_.unmap(Address(granule), granule_bytes_); }

 private:
  const DriverCalls calls_;
  const uint64_t granule_bytes_;
  CUmemAllocationProp properties_{};
};

}  // namespace

Result<std::unique_ptr<GranuleDriver>> MakeCudaDriver(uint32_t number) {
  DriverCalls calls;
  if (!FindDriverCall("cuMemGetAllocationGranularity", &calls.granularity) ||
      !FindDriverCall("cuMemAddressReserve", &calls.reserve) ||
      !FindDriverCall("cuMemAddressFree", &calls.free) ||
      !FindDriverCall("cuMemCreate", &calls.create) ||
      !FindDriverCall("cuMemRelease", &calls.release) || !FindDriverCall("cuMemMap", &calls.map) ||
      !FindDriverCall("cuMemUnmap", &calls.unmap) ||
      !FindDriverCall("cuMemSetAccess", &calls.set_access)) {
    return Fail(ErrorCode::kUnsupported, "cuda: the driver has no virtual memory management");
  }
  const int device = static_cast<int>(number);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  size_t granule_bytes = 0;
  if (calls.granularity(&granule_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
      CUDA_SUCCESS) {
    return Fail(ErrorCode::kUnsupported, "cuda: the driver does not say how it maps memory");
  }
  return std::make_unique<CudaDriver>(calls, device, granule_bytes);
}

}  // namespace quire::cuda
