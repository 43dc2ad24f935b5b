// The index and a policy under the locks that a cache puts around them, on one thread and on two.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "bench/index.h"
#include "bench/requests.h"
#include "bench/trace_tokens.h"
#include "evict/policies.h"
#include "index/radix_tree.h"

namespace quire::bench {
namespace {

// The work of a cache under its lock for a prompt: finds it, evicts for the rest, publishes that,
// and releases it.
class Blocks {
 public:
  Blocks(std::string_view policy, uint64_t capacity_blocks)
      : policy_(evict::MakePolicy(policy)), capacity_(capacity_blocks) {}

  void Serve(const Request& request) {
    const uint64_t blocks = request.blocks();
    const auto tokens = request.tokens.first(blocks * kTraceBlockTokens);
    path_.clear();
    const uint32_t found = tree_.Find(root_, tokens, path_);
    for (const BlockId block : path_) policy_->Remove(block);
    now_ms_ = std::max(now_ms_, request.time_ms);  // two threads do not keep the order
    policy_->Advance(now_ms_);
    while (path_.size() < blocks && FreeCapacity()) path_.push_back(NewId());
    if (path_.size() > found) {
      tree_.Insert(
          root_, found == 0 ? BlockId::None() : path_[found - 1],
          tokens.first(path_.size() * kTraceBlockTokens).subspan(found * kTraceBlockTokens),
          std::span(path_).subspan(found));
    }
    policy_->Begin({.time_ms = now_ms_,
                    .keys = request.keys,
                    .prompt_tokens = tokens.size(),
                    .output_tokens = 0});
    for (size_t i = path_.size(); i-- > 0;) {
      policy_->Add(path_[i], {.key = request.keys[i],
                              .parent = i == 0 ? BlockId::None() : path_[i - 1],
                              .depth = static_cast<uint32_t>(i)});
    }
    policy_->End();
  }

 private:
  bool FreeCapacity() {
    if (next_ < capacity_ || !unused_.empty()) return true;
    const auto victim = policy_->Victim();
    if (!victim) return false;
    policy_->Evict(*victim);
    tree_.Remove(*victim);
    unused_.push_back(*victim);
    return true;
  }
  BlockId NewId() {
    if (unused_.empty()) return BlockId(next_++);
    const BlockId block = unused_.back();
    unused_.pop_back();
    return block;
  }

  index::RadixTree tree_{kTraceBlockTokens};
  const index::RootId root_ = tree_.Root({});
  const std::unique_ptr<evict::Policy> policy_;
  const uint64_t capacity_;
  uint64_t now_ms_ = 0;
  std::vector<BlockId> path_;
  std::vector<BlockId> unused_;
  uint32_t next_ = 0;
};

// One root with its blocks, its policy and its lock.
class Shard {
 public:
  Shard(std::string_view policy, uint64_t capacity_blocks) : blocks_(policy, capacity_blocks) {}

  void Serve(const Request& request) {
    MutexLock lock(mutex_);
    blocks_.Serve(request);
  }

 private:
  Mutex mutex_{LockRank::kCache};
  Blocks blocks_ QUIRE_GUARDED_BY(mutex_);
};

struct Setup {
  std::string policy;
  Division division;
};

std::shared_ptr<Service> MakeService(const Requests& requests, const Setup& which) {
  const uint32_t roots = which.division.roots;
  const auto shards = std::make_shared<std::deque<Shard>>();
  for (uint32_t i = 0; i < roots; ++i) {
    shards->emplace_back(which.policy, kIndexCapacityBlocks / roots);
  }
  return std::make_shared<Service>(requests, which.division, [=](const Request& request) {
    (*shards)[request.root % roots].Serve(request);
  });
}

}  // namespace

void AddThreadCases(const std::string& trace_name, const std::shared_ptr<LazyRequests>& requests,
                    std::vector<Case>& cases) {
  for (const std::string policy : {"lru", "quire"}) {
    for (const Division& division :
         {Division{.threads = 1, .roots = 1}, Division{.threads = 2, .roots = 1},
          Division{.threads = 2, .roots = 2}}) {
      cases.push_back(
          {.name = fmt::format("locked+{}/{}/{}/roots{}/t{}", policy, kIndexCapacityBlocks,
                               trace_name, division.roots, division.threads),
           .prepare = [=]() -> Result<Subject> {
             const Requests& all = requests->Get();
             return BesideOneThread(all, MakeService(all, {policy, division}),
                                    MakeService(all, {.policy = policy, .division = {}}));
           }});
    }
  }
}

}  // namespace quire::bench
