// Speed and size of the index: how many blocks a second a lookup, an insertion and the policy's
// bookkeeping reach, each against a plain memcmp of the same tokens in the same run.
#include <fmt/format.h>

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
#include "bench/quiet.h"
#include "evict/classic_policies.h"
#include "index/radix_tree.h"
#include "quire/env.h"

namespace quire::bench {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr double kBytesPerBlockMax = 256;  // the promise for metadata, tokens included

// Consecutive blocks with one parent: what one request published.
struct Run {
  uint64_t first_block = 0;
  uint32_t blocks = 0;
  BlockId parent;
};

// The tokens of a tree, and queries that hit it from the root to a leaf.
struct Workload {
  uint32_t slices = 1;           // of a round
  std::vector<Run> runs;         // parents before children; block ids count up through them
  std::vector<TokenId> tokens;   // [blocks, kBlockTokens], by block id
  uint32_t path_blocks = 0;      // of every query
  std::vector<TokenId> queries;  // [queries, path_blocks, kBlockTokens]
  std::vector<Run> query_runs;   // the runs of every query, one query after the other

  uint64_t queries_count() const { return queries.size() / kBlockTokens / path_blocks; }
  std::span<const TokenId> Query(uint64_t query) const {
    const uint64_t query_tokens = uint64_t{path_blocks} * kBlockTokens;
    return std::span(queries).subspan(query * query_tokens, query_tokens);
  }
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
  work.slices = 8;
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

// Inserts runs [begin, end) in pieces of at most `blocks_per_call`.
void InsertRuns(const Workload& work, uint64_t begin, uint64_t end, uint32_t blocks_per_call,
                Built& built) {
  std::vector<BlockId> ids;
  for (const Run& run : std::span(work.runs).subspan(begin, end - begin)) {
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
}

// Looks queries [begin, end) up; with `touch`, also marks the found blocks as just used, as a lease
// does.
void FindQueries(const Workload& work, uint64_t begin, uint64_t end, bool touch, Built& built) {
  uint64_t found = 0;
  std::vector<BlockId> path;
  for (uint64_t query = begin; query < end; ++query) {
    path.clear();
    found += built.tree.Find(built.root, work.Query(query), path);
    if (!touch) continue;
    for (const BlockId block : path) built.lru.Remove(block);
    for (auto block = path.rbegin(); block != path.rend(); ++block) built.lru.Add(*block);
  }
  QUIRE_CHECK(found == (end - begin) * work.path_blocks);
}

// The floor of lookups: compares queries with their tokens at known places.
void CompareQueries(const Workload& work, uint64_t begin, uint64_t end) {
  const TokenId* query = work.Query(begin).data();
  const uint64_t runs = work.query_runs.size() / work.queries_count();
  for (uint64_t i = begin * runs; i < end * runs; ++i) {
    const auto tokens = TokensOf(work, work.query_runs[i]);
    QUIRE_CHECK(std::memcmp(query, tokens.data(), tokens.size_bytes()) == 0);
    query += tokens.size();
  }
}

// The floor of insertions: compares tokens with a copy, run by run.
void CompareRuns(const Workload& work, uint64_t begin, uint64_t end,
                 const std::vector<TokenId>& copy) {
  for (const Run& run : std::span(work.runs).subspan(begin, end - begin)) {
    const auto tokens = TokensOf(work, run);
    QUIRE_CHECK(std::memcmp(copy.data() + run.first_block * kBlockTokens, tokens.data(),
                            tokens.size_bytes()) == 0);
  }
}

using MakeWorkload = Workload (*)();

// The state of one case. A round is all runs or all queries, in `slices` slices.
struct Bench {
  explicit Bench(MakeWorkload make) : work(make()) {}
  void InsertAll() { InsertRuns(work, 0, work.runs.size(), UINT32_MAX, *built); }
  uint64_t blocks() const { return work.tokens.size() / kBlockTokens; }
  std::string SliceOf(uint64_t count, const char* what) const {
    return fmt::format("{} {}", count / work.slices, what);
  }
  double Seconds(uint64_t count, uint32_t slice,
                 const std::function<void(uint64_t begin, uint64_t end)>& body) {
    return SecondsOf(*alone,
                     [&] { body(count * slice / work.slices, count * (slice + 1) / work.slices); });
  }

  const Workload work;
  std::unique_ptr<Built> built = std::make_unique<Built>();
  const std::unique_ptr<Executor> alone = MakePinnedPool(1);
};

Result<Subject> FindSubject(MakeWorkload make, bool touch) {
  const auto bench = std::make_shared<Bench>(make);
  bench->InsertAll();
  for (uint64_t block = bench->blocks(); block-- > 0;) {
    bench->built->lru.Add(BlockId(static_cast<uint32_t>(block)));
  }
  const uint64_t queries = bench->work.queries_count();
  return Timed{.unit = "Mblocks/s",
               .amount = static_cast<double>(queries * bench->work.path_blocks) * 1e-6,
               .places = bench->work.slices,
               .slice = bench->SliceOf(queries, "lookups"),
               .work =
                   [=](uint32_t slice) {
                     return bench->Seconds(queries, slice, [&](uint64_t begin, uint64_t end) {
                       FindQueries(bench->work, begin, end, touch, *bench->built);
                     });
                   },
               .floor =
                   [=](uint32_t slice) {
                     return bench->Seconds(queries, slice, [&](uint64_t begin, uint64_t end) {
                       CompareQueries(bench->work, begin, end);
                     });
                   }};
}

Result<Subject> InsertSubject(MakeWorkload make, uint32_t blocks_per_call) {
  const auto bench = std::make_shared<Bench>(make);
  const auto copy = std::make_shared<const std::vector<TokenId>>(bench->work.tokens);
  const uint64_t runs = bench->work.runs.size();
  return Timed{.unit = "Mblocks/s",
               .amount = static_cast<double>(bench->blocks()) * 1e-6,
               .places = bench->work.slices,
               .slice = bench->SliceOf(runs, "runs"),
               .work =
                   [=](uint32_t slice) {
                     if (slice == 0) bench->built = std::make_unique<Built>();
                     return bench->Seconds(runs, slice, [&](uint64_t begin, uint64_t end) {
                       InsertRuns(bench->work, begin, end, blocks_per_call, *bench->built);
                     });
                   },
               .floor =
                   [=](uint32_t slice) {
                     return bench->Seconds(runs, slice, [&](uint64_t begin, uint64_t end) {
                       CompareRuns(bench->work, begin, end, *copy);
                     });
                   }};
}

void AddWorkload(const std::string& name, MakeWorkload make, std::vector<Case>& cases) {
  cases.push_back({.name = "find/" + name + "/t1",
                   .prepare = [=] { return FindSubject(make, /*touch=*/false); }});
  cases.push_back({.name = "find+touch/" + name + "/t1",
                   .prepare = [=] { return FindSubject(make, /*touch=*/true); }});
  // A prompt publishes many blocks at once, decoding one at a time.
  cases.push_back({.name = "insert/" + name + "/t1",
                   .prepare = [=] { return InsertSubject(make, UINT32_MAX); }});
  cases.push_back(
      {.name = "insert1/" + name + "/t1", .prepare = [=] { return InsertSubject(make, 1); }});
  cases.push_back(MetadataCase("metadata/" + name, [=] {
    Bench bench(make);
    bench.InsertAll();
    return Metadata{.bytes = bench.built->tree.metadata_bytes(), .blocks = bench.blocks()};
  }));
}

}  // namespace

Case MetadataCase(const std::string& name, std::function<Metadata()> measure) {
  return {.name = name, .prepare = [measure = std::move(measure)]() -> Result<Subject> {
            const Metadata metadata = measure();
            return Exact{
                .unit = "bytes/block",
                .less_is_better = true,
                .value = static_cast<double>(metadata.bytes) / static_cast<double>(metadata.blocks),
                .floor = kBytesPerBlockMax};
          }};
}

std::vector<Case> IndexCases(const Options& options) {
  std::vector<Case> cases;
  AddWorkload("shared/16", SharedPrefixes, cases);
  AddWorkload("branchy/16", ManyBranches, cases);
  if (!options.trace.empty()) {
    const auto requests = std::make_shared<LazyRequests>(options);
    AddTraceCases(options, cases);
    AddThreadCases(options.trace_name, requests, cases);
    AddCacheCases(options.trace_name, requests, cases);
  }
  return cases;
}

}  // namespace quire::bench
