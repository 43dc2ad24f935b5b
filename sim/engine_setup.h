// The engine that a seed draws: its model, its cache, its tenants and its limits.
#ifndef QUIRE_SIM_ENGINE_SETUP_H_
#define QUIRE_SIM_ENGINE_SETUP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "model/config.h"
#include "model/model.h"
#include "quire/cache.h"
#include "serve/engine.h"

namespace quire::sim {

/// A tenant of the simulated engine, or a domain. Quota and floor are in eighths of the budget it
/// starts with.
struct EngineParty {
  const char* name = "";
  const char* domain = "";
  bool shared = false;  // a domain, which makes no requests itself
  uint64_t quota_eighths = 0;
  uint64_t floor_eighths = 0;
};
inline constexpr std::array<EngineParty, 6> kEngineParties = {{
    {.name = "default"},  // requests that name no tenant
    {.name = "alice", .quota_eighths = 4},
    {.name = "bob", .floor_eighths = 2},
    {.name = "team", .shared = true},
    {.name = "ann", .domain = "team"},
    {.name = "ben", .domain = "team"},
}};

struct EngineSetup {
  model::ModelConfig model{};
  CacheOptions cache{};  // without a store
  serve::EngineOptions engine{};
  uint64_t charge_bytes = 0;      // most that one block and its open forms are charged
  std::vector<double> weights{};  // of the parties

  uint32_t block_tokens() const { return cache.profile.block_tokens; }
};

/// The account that pays for a party: itself, or its domain.
uint32_t AccountOf(uint32_t party);

/// Draws one. The clock is the cache's. `streams`: contexts larger than memory stream, where layers
/// can.
EngineSetup DrawEngineSetup(Prng& prng, const Clock& clock, bool streams, std::string_view ladder);

std::unique_ptr<model::Model> MakeSimModel(const model::ModelConfig& config);
Identity IdentityOf(const model::Model& model);

/// The bytes that quotas and floors are shares of; 0: there are none.
struct PartyBytes {
  uint64_t quotas_of = 0;
  uint64_t floors_of = 0;
};
/// Adds the parties to a cache; their ids, in order.
std::array<TenantId, kEngineParties.size()> AddParties(Cache& cache, const PartyBytes& bytes);

}  // namespace quire::sim

#endif  // QUIRE_SIM_ENGINE_SETUP_H_
