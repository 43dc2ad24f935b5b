// The device on which this layer's tests run: the host, or one of CUDA in the program that is
// compiled for that: the first, or the one that QUIRE_CUDA_DEVICE numbers. Tests without a device
// are skipped; where the variable asks for one they fail.
#ifndef QUIRE_CUDA_TEST_DEVICE_H_
#define QUIRE_CUDA_TEST_DEVICE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/host/host_device.h"
#if defined(QUIRE_TEST_ON_CUDA)
#include "cuda/runtime/test_asked_device.h"
#endif

namespace quire::cuda {

#if defined(QUIRE_TEST_ON_CUDA)
inline constexpr bool kOnHost = false;
#else
inline constexpr bool kOnHost = true;
#endif

/// Null: this machine has none.
inline std::unique_ptr<Device> MakeTestDevice() {
#if defined(QUIRE_TEST_ON_CUDA)
  return OpenAskedDevice().value_or(nullptr);
#else
  static LateStreams* const streams = new LateStreams("emulated", 1);  // outlives all devices
  return MakeHostDevice(streams);
#endif
}

/// Part of SetUp: without a device the test ends here.
inline void NeedDevice([[maybe_unused]] const Device* device) {
#if defined(QUIRE_TEST_ON_CUDA)
  if (device == nullptr) EndWithoutDevice();
#endif
}

/// Unwraps a result that must not fail: the test ends with the device's error.
template <typename T>
T Must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// Bytes of the host that a device works on: on the device from Send until Fetch.
class Mirror {
 public:
  Mirror(Device& device, void* host, uint64_t bytes) : device_(device), host_(host), bytes_(bytes) {
    if (kOnHost) {
      there_ = host;
      return;
    }
    there_ = Must(device.Allocate(bytes));
    device.CopyIn(host, bytes, there_);
  }
  ~Mirror() {
    if (!kOnHost) device_.Free(there_);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// The address of the bytes on the device.
  template <typename T = std::byte>
  T* there() const {
    return static_cast<T*>(there_);
  }
  /// Copies the device's bytes back to the host.
  void Fetch() {
    if (!kOnHost) device_.Copy(there_, host_, {.bytes = bytes_});
    Must(device_.Synchronize());
  }

 private:
  Device& device_;
  void* const host_;
  const uint64_t bytes_;
  void* there_ = nullptr;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_TEST_DEVICE_H_
