// What an operator sees of cache and engine: counters, as the text that Prometheus reads, and the
// index as JSON.
#ifndef QUIRE_SERVE_HTTP_METRICS_H_
#define QUIRE_SERVE_HTTP_METRICS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/disk_store.h"
#include "quire/events.h"
#include "quire/stats.h"
#include "serve/engine.h"
#include "serve/http/api_error.h"
#include "serve/http/call.h"
#include "serve/http/process_stats.h"

namespace prometheus {
class Registry;
}

namespace quire::serve::http {

/// What connections count.
///
/// Threads: any
struct TransportCounters {
  std::atomic<uint64_t> connections = 0;      // now
  std::atomic<uint64_t> refused_full = 0;     // connections, for want of room in all
  std::atomic<uint64_t> refused_address = 0;  // ... of their address
  std::atomic<uint64_t> replaced = 0;         // idle ones without a key that made room
  std::atomic<uint64_t> body_bytes = 0;       // charged now for bodies that are being read
  std::atomic<uint64_t> body_bytes_read = 0;
  std::atomic<uint64_t> bodies_refused = 0;  // for want of room among these
  std::atomic<uint64_t> log_lines_lost = 0;  // of the access log
};

/// What is read when it is asked for.
struct MetricsSnapshot {
  // Of the whole: absent for a tenant's eyes.
  std::optional<CacheStats> cache{};
  std::optional<DiskStoreStats> store{};
  std::optional<EngineStats> engine{};
  std::optional<EventStats> events{};
  uint64_t budget_bytes = 0;
  uint64_t budget_used_bytes = 0;
  uint64_t budget_leased_bytes = 0;
  const TransportCounters* transport = nullptr;
  std::optional<ProcessStats> process{};
  uint64_t sessions = 0;
  std::string version{};
  bool has_store = false;
  std::vector<TenantStats> tenants{};  // those that may be seen
};

/// Threads: any
class Metrics {
 public:
  Metrics();
  ~Metrics();

  /// A request of any kind was answered. `route` is one of a few fixed names.
  void CountRequest(const std::string& tenant, const std::string& route, uint32_t status,
                    double seconds);
  /// A call of the completions API has ended.
  void CountCall(const std::string& tenant, const CallReport& report);

  /// Exposition format 0.0.4. With `only`, the lines of that tenant alone.
  std::string Text(const MetricsSnapshot& snapshot, const std::optional<std::string>& only) const;

 private:
  struct Families;
  const std::unique_ptr<prometheus::Registry> registry_;
  const std::unique_ptr<Families> families_;
};

// What the cache's index holds, for /v1/cache: the prefix tree of published blocks, which tenants
// share them, where they are and since when.

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

#endif  // QUIRE_SERVE_HTTP_METRICS_H_
