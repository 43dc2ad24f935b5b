// Speed and size of the index: how many blocks a second a lookup, an insertion and the policy's
// bookkeeping reach, each against a plain memcmp of the same tokens in the same run.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/index.h"
#include "bench/pairs.h"
#include "evict/lru.h"
#include "index/radix_tree.h"

namespace quire::bench {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr double kBytesPerBlockMax = 256;  // the promise for metadata, tokens included
constexpr double kSecondsPerSample = 0.02;

// Consecutive blocks with one parent: what one request published.
struct Run {
  uint64_t first_block = 0;
  uint32_t blocks = 0;
  BlockId parent;
};

// The tokens of a tree, and queries that hit it from the root to a leaf.
struct Workload {
  std::string name;              // with the tokens of a block
  std::vector<Run> runs;         // parents before children; block ids count up through them
  std::vector<TokenId> tokens;   // [blocks, kBlockTokens], by block id
  uint32_t path_blocks = 0;      // of every query
  std::vector<TokenId> queries;  // [queries, path_blocks, kBlockTokens]
  std::vector<Run> query_runs;   // the runs of every query, one query after the other
};

std::span<const TokenId> TokensOf(const Workload& work, const Run& run) {
  return std::span(work.tokens)
      .subspan(run.first_block * kBlockTokens, uint64_t{run.blocks} * kBlockTokens);
}

Run AddRun(Workload& work, Prng& prng, uint32_t blocks, BlockId parent) {
  const Run run = {work.tokens.size() / kBlockTokens, blocks, parent};
  for (uint64_t i = 0; i < uint64_t{blocks} * kBlockTokens; ++i) {
    work.tokens.push_back(static_cast<TokenId>(prng.NextBelow(150'000)));
  }
  work.runs.push_back(run);
  return run;
}

BlockId LastBlock(const Run& run) {
  return BlockId(static_cast<uint32_t>(run.first_block + run.blocks - 1));
}

void AddQuery(Workload& work, std::span<const Run> path) {
  work.path_blocks = 0;
  for (const Run& run : path) {
    const auto tokens = TokensOf(work, run);
    work.queries.insert(work.queries.end(), tokens.begin(), tokens.end());
    work.query_runs.push_back(run);
    work.path_blocks += run.blocks;
  }
}

// Eight conversations about each of 64 documents of 16k tokens.
Workload SharedPrefixes() {
  Workload work;
  work.name = "shared/16";
  Prng prng(1);
  for (int document = 0; document < 64; ++document) {
    const Run prefix = AddRun(work, prng, 1024, BlockId::None());
    for (int turn = 0; turn < 8; ++turn) {
      const Run rest = AddRun(work, prng, 32, LastBlock(prefix));
      AddQuery(work, std::array{prefix, rest});
    }
  }
  return work;
}

// Eight ways to go on after every block, six blocks deep: every block is a node, and the tree is
// larger than the last-level cache.
Workload ManyBranches() {
  constexpr size_t kDepth = 6;
  constexpr size_t kFanOut = 8;
  Workload work;
  work.name = "branchy/16";
  Prng prng(2);
  std::vector<std::vector<Run>> levels(1);
  for (size_t i = 0; i < kFanOut; ++i) {
    levels[0].push_back(AddRun(work, prng, 1, BlockId::None()));
  }
  while (levels.size() < kDepth) {
    std::vector<Run> level;
    for (const Run& parent : levels.back()) {
      for (size_t i = 0; i < kFanOut; ++i) {
        level.push_back(AddRun(work, prng, 1, LastBlock(parent)));
      }
    }
    levels.push_back(std::move(level));
  }
  for (int query = 0; query < 20'000; ++query) {
    size_t at = prng.NextBelow(levels.back().size());
    std::array<Run, kDepth> path;
    for (size_t depth = kDepth; depth-- > 0; at /= kFanOut) path[depth] = levels[depth][at];
    AddQuery(work, path);
  }
  return work;
}

// A tree over a workload and the policy that orders its blocks.
struct Built {
  index::RadixTree tree{kBlockTokens};
  index::RootId root = tree.Root({});
  evict::LruPolicy lru;
};

// Inserts every run in pieces of at most `blocks_per_call`. Returns the blocks inserted.
uint64_t InsertAll(const Workload& work, uint32_t blocks_per_call, Built& built) {
  std::vector<BlockId> ids;
  for (const Run& run : work.runs) {
    BlockId parent = run.parent;
    for (uint32_t done = 0; done < run.blocks;) {
      const uint32_t blocks = std::min(blocks_per_call, run.blocks - done);
      ids.clear();
      for (uint32_t i = 0; i < blocks; ++i) {
        ids.emplace_back(static_cast<uint32_t>(run.first_block + done + i));
      }
      const auto tokens = TokensOf(work, run).subspan(uint64_t{done} * kBlockTokens,
                                                      uint64_t{blocks} * kBlockTokens);
      built.tree.Insert(built.root, parent, tokens, ids);
      parent = ids.back();
      done += blocks;
    }
  }
  return built.tree.block_count();
}

// Looks every query up; with `touch`, also marks what was found as just used, as a lease does.
uint64_t FindAll(const Workload& work, bool touch, Built& built) {
  const uint64_t query_tokens = uint64_t{work.path_blocks} * kBlockTokens;
  uint64_t found = 0;
  std::vector<BlockId> path;
  for (uint64_t begin = 0; begin < work.queries.size(); begin += query_tokens) {
    path.clear();
    found +=
        built.tree.Find(built.root, std::span(work.queries).subspan(begin, query_tokens), path);
    if (!touch) continue;
    for (const BlockId block : path) built.lru.Remove(block);
    for (auto block = path.rbegin(); block != path.rend(); ++block) built.lru.Add(*block);
  }
  QUIRE_CHECK(found * kBlockTokens == work.queries.size());
  return found;
}

// The floor of lookups: compares every query with its tokens, told where they lie.
uint64_t CompareQueries(const Workload& work) {
  const TokenId* query = work.queries.data();
  for (const Run& run : work.query_runs) {
    const auto tokens = TokensOf(work, run);
    QUIRE_CHECK(std::memcmp(query, tokens.data(), tokens.size_bytes()) == 0);
    query += tokens.size();
  }
  return work.queries.size() / kBlockTokens;
}

// The floor of insertions: compares all tokens with a copy, run by run.
uint64_t CompareRuns(const Workload& work, const std::vector<TokenId>& copy) {
  for (const Run& run : work.runs) {
    const auto tokens = TokensOf(work, run);
    QUIRE_CHECK(std::memcmp(copy.data() + run.first_block * kBlockTokens, tokens.data(),
                            tokens.size_bytes()) == 0);
  }
  return copy.size() / kBlockTokens;
}

void MeasureFind(const Options& options, const Workload& work, bool touch, Built& built,
                 std::vector<Row>& rows) {
  AddPairs(
      options,
      {.name = (touch ? "find+touch/" : "find/") + work.name + "/t1",
       .unit = "Mblocks/s",
       .work = [&] { return MegablocksPerSecond([&] { return FindAll(work, touch, built); }); },
       .floor = [&] { return MegablocksPerSecond([&] { return CompareQueries(work); }); }},
      rows);
}

void MeasureInsert(const Options& options, const Workload& work, const std::string& name,
                   uint32_t blocks_per_call, std::vector<Row>& rows) {
  const std::vector<TokenId> copy = work.tokens;
  std::unique_ptr<Built> built;
  AddPairs(options,
           {.name = name + "/" + work.name + "/t1",
            .unit = "Mblocks/s",
            .work =
                [&] {
                  return MegablocksPerSecond(
                      [&] { return InsertAll(work, blocks_per_call, *built); },
                      [&] { built = std::make_unique<Built>(); });
                },
            .floor = [&] { return MegablocksPerSecond([&] { return CompareRuns(work, copy); }); }},
           rows);
}

void MeasureWorkload(const Options& options, const Workload& work, std::vector<Row>& rows) {
  Built built;
  const uint64_t blocks = InsertAll(work, UINT32_MAX, built);
  for (uint64_t block = blocks; block-- > 0;) {
    built.lru.Add(BlockId(static_cast<uint32_t>(block)));
  }
  MeasureFind(options, work, /*touch=*/false, built, rows);
  MeasureFind(options, work, /*touch=*/true, built, rows);
  // A prompt publishes many blocks at once, decoding one at a time.
  MeasureInsert(options, work, "insert", UINT32_MAX, rows);
  MeasureInsert(options, work, "insert1", 1, rows);
  rows.push_back(MetadataRow("metadata/" + work.name, built.tree.metadata_bytes(), blocks));
}

}  // namespace

double MegablocksPerSecond(const std::function<uint64_t()>& pass,
                           const std::function<void()>& prepare) {
  uint64_t blocks = 0;
  double seconds = 0;
  while (seconds < kSecondsPerSample) {
    if (prepare) prepare();
    const double begin_s = ThreadSeconds();
    blocks += pass();
    seconds += ThreadSeconds() - begin_s;
  }
  return static_cast<double>(blocks) / seconds / 1e6;
}

Row MetadataRow(const std::string& name, uint64_t bytes, uint64_t blocks) {
  const double per_block = static_cast<double>(bytes) / static_cast<double>(blocks);
  return {.name = name,
          .value = per_block,
          .unit = "bytes/block",
          .floor = kBytesPerBlockMax,
          .ratio = kBytesPerBlockMax / per_block,
          .note = ""};
}

Result<std::vector<Row>> Index(const Options& options) {
  if (options.pairs == 0) return Fail(ErrorCode::kInvalidArgument, "pairs must be at least 1");
  std::vector<Row> rows;
  MeasureWorkload(options, SharedPrefixes(), rows);
  MeasureWorkload(options, ManyBranches(), rows);
  if (!options.trace.empty()) {
    MeasureTrace(options, rows);
    MeasureThreads(options, rows);
    MeasureCache(options, rows);
  } else {
    rows.push_back(
        {.name = "find/trace/t1", .unit = "Mblocks/s", .note = "skipped: needs --trace FILE"});
  }
  return rows;
}

}  // namespace quire::bench
