// quire info: what this build and this machine can do.
#include <fmt/format.h>

#include <array>

#include "apps/quire/command.h"
#include "base/version.h"
#include "env/machine.h"
#include "quire/attention.h"
#include "quire/geometry.h"
#include "quire/identity.h"

namespace quire::app {

namespace {

nlohmann::ordered_json Codecs(const AttentionBackend* backend) {
  auto list = nlohmann::ordered_json::array();
  for (Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
    auto kernels = nlohmann::ordered_json::array();
    if (backend != nullptr) {
      const StreamLayout stream{.codec = codec,
                                .heads = 1,
                                .dim = 64,
                                .block_tokens = 16,
                                .head_stride_bytes = 64 * 16 * 4};
      AttentionShape shape{.query_heads = 1, .key = stream, .value = stream, .scale = 1.0f};
      shape.key.inner = InnerAxis::kToken;
      if (backend->Supports(shape)) {
        for (const char* kind : {"decode", "prefill"}) {
          kernels.push_back(fmt::format("{}/{}/{}", backend->name(), backend->target(), kind));
        }
      }
    }
    list.push_back({{"name", CodecName(codec)},
                    {"bits_per_value", CodecBitsPerValue(codec)},
                    {"kernels", kernels}});
  }
  return list;
}

int Info(bool json) {
  const auto backend = MakeCpuAttention();
  const std::string target = backend ? std::string((*backend)->target()) : "none";
  const nlohmann::ordered_json report = {{"version", kVersion},
                                         {"compiler", __VERSION__},
                                         {"cpu_target", target},
                                         {"arithmetic", NumericProfile{}.arithmetic},
                                         {"kernel_revision", kKernelRevision},
                                         {"last_level_cache_bytes", LastLevelCacheBytes()},
                                         {"devices", {"cpu"}},
                                         {"codecs", Codecs(backend ? backend->get() : nullptr)}};
  if (json) {
    PrintJson(report);
  } else {
    fmt::print("quire {} (g++ {})\n", kVersion, __VERSION__);
    fmt::print("CPU target    {}\n", target);
    fmt::print("arithmetic    {}, kernel revision {}\n", NumericProfile{}.arithmetic,
               kKernelRevision);
    fmt::print("last-level cache {}\ndevices       cpu\ncodecs\n",
               FormatBytes(LastLevelCacheBytes()));
    for (const auto& codec : report["codecs"]) {
      fmt::print("  {:<6} {:>5.2f} bits per value  ", codec["name"].get<std::string>(),
                 codec["bits_per_value"].get<double>());
      for (const auto& kernel : codec["kernels"]) fmt::print(" {}", kernel.get<std::string>());
      fmt::print("\n");
    }
  }
  return backend ? kOk : Report("info", backend.error());
}

}  // namespace

void AddInfo(CLI::App& program, int& exit) {
  CLI::App* command = program.add_subcommand("info", "Build, CPU target, devices and codecs");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([json, &exit] { exit = Info(*json); });
}

}  // namespace quire::app
