// What the cache's index holds, for /v1/cache: the prefix tree of published blocks, with who shares
// them, where they are and since when.
#ifndef QUIRE_SERVE_HTTP_INDEX_JSON_H_
#define QUIRE_SERVE_HTTP_INDEX_JSON_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "quire/stats.h"
#include "serve/http/api_error.h"

namespace quire::serve::http {

struct IndexJsonOptions {
  uint32_t block_tokens = 16;
  uint64_t runs_max = 2048;
  std::function<std::string(TenantId)> name_of;
};

/// {"blocks", "blocks_left_out", "runs": [{"parent": index or -1, "tenant", "first_token",
/// "tokens", "tier", "stored", "holders", "pinned", "age_s", "idle_s"}]}, parents before their
/// children. A run is as many blocks one after the other as are equal in all of these and have no
/// other continuation, so nothing that is known of a block is lost. Beyond runs_max, blocks are
/// counted as left out. A block whose parent is not among the entries begins a path.
///
/// "tier":   the fastest that has all of it: "memory", "store", or "none" where windows passed it
/// "stored": the store has a durable copy
OrderedJson IndexJson(std::span<const CacheEntry> entries, const IndexJsonOptions& options);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_INDEX_JSON_H_
