#include "apps/quire/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#if defined(QUIRE_WITH_CUDA)
#include "cuda/runtime/cuda_device.h"
#endif

namespace quire::app {
namespace {

constexpr std::string_view kPlain = ":plain";

/// A device's name without what is said of its copies.
std::string_view BareName(std::string_view name) {
  if (name.ends_with(kPlain)) name.remove_suffix(kPlain.size());
  return name;
}

/// The number of "cuda" or "cuda:N".
std::optional<uint32_t> CudaNumber(std::string_view name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  uint32_t number = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + 5, end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

}  // namespace

bool IsDeviceName(const std::string& name) {
  return name == "cpu" || BareName(name) == "emulated" || CudaNumber(BareName(name)).has_value();
}

void AddDeviceFlags(Command& command, DeviceFlags& flags) {
  command.Add({.name = "--device",
               .value = &flags.device,
               .help = "Where it runs: cpu, cuda, cuda:N; emulated: the kernels of devices on the "
                       "processor, for checks. With :plain behind it a device does without bulk "
                       "copies",
               .check = TextCheck{"DEVICE",
                                  [](const std::string& name) {
                                    return IsDeviceName(name)
                                               ? ""
                                               : "no device: cpu, cuda, cuda:N or emulated";
                                  }},
               .shows_default = true});
  command.Add({.name = "--arithmetic",
               .value = &flags.arithmetic,
               .help = "How a device computes. fma32: with the bits of the processor; mma16: on "
                       "matrix units, in products of 16 bits. Blocks of one are never taken for "
                       "the other's",
               .check = OneOf{"fma32", "mma16"},
               .shows_default = true});
}

Result<std::unique_ptr<cuda::Backend>> OpenDevice(const DeviceFlags& flags) {
  const std::string& name = flags.device;
  const std::optional<cuda::Arithmetic> arithmetic = cuda::ParseArithmetic(flags.arithmetic);
  if (!arithmetic) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--arithmetic {}: write fma32 or mma16", flags.arithmetic));
  }
  if (name == "cpu" && *arithmetic != cuda::Arithmetic::kFma32) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("--arithmetic {}: the processor computes in fma32; devices do this, or "
                            "--device emulated for checks",
                            flags.arithmetic));
  }
  if (name == "cpu") return nullptr;
  const std::string_view bare = BareName(name);
  const cuda::BackendOptions options{.arithmetic = *arithmetic, .bulk_copies = bare == name};
  if (bare == "emulated") return cuda::MakeEmulatedBackend(options);
  const std::optional<uint32_t> number = CudaNumber(bare);
  if (!number) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--device {}: no device; write cpu, cuda, cuda:N or emulated", name));
  }
#if defined(QUIRE_WITH_CUDA)
  return cuda::OpenBackend(*number, options);
#else
  return Fail(ErrorCode::kUnsupported,
              fmt::format("--device {}: this program was built without CUDA; `make cuda` builds "
                          "build/cuda/quire",
                          name));
#endif
}

nlohmann::ordered_json DeviceNames() {
  auto names = nlohmann::ordered_json::array({"cpu"});
#if defined(QUIRE_WITH_CUDA)
  for (size_t i = 0; i < cuda::ListDevices().size(); ++i)
    names.push_back(fmt::format("cuda:{}", i));
#endif
  return names;
}

nlohmann::ordered_json ArithmeticClasses() {
  auto classes = nlohmann::ordered_json::array();
  const auto add = [&](cuda::Arithmetic arithmetic, std::string_view target) {
    const std::string name = cuda::ArithmeticClass(arithmetic, target);
    if (std::find(classes.begin(), classes.end(), name) == classes.end()) classes.push_back(name);
  };
  add(cuda::Arithmetic::kFma32, "host");
  add(cuda::Arithmetic::kMma16, "host");
#if defined(QUIRE_WITH_CUDA)
  for (const cuda::DeviceInfo& device : cuda::ListDevices()) {
    add(cuda::Arithmetic::kMma16, device.target);
  }
#endif
  return classes;
}

nlohmann::ordered_json CudaInfo() {
#if defined(QUIRE_WITH_CUDA)
  auto devices = nlohmann::ordered_json::array();
  for (const cuda::DeviceInfo& device : cuda::ListDevices()) {
    devices.push_back({{"name", device.name},
                       {"target", device.target},
                       {"memory_bytes", device.memory_bytes},
                       {"bulk_copies", device.has_bulk_copies}});
  }
  return {{"architectures", cuda::kArchitectures},
          {"kernels",
           {"decode", "prefill", "cascade", "seal", "write", "read", "checksum", "model",
            "mma16/decode", "mma16/prefill", "mma16/cascade", "mma16/model",
            "mma16/decode/bulk_copies", "mma16/prefill/bulk_copies", "mma16/cascade/bulk_copies"}},
          {"devices", devices}};
#else
  return nullptr;
#endif
}

}  // namespace quire::app
