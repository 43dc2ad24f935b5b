#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/prng.h"
#include "serve/http/metrics.h"

namespace quire::serve::http {
namespace {

/// The lines that are no comments.
std::vector<std::string> ValuesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && !line.starts_with('#')) lines.push_back(line);
  }
  return lines;
}

TEST(Metrics, OfTheWholeServer) {
  TransportCounters transport;
  transport.connections = 3;
  transport.refused_full = 201;
  transport.refused_address = 202;
  transport.replaced = 203;
  transport.body_bytes = 204;
  transport.bodies_refused = 205;
  transport.log_lines_lost = 206;
  MetricsSnapshot snapshot{.budget_bytes = 1,
                           .budget_used_bytes = 2,
                           .budget_leased_bytes = 218,
                           .transport = &transport,
                           .process = ProcessStats{.resident_bytes = 211,
                                                   .virtual_bytes = 212,
                                                   .cpu_seconds = 213.5,
                                                   .start_unix_seconds = 214.5,
                                                   .open_descriptors = 215,
                                                   .descriptors_max = 216},
                           .sessions = 4,
                           .version = "5.6"};
  snapshot.cache = CacheStats{.hot_bytes_limit = 11,
                              .hot_bytes_used = 12,
                              .hot_bytes_peak = 13,
                              .sealed = {.slots_max = 50, .slots_used = 14},
                              .sealed_second = {},
                              .open = {},
                              .open_second = {},
                              .published_blocks = 15,
                              .evictable_blocks = 16,
                              .pinned_blocks = 17,
                              .sequences = 18,
                              .lookups = 19,
                              .lookup_tokens = 20,
                              .hit_tokens = 21,
                              .published_total = 22,
                              .deduplicated_total = 23,
                              .evicted_total = 24,
                              .refused_total = 25,
                              .streamed_bytes_total = 26,
                              .stream_wait_us_total = 27'500'000};
  snapshot.store = DiskStoreStats{.records = 31,
                                  .bytes = 32,
                                  .bytes_cap = 33,
                                  .memory_bytes = 34,
                                  .records_written = 35,
                                  .bytes_written = 36,
                                  .bytes_read = 37,
                                  .read_requests = 48,
                                  .records_loaded = 38,
                                  .loads_failed = 39,
                                  .records_dropped = 40,
                                  .records_recycled = 41,
                                  .records_damaged = 42,
                                  .writes_pending = 43,
                                  .disk_full = true,
                                  .warm_records = 44,
                                  .warm_bytes = 45,
                                  .warm_loads = 46,
                                  .warm_pinned_bytes = 47};
  snapshot.engine = EngineStats{.steps = 61,
                                .step_us = 62'500'000,
                                .prompt_tokens = 63,
                                .decode_tokens = 64,
                                .recomputed_tokens = 65,
                                .loads = 66,
                                .loads_by_layer = 77,
                                .loaded_tokens = 67,
                                .streamed = 68,
                                .streams_renewed = 69,
                                .spilled = 77,
                                .brought_back = 78,
                                .prefix_waits = 70,
                                .preemptions = 71,
                                .sessions_released = 72,
                                .session_write_failures = 73,
                                .waiting = 74,
                                .running = 75,
                                .chunk_tokens = 76,
                                .adapters = 77,
                                .adapter_bytes = 78};
  EXPECT_THAT(ValuesOf(Metrics().Text(snapshot, std::nullopt)),
              testing::UnorderedElementsAreArray(ValuesOf(R"(
quire_build_info{version="5.6"} 1
quire_http_connections 3
quire_http_connections_refused_total{reason="full"} 201
quire_http_connections_refused_total{reason="address"} 202
quire_http_connections_refused_total{reason="replaced"} 203
quire_http_body_bytes 204
quire_http_bodies_refused_total 205
quire_access_log_lost_lines_total 206
process_resident_memory_bytes 211
process_virtual_memory_bytes 212
process_cpu_seconds_total 213.5
process_start_time_seconds 214.5
process_open_fds 215
process_max_fds 216
quire_sessions 4
quire_budget_limit_bytes 1
quire_budget_used_bytes 2
quire_budget_leased_bytes 218
quire_cache_streamed_bytes_total 26
quire_cache_stream_wait_seconds_total 27.5
quire_cache_limit_bytes 11
quire_cache_used_bytes 12
quire_cache_peak_bytes 13
quire_cache_blocks{state="published"} 15
quire_cache_blocks{state="evictable"} 16
quire_cache_blocks{state="pinned"} 17
quire_cache_slots{state="used"} 14
quire_cache_slots{state="free"} 36
quire_cache_sequences 18
quire_cache_lookups_total 19
quire_cache_lookup_tokens_total 20
quire_cache_hit_tokens_total 21
quire_cache_approximate_hit_tokens_total 0
quire_cache_evicted_twins_total 0
quire_cache_published_blocks_total 22
quire_cache_deduplicated_blocks_total 23
quire_cache_evicted_blocks_total 24
quire_cache_refused_total 25
quire_engine_requests{state="waiting"} 74
quire_engine_requests{state="running"} 75
quire_engine_chunk_tokens 76
quire_engine_steps_total 61
quire_engine_step_seconds_total 62.5
quire_engine_tokens_total{kind="prompt"} 63
quire_engine_tokens_total{kind="decode"} 64
quire_engine_recomputed_tokens_total 65
quire_engine_loads_total 66
quire_engine_loads_by_layer_total 77
quire_engine_loaded_tokens_total 67
quire_engine_streams_total 68
quire_engine_renewed_streams_total 69
quire_engine_spilled_total 77
quire_engine_brought_back_total 78
quire_engine_prefix_waits_total 70
quire_engine_preemptions_total 71
quire_engine_sessions_released_total 72
quire_adapters 77
quire_adapter_bytes 78
quire_engine_session_write_failures_total 73
quire_store_used_bytes 32
quire_store_limit_bytes 33
quire_store_memory_bytes 34
quire_store_records 31
quire_store_pending_records 43
quire_store_disk_full 1
quire_store_warm_records 44
quire_store_warm_bytes 45
quire_store_warm_pinned_bytes 47
quire_store_warm_loads_total 46
quire_store_written_bytes_total 36
quire_store_read_bytes_total 37
quire_store_read_requests_total 48
quire_store_written_records_total 35
quire_store_loaded_records_total 38
quire_store_failed_loads_total 39
quire_store_dropped_records_total 40
quire_store_recycled_records_total 41
quire_store_damaged_records_total 42)")));
}

TEST(Metrics, OfATenant) {
  TenantStats tenant{.name = "alice",
                     .quota_bytes = 11,
                     .floor_bytes = 12,
                     .bytes_used = 13,
                     .published_blocks = 14,
                     .lookups = 15,
                     .lookup_tokens = 16,
                     .hit_tokens = 17,
                     .evicted_total = 18,
                     .refused_total = 19,
                     .store_records = 20,
                     .store_bytes = 21,
                     .store_space_bytes = 22,
                     .store_quota_bytes = 23,
                     .store_floor_bytes = 24};
  for (uint32_t i = 0; i < kMissReasonsEnd; ++i) tenant.missed_tokens[i] = 30 + i;
  for (uint32_t i = 0; i < 4; ++i) tenant.lru_estimates[i].hit_ratio = 0.25 * i;
  MetricsSnapshot snapshot{.has_store = true, .tenants = {tenant}};
  Metrics metrics;
  for (const char* const name : {"alice", "bob"}) {
    metrics.CountRequest(name, "completions", 200, 0.5);
    metrics.CountRequest(name, "completions", 429, 1.5);
    metrics.CountCall(name, {.reused_tokens = 9,
                             .loaded_tokens = 4,
                             .computed_tokens = 51,
                             .generated_tokens = 52,
                             .preemptions = 53,
                             .ttft_ms = 250,
                             .ms_per_token = 125});
  }
  const auto is_bucket = [](const std::string& line) {
    return line.find("_bucket{") != std::string::npos;
  };
  std::vector<std::string> lines = ValuesOf(metrics.Text(snapshot, "alice"));
  std::vector<std::string> bounds;  // of one histogram
  for (const std::string& line : lines) {
    if (!line.starts_with("quire_time_to_first_token_seconds_bucket")) continue;
    const size_t begin = line.find("le=\"") + 4;
    bounds.push_back(line.substr(begin, line.find('"', begin) - begin));
  }
  EXPECT_THAT(bounds, testing::ElementsAre("0.001", "0.0025", "0.005", "0.01", "0.025", "0.05",
                                           "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "25", "60",
                                           "120", "300", "+Inf"));
  std::erase_if(lines, is_bucket);
  EXPECT_THAT(lines, testing::UnorderedElementsAreArray(ValuesOf(R"(
quire_tenant_used_bytes{tenant="alice"} 13
quire_tenant_quota_bytes{tenant="alice"} 11
quire_tenant_floor_bytes{tenant="alice"} 12
quire_tenant_published_blocks{tenant="alice"} 14
quire_tenant_lookups_total{tenant="alice"} 15
quire_tenant_lookup_tokens_total{tenant="alice"} 16
quire_tenant_hit_tokens_total{tenant="alice"} 17
quire_tenant_missed_tokens_total{tenant="alice",reason="never_seen"} 31
quire_tenant_missed_tokens_total{tenant="alice",reason="partial_block"} 32
quire_tenant_missed_tokens_total{tenant="alice",reason="damaged"} 33
quire_tenant_missed_tokens_total{tenant="alice",reason="not_asked"} 34
quire_tenant_missed_tokens_total{tenant="alice",reason="window_passed"} 35
quire_tenant_missed_tokens_total{tenant="alice",reason="evicted"} 36
quire_tenant_missed_tokens_total{tenant="alice",reason="other_profile"} 37
quire_tenant_missed_tokens_total{tenant="alice",reason="expired"} 38
quire_tenant_missed_tokens_total{tenant="alice",reason="quota"} 39
quire_tenant_missed_tokens_total{tenant="alice",reason="no_twin"} 40
quire_tenant_missed_tokens_total{tenant="alice",reason="not_loaded"} 42
quire_tenant_missed_tokens_total{tenant="alice",reason="load_failed"} 43
quire_tenant_missed_tokens_total{tenant="alice",reason="load_late"} 44
quire_tenant_missed_tokens_total{tenant="alice",reason="approximate"} 45
quire_tenant_evicted_blocks_total{tenant="alice"} 18
quire_tenant_refused_total{tenant="alice"} 19
quire_tenant_lru_hit_ratio{tenant="alice",size="0.5x"} 0
quire_tenant_lru_hit_ratio{tenant="alice",size="1x"} 0.25
quire_tenant_lru_hit_ratio{tenant="alice",size="2x"} 0.5
quire_tenant_lru_hit_ratio{tenant="alice",size="4x"} 0.75
quire_tenant_store_records{tenant="alice"} 20
quire_tenant_store_bytes{tenant="alice"} 21
quire_tenant_store_space_bytes{tenant="alice"} 22
quire_tenant_store_quota_bytes{tenant="alice"} 23
quire_tenant_store_floor_bytes{tenant="alice"} 24
quire_http_requests_total{route="completions",status="429",tenant="alice"} 1
quire_http_requests_total{route="completions",status="200",tenant="alice"} 1
quire_prompt_tokens_total{from="computed",tenant="alice"} 51
quire_prompt_tokens_total{from="store",tenant="alice"} 4
quire_prompt_tokens_total{from="cache",tenant="alice"} 5
quire_generated_tokens_total{tenant="alice"} 52
quire_call_preemptions_total{tenant="alice"} 53
quire_http_request_duration_seconds_count{route="completions",tenant="alice"} 2
quire_http_request_duration_seconds_sum{route="completions",tenant="alice"} 2
quire_time_to_first_token_seconds_count{tenant="alice"} 1
quire_time_to_first_token_seconds_sum{tenant="alice"} 0.25
quire_time_per_output_token_seconds_count{tenant="alice"} 1
quire_time_per_output_token_seconds_sum{tenant="alice"} 0.125)")));
  snapshot.has_store = false;
  EXPECT_THAT(metrics.Text(snapshot, "alice"), testing::Not(testing::HasSubstr("_store_")));
  EXPECT_THAT(metrics.Text(snapshot, "alice"), testing::Not(testing::HasSubstr("bob")));
  EXPECT_THAT(metrics.Text(snapshot, std::nullopt), testing::HasSubstr("tenant=\"bob\""));
  metrics.CountCall("carol", {});  // without a token there is no time of one
  EXPECT_THAT(metrics.Text({}, "carol"), testing::Not(testing::HasSubstr("_seconds")));
}

constexpr uint32_t kBlock = 16;

IndexJsonOptions Options(uint64_t runs_max = 1000) {
  return {.block_tokens = kBlock, .runs_max = runs_max, .name_of = [](TenantId id) {
            return "t" + std::to_string(id.number());
          }};
}

CacheEntry Block(uint64_t key, uint64_t parent, uint64_t depth) {
  return {.key = key,
          .parent_key = parent,
          .account = TenantId(1),
          .first_token = depth * kBlock,
          .in_memory = true};
}

TEST(IndexJson, OfNothing) {
  EXPECT_EQ(IndexJson({}, Options()).dump(), R"({"blocks":0,"blocks_left_out":0,"runs":[]})");
}

TEST(IndexJson, BlocksThatAreAlikeAreOneRun) {
  std::vector<CacheEntry> entries = {Block(12, 11, 2), Block(10, 0, 0), Block(11, 10, 1),
                                     Block(13, 11, 2)};
  entries[0].holders = 2;
  entries[3].in_memory = false;
  entries[3].in_store = true;
  const OrderedJson json = IndexJson(entries, Options());
  EXPECT_EQ(json["runs"].size(), 3u);
  EXPECT_EQ(json["runs"][0].dump(),
            R"({"parent":-1,"tenant":"t1","first_token":0,"tokens":32,"tier":"memory",)"
            R"("stored":false,"holders":0,"pinned":false,"age_s":0,"idle_s":0})");
  EXPECT_EQ(json["runs"][1]["holders"], 2);
  EXPECT_EQ(json["runs"][1]["parent"], 0);
  EXPECT_EQ(json["runs"][2]["tier"], "store");
  EXPECT_EQ(json["runs"][2]["parent"], 0);
}

TEST(IndexJson, SaysHowMuchItLeavesOut) {
  std::vector<CacheEntry> entries;
  for (uint64_t i = 1; i <= 10; ++i) entries.push_back(Block(i, 0, 0));
  const OrderedJson json = IndexJson(entries, Options(/*runs_max=*/3));
  EXPECT_EQ(json["runs"].size(), 3u);
  EXPECT_EQ(json["blocks"], 10);
  EXPECT_EQ(json["blocks_left_out"], 7);
}

TEST(IndexJson, APathCannotGoRound) {
  const std::vector<CacheEntry> entries = {Block(1, 2, 1), Block(2, 1, 0)};
  EXPECT_EQ(IndexJson(entries, Options())["blocks_left_out"], 0);
}

// Whatever the tree is, the runs taken apart are the blocks, each below the right one.
TEST(IndexJson, NothingIsLostInRuns) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    std::vector<CacheEntry> entries;
    const uint64_t count = prng.NextBelow(60);
    for (uint64_t i = 0; i < count; ++i) {
      const bool root = entries.empty() || prng.NextChance(8);
      const uint64_t parent =
          root ? UINT64_MAX : std::max(prng.NextBelow(i), prng.NextBelow(i));  // mostly long paths
      CacheEntry entry = Block(1000 + i, root ? 0 : entries[parent].key,
                               root ? 0 : entries[parent].first_token / kBlock + 1);
      entry.account = TenantId(
          static_cast<uint32_t>(root ? prng.NextBelow(2) : entries[parent].account.number()));
      entry.holders = prng.NextChance(4) ? 1 : 0;
      entry.age_s = prng.NextBelow(2);
      entry.pinned = prng.NextChance(20);
      entries.push_back(entry);
    }
    // A block as text: all that is said of it, and the same of the blocks before it.
    const auto text = [](const std::string& before, const std::string& tenant, uint64_t first,
                         uint64_t holders, bool pinned, uint64_t age) {
      return before + "/" + tenant + " " + std::to_string(first) + " " + std::to_string(holders) +
             (pinned ? " p " : " ") + std::to_string(age);
    };
    std::multiset<std::string> wanted;
    std::map<uint64_t, std::string> of_key;
    for (const CacheEntry& entry : entries) {
      of_key[entry.key] =
          text(of_key[entry.parent_key], "t" + std::to_string(entry.account.number()),
               entry.first_token, entry.holders, entry.pinned, entry.age_s);
      wanted.insert(of_key[entry.key]);
    }
    for (size_t i = entries.size(); i > 1; --i) {
      std::swap(entries[i - 1], entries[prng.NextBelow(i)]);
    }
    std::multiset<std::string> found;
    std::vector<std::string> last;  // of each run
    const OrderedJson json = IndexJson(entries, Options());
    for (const OrderedJson& run : json["runs"]) {
      const int64_t parent = run["parent"];
      std::string path = parent < 0 ? "" : last.at(static_cast<size_t>(parent));
      for (uint64_t at = 0; at < run["tokens"]; at += kBlock) {
        path = text(path, run["tenant"], run["first_token"].get<uint64_t>() + at, run["holders"],
                    run["pinned"], run["age_s"]);
        found.insert(path);
      }
      last.push_back(path);
    }
    EXPECT_EQ(found, wanted) << seed;
  }
}

TEST(Metrics, OfARemote) {
  RemoteStats remote{
      .breaker = BreakerState::kOpen, .hits = 3, .rejected = 1, .read_us_total = 2500};
  remote.read_us_log2[9] = 2;
  remote.read_us_log2[10] = 1;
  const MetricsSnapshot snapshot{.store = DiskStoreStats{.remote = remote}};
  const std::string text = Metrics().Text(snapshot, std::nullopt);
  EXPECT_THAT(text, testing::HasSubstr("quire_remote_breaker_open 1\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_remote_reads_total{outcome=\"rejected\"} 1\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_remote_read_seconds_bucket{le=\"0.001024\"} 2\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_remote_read_seconds_count 3\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_remote_read_seconds_sum 0.0025\n"));
}

TEST(Metrics, OfEvents) {
  const MetricsSnapshot snapshot{
      .events = EventStats{.messages = 4, .stored = 9, .removed = 2, .replays = 3, .snapshots = 1}};
  const std::string text = Metrics().Text(snapshot, std::nullopt);
  EXPECT_THAT(text, testing::HasSubstr("quire_events_messages_total 4\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_events_blocks_total{change=\"stored\"} 9\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_events_blocks_total{change=\"removed\"} 2\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_events_replays_total 3\n"));
  EXPECT_THAT(text, testing::HasSubstr("quire_events_snapshots_total 1\n"));
  EXPECT_THAT(Metrics().Text({}, std::nullopt), testing::Not(testing::HasSubstr("quire_events")));
}

}  // namespace
}  // namespace quire::serve::http
