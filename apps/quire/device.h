// What --device names: the processor, a CUDA device, or the kernels of devices on the processor.
#ifndef QUIRE_APPS_DEVICE_H_
#define QUIRE_APPS_DEVICE_H_

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/quire/command.h"
#include "cuda/backend.h"
#include "quire/error.h"

namespace quire::app {

/// "cpu", "cuda" (the first), "cuda:N" or "emulated".
bool IsDeviceName(const std::string& name);

/// Adds --device.
void AddDeviceFlag(CLI::App& command, std::string& device);

/// Null: the processor itself.
/// Errors: kUnsupported a device that this build or machine does not have, and what to do
Result<std::unique_ptr<cuda::Backend>> OpenDevice(const std::string& name);

/// "cpu", and what else this build can use here.
nlohmann::ordered_json DeviceNames();

/// What `quire info` says of CUDA; null: built without.
nlohmann::ordered_json CudaInfo();

}  // namespace quire::app

#endif  // QUIRE_APPS_DEVICE_H_
