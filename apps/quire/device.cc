#include "apps/quire/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#if defined(QUIRE_WITH_CUDA)
#include "cuda/runtime/cuda_device.h"
#include "cuda/runtime/kernel_list.h"
#endif

namespace quire::app {
namespace {

constexpr std::string_view kPlain = ":plain";

/// A device's name without ":plain".
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

std::string DeviceOfRank(const std::string& name, [[maybe_unused]] uint32_t local_rank) {
#if defined(QUIRE_WITH_CUDA)
  const size_t count = cuda::ListDevices().size();
  if (BareName(name) == "cuda" && count > 0) {
    const std::string_view rest = std::string_view(name).substr(BareName(name).size());
    return fmt::format("cuda:{}{}", local_rank % count, rest);
  }
#endif
  return name;
}

TextCheck DeviceCheck() {
  return {"DEVICE", [](const std::string& name) {
            return IsDeviceName(name) ? "" : "no device: cpu, cuda, cuda:N or emulated";
          }};
}

void AddDeviceFlags(Command& command, DeviceFlags& flags) {
  command.Add({.name = "--device",
               .value = &flags.device,
               .help = "Where it runs: cpu, cuda, cuda:N; emulated: the kernels of devices on the "
                       "processor, for checks. With :plain behind it a device does without bulk "
                       "copies and graphs",
               .check = DeviceCheck(),
               .shows_default = true});
  command.Add({.name = "--arithmetic",
               .value = &flags.arithmetic,
               .help = "How it computes. fma32: with the same bits on every processor and device; "
                       "mma16: on a device's matrix units, in products of 16 bits; dot16: a model "
                       "of bf16 by the processor's products of bf16, the faster of dot16-amx and "
                       "dot16-avx512 that it has. Blocks of one are never taken for another's",
               .check = OneOf{"fma32", "mma16", "dot16", "dot16-amx", "dot16-avx512"},
               .shows_default = true});
}

Result<std::unique_ptr<cuda::Backend>> OpenDevice(const DeviceFlags& flags) {
  const std::string& name = flags.device;
  if (name == "cpu") {
    QUIRE_TRY(ArithmeticOf(flags));
    return nullptr;
  }
  const std::optional<cuda::Arithmetic> arithmetic = cuda::ParseArithmetic(flags.arithmetic);
  if (!arithmetic) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("--arithmetic {}: the processor's alone; with --device {} write "
                            "--arithmetic fma32 or mma16",
                            flags.arithmetic, name));
  }
  const std::string_view bare = BareName(name);
  const bool is_plain = bare != name;
  const cuda::BackendOptions options{
      .arithmetic = *arithmetic, .bulk_copies = !is_plain, .graphs = !is_plain};
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

Result<model::Arithmetic> ArithmeticOf(const DeviceFlags& flags) {
  if (flags.device != "cpu") return model::Arithmetic::kFma32;
  if (cuda::ParseArithmetic(flags.arithmetic) == cuda::Arithmetic::kMma16) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("--arithmetic {}: devices do this, or --device emulated for checks; "
                            "the processor computes in fma32 or dot16",
                            flags.arithmetic));
  }
  return model::ChooseArithmetic(flags.arithmetic);
}

nlohmann::ordered_json DeviceNames() {
  auto names = nlohmann::ordered_json::array({"cpu"});
#if defined(QUIRE_WITH_CUDA)
  for (const cuda::DeviceInfo& device : cuda::ListDevices())
    names.push_back(fmt::format("cuda:{}", device.number));
#endif
  return names;
}

nlohmann::ordered_json ArithmeticClasses() {
  auto classes = nlohmann::ordered_json::array();
  for (const model::Arithmetic arithmetic : model::kArithmeticClasses) {
    if (model::IsUsable(arithmetic)) classes.push_back(model::ArithmeticName(arithmetic));
  }
  const auto add = [&](cuda::Arithmetic arithmetic, std::string_view target) {
    const std::string name = cuda::ArithmeticClass(arithmetic, target);
    if (std::find(classes.begin(), classes.end(), name) == classes.end()) classes.push_back(name);
  };
  add(cuda::Arithmetic::kMma16, "host");
#if defined(QUIRE_WITH_CUDA)
  for (const cuda::DeviceInfo& device : cuda::ListDevices()) {
    add(cuda::Arithmetic::kMma16, device.target);
  }
#endif
  return classes;
}

#if defined(QUIRE_WITH_CUDA)
namespace {

nlohmann::ordered_json DeviceReport(const cuda::DeviceInfo& device) {
  nlohmann::ordered_json report = {{"device", fmt::format("cuda:{}", device.number)},
                                   {"name", device.name},
                                   {"target", device.target},
                                   {"memory_bytes", device.memory_bytes},
                                   {"bulk_copies", device.has_bulk_copies}};
  const auto kernels = cuda::ListKernels(device.number);
  if (!kernels) {
    report["kernels_error"] = kernels.error().message;
    return report;
  }
  auto list = nlohmann::ordered_json::array();
  for (const cuda::ListedKernel& kernel : *kernels) {
    list.push_back({{"name", kernel.name},
                    {"of", kernel.of},
                    {"threads", kernel.threads},
                    {"shared_bytes", kernel.shared_bytes},
                    {"registers", kernel.registers},
                    {"local_bytes", kernel.local_bytes},
                    {"blocks", kernel.blocks},
                    {"occupancy", kernel.occupancy}});
  }
  report["kernels"] = std::move(list);
  return report;
}

}  // namespace
#endif

nlohmann::ordered_json CudaInfo() {
#if defined(QUIRE_WITH_CUDA)
  auto devices = nlohmann::ordered_json::array();
  for (const cuda::DeviceInfo& device : cuda::ListDevices()) {
    devices.push_back(DeviceReport(device));
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
