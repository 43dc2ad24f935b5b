// The index under a recorded service's requests, against the number of blocks a second that keeps
// it out of the way.
#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/index.h"
#include "bench/pairs.h"
#include "bench/trace_tokens.h"
#include "evict/lru.h"
#include "index/radix_tree.h"

namespace quire::bench {
namespace {

constexpr uint32_t kBlockTokens = kTraceBlockTokens;
constexpr double kMegablocksTarget = 4;  // a second; the best published single-threaded index
constexpr uint32_t kCapacityBlocks = 10'000;

// Every block of the trace as one block of the index, with tokens that its id gives.
struct Replay {
  std::vector<TokenId> tokens;           // [blocks of all requests, kBlockTokens]
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

// An index that a replay fills, at most `capacity` blocks of it.
class Subject {
 public:
  explicit Subject(uint32_t capacity = UINT32_MAX) : capacity_(capacity) {}

  const index::RadixTree& tree() const { return tree_; }

  // Looks every request up and adds what is missing; with a capacity, what was used least recently
  // goes first. Returns the blocks of all requests.
  uint64_t FindAndInsertAll(const Replay& replay) {
    const TokenId* tokens = replay.tokens.data();
    for (const uint64_t blocks : replay.request_blocks) {
      const std::span<const TokenId> prompt(tokens, blocks * kBlockTokens);
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
    return replay.tokens.size() / kBlockTokens;
  }

  // Looks every request up; all must be there.
  uint64_t FindAll(const Replay& replay) {
    const TokenId* tokens = replay.tokens.data();
    uint64_t found = 0;
    for (const uint64_t blocks : replay.request_blocks) {
      path_.clear();
      found += tree_.Find(root_, std::span(tokens, blocks * kBlockTokens), path_);
      tokens += blocks * kBlockTokens;
    }
    QUIRE_CHECK(found == replay.tokens.size() / kBlockTokens);
    return found;
  }

  uint64_t hits() const { return hits_; }

 private:
  void Insert(std::span<const TokenId> prompt, uint64_t found, uint64_t blocks) {
    if (found == blocks) return;
    const BlockId parent = found == 0 ? BlockId::None() : path_.back();
    for (uint64_t i = found; i < blocks; ++i) path_.push_back(NewId());
    tree_.Insert(root_, parent, prompt.subspan(found * kBlockTokens),
                 std::span(path_).subspan(found));
  }

  // As a cache does it: what the request uses is held while others go, and is the most recent
  // afterwards, its first block last.
  void InsertWithinCapacity(std::span<const TokenId> prompt, uint64_t found, uint64_t blocks) {
    for (const BlockId block : path_) lru_.Remove(block);
    while (tree_.block_count() + (blocks - found) > capacity_ && lru_.size() > 0) {
      const BlockId victim = *lru_.Victim();
      lru_.Remove(victim);
      tree_.Remove(victim);
      unused_.push_back(victim);
    }
    blocks = std::min(blocks, found + (capacity_ - tree_.block_count()));
    Insert(prompt.first(blocks * kBlockTokens), found, blocks);
    for (auto block = path_.rbegin(); block != path_.rend(); ++block) lru_.Add(*block);
  }

  BlockId NewId() {
    if (unused_.empty()) return BlockId(next_++);
    const BlockId block = unused_.back();
    unused_.pop_back();
    return block;
  }

  const uint32_t capacity_;
  index::RadixTree tree_{kBlockTokens};
  index::RootId root_ = tree_.Root({});
  evict::LruPolicy lru_;
  std::vector<BlockId> path_;  // of the request at hand
  std::vector<BlockId> unused_;
  uint32_t next_ = 0;
  uint64_t hits_ = 0;
};

PairedCase CaseOf(std::string name, std::function<double()> work) {
  return {.name = std::move(name), .unit = "Mblocks/s", .work = std::move(work), .floor = [] {
            return kMegablocksTarget;
          }};
}

void MeasureInserts(const Options& options, const Replay& replay, const std::string& name,
                    uint32_t capacity, std::vector<Row>& rows) {
  if (!IsWanted(options, name)) return;
  std::unique_ptr<Subject> subject;
  Row row = MeasurePairs(options, CaseOf(name, [&] {
                           return MegablocksPerSecond(
                               [&] { return subject->FindAndInsertAll(replay); },
                               [&] { subject = std::make_unique<Subject>(capacity); });
                         }));
  row.note = fmt::format("hit ratio {:.4f}", static_cast<double>(subject->hits()) * kBlockTokens /
                                                 static_cast<double>(replay.tokens.size()));
  rows.push_back(std::move(row));
}

}  // namespace

void MeasureTrace(const Options& options, std::vector<Row>& rows) {
  const std::string suffix = "/" + options.trace_name;
  const Replay replay = MakeReplay(options);
  if (replay.tokens.empty()) {
    rows.push_back({.name = "find" + suffix, .unit = "Mblocks/s", .note = "void: no blocks"});
    return;
  }
  Subject whole;
  whole.FindAndInsertAll(replay);
  AddPairs(options,
           CaseOf("find" + suffix + "/t1",
                  [&] { return MegablocksPerSecond([&] { return whole.FindAll(replay); }); }),
           rows);
  MeasureInserts(options, replay, "find+insert" + suffix + "/t1", UINT32_MAX, rows);
  MeasureInserts(options, replay, fmt::format("find+insert+lru/{}{}/t1", kCapacityBlocks, suffix),
                 kCapacityBlocks, rows);
  rows.push_back(
      MetadataRow("metadata" + suffix, whole.tree().metadata_bytes(), whole.tree().block_count()));
}

}  // namespace quire::bench
