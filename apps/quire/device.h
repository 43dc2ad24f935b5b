// What --device names: the processor, a CUDA device, or the kernels of devices on the processor;
// and in which arithmetic it computes.
#ifndef QUIRE_APPS_DEVICE_H_
#define QUIRE_APPS_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/quire/command.h"
#include "cuda/backend.h"
#include "model/arithmetic.h"
#include "quire/error.h"

namespace quire::app {

/// "cpu", "cuda" (the first), "cuda:N" or "emulated"; the last three with ":plain" behind them: as
/// on a device without bulk copies.
bool IsDeviceName(const std::string& name);
TextCheck DeviceCheck();

struct DeviceFlags {
  std::string device = "cpu";
  std::string arithmetic = "fma32";
};

/// "cuda" of the ranks of a host, which are numbered from 0: each its own, as long as there are
/// enough. Other names as they are.
std::string DeviceOfRank(const std::string& name, uint32_t local_rank);

/// Adds --device and --arithmetic.
void AddDeviceFlags(Command& command, DeviceFlags& flags);

/// Null: the processor itself.
/// Errors: kUnsupported a device that this build or machine does not have, or an arithmetic that
///         the device, or the processor itself, does not have; says what to do
Result<std::unique_ptr<cuda::Backend>> OpenDevice(const DeviceFlags& flags);

/// How the processor multiplies with these flags; on a device, as it always does.
/// Errors: as OpenDevice
Result<model::Arithmetic> ArithmeticOf(const DeviceFlags& flags);

/// The arithmetic classes that this build and machine can compute in, as a profile names them.
nlohmann::ordered_json ArithmeticClasses();

/// "cpu", and what else this build can use here.
nlohmann::ordered_json DeviceNames();

/// What `quire info` says of CUDA; null: built without.
nlohmann::ordered_json CudaInfo();

}  // namespace quire::app

#endif  // QUIRE_APPS_DEVICE_H_
