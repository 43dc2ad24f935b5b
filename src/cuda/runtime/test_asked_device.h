// Tests on a device of CUDA: on the first one, or on the one that QUIRE_CUDA_DEVICE numbers.
#ifndef QUIRE_CUDA_RUNTIME_TEST_ASKED_DEVICE_H_
#define QUIRE_CUDA_RUNTIME_TEST_ASKED_DEVICE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "cuda/runtime/cuda_device.h"

namespace quire::cuda {

/// Null: no device is asked for.
inline const char* AskedDevice() { return std::getenv("QUIRE_CUDA_DEVICE"); }

inline uint32_t AskedNumber() {
  const char* const asked = AskedDevice();
  return asked == nullptr ? 0 : static_cast<uint32_t>(std::strtoul(asked, nullptr, 10));
}

inline Result<std::unique_ptr<Device>> OpenAskedDevice() { return OpenDevice(AskedNumber()); }

/// Fails the test if a device was requested, else skips it; with CUDA's reason for its absence.
inline void EndWithoutDevice() {
  const auto device = OpenAskedDevice();
  const std::string why = device ? "it is there at a second look" : device.error().message;
  if (AskedDevice() != nullptr) FAIL() << "QUIRE_CUDA_DEVICE=" << AskedDevice() << ": " << why;
  GTEST_SKIP() << "no CUDA device here, nothing has run on one: " << why;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_TEST_ASKED_DEVICE_H_
