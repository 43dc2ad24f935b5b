#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/prng.h"
#include "serve/http/metrics.h"

namespace quire::serve::http {
namespace {

TEST(Metrics, EngineCountersAreThoseOfItsStats) {
  MetricsSnapshot snapshot;
  snapshot.engine = EngineStats{.steps = 11,
                                .step_us = 2'500'000,
                                .prompt_tokens = 12,
                                .decode_tokens = 13,
                                .recomputed_tokens = 14,
                                .loads = 15,
                                .loaded_tokens = 16,
                                .streamed = 24,
                                .streams_renewed = 25,
                                .prefix_waits = 17,
                                .preemptions = 18,
                                .sessions_released = 19,
                                .session_write_failures = 20,
                                .waiting = 21,
                                .running = 22,
                                .chunk_tokens = 23};
  const std::string text = Metrics().Text(snapshot, std::nullopt);
  for (const char* const line :
       {"quire_engine_requests{state=\"waiting\"} 21\n",
        "quire_engine_requests{state=\"running\"} 22\n", "quire_engine_chunk_tokens 23\n",
        "quire_engine_steps_total 11\n", "quire_engine_step_seconds_total 2.5\n",
        "quire_engine_tokens_total{kind=\"prompt\"} 12\n",
        "quire_engine_tokens_total{kind=\"decode\"} 13\n",
        "quire_engine_recomputed_tokens_total 14\n", "quire_engine_loads_total 15\n",
        "quire_engine_loaded_tokens_total 16\n", "quire_engine_prefix_waits_total 17\n",
        "quire_engine_preemptions_total 18\n", "quire_engine_sessions_released_total 19\n",
        "quire_engine_streams_total 24\n", "quire_engine_renewed_streams_total 25\n",
        "quire_engine_session_write_failures_total 20\n"}) {
    EXPECT_THAT(text, testing::HasSubstr(line));
  }
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

}  // namespace
}  // namespace quire::serve::http
