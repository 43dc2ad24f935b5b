#include "sim/engine_setup.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "cache/test_util.h"
#include "model/random_model.h"

namespace quire::sim {
namespace {

constexpr uint64_t kTokensMax = 4096;

model::ModelConfig DrawModel(Prng& prng) {
  model::ModelConfig config = model::SmallConfig();
  config.layers = 1 + static_cast<uint32_t>(prng.NextBelow(2));
  config.hidden = 16;
  config.intermediate = 16;
  config.query_heads = 2;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.vocab = 32;
  config.positions_max = kTokensMax;
  if (prng.NextChance(4)) {  // the last layer, which may be the only one
    config.window_tokens = 24;
    config.window_layers = {config.layers - 1};
  }
  return config;
}

NumericProfile DrawProfile(Prng& prng) {
  const uint32_t block_tokens = prng.NextChance(4) ? 32 : 16;
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16, block_tokens);
  if (!prng.NextChance(2)) return profile;
  profile = NumericProfile::Uniform(Codec::kInt8, block_tokens);
  profile.open_dtype = Codec::kF16;
  profile.residual_tokens = static_cast<uint32_t>(prng.NextBelow(2)) * block_tokens;
  return profile;
}

// The charge of one block with its open forms, which twins keep.
uint64_t ChargeOf(CacheOptions options) {
  options.hot_bytes = uint64_t{1} << 26;
  const CacheStats stats = cache::MakeCache(options)->stats();
  uint64_t bytes = 0;
  for (const SlotClassStats& of :
       {stats.sealed, stats.sealed_second, stats.open, stats.open_second}) {
    if (of.slots_max > 0) bytes += options.hot_bytes / of.slots_max;
  }
  return bytes;
}

}  // namespace

uint32_t AccountOf(uint32_t party) {
  const std::string_view domain = kEngineParties[party].domain;
  if (domain.empty()) return party;
  const auto account = std::ranges::find(kEngineParties, domain, &EngineParty::name);
  return static_cast<uint32_t>(account - kEngineParties.begin());
}

EngineSetup DrawEngineSetup(Prng& prng, const Clock& clock, bool streams, std::string_view ladder) {
  constexpr std::array<const char*, 4> kPolicies = {"lru", "priority", "token_limit", "quire"};
  EngineSetup setup;
  setup.model = DrawModel(prng);
  setup.cache = {.geometry = model::GeometryOf(setup.model),
                 .profile = DrawProfile(prng),
                 .tokens_max = kTokensMax,
                 .clock = &clock,
                 .policy = kPolicies[prng.NextBelow(kPolicies.size())]};
  if (!ladder.empty() && setup.model.window_layers.empty()) {
    cache::Must(SetLadder(ladder, setup.cache.profile));
  }
  // From a cache that holds one request to one that holds all.
  const uint64_t blocks = prng.NextChance(3) ? 200 : 8 + prng.NextBelow(30);
  setup.charge_bytes = ChargeOf(setup.cache);
  setup.cache.hot_bytes = setup.charge_bytes * blocks;
  setup.cache.hot_bytes_max = 2 * setup.cache.hot_bytes;
  const uint32_t chunk = 1U << prng.NextBelow(7);
  constexpr std::array kLoads = {serve::LoadPolicy::kAlways, serve::LoadPolicy::kAuto,
                                 serve::LoadPolicy::kNever, serve::LoadPolicy::kBoth};
  setup.engine = {
      .chunk_tokens_min = chunk,
      .chunk_tokens_max = chunk << prng.NextBelow(3),
      .admission = prng.NextChance(2) ? serve::Admission::kGrow : serve::Admission::kWhole,
      .running_max = 1 + static_cast<uint32_t>(prng.NextBelow(8)),
      .requests_max = 4 + static_cast<uint32_t>(prng.NextBelow(24)),
      .sessions_max = 2 + static_cast<uint32_t>(prng.NextBelow(8)),
      .events_max = 8 + static_cast<uint32_t>(prng.NextBelow(20)),
      .stall_us = 1000 + prng.NextBelow(50'000),
      .aging_us = 20'000,
      .outside_retry_us = prng.NextChance(3) ? 5000U : 0U,
      .load = kLoads[prng.NextBelow(kLoads.size())],
      .idle_text_bytes = prng.NextChance(2) ? 0U : 1U << 20};
  for (size_t i = 0; i < kEngineParties.size(); ++i) {
    setup.weights.push_back(1.0 + static_cast<double>(prng.NextBelow(3)));
  }
  setup.engine.load_slice_bytes = prng.NextChance(2) ? 1 : uint64_t{1} << 20;  // by layer, or not
  const bool all_windowed = setup.model.window_layers.size() == setup.model.layers;
  if (!streams || all_windowed || setup.cache.profile.residual_tokens > 0) return setup;
  // The ring of a context that streams and its last tokens take more than other contexts.
  setup.cache.hot_bytes = setup.charge_bytes * (90 + prng.NextBelow(40));
  setup.cache.hot_bytes_max = 2 * setup.cache.hot_bytes;
  setup.engine.chunk_tokens_min = std::clamp(setup.engine.chunk_tokens_min, 8U, 16U);
  setup.engine.chunk_tokens_max = std::max(setup.engine.chunk_tokens_max, 16U);
  setup.engine.resident_tokens = 1 + prng.NextBelow(100);
  return setup;
}

std::unique_ptr<model::Model> MakeSimModel(const model::ModelConfig& config) {
  return cache::Must(
      model::Model::Create(config, model::RandomTensors(config, ComputeType::kF32, 7), {}));
}

Identity IdentityOf(const model::Model& model) {
  return {.weights = model.fingerprint(), .domain = {.name = "sim"}};
}

std::array<TenantId, kEngineParties.size()> AddParties(Cache& cache, const PartyBytes& bytes) {
  std::array<TenantId, kEngineParties.size()> tenants{};
  tenants[0] = kDefaultTenant;
  for (size_t i = 1; i < kEngineParties.size(); ++i) {
    const EngineParty& party = kEngineParties[i];
    tenants[i] =
        cache::Must(cache.AddTenant({.name = party.name,
                                     .quota_bytes = bytes.quotas_of * party.quota_eighths / 8,
                                     .floor_bytes = bytes.floors_of * party.floor_eighths / 8,
                                     .domain = party.domain,
                                     .shared = party.shared}));
  }
  return tenants;
}

}  // namespace quire::sim
