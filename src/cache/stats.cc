// Counters as JSON for programs and as text for people.
#include "cache/stats_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace quire {

namespace {

nlohmann::ordered_json JsonOf(const SlotClassStats& stats) {
  return {{"slot_bytes", stats.slot_bytes},
          {"slots_max", stats.slots_max},
          {"slots_used", stats.slots_used},
          {"slots_used_peak", stats.slots_used_peak}};
}

}  // namespace

nlohmann::ordered_json JsonOf(const CacheStats& stats) {
  return {{"hot_bytes_limit", stats.hot_bytes_limit},
          {"hot_bytes_used", stats.hot_bytes_used},
          {"hot_bytes_peak", stats.hot_bytes_peak},
          {"sealed", JsonOf(stats.sealed)},
          {"sealed_second", JsonOf(stats.sealed_second)},
          {"open", JsonOf(stats.open)},
          {"open_second", JsonOf(stats.open_second)},
          {"published_blocks", stats.published_blocks},
          {"evictable_blocks", stats.evictable_blocks},
          {"passed_blocks", stats.passed_blocks},
          {"hollow_blocks", stats.hollow_blocks},
          {"pinned_blocks", stats.pinned_blocks},
          {"twin_slots", stats.twin_slots},
          {"sequences", stats.sequences},
          {"sequence_bytes", stats.sequence_bytes},
          {"lookups", stats.lookups},
          {"lookup_tokens", stats.lookup_tokens},
          {"hit_tokens", stats.hit_tokens},
          {"approximate_hit_tokens", stats.approximate_hit_tokens},
          {"evicted_twins_total", stats.evicted_twins_total},
          {"key_error_mean", stats.key_error_mean},
          {"value_error_mean", stats.value_error_mean},
          {"published_total", stats.published_total},
          {"deduplicated_total", stats.deduplicated_total},
          {"evicted_total", stats.evicted_total},
          {"evicted_passed_total", stats.evicted_passed_total},
          {"refused_total", stats.refused_total},
          {"stored_blocks", stats.stored_blocks},
          {"unwritten_blocks", stats.unwritten_blocks},
          {"evicted_unwritten_total", stats.evicted_unwritten_total},
          {"loaded_total", stats.loaded_total},
          {"streamed_requests_total", stats.streamed_requests_total},
          {"streamed_bytes_total", stats.streamed_bytes_total},
          {"stream_wait_us_total", stats.stream_wait_us_total},
          {"codec_fallbacks", stats.codec_fallbacks}};
}

nlohmann::ordered_json JsonOf(const TenantStats& stats) {
  nlohmann::ordered_json missed;
  for (uint32_t i = 1; i < kMissReasonsEnd; ++i) {
    if (MissReasonName(static_cast<MissReason>(i)) == "unknown") continue;  // retired
    missed[std::string(MissReasonName(static_cast<MissReason>(i)))] = stats.missed_tokens[i];
  }
  nlohmann::ordered_json estimates;
  for (const LruEstimate& estimate : stats.lru_estimates) {
    estimates[fmt::format("{}x", estimate.size)] = estimate.hit_ratio;
  }
  return {{"name", stats.name},
          {"quota_bytes", stats.quota_bytes},
          {"floor_bytes", stats.floor_bytes},
          {"bytes_used", stats.bytes_used},
          {"bytes_peak", stats.bytes_peak},
          {"evictable_bytes", stats.evictable_bytes},
          {"published_blocks", stats.published_blocks},
          {"lookups", stats.lookups},
          {"lookup_tokens", stats.lookup_tokens},
          {"hit_tokens", stats.hit_tokens},
          {"missed_tokens", missed},
          {"evicted_total", stats.evicted_total},
          {"refused_total", stats.refused_total},
          {"erased_total", stats.erased_total},
          {"erase_pending_slots", stats.erase_pending_slots},
          {"pinned_blocks", stats.pinned_blocks},
          {"pinned_bytes", stats.pinned_bytes},
          {"store_records", stats.store_records},
          {"store_bytes", stats.store_bytes},
          {"store_space_bytes", stats.store_space_bytes},
          {"store_quota_bytes", stats.store_quota_bytes},
          {"store_floor_bytes", stats.store_floor_bytes},
          {"reuse_lookup_blocks", stats.reuse_lookup_blocks},
          {"lru_hit_ratio_at", estimates}};
}

namespace {

void AddLines(const nlohmann::ordered_json& object, const std::string& prefix, std::string& text) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      AddLines(value, prefix + name + ".", text);
    } else {
      text += fmt::format("{:<28} {:>16}\n", prefix + name, value.dump());
    }
  }
}

}  // namespace

std::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kNeverSeen: return "never_seen";
    case MissReason::kPartialBlock: return "partial_block";
    case MissReason::kDamaged: return "damaged";
    case MissReason::kNotAsked: return "not_asked";
    case MissReason::kWindowPassed: return "window_passed";
    case MissReason::kEvicted: return "evicted";
    case MissReason::kOtherProfile: return "other_profile";
    case MissReason::kExpired: return "expired";
    case MissReason::kQuota: return "quota";
    case MissReason::kNoTwin: return "no_twin";
    case MissReason::kApproximate: return "approximate";
    case MissReason::kNotLoaded: return "not_loaded";
    case MissReason::kLoadFailed: return "load_failed";
    case MissReason::kLoadLate: return "load_late";
  }
  return "unknown";
}

