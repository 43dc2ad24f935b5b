// quire plan: what a number of tokens will cost, before anything is allocated.
#include <fmt/format.h>

#include "apps/quire/command.h"
#include "base/bits.h"
#include "cache/reach.h"
#include "codec/slot_layout.h"
#include "env/file.h"
#include "model/config.h"
#include "quire/cache.h"

namespace quire::app {

namespace {

struct PlanFlags {
  std::string config;
  uint64_t tokens = 0;
  std::string kv = "f16";
  uint32_t block_tokens = kBlockTokensDefault;
  bool json = false;
};

constexpr uint64_t kConfigBytesMax = 16 << 20;

/// Bytes of `blocks` blocks; of layers with a window as much of them as lives at once.
std::optional<uint64_t> BytesOf(const codec::SlotLayout& layout, uint64_t blocks) {
  uint64_t total = 0;
  for (uint32_t part = 0; part < layout.part_count(); ++part) {
    const cache::Reach reach(layout.part(part), layout.block_tokens());
    const uint64_t live = std::min(blocks, reach.blocks_max(SequenceOptions{}.step_tokens));
    const auto bytes = CheckedMul(live, layout.slot_bytes(part));
    if (!bytes || *bytes > UINT64_MAX - total) return std::nullopt;
    total += *bytes;
  }
  return total;
}

Result<nlohmann::ordered_json> Plan(const PlanFlags& flags) {
  QUIRE_ASSIGN(const std::string text, ReadFile(flags.config, kConfigBytesMax));
  QUIRE_ASSIGN(const model::ModelConfig config, model::ParseConfig(text, flags.config));
  const Codec codec = ParseCodec(flags.kv).value();
  const Geometry geometry = model::GeometryOf(config);
  QUIRE_ASSIGN(const auto layout, codec::SlotLayout::Create(
                                      geometry, NumericProfile::Uniform(codec, flags.block_tokens),
                                      ArenaLayout::kBlockMajor));
  const uint64_t blocks = DivUp(flags.tokens, flags.block_tokens);
  const auto bytes = BytesOf(layout, blocks);
  if (!bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--tokens {}: the bytes do not fit into 64 bits", flags.tokens));
  }
  uint64_t block_bytes = 0;
  for (uint32_t part = 0; part < layout.part_count(); ++part) {
    block_bytes += layout.slot_bytes(part);
  }
  const double values_per_block =
      static_cast<double>(geometry.values_per_token()) * flags.block_tokens;
  return nlohmann::ordered_json{
      {"kv_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"layers", config.layers},
      {"codec", CodecName(codec)},
      {"block_tokens", flags.block_tokens},
      {"tokens", flags.tokens},
      {"blocks", blocks},
      {"bytes_per_block", block_bytes},
      {"bytes_total", *bytes},
      {"bits_per_value", static_cast<double>(block_bytes) * 8 / values_per_block}};
}

int RunPlan(const PlanFlags& flags) {
  const auto plan = Plan(flags);
  if (!plan) return Report("plan", plan.error());
  if (flags.json) {
    PrintJson(*plan);
    return kOk;
  }
  for (const auto& [name, value] : plan->items()) {
    fmt::print("{:<16} {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  fmt::print("{:<16} {}\n", "total", FormatBytes((*plan)["bytes_total"].get<uint64_t>()));
  return kOk;
}

}  // namespace

void AddPlan(CLI::App& program, int& exit) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = program.add_subcommand("plan", "Blocks and bytes that a context will need");
  command->add_option("--config", flags->config, "The model's config.json")->required();
  command->add_option("--tokens", flags->tokens, "Context length")->required();
  command->add_option("--kv", flags->kv, "Codec of K and V")
      ->check(CodecValidator())
      ->capture_default_str();
  command->add_option("--block-tokens", flags->block_tokens, "Tokens per block")
      ->check(BlockTokensValidator())
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &exit] { exit = RunPlan(*flags); });
}

}  // namespace quire::app
