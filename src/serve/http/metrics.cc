#include "serve/http/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quire::serve::http {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

const prometheus::Histogram::BucketBoundaries kSeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300};

/// Families with the values of now, in the order in which they are first named.
class Snapshot {
 public:
  void Gauge(const std::string& name, const std::string& help, double value,
             const Labels& labels = {}) {
    ClientMetric metric;
    metric.gauge.value = value;
    Add(name, help, MetricType::Gauge, std::move(metric), labels);
  }
  void Counter(const std::string& name, const std::string& help, double value,
               const Labels& labels = {}) {
    ClientMetric metric;
    metric.counter.value = value;
    Add(name, help, MetricType::Counter, std::move(metric), labels);
  }
  /// Entry i of `log2` counts [2^i, 2^(i+1)) microseconds.
  void Seconds(const std::string& name, const std::string& help,
               const std::array<uint64_t, 32>& log2, uint64_t us_total) {
    ClientMetric metric;
    uint64_t count = 0;
    for (size_t i = 0; i < log2.size(); ++i) {
      count += log2[i];
      const double end_s = static_cast<double>(uint64_t{2} << i) / 1e6;
      metric.histogram.bucket.push_back({.cumulative_count = count, .upper_bound = end_s});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = static_cast<double>(us_total) / 1e6;
    Add(name, help, MetricType::Histogram, std::move(metric), {});
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  void Add(const std::string& name, const std::string& help, MetricType type, ClientMetric metric,
           const Labels& labels) {
    for (const auto& [label, value] : labels) metric.label.push_back({label, value});
    auto found = std::ranges::find(families_, name, &MetricFamily::name);
    if (found == families_.end()) {
      families_.push_back({name, help, type, {}});
      found = families_.end() - 1;
    }
    found->metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> families_;
};

double D(uint64_t number) { return static_cast<double>(number); }

void AddCache(Snapshot& to, const CacheStats& stats) {
  to.Counter(
      "quire_cache_streamed_bytes_total",
      "Read back from the store while layers attended to contexts that memory does not hold.",
      D(stats.streamed_bytes_total));
  to.Counter("quire_cache_stream_wait_seconds_total", "That attention waited for these bytes.",
             D(stats.stream_wait_us_total) / 1e6);
  to.Gauge("quire_cache_limit_bytes", "Budget of the cache.", D(stats.hot_bytes_limit));
  to.Gauge("quire_cache_used_bytes", "Slots in use with their metadata, and sequences.",
           D(stats.hot_bytes_used));
  to.Gauge("quire_cache_peak_bytes", "Most that was in use since the last resize.",
           D(stats.hot_bytes_peak));
  const std::string blocks = "Blocks of the cache by what may become of them.";
  to.Gauge("quire_cache_blocks", blocks, D(stats.published_blocks), {{"state", "published"}});
  to.Gauge("quire_cache_blocks", blocks, D(stats.evictable_blocks), {{"state", "evictable"}});
  to.Gauge("quire_cache_blocks", blocks, D(stats.pinned_blocks), {{"state", "pinned"}});
  const std::string slots = "Slots of the cache.";
  to.Gauge("quire_cache_slots", slots, D(stats.sealed.slots_used), {{"state", "used"}});
  to.Gauge("quire_cache_slots", slots, D(stats.sealed.slots_max - stats.sealed.slots_used),
           {{"state", "free"}});
  to.Gauge("quire_cache_sequences", "Open sequences.", D(stats.sequences));
  to.Counter("quire_cache_lookups_total", "Prompts looked up.", D(stats.lookups));
  to.Counter("quire_cache_lookup_tokens_total", "Prompt tokens asked for.", D(stats.lookup_tokens));
  to.Counter("quire_cache_hit_tokens_total", "Prompt tokens found.", D(stats.hit_tokens));
  to.Counter("quire_cache_approximate_hit_tokens_total",
             "Prompt tokens found in the lower precision of a ladder.",
             D(stats.approximate_hit_tokens));
  to.Counter("quire_cache_evicted_twins_total",
             "Blocks that were left in the lower precision of a ladder.",
             D(stats.evicted_twins_total));
  to.Counter("quire_cache_published_blocks_total", "Blocks published.", D(stats.published_total));
  to.Counter("quire_cache_deduplicated_blocks_total",
             "Blocks that two sequences computed at once; one copy was kept.",
             D(stats.deduplicated_total));
  to.Counter("quire_cache_evicted_blocks_total", "Blocks evicted.", D(stats.evicted_total));
  to.Counter("quire_cache_refused_total", "Requests that the budget refused.",
             D(stats.refused_total));
}

void AddEngine(Snapshot& to, const EngineStats& stats) {
  const std::string requests = "Requests in the engine.";
  to.Gauge("quire_engine_requests", requests, stats.waiting, {{"state", "waiting"}});
  to.Gauge("quire_engine_requests", requests, stats.running, {{"state", "running"}});
  to.Gauge("quire_engine_chunk_tokens", "Prompt tokens that the next step may compute.",
           stats.chunk_tokens);
  to.Counter("quire_engine_steps_total", "Steps of the model.", D(stats.steps));
  to.Counter("quire_engine_step_seconds_total", "Time of these steps.", D(stats.step_us) / 1e6);
  const std::string tokens = "Tokens computed.";
  to.Counter("quire_engine_tokens_total", tokens, D(stats.prompt_tokens), {{"kind", "prompt"}});
  to.Counter("quire_engine_tokens_total", tokens, D(stats.decode_tokens), {{"kind", "decode"}});
  to.Counter("quire_engine_recomputed_tokens_total", "Tokens computed again after a preemption.",
             D(stats.recomputed_tokens));
  to.Counter("quire_engine_loads_total", "Prompts of which the store had something.",
             D(stats.loads));
  to.Counter("quire_engine_loads_by_layer_total",
             "Prompts of which the rest was computed in the layers that had come.",
             D(stats.loads_by_layer));
  to.Counter("quire_engine_loaded_tokens_total", "Prompt tokens that came from the store.",
             D(stats.loaded_tokens));
  to.Counter("quire_engine_streams_total",
             "Starts of requests that stream what memory cannot hold whole.", D(stats.streamed));
  to.Counter("quire_engine_renewed_streams_total",
             "Of these, that began again before a block that the store lost.",
             D(stats.streams_renewed));
  to.Counter("quire_engine_spilled_total",
             "Requests that began to stream because memory had no room for them.",
             D(stats.spilled));
  to.Counter("quire_engine_brought_back_total", "Of these, that memory has whole again.",
             D(stats.brought_back));
  to.Counter("quire_engine_prefix_waits_total",
             "Requests that waited for a prefix that another one was computing.",
             D(stats.prefix_waits));
  to.Counter("quire_engine_preemptions_total", "Requests that lost their blocks and began again.",
             D(stats.preemptions));
  to.Counter("quire_engine_sessions_released_total", "Idle sessions that lost their blocks.",
             D(stats.sessions_released));
  to.Gauge("quire_adapters", "Adapters that calls may name.", D(stats.adapters));
  to.Gauge("quire_adapter_bytes", "Memory of adapters, those too that only calls under way have.",
           D(stats.adapter_bytes));
  to.Counter("quire_engine_session_write_failures_total",
             "Files of sessions that could not be written.", D(stats.session_write_failures));
}

void AddTransport(Snapshot& to, const TransportCounters& counters) {
  to.Gauge("quire_http_connections", "Open connections.", D(counters.connections));
  const std::string refused =
      "Connections that found no room, and idle ones without a key that were dropped for others.";
  const auto add = [&](const char* reason, uint64_t count) {
    to.Counter("quire_http_connections_refused_total", refused, D(count), {{"reason", reason}});
  };
  add("full", counters.refused_full);
  add("address", counters.refused_address);
  add("replaced", counters.replaced);
  to.Gauge("quire_http_body_bytes", "Room taken by bodies that are being read.",
           D(counters.body_bytes));
  to.Counter("quire_http_bodies_refused_total", "Bodies that there was no room for.",
             D(counters.bodies_refused));
  to.Counter("quire_access_log_lost_lines_total", "Lines that could not be written.",
             D(counters.log_lines_lost));
}

// The names that other programs' Prometheus libraries use.
void AddProcess(Snapshot& to, const ProcessStats& stats) {
  to.Gauge("process_resident_memory_bytes", "Memory in use, as the system counts it.",
           D(stats.resident_bytes));
  to.Gauge("process_virtual_memory_bytes", "Addresses in use.", D(stats.virtual_bytes));
  to.Counter("process_cpu_seconds_total", "Time of processors, of user and system.",
             stats.cpu_seconds);
  to.Gauge("process_start_time_seconds", "Unix time of the start.", stats.start_unix_seconds);
  to.Gauge("process_open_fds", "Open descriptors.", D(stats.open_descriptors));
  to.Gauge("process_max_fds", "Most descriptors there may be.", D(stats.descriptors_max));
}

void AddStore(Snapshot& to, const DiskStoreStats& stats) {
  to.Gauge("quire_store_used_bytes", "All files of the store.", D(stats.bytes));
  to.Gauge("quire_store_limit_bytes", "Most they may have together.", D(stats.bytes_cap));
  to.Gauge("quire_store_memory_bytes", "Index and staging.", D(stats.memory_bytes));
  to.Gauge("quire_store_records", "Blocks that can be found in it.", D(stats.records));
  to.Gauge("quire_store_pending_records", "Given to it and not durable yet.",
           D(stats.writes_pending));
  to.Gauge("quire_store_disk_full", "1: the disk took no more when it was last tried.",
           stats.disk_full ? 1 : 0);
  to.Gauge("quire_store_warm_records", "Records in the memory in front of the disk.",
           D(stats.warm_records));
  to.Gauge("quire_store_warm_bytes", "Bytes of these, with their bookkeeping.",
           D(stats.warm_bytes));
  to.Gauge("quire_store_warm_pinned_bytes", "Pinned memory taken for them.",
           D(stats.warm_pinned_bytes));
  to.Counter("quire_store_warm_loads_total", "Loads that this memory answered.",
             D(stats.warm_loads));
  to.Counter("quire_store_written_bytes_total", "Written to the disk.", D(stats.bytes_written));
  to.Counter("quire_store_read_bytes_total", "Read from the disk.", D(stats.bytes_read));
  to.Counter("quire_store_read_requests_total", "Requests of the disk, for loads.",
             D(stats.read_requests));
  to.Counter("quire_store_written_records_total", "Records written.", D(stats.records_written));
  to.Counter("quire_store_loaded_records_total", "Records loaded.", D(stats.records_loaded));
  to.Counter("quire_store_failed_loads_total", "Loads that brought nothing.",
             D(stats.loads_failed));
  to.Counter("quire_store_dropped_records_total", "Records that could not be written.",
             D(stats.records_dropped));
  to.Counter("quire_store_recycled_records_total", "Records that newer ones took the place of.",
             D(stats.records_recycled));
  to.Counter("quire_store_damaged_records_total", "Records found damaged, and forgotten.",
             D(stats.records_damaged));
}

void AddRemote(Snapshot& to, const RemoteStats& stats) {
  to.Gauge("quire_remote_breaker_open", "1: the remote is left alone until a probe succeeds.",
           stats.breaker == BreakerState::kClosed ? 0 : 1);
  to.Gauge("quire_remote_epochs_known",
           "1: what was erased elsewhere is known, so named tenants are served from it.",
           stats.epochs_known ? 1 : 0);
  to.Counter("quire_remote_breaker_opened_total", "How often it was left alone.",
             D(stats.breaker_opened));
  const std::string reads = "Records asked for, by what became of it.";
  to.Counter("quire_remote_reads_total", reads, D(stats.hits), {{"outcome", "hit"}});
  to.Counter("quire_remote_reads_total", reads, D(stats.misses), {{"outcome", "miss"}});
  to.Counter("quire_remote_reads_total", reads, D(stats.rejected), {{"outcome", "rejected"}});
  to.Counter("quire_remote_reads_total", reads, D(stats.late), {{"outcome", "late"}});
  const std::string writes = "Records to be written, by what became of it.";
  to.Counter("quire_remote_writes_total", writes, D(stats.written), {{"outcome", "written"}});
  to.Counter("quire_remote_writes_total", writes, D(stats.writes_failed), {{"outcome", "failed"}});
  to.Counter("quire_remote_writes_total", writes, D(stats.writes_skipped),
             {{"outcome", "skipped"}});
  to.Counter("quire_remote_failures_total", "Requests that failed or were refused.",
             D(stats.failures));
  to.Counter("quire_remote_retries_total", "Requests that were sent again.", D(stats.retries));
  to.Counter("quire_remote_read_bytes_total", "Received, sealed.", D(stats.bytes_read));
  to.Counter("quire_remote_written_bytes_total", "Sent, sealed.", D(stats.bytes_written));
  to.Gauge("quire_remote_under_way", "Records being read and written.",
           D(stats.reading + stats.writing));
  to.Seconds("quire_remote_read_seconds", "Time of reads that brought a record.",
             stats.read_us_log2, stats.read_us_total);
  to.Seconds("quire_remote_write_seconds", "Time of writes.", stats.write_us_log2,
             stats.write_us_total);
}

void AddEvents(Snapshot& to, const EventStats& stats) {
  to.Counter("quire_events_messages_total", "Messages published to subscribers.",
             D(stats.messages));
  const std::string blocks = "Blocks that subscribers were told of, by what became of them.";
  to.Counter("quire_events_blocks_total", blocks, D(stats.stored), {{"change", "stored"}});
  to.Counter("quire_events_blocks_total", blocks, D(stats.removed), {{"change", "removed"}});
  to.Counter("quire_events_replays_total", "Answers to subscribers that missed messages.",
             D(stats.replays));
  to.Counter("quire_events_snapshots_total", "Of these, with all blocks.", D(stats.snapshots));
}

void AddTenant(Snapshot& to, const TenantStats& stats) {
  const Labels tenant = {{"tenant", stats.name}};
  const auto with = [&](const std::string& label, const std::string& value) {
    Labels labels = tenant;
    labels.emplace_back(label, value);
    return labels;
  };
  to.Gauge("quire_tenant_used_bytes", "Slots and sequences that the tenant pays for.",
           D(stats.bytes_used), tenant);
  to.Gauge("quire_tenant_quota_bytes", "Most it may hold; 0: as much as the budget.",
           D(stats.quota_bytes), tenant);
  to.Gauge("quire_tenant_floor_bytes", "What the needs of others leave it.", D(stats.floor_bytes),
           tenant);
  to.Gauge("quire_tenant_published_blocks", "Published blocks charged to it.",
           D(stats.published_blocks), tenant);
  to.Counter("quire_tenant_lookups_total", "Prompts looked up.", D(stats.lookups), tenant);
  to.Counter("quire_tenant_lookup_tokens_total", "Prompt tokens asked for.", D(stats.lookup_tokens),
             tenant);
  to.Counter("quire_tenant_hit_tokens_total", "Prompt tokens found.", D(stats.hit_tokens), tenant);
  for (uint32_t i = 1; i < kMissReasonsEnd; ++i) {
    const std::string reason(MissReasonName(static_cast<MissReason>(i)));
    if (reason == "unknown") continue;  // retired
    to.Counter("quire_tenant_missed_tokens_total", "Prompt tokens not found, by the reason.",
               D(stats.missed_tokens[i]), with("reason", reason));
  }
  to.Counter("quire_tenant_evicted_blocks_total", "Blocks of it that were evicted.",
             D(stats.evicted_total), tenant);
  to.Counter("quire_tenant_refused_total", "Requests refused for want of room.",
             D(stats.refused_total), tenant);
  for (const LruEstimate& estimate : stats.lru_estimates) {
    to.Gauge("quire_tenant_lru_hit_ratio",
             "Share of blocks that recency would hit in a cache of another size.",
             estimate.hit_ratio, with("size", fmt::format("{}x", estimate.size)));
  }
}

void AddTenantBelow(Snapshot& to, const TenantStats& stats) {
  const Labels tenant = {{"tenant", stats.name}};
  to.Gauge("quire_tenant_store_records", "Blocks and twins of it that the store has.",
           D(stats.store_records), tenant);
  to.Gauge("quire_tenant_store_bytes", "What these take.", D(stats.store_bytes), tenant);
  to.Gauge("quire_tenant_store_space_bytes",
           "Its segments on the disk: what its limits there are compared with.",
           D(stats.store_space_bytes), tenant);
  to.Gauge("quire_tenant_store_quota_bytes", "Most it may have there; 0: as much as the store.",
           D(stats.store_quota_bytes), tenant);
  to.Gauge("quire_tenant_store_floor_bytes", "What others leave it there.",
           D(stats.store_floor_bytes), tenant);
}

bool IsOf(const ClientMetric& metric, const std::string& tenant) {
  return std::ranges::any_of(metric.label, [&](const ClientMetric::Label& label) {
    return label.name == "tenant" && label.value == tenant;
  });
}

}  // namespace

struct Metrics::Families {
  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Histogram>& duration;
  prometheus::Family<prometheus::Histogram>& first_token;
  prometheus::Family<prometheus::Histogram>& per_token;
  prometheus::Family<prometheus::Counter>& prompt_tokens;
  prometheus::Family<prometheus::Counter>& generated_tokens;
  prometheus::Family<prometheus::Counter>& preemptions;

  template <typename Family>
  static auto& Make(Family builder, const char* name, const char* help,
                    prometheus::Registry& registry) {
    return builder.Name(name).Help(help).Register(registry);
  }

  explicit Families(prometheus::Registry& registry)
      : requests(Make(prometheus::BuildCounter(), "quire_http_requests_total",
                      "Requests answered, by route and status.", registry)),
        duration(Make(prometheus::BuildHistogram(), "quire_http_request_duration_seconds",
                      "From the last byte of a request to the last of its answer.", registry)),
        first_token(Make(prometheus::BuildHistogram(), "quire_time_to_first_token_seconds",
                         "From a call's submission to the first token of its answer.", registry)),
        per_token(Make(prometheus::BuildHistogram(), "quire_time_per_output_token_seconds",
                       "Mean time between the later tokens of an answer.", registry)),
        prompt_tokens(Make(prometheus::BuildCounter(), "quire_prompt_tokens_total",
                           "Prompt tokens of calls that ended, by where they came from.",
                           registry)),
        generated_tokens(Make(prometheus::BuildCounter(), "quire_generated_tokens_total",
                              "Tokens generated for calls that ended.", registry)),
        preemptions(Make(prometheus::BuildCounter(), "quire_call_preemptions_total",
                         "How often calls that ended lost their blocks and began again.",
                         registry)) {}
};

Metrics::Metrics()
    : registry_(std::make_unique<prometheus::Registry>()),
      families_(std::make_unique<Families>(*registry_)) {}

Metrics::~Metrics() = default;

void Metrics::CountRequest(const std::string& tenant, const std::string& route, uint32_t status,
                           double seconds) {
  families_->requests
      .Add({{"tenant", tenant}, {"route", route}, {"status", std::to_string(status)}})
      .Increment();
  families_->duration.Add({{"tenant", tenant}, {"route", route}}, kSeconds).Observe(seconds);
}

void Metrics::CountCall(const std::string& tenant, const CallReport& report) {
  const auto tokens = [&](const char* from, uint64_t count) {
    families_->prompt_tokens.Add({{"tenant", tenant}, {"from", from}}).Increment(D(count));
  };
  tokens("cache", report.reused_tokens - std::min(report.loaded_tokens, report.reused_tokens));
  tokens("store", report.loaded_tokens);
  tokens("computed", report.computed_tokens);
  families_->generated_tokens.Add({{"tenant", tenant}}).Increment(D(report.generated_tokens));
  families_->preemptions.Add({{"tenant", tenant}}).Increment(D(report.preemptions));
  if (report.ttft_ms > 0) {
    families_->first_token.Add({{"tenant", tenant}}, kSeconds).Observe(report.ttft_ms / 1e3);
  }
  if (report.ms_per_token > 0) {
    families_->per_token.Add({{"tenant", tenant}}, kSeconds).Observe(report.ms_per_token / 1e3);
  }
}

std::string Metrics::Text(const MetricsSnapshot& snapshot,
                          const std::optional<std::string>& only) const {
  Snapshot now;
  if (!only) {
    now.Gauge("quire_build_info", "The version that runs, as a label.", 1,
              {{"version", snapshot.version}});
    if (snapshot.transport != nullptr) AddTransport(now, *snapshot.transport);
    if (snapshot.process) AddProcess(now, *snapshot.process);
    now.Gauge("quire_sessions", "Open sessions.", D(snapshot.sessions));
    now.Gauge("quire_budget_limit_bytes", "Budget of all caches together.",
              D(snapshot.budget_bytes));
    now.Gauge("quire_budget_used_bytes", "What is charged to it.", D(snapshot.budget_used_bytes));
    now.Gauge("quire_budget_leased_bytes", "Leased to others, and not of that limit.",
              D(snapshot.budget_leased_bytes));
  }
  if (snapshot.cache) AddCache(now, *snapshot.cache);
  if (snapshot.engine) AddEngine(now, *snapshot.engine);
  if (snapshot.store) AddStore(now, *snapshot.store);
  if (snapshot.store && snapshot.store->remote) AddRemote(now, *snapshot.store->remote);
  if (snapshot.events) AddEvents(now, *snapshot.events);
  for (const TenantStats& tenant : snapshot.tenants) {
    AddTenant(now, tenant);
    if (snapshot.has_store) AddTenantBelow(now, tenant);
  }
  std::vector<MetricFamily> families = now.Take();
  for (MetricFamily& family : registry_->Collect()) {
    if (only) {
      std::erase_if(family.metric, [&](const auto& metric) { return !IsOf(metric, *only); });
    }
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

namespace {

using Children = std::vector<std::vector<uint32_t>>;  // by number of an entry; the last: of no one

Children ChildrenOf(std::span<const CacheEntry> entries) {
  std::unordered_map<uint64_t, uint32_t> by_key;
  for (uint32_t i = 0; i < entries.size(); ++i) by_key.emplace(entries[i].key, i);
  Children children(entries.size() + 1);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const auto parent = by_key.find(entries[i].parent_key);
    // Blocks that came during the look: a path cannot go up.
    const bool known =
        parent != by_key.end() && entries[parent->second].first_token < entries[i].first_token;
    children[known ? parent->second : entries.size()].push_back(i);
  }
  for (auto& of_one : children) {
    std::ranges::sort(of_one, {}, [&](uint32_t i) {
      return std::tuple(entries[i].account, entries[i].first_token, entries[i].key);
    });
  }
  return children;
}

bool SameButTokens(CacheEntry a, const CacheEntry& b) {
  a.key = b.key;
  a.parent_key = b.parent_key;
  a.first_token = b.first_token;
  return a == b;
}

std::string_view TierOf(const CacheEntry& entry) {
  return entry.in_memory ? "memory" : entry.in_store ? "store" : "none";
}

}  // namespace

OrderedJson IndexJson(std::span<const CacheEntry> entries, const IndexJsonOptions& options) {
  const Children children = ChildrenOf(entries);
  OrderedJson runs = OrderedJson::array();
  std::vector<std::pair<uint32_t, int64_t>> todo;  // an entry, and the run before it
  const auto push_children = [&](size_t of, int64_t run) {
    for (auto i = children[of].rbegin(); i != children[of].rend(); ++i) todo.emplace_back(*i, run);
  };
  push_children(entries.size(), -1);
  uint64_t shown = 0;
  while (!todo.empty() && runs.size() < options.runs_max) {
    const auto [first, parent] = todo.back();
    todo.pop_back();
    const CacheEntry& entry = entries[first];
    uint32_t last = first;
    uint64_t blocks = 1;
    while (children[last].size() == 1 && SameButTokens(entries[children[last][0]], entry)) {
      last = children[last][0];
      ++blocks;
    }
    shown += blocks;
    push_children(last, static_cast<int64_t>(runs.size()));
    runs.push_back({{"parent", parent},
                    {"tenant", options.name_of(entry.account)},
                    {"first_token", entry.first_token},
                    {"tokens", blocks * options.block_tokens},
                    {"tier", TierOf(entry)},
                    {"stored", entry.in_store},
                    {"holders", entry.holders},
                    {"pinned", entry.pinned},
                    {"age_s", entry.age_s},
                    {"idle_s", entry.idle_s}});
  }
  return {{"blocks", entries.size()},
          {"blocks_left_out", entries.size() - shown},
          {"runs", std::move(runs)}};
}

}  // namespace quire::serve::http
