// quire info: what this build and this machine can do.
#include <fmt/format.h>

#include <array>

#include "apps/quire/command.h"
#include "apps/quire/device.h"
#include "base/version.h"
#include "env/machine.h"
#include "keys/wide_gcm.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/geometry.h"
#include "quire/identity.h"

namespace quire::app {

namespace {

/// Whether the kernels read K and V of this codec, asked with a cache's own layout.
bool CanRead(const AttentionBackend& backend, Codec codec) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  for (CodecRule& rule : profile.codecs) rule.codec = codec;
  const auto cache = Cache::Create(
      {.geometry = Geometry::Uniform(1, 1, 128), .profile = profile, .hot_bytes = 1 << 20});
  if (!cache) return false;
  const Identity identity;
  const TokenId prompt[] = {0};
  auto plan = (*cache)->Acquire({.identity = &identity, .tokens = prompt});
  if (!plan) return false;
  const auto sequence = (*cache)->Open(*std::move(plan), {});
  if (!sequence) return false;
  const LayerStreams streams = (*sequence)->Streams(0);
  return backend
      .Supports({.query_heads = 1,
                 .key = streams.key,
                 .value = streams.value,
                 .open_key = streams.open_key,
                 .open_value = streams.open_value,
                 .open_blocks = streams.open_blocks,
                 .scale = 1.0f})
      .has_value();
}

nlohmann::ordered_json Codecs(const AttentionBackend* backend) {
  auto list = nlohmann::ordered_json::array();
  for (const Codec codec : kCodecs) {
    auto kernels = nlohmann::ordered_json::array();
    if (backend != nullptr && CanRead(*backend, codec)) {
      for (const char* kind : {"decode", "prefill"}) {
        kernels.push_back(fmt::format("{}/{}/{}", backend->name(), backend->target(), kind));
      }
    }
    list.push_back({{"name", CodecName(codec)},
                    {"bits_per_value", CodecBitsPerValue(codec)},
                    {"kernels", kernels}});
  }
  return list;
}

/// Of every device: what it has of each kernel.
void PrintKernels(const nlohmann::ordered_json& devices) {
  for (const auto& device : devices) {
    fmt::print("{}: {}, {}\n", device["device"].get<std::string>(),
               device["name"].get<std::string>(), device["target"].get<std::string>());
    if (device.contains("kernels_error")) {
      fmt::print("  {}\n", device["kernels_error"].get<std::string>());
      continue;
    }
    fmt::print("  {:<40} {:>9} {:>11} {:>12} {:>9}\n", "kernel", "registers", "local bytes",
               "shared bytes", "occupancy");
    for (const auto& kernel : device["kernels"]) {
      const auto of = kernel["of"].get<std::string>();
      fmt::print("  {:<40} {:>9} {:>11} {:>12} {:>9.2f}\n",
                 kernel["name"].get<std::string>() + (of.empty() ? "" : " " + of),
                 kernel["registers"].get<uint32_t>(), kernel["local_bytes"].get<uint32_t>(),
                 kernel["shared_bytes"].get<uint32_t>(), kernel["occupancy"].get<double>());
    }
  }
}

int Info(bool json) {
  const auto backend = MakeCpuAttention();
  const std::string target = backend ? std::string((*backend)->target()) : "none";
  const Result<void> wide_gcm = keys::WideGcm::IsAvailable();
  nlohmann::ordered_json report = {{"version", kVersion},
                                   {"compiler", __VERSION__},
                                   {"cpu_target", target},
                                   {"arithmetic", NumericProfile{}.arithmetic},
                                   {"arithmetic_classes", ArithmeticClasses()},
                                   {"kernel_revision", kKernelRevision},
                                   {"last_level_cache_bytes", LastLevelCacheBytes()},
                                   {"cipher", wide_gcm ? "libipsec-mb" : "OpenSSL"},
                                   {"devices", DeviceNames()},
                                   {"codecs", Codecs(backend ? backend->get() : nullptr)}};
  if (const auto cuda = CudaInfo(); !cuda.is_null()) report["cuda"] = cuda;
  if (json) {
    PrintJson(report);
  } else {
    fmt::print("quire {} (g++ {})\n", kVersion, __VERSION__);
    fmt::print("CPU target    {}\n", target);
    fmt::print("arithmetic    {}, kernel revision {}\n", NumericProfile{}.arithmetic,
               kKernelRevision);
    fmt::print("--arithmetic  fma32, dot16 on processors, mma16 on devices; classes here");
    for (const auto& name : report["arithmetic_classes"])
      fmt::print(" {}", name.get<std::string>());
    fmt::print("\nlast-level cache {}\n", FormatBytes(LastLevelCacheBytes()));
    fmt::print("AES-256-GCM   {}", report["cipher"].get<std::string>());
    if (!wide_gcm) fmt::print(" ({})", wide_gcm.error().message);
    fmt::print("\ndevices      ");
    for (const auto& device : report["devices"]) fmt::print(" {}", device.get<std::string>());
    fmt::print("\ncodecs\n");
    for (const auto& codec : report["codecs"]) {
      fmt::print("  {:<8} {:>6.3f} bits per value  ", codec["name"].get<std::string>(),
                 codec["bits_per_value"].get<double>());
      for (const auto& kernel : codec["kernels"]) fmt::print(" {}", kernel.get<std::string>());
      fmt::print("\n");
    }
    if (report.contains("cuda")) PrintKernels(report["cuda"]["devices"]);
  }
  return backend ? kOk : Report("info", backend.error());
}

}  // namespace

void AddInfo(Command& program) {
  Command command = program.AddCommand("info", "Build, CPU target, devices and codecs");
  auto json = std::make_shared<bool>(false);
  command.Add({.name = "--json", .value = json.get(), .help = "Print one JSON object"});
  command.Run([json] { return Info(*json); });
}

}  // namespace quire::app
