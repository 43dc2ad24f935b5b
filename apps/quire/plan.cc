// quire plan: what a number of tokens will cost, before anything is allocated. Where the codec
// encodes that includes the open blocks of a step.
#include <fmt/format.h>

#include "apps/quire/command.h"
#include "apps/quire/device.h"
#include "apps/quire/plan_ranks.h"
#include "apps/quire/runtime.h"
#include "cache/planned_bytes.h"
#include "cuda/attention.h"
#include "cuda/operators.h"
#include "env/file.h"
#include "model/adapter.h"
#include "model/config.h"
#include "model/stage.h"
#include "model/weights.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "tier/cold_state.h"

namespace quire::app {

namespace {

struct PlanFlags {
  std::string config;
  uint64_t tokens = 0;
  std::string kv = "f16";
  uint32_t block_tokens = kBlockTokensDefault;
  uint32_t residual_tokens = 0;
  uint64_t resident_tokens = 0;
  uint32_t chunk_tokens = 512;
  model::Window window;
  uint32_t adapter_rank = 0;  // 0: nothing is said of adapters
  uint32_t ranks = 0;         // 0: nothing is said of ranks
  std::string device = "cpu";
  bool json = false;
};

constexpr uint64_t kConfigBytesMax = 16 << 20;

Result<nlohmann::ordered_json> PlanOf(const PlanFlags& flags) {
  QUIRE_ASSIGN(const std::string text, ReadFile(flags.config, kConfigBytesMax));
  QUIRE_ASSIGN(model::ModelConfig config, model::ParseConfig(text, flags.config));
  QUIRE_TRY(model::SetWindow(flags.window, config));
  const Codec codec = ParseCodec(flags.kv).value();
  const Geometry geometry = model::GeometryOf(config);
  // Open blocks hold what the model computes; a config that does not say computes in two bytes.
  const Codec computed = CodecOf(config.dtype.value_or(ComputeType::kBf16));
  NumericProfile profile =
      NumericProfile::Uniform(IsIdentity(codec) ? codec : computed, flags.block_tokens);
  for (CodecRule& rule : profile.codecs) rule.codec = codec;
  profile.residual_tokens = flags.residual_tokens;
  if (flags.residual_tokens != 0 && IsIdentity(codec)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("--residual {}: {} stores what was written; only 0 is possible",
                            flags.residual_tokens, CodecName(codec)));
  }
  QUIRE_ASSIGN(const auto planned,
               cache::PlanBytes(geometry, profile, flags.tokens, SequenceOptions{}.step_tokens));
  const double values_per_block =
      static_cast<double>(geometry.values_per_token()) * flags.block_tokens;
  nlohmann::ordered_json report = {
      {"kv_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"layers", config.layers},
      {"codec", CodecName(codec)},
      {"block_tokens", flags.block_tokens},
      {"residual_tokens", flags.residual_tokens},
      {"tokens", flags.tokens},
      {"blocks", planned.blocks},
      {"bytes_per_block", planned.block_bytes},
      {"open_blocks", planned.open_blocks},
      {"bytes_open", planned.open},
      {"bytes_total", planned.total()},
      {"bits_per_value", static_cast<double>(planned.block_bytes) * 8 / values_per_block}};
  if (flags.resident_tokens > 0) {
    QUIRE_ASSIGN(
        const auto stream,
        cache::PlanStream({.geometry = geometry, .profile = profile, .hot_bytes = 1ull << 50},
                          flags.tokens,
                          {.step_tokens = flags.chunk_tokens,
                           .resident_tokens = flags.resident_tokens,
                           .query_heads = config.query_heads}));
    report.update({{"resident_tokens", flags.resident_tokens},
                   {"chunk_tokens", flags.chunk_tokens},
                   {"bytes_streamed", stream.bytes},
                   {"bytes_lane_states", stream.state_bytes},
                   {"bytes_store_memory",
                    DiskStoreOptions{}.staging_bytes + tier::ColdOptions{}.headers_bytes_max},
                   {"bytes_store", stream.store_bytes}});
  }
  if (flags.adapter_rank > 0) {
    const ComputeType type = config.dtype.value_or(ComputeType::kBf16);
    report["bytes_adapter"] = model::AdapterBytes(config, flags.adapter_rank, type);
  }
  if (flags.ranks > 0) {
    QUIRE_ASSIGN(const auto ranks, PlanRanks({.ranks = flags.ranks,
                                              .tokens = flags.tokens,
                                              .type = config.dtype.value_or(ComputeType::kBf16)},
                                             config, profile));
    report.update(ranks);
  }
  if (flags.device != "cpu") {
    const uint64_t weights = model::MatrixBytes(config, model::AllLayers(config),
                                                config.dtype.value_or(ComputeType::kBf16));
    const uint64_t pass = cuda::PassBytes(config, flags.chunk_tokens);
    report.update({{"bytes_device_weights", weights},
                   {"bytes_device_pass", pass},
                   {"bytes_device_attention_max", cuda::kStatesBytesMax},
                   {"bytes_device", weights + pass + cuda::kStatesBytesMax + planned.total()}});
  }
  return report;
}

int RunPlan(const PlanFlags& flags) {
  const auto plan = PlanOf(flags);
  if (!plan) return Report("plan", plan.error());
  if (flags.json) {
    PrintJson(*plan);
    return kOk;
  }
  for (const auto& [name, value] : plan->items()) {
    if (value.is_array() || value.is_null()) continue;  // of ranks: below
    fmt::print("{:<17} {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  fmt::print("{:<17} {}\n", "total", FormatBytes((*plan)["bytes_total"].get<uint64_t>()));
  if (flags.resident_tokens > 0) {
    fmt::print("{:<17} {} of --hot-bytes\n", "streamed",
               FormatBytes((*plan)["bytes_streamed"].get<uint64_t>()));
  }
  if (flags.device != "cpu") {
    fmt::print("{:<17} {}, blocks and all else\n", "on the device",
               FormatBytes((*plan)["bytes_device"].get<uint64_t>()));
  }
  if (flags.ranks > 0) fmt::print("{}", RanksTable(*plan));
  return kOk;
}

}  // namespace

void AddPlan(Command& program) {
  auto flags = std::make_shared<PlanFlags>();
  Command command = program.AddCommand("plan", "Blocks and bytes that a context will need");
  command.Add({.name = "--config",
               .value = &flags->config,
               .help = "The model's config.json",
               .required = true});
  command.Add(
      {.name = "--tokens", .value = &flags->tokens, .help = "Context length", .required = true});
  command.Add({.name = "--kv",
               .value = &flags->kv,
               .help = "Codec of K and V",
               .check = CodecCheck(),
               .shows_default = true});
  command.Add({.name = "--block-tokens",
               .value = &flags->block_tokens,
               .help = "Tokens per block",
               .check = BlockTokensCheck(),
               .shows_default = true});
  command.Add({.name = "--residual",
               .value = &flags->residual_tokens,
               .help = "Last tokens that are read in full precision, where the codec encodes",
               .shows_default = true});
  AddWindowFlags(command, flags->window);
  command.Add({.name = "--resident-tokens",
               .value = &flags->resident_tokens,
               .help = "Also what it takes to stream the context from a store, with so many of its "
                       "last tokens in memory"});
  command.Add({.name = "--chunk",
               .value = &flags->chunk_tokens,
               .help = "With --resident-tokens or --device: prompt tokens per step",
               .check = Between<int>{1, 1 << 20},
               .shows_default = true});
  command.Add({.name = "--adapter-rank",
               .value = &flags->adapter_rank,
               .help = "Also what a LoRA adapter of this rank takes, in the model's type, if it "
                       "changes all that it can",
               .check = Between<uint32_t>{1, model::kAdapterRankMax}});
  command.Add({.name = "--ranks",
               .value = &flags->ranks,
               .help = "Also what each of so many ranks holds, in both modes (docs/ranks.md)",
               .check = Between<uint32_t>{1, 1024}});
  command.Add({.name = "--device",
               .value = &flags->device,
               .help = "Also what a device holds beside the blocks: weights, the rows of a step of "
                       "--chunk tokens, states of attention; none has to be there",
               .check = DeviceCheck(),
               .shows_default = true});
  command.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
  command.Run([flags] { return RunPlan(*flags); });
}

}  // namespace quire::app