namespace {

nlohmann::ordered_json JsonOf(const RemoteStats& stats) {
  return {{"where", stats.where},
          {"breaker", BreakerStateName(stats.breaker)},
          {"epochs_known", stats.epochs_known},
          {"breaker_opened", stats.breaker_opened},
          {"hits", stats.hits},
          {"misses", stats.misses},
          {"rejected", stats.rejected},
          {"late", stats.late},
          {"failures", stats.failures},
          {"retries", stats.retries},
          {"written", stats.written},
          {"writes_failed", stats.writes_failed},
          {"writes_skipped", stats.writes_skipped},
          {"bytes_read", stats.bytes_read},
          {"bytes_written", stats.bytes_written},
          {"reading", stats.reading},
          {"writing", stats.writing},
          {"read_us_total", stats.read_us_total},
          {"write_us_total", stats.write_us_total},
          {"read_us_log2", stats.read_us_log2},
          {"write_us_log2", stats.write_us_log2}};
}

}  // namespace

std::string_view BreakerStateName(BreakerState state) {
  switch (state) {
    case BreakerState::kClosed: return "closed";
    case BreakerState::kOpen: return "open";
    case BreakerState::kProbing: return "probing";
  }
  return "unknown";
}

nlohmann::ordered_json JsonOf(const DiskStoreStats& stats) {
  nlohmann::ordered_json json{{"records", stats.records},
                              {"bytes", stats.bytes},
                              {"bytes_cap", stats.bytes_cap},
                              {"memory_bytes", stats.memory_bytes},
                              {"records_written", stats.records_written},
                              {"bytes_put", stats.bytes_put},
                              {"bytes_written", stats.bytes_written},
                              {"bytes_read", stats.bytes_read},
                              {"read_requests", stats.read_requests},
                              {"records_loaded", stats.records_loaded},
                              {"loads_failed", stats.loads_failed},
                              {"records_dropped", stats.records_dropped},
                              {"records_recycled", stats.records_recycled},
                              {"records_damaged", stats.records_damaged},
                              {"in_flight", stats.in_flight},
                              {"writes_pending", stats.writes_pending},
                              {"disk_full", stats.disk_full},
                              {"warm_records", stats.warm_records},
                              {"warm_bytes", stats.warm_bytes},
                              {"warm_loads", stats.warm_loads},
                              {"warm_pinned_bytes", stats.warm_pinned_bytes},
                              {"load_us_log2", stats.load_us_log2}};
  if (stats.remote) json["remote"] = JsonOf(*stats.remote);
  return json;
}

std::string ToJson(const DiskStoreStats& stats) { return JsonOf(stats).dump(); }

std::string ToJson(const CacheStats& stats) { return JsonOf(stats).dump(); }

std::string ToText(const CacheStats& stats) {
  std::string text;
  AddLines(JsonOf(stats), "", text);
  return text;
}

std::string ToJson(const TenantStats& stats) { return JsonOf(stats).dump(); }

std::string ToText(const TenantStats& stats) {
  std::string text;
  AddLines(JsonOf(stats), "", text);
  return text;
}

std::string ToJson(std::span<const CacheEntry> entries) {
  const auto key = [](uint64_t of) { return fmt::format("{:016x}", of); };
  auto json = nlohmann::ordered_json::array();
  for (const CacheEntry& entry : entries) {
    nlohmann::ordered_json parent;
    if (entry.parent_key != 0) parent = key(entry.parent_key);
    json.push_back({{"key", key(entry.key)},
                    {"parent_key", std::move(parent)},
                    {"account", entry.account.number()},
                    {"first_token", entry.first_token},
                    {"holders", entry.holders},
                    {"pinned", entry.pinned},
                    {"in_memory", entry.in_memory},
                    {"in_store", entry.in_store},
                    {"age_s", entry.age_s},
                    {"idle_s", entry.idle_s}});
  }
  return json.dump();
}

nlohmann::ordered_json JsonOf(std::span<const FreeRuns> classes) {
  auto json = nlohmann::ordered_json::array();
  for (const FreeRuns& runs : classes) {
    json.push_back({{"slots", runs.slots},
                    {"free_slots", runs.free_slots},
                    {"runs", runs.runs},
                    {"largest", runs.largest},
                    {"fragmentation", runs.fragmentation()}});
  }
  return json;
}

std::string ToJson(std::span<const FreeRuns> classes) { return JsonOf(classes).dump(); }

std::string ToJson(const SequenceStats& stats) {
  return nlohmann::ordered_json{{"tokens_used", stats.tokens_used},
                                {"tokens_reserved", stats.tokens_reserved},
                                {"tokens_max", stats.tokens_max},
                                {"blocks_shared", stats.blocks_shared},
                                {"blocks_own", stats.blocks_own},
                                {"bytes", stats.bytes},
                                {"tokens_streamed", stats.tokens_streamed},
                                {"tokens_approximate", stats.tokens_approximate},
                                {"approximate_error", stats.approximate_error}}
      .dump();
}

}  // namespace quire
