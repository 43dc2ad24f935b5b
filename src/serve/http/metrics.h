// Counters of requests, and the text that Prometheus reads: those and what cache and engine count.
#ifndef QUIRE_SERVE_HTTP_METRICS_H_
#define QUIRE_SERVE_HTTP_METRICS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/disk_store.h"
#include "quire/stats.h"
#include "serve/engine.h"
#include "serve/http/call.h"

namespace prometheus {
class Registry;
}

namespace quire::serve::http {

/// What is read when somebody asks.
struct MetricsSnapshot {
  // Of the whole: absent for a tenant's eyes.
  std::optional<CacheStats> cache{};
  std::optional<DiskStoreStats> store{};
  std::optional<EngineStats> engine{};
  uint64_t budget_bytes = 0;
  uint64_t budget_used_bytes = 0;
  uint64_t connections = 0;
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

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_METRICS_H_
