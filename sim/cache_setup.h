// The caches that a seed draws.
#ifndef QUIRE_SIM_CACHE_SETUP_H_
#define QUIRE_SIM_CACHE_SETUP_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "cache/test_util.h"
#include "quire/cache.h"

namespace quire::sim {

inline CacheOptions DrawCacheOptions(Prng& prng, const Clock& clock) {
  constexpr uint32_t kBlock = 16;  // tokens
  CacheOptions options;
  Geometry geometry = cache::SmallGeometry();
  LayerGroup window = geometry.groups[0];
  window.kind = LayerKind::kWindow;
  window.window_tokens = 2 * kBlock + 3;
  const uint64_t layers = prng.NextBelow(3);  // full, a window, both
  if (layers == 1) geometry.groups[0] = window;
  if (layers == 2) {
    window.layers = {2, 3};
    geometry.groups.push_back(window);
  }
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  if (prng.NextChance(4)) {
    options.layout = ArenaLayout::kLayerMajor;
  } else if (prng.NextChance(2)) {
    profile = NumericProfile::Uniform(Codec::kInt8);
    profile.open_dtype = Codec::kF16;
    profile.residual_tokens = static_cast<uint32_t>(prng.NextBelow(3)) * kBlock;
  }
  constexpr std::array<const char*, 4> kPolicies = {"lru", "priority", "token_limit", "quire"};
  options.geometry = std::move(geometry);
  options.profile = std::move(profile);
  options.policy = kPolicies[prng.NextBelow(kPolicies.size())];
  options.hot_bytes = (20 + prng.NextBelow(50)) * (layers == 2 ? 20'000 : 10'000);
  options.hot_bytes_max = 2 * options.hot_bytes;
  options.clock = &clock;
  return options;
}

inline std::array<Identity, 2> TwoIdentities() {
  std::array<Identity, 2> two = {cache::SomeIdentity(), cache::SomeIdentity()};
  two[1].weights = {2};
  return two;
}

/// Whether loads from the end can run while the beginning of the prompt is computed.
inline bool CanMeet(const CacheOptions& options) {
  const std::vector<LayerGroup>& groups = options.geometry.groups;
  return groups.size() == 1 && groups[0].window_tokens == 0 && options.profile.residual_tokens == 0;
}

/// The precision ladder of some seeds; of the others empty.
inline std::string_view LadderOf(uint64_t seed) {
  if (seed % 13 != 8) return {};
  return seed % 2 == 0 ? "f16:int4" : "f16:int8:int4";
}

/// Whether a precision ladder is possible.
inline bool CanHaveLadder(const CacheOptions& options) {
  const std::vector<LayerGroup>& groups = options.geometry.groups;
  return groups.size() == 1 && groups[0].window_tokens == 0 &&
         options.layout == ArenaLayout::kBlockMajor;
}

/// Where caches with CacheGuests place their slots.
inline Placement PlacementOf(uint64_t seed) {
  constexpr std::array kPlacements = {Placement::kFreeList, Placement::kFirstFit,
                                      Placement::kBestFit, Placement::kBuddy};
  return kPlacements[seed % kPlacements.size()];
}

/// Not the seeds that found something before devices were simulated.
inline bool IsOnDevice(uint64_t seed) { return seed % 11 == 1 || seed % 11 == 3 || seed % 11 == 6; }

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_SETUP_H_
