// The index under a recorded service's requests, against the number of blocks a second that keeps
// it out of the way.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/index.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "bench/trace_tokens.h"
#include "evict/classic_policies.h"
#include "index/radix_tree.h"
#include "quire/env.h"

namespace quire::bench {
namespace {

constexpr double kMegablocksTarget = 4;  // a second; the best published single-threaded index

// Every block of the trace as one block of the index, with tokens that its id gives.
struct Replay {
  std::vector<TokenId> tokens;           // [blocks of all requests, kTraceBlockTokens]
  std::vector<uint64_t> request_blocks;  // by request
};

Replay MakeReplay(const Options& options) {
  Replay replay;
  for (const std::vector<uint64_t>& request : options.trace) {
    replay.request_blocks.push_back(request.size());
    for (const uint64_t id : request) AppendTraceBlock(id, replay.tokens);
  }
  return replay;
}

// Made when the first case needs it.
class LazyReplay {
 public:
  explicit LazyReplay(const Options& options) : options_(options) {}
  const Replay& Get() {
    if (made_ == nullptr) made_ = std::make_unique<Replay>(MakeReplay(options_));
    return *made_;
  }

 private:
  const Options options_;
  std::unique_ptr<Replay> made_;
};

// An index that a replay fills, at most `capacity` blocks of it.
class Index {
 public:
  explicit Index(uint32_t capacity = UINT32_MAX) : capacity_(capacity) {}

  const index::RadixTree& tree() const { return tree_; }

  // Looks every request up and adds what is missing; with a capacity, the least recently used
  // blocks go first. Returns the blocks of all requests.
  uint64_t FindAndInsertAll(const Replay& replay) {
    const TokenId* tokens = replay.tokens.data();
    for (const uint64_t blocks : replay.request_blocks) {
      const std::span<const TokenId> prompt(tokens, blocks * kTraceBlockTokens);
      tokens += prompt.size();
      path_.clear();
      const uint32_t found = tree_.Find(root_, prompt, path_);
      hits_ += found;
      if (capacity_ == UINT32_MAX) {
        Insert(prompt, found, blocks);
      } else {
        InsertWithinCapacity(prompt, found, blocks);
      }
    }
    return replay.tokens.size() / kTraceBlockTokens;
  }

  // Looks every request up; all must be there.
  uint64_t FindAll(const Replay& replay) {
    const TokenId* tokens = replay.tokens.data();
    uint64_t found = 0;
    for (const uint64_t blocks : replay.request_blocks) {
      path_.clear();
      found += tree_.Find(root_, std::span(tokens, blocks * kTraceBlockTokens), path_);
      tokens += blocks * kTraceBlockTokens;
    }
    QUIRE_CHECK(found == replay.tokens.size() / kTraceBlockTokens);
    return found;
  }

  uint64_t hits() const { return hits_; }

 private:
  void Insert(std::span<const TokenId> prompt, uint64_t found, uint64_t blocks) {
    if (found == blocks) return;
    const BlockId parent = found == 0 ? BlockId::None() : path_.back();
    for (uint64_t i = found; i < blocks; ++i) path_.push_back(NewId());
    tree_.Insert(root_, parent, prompt.subspan(found * kTraceBlockTokens),
                 std::span(path_).subspan(found));
  }

  // As a cache does it: blocks of the request are held while others are evicted, and are the most
  // recent afterwards, its first block last.
  void InsertWithinCapacity(std::span<const TokenId> prompt, uint64_t found, uint64_t blocks) {
    for (const BlockId block : path_) lru_.Remove(block);
    while (tree_.block_count() + (blocks - found) > capacity_ && lru_.size() > 0) {
      const BlockId victim = *lru_.Victim();
      lru_.Remove(victim);
      tree_.Remove(victim);
      unused_.push_back(victim);
    }
    blocks = std::min(blocks, found + (capacity_ - tree_.block_count()));
    Insert(prompt.first(blocks * kTraceBlockTokens), found, blocks);
    for (auto block = path_.rbegin(); block != path_.rend(); ++block) lru_.Add(*block);
  }

  BlockId NewId() {
    if (unused_.empty()) return BlockId(next_++);
    const BlockId block = unused_.back();
    unused_.pop_back();
    return block;
  }

  const uint32_t capacity_;
  index::RadixTree tree_{kTraceBlockTokens};
  index::RootId root_ = tree_.Root({});
  evict::LruPolicy lru_;
  std::vector<BlockId> path_;  // of the request at hand
  std::vector<BlockId> unused_;
  uint32_t next_ = 0;
  uint64_t hits_ = 0;
};

// A replay beside the target.
Timed BesideTarget(const Replay& replay, std::function<double(uint32_t)> work) {
  const double megablocks = static_cast<double>(replay.tokens.size() / kTraceBlockTokens) * 1e-6;
  return {.unit = "Mblocks/s",
          .amount = megablocks,
          .slice = fmt::format("{} requests", replay.request_blocks.size()),
          .work = std::move(work),
          .floor = [=](uint32_t) { return megablocks / kMegablocksTarget; }};
}

Case FindCase(const std::string& name, const std::shared_ptr<LazyReplay>& lazy) {
  return {.name = name, .prepare = [=]() -> Result<Subject> {
            const Replay& replay = lazy->Get();
            const auto subject = std::make_shared<Index>();
            subject->FindAndInsertAll(replay);
            const std::shared_ptr<Executor> alone = MakePinnedPool(1);
            return BesideTarget(replay, [=, &replay](uint32_t) {
              return SecondsOf(*alone, [&] { subject->FindAll(replay); });
            });
          }};
}

Case InsertCase(const std::string& name, uint32_t capacity,
                const std::shared_ptr<LazyReplay>& lazy) {
  return {.name = name, .prepare = [=]() -> Result<Subject> {
            const Replay& replay = lazy->Get();
            const auto subject = std::make_shared<std::unique_ptr<Index>>();
            const std::shared_ptr<Executor> alone = MakePinnedPool(1);
            Timed timed = BesideTarget(replay, [=, &replay](uint32_t) {
              *subject = std::make_unique<Index>(capacity);
              return SecondsOf(*alone, [&] { (*subject)->FindAndInsertAll(replay); });
            });
            timed.note = [=, &replay] {
              return fmt::format("hit ratio {:.4f}", static_cast<double>((*subject)->hits()) *
                                                         kTraceBlockTokens /
                                                         static_cast<double>(replay.tokens.size()));
            };
            return timed;
          }};
}

}  // namespace

void AddTraceCases(const Options& options, std::vector<Case>& cases) {
  const std::string suffix = "/" + options.trace_name;
  const auto lazy = std::make_shared<LazyReplay>(options);
  cases.push_back(FindCase("find" + suffix + "/t1", lazy));
  cases.push_back(InsertCase("find+insert" + suffix + "/t1", UINT32_MAX, lazy));
  cases.push_back(InsertCase(fmt::format("find+insert+lru/{}{}/t1", kIndexCapacityBlocks, suffix),
                             kIndexCapacityBlocks, lazy));
  cases.push_back(MetadataCase("metadata" + suffix, [=] {
    Index index;
    index.FindAndInsertAll(lazy->Get());
    return Metadata{.bytes = index.tree().metadata_bytes(), .blocks = index.tree().block_count()};
  }));
}

}  // namespace quire::bench
