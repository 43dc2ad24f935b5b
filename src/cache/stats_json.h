// Statistics as JSON values, for programs that put them into a larger answer.
#ifndef QUIRE_CACHE_STATS_JSON_H_
#define QUIRE_CACHE_STATS_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "quire/cache.h"
#include "quire/disk_store.h"
#include "quire/stats.h"

namespace quire {

/// As the public ToJson of the same.
nlohmann::ordered_json JsonOf(const CacheStats& stats);
nlohmann::ordered_json JsonOf(const TenantStats& stats);
nlohmann::ordered_json JsonOf(const DiskStoreStats& stats);
nlohmann::ordered_json JsonOf(std::span<const FreeRuns> classes);

}  // namespace quire

#endif  // QUIRE_CACHE_STATS_JSON_H_
