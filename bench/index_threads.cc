// The index and a policy under the locks that a cache puts around them, on one thread and on two.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/prng.h"
#include "base/thread_annotations.h"
#include "bench/index.h"
#include "bench/pairs.h"
#include "bench/trace_tokens.h"
#include "evict/policies.h"
#include "index/radix_tree.h"

namespace quire::bench {
namespace {

constexpr uint32_t kBlockTokens = kTraceBlockTokens;
constexpr uint32_t kCapacityBlocks = 10'000;
constexpr uint64_t kRequestEvery_ms = 300;  // about an hour for the conversation trace

// A recorded request as the index and the policy want it.
struct Request {
  std::span<const TokenId> tokens;
  std::span<const uint64_t> keys;
  uint64_t time_ms = 0;
  uint32_t root = 0;  // of two
};

struct Requests {
  std::vector<TokenId> tokens;
  std::vector<uint64_t> keys;
  std::vector<Request> all;
};

// Conversations are divided among two roots by their second block: they often share the first.
Requests MakeRequests(const Options& options) {
  Requests made;
  for (const std::vector<uint64_t>& request : options.trace) {
    for (const uint64_t id : request) {
      AppendTraceBlock(id, made.tokens);
      made.keys.push_back(Prng(id).Next64());
    }
  }
  const std::span<const TokenId> tokens(made.tokens);
  const std::span<const uint64_t> keys(made.keys);
  uint64_t first = 0;
  for (const std::vector<uint64_t>& request : options.trace) {
    const uint64_t blocks = request.size();
    if (blocks == 0) continue;
    made.all.push_back({.tokens = tokens.subspan(first * kBlockTokens, blocks * kBlockTokens),
                        .keys = keys.subspan(first, blocks),
                        .time_ms = (made.all.size() + 1) * kRequestEvery_ms,
                        .root = static_cast<uint32_t>(keys[first + (blocks > 1 ? 1 : 0)] >> 63)});
    first += blocks;
  }
  return made;
}

// One root with its blocks, its policy and its lock.
class Shard {
 public:
  Shard(std::string_view policy, uint64_t capacity_blocks)
      : policy_(evict::MakePolicy(policy)), capacity_(capacity_blocks) {}

  // What a cache does under its lock for a prompt: finds it, evicts for the rest, publishes that,
  // and lets go of it.
  void Run(const Request& request) {
    MutexLock lock(mutex_);
    const uint64_t blocks = request.keys.size();
    path_.clear();
    const uint32_t found = tree_.Find(root_, request.tokens, path_);
    for (const BlockId block : path_) policy_->Remove(block);
    now_ms_ = std::max(now_ms_, request.time_ms);  // two threads do not keep the order
    policy_->Begin({.time_ms = now_ms_,
                    .keys = request.keys,
                    .prompt_tokens = request.tokens.size(),
                    .output_tokens = 0});
    while (path_.size() < blocks && MakeRoom()) path_.push_back(NewId());
    if (path_.size() > found) {
      tree_.Insert(root_, found == 0 ? BlockId::None() : path_[found - 1],
                   request.tokens.first(path_.size() * kBlockTokens).subspan(found * kBlockTokens),
                   std::span(path_).subspan(found));
    }
    for (size_t i = path_.size(); i-- > 0;) {
      policy_->Add(path_[i], {.key = request.keys[i],
                              .parent = i == 0 ? BlockId::None() : path_[i - 1],
                              .depth = static_cast<uint32_t>(i)});
    }
  }

 private:
  bool MakeRoom() QUIRE_REQUIRES(mutex_) {
    if (next_ < capacity_ || !unused_.empty()) return true;
    const auto victim = policy_->Victim();
    if (!victim) return false;
    policy_->Evict(*victim);
    tree_.Remove(*victim);
    unused_.push_back(*victim);
    return true;
  }
  BlockId NewId() QUIRE_REQUIRES(mutex_) {
    if (unused_.empty()) return BlockId(next_++);
    const BlockId block = unused_.back();
    unused_.pop_back();
    return block;
  }

  Mutex mutex_{LockRank{20}};
  index::RadixTree tree_ QUIRE_GUARDED_BY(mutex_){kBlockTokens};
  const index::RootId root_ = tree_.Root({});
  const std::unique_ptr<evict::Policy> policy_;
  const uint64_t capacity_;
  uint64_t now_ms_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::vector<BlockId> path_ QUIRE_GUARDED_BY(mutex_);
  std::vector<BlockId> unused_ QUIRE_GUARDED_BY(mutex_);
  uint32_t next_ QUIRE_GUARDED_BY(mutex_) = 0;
};

struct Case {
  std::string policy;
  uint32_t threads = 1;
  uint32_t shards = 1;
};

// Megablocks a second of all threads together, by the clock on the wall. On one lock each thread
// has every n-th request; with a root each, every thread serves the conversations of its own.
double Measure(const Requests& requests, const Case& which) {
  std::deque<Shard> shards;
  for (uint32_t i = 0; i < which.shards; ++i) {
    shards.emplace_back(which.policy, kCapacityBlocks / which.shards);
  }
  std::latch start(which.threads);
  const auto work = [&](uint32_t thread) {
    start.arrive_and_wait();
    for (size_t i = 0; i < requests.all.size(); ++i) {
      const Request& request = requests.all[i];
      const uint64_t owner = which.shards > 1 ? request.root : i;
      if (owner % which.threads == thread) shards[request.root % which.shards].Run(request);
    }
  };
  const double begin_s = NowSeconds();
  {
    std::vector<std::jthread> others;
    for (uint32_t thread = 1; thread < which.threads; ++thread) others.emplace_back(work, thread);
    work(0);
  }
  return static_cast<double>(requests.keys.size()) / (NowSeconds() - begin_s) / 1e6;
}

}  // namespace

void MeasureThreads(const Options& options, std::vector<Row>& rows) {
  const Requests requests = MakeRequests(options);
  constexpr double kTarget = 4;         // Mblocks/s, on one thread and on two
  constexpr double kShardedTarget = 6;  // on two with a root each
  for (const std::string policy : {"lru", "quire"}) {
    for (const Case& which : {Case{.policy = policy}, Case{.policy = policy, .threads = 2},
                              Case{.policy = policy, .threads = 2, .shards = 2}}) {
      const std::string name = fmt::format("locked+{}/{}/{}/roots{}/t{}", policy, kCapacityBlocks,
                                           options.trace_name, which.shards, which.threads);
      AddPairs(options,
               {.name = name,
                .unit = "Mblocks/s",
                .work = [&] { return Measure(requests, which); },
                .floor = [&] { return which.shards > 1 ? kShardedTarget : kTarget; }},
               rows);
    }
  }
}

}  // namespace quire::bench
