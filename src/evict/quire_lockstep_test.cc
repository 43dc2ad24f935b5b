// The policy of this project beside one that searches all its blocks: the same requests, the same
// victims. What both ask (shadow, history, judge) is real: those have tests of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "evict/quire.h"
#include "evict/request_history.h"
#include "evict/return_shadow.h"

namespace quire::evict {
namespace {

constexpr uint64_t kEnough = 16'384;  // ends of paths and watched blocks, in a cache this small

float Scaled(uint64_t count, double divisor, double centre) {
  return static_cast<float>(std::log(static_cast<double>(count) + 1) / divisor - centre);
}

class NaiveQuire {
 public:
  void SetLearns(bool learns) { learns_ = learns; }
  void Advance(uint64_t time_ms) { now_ms_ = std::max(now_ms_, time_ms); }

  void Begin(const RequestFacts& facts) {
    now_ms_ = facts.time_ms == 0 ? now_ms_ + 1 : std::max(now_ms_, facts.time_ms);
    request_ = Request{.under_way = true, .blocks = facts.keys.size()};
    if (!learns_) {
      learner_.reset();
      return;
    }
    if (!learner_) learner_ = std::make_unique<Learner>();
    const uint64_t cache_blocks = blocks_.size() + facts.keys.size() - facts.hit_blocks;
    learner_->shadow.Begin(cache_blocks, has_evicted_);
    learner_->judge.Use({facts.keys, facts.asked_blocks, facts.hit_blocks, cache_blocks});
    const auto turn = learner_->paths.Note(facts.keys, now_ms_, kEnough);
    const float prompt = Scaled(facts.prompt_tokens, 5, 1.5);
    const float output = Scaled(facts.output_tokens, 4, 1.2);
    const float gap = turn.number == 0 ? 0.0F : Scaled(turn.gap_ms / 1000, 5, 1);
    request_.continues = turn.number > 0;
    request_.features = {1,
                         prompt,
                         prompt * prompt,
                         output,
                         output * output,
                         turn.number == 1 ? 1.0F : 0.0F,
                         turn.number > 1 ? 1.0F : 0.0F,
                         gap,
                         0,
                         0};
    request_.of_class = ClassOf(request_.features);
  }
  void End() {
    if (request_.under_way && learner_) learner_->judge.End(blocks_.size());
    request_.under_way = false;
  }
  // A call of another request comes between.
  template <typename Call>
  void Between(const Call& call) {
    const Request paused = std::exchange(request_, {});
    call();
    request_ = paused;
  }

  void Add(BlockId id, const BlockFacts& facts) {
    const bool is_new = !blocks_.contains(id);
    Block& block = blocks_[id];
    block.key = facts.key;
    if (!learner_) {
      block.of_class = 0;
    } else if (!request_.under_way) {
      if (is_new) block.of_class = ClassOf({1});
    } else {
      if (!is_new && !request_.continues) ++block.branches;
      const bool ends_path = facts.depth + uint64_t{1} == request_.blocks;
      ReturnFeatures features = request_.features;
      if (block.branches > 0) features[8] = std::log2(1.0F + block.branches) / 2;
      if (ends_path) features[9] = 1;
      // A class learned during a request counts only for blocks with features of their own.
      block.of_class = ends_path || block.branches > 0 ? ClassOf(features) : request_.of_class;
      if (learner_->shadow.Samples(facts.key)) {
        learner_->shadow.Use(facts.key, features, now_ms_, blocks_.size(), kEnough);
      }
    }
    block.evictable = true;
    block.parent = facts.parent;
    block.time_ms = now_ms_;
    block.stamp = ++stamp_;
  }
  void Remove(BlockId id) { blocks_[id].evictable = false; }
  void Evict(BlockId id) {
    blocks_.erase(id);
    has_evicted_ = true;
  }

  // The least worth of the oldest and newest leaves of each class, or the oldest of all.
  std::optional<BlockId> Victim() const {
    if (!learner_ || !learner_->shadow.model_leads() || !learner_->judge.trusts()) return Oldest();
    std::map<uint32_t, std::pair<uint64_t, uint64_t>> ends;  // by class: stamps
    const auto leaves = Leaves();
    for (const BlockId id : leaves) {
      const Block& block = blocks_.at(id);
      auto& [first, last] =
          ends.try_emplace(block.of_class, block.stamp, block.stamp).first->second;
      first = std::min(first, block.stamp);
      last = std::max(last, block.stamp);
    }
    std::optional<BlockId> victim;
    std::tuple<double, uint64_t, uint64_t> least;
    for (const BlockId id : leaves) {
      const Block& block = blocks_.at(id);
      const auto& [first, last] = ends[block.of_class];
      if (block.stamp != first && block.stamp != last) continue;
      const std::tuple rank(learner_->shadow.model().Worth(block.of_class, now_ms_ - block.time_ms),
                            block.time_ms, block.stamp);
      if (victim && rank > least) continue;
      victim = id;
      least = rank;
    }
    return victim;
  }
  std::optional<BlockId> Oldest() const {
    const auto leaves = Leaves();
    const auto oldest =
        std::ranges::min_element(leaves, {}, [&](BlockId id) { return blocks_.at(id).stamp; });
    return oldest == leaves.end() ? std::nullopt : std::optional(*oldest);
  }
  uint64_t size() const {
    return static_cast<uint64_t>(
        std::ranges::count_if(blocks_, [](const auto& entry) { return entry.second.evictable; }));
  }

 private:
  struct Block {
    uint64_t key = 0;
    uint32_t branches = 0;
    uint32_t of_class = 0;
    bool evictable = false;
    BlockId parent{};
    uint64_t time_ms = 0;
    uint64_t stamp = 0;
  };
  struct Request {
    bool under_way = false;
    uint64_t blocks = 0;
    bool continues = false;
    ReturnFeatures features = {1};
    uint32_t of_class = 0;
  };
  struct Learner {
    ReturnShadow shadow;
    PathHistory paths;
    RecencyJudge judge;
  };

  uint32_t ClassOf(const ReturnFeatures& features) const {
    const ReturnModel& model = learner_->shadow.model();
    return model.ClassOf(model.Score(features));
  }
  std::vector<BlockId> Leaves() const {
    std::set<BlockId> parents;
    for (const auto& [id, block] : blocks_) {
      if (block.evictable) parents.insert(block.parent);
    }
    std::vector<BlockId> leaves;
    for (const auto& [id, block] : blocks_) {
      if (block.evictable && !parents.contains(id)) leaves.push_back(id);
    }
    return leaves;
  }

  std::map<BlockId, Block> blocks_;  // in the cache
  std::unique_ptr<Learner> learner_;
  bool learns_ = true;
  bool has_evicted_ = false;
  uint64_t now_ms_ = 0;
  uint64_t stamp_ = 0;
  Request request_;
};

// A full cache of conversations, of which both policies are told.
class Conversations {
 public:
  Conversations(QuirePolicy& policy, NaiveQuire& judge, uint64_t seed)
      : policy_(policy), judge_(judge), prng_(seed) {}

  // Long answers are mostly read and continued, short ones are not.
  void Request() {
    now_ms_ += prng_.NextBelow(400);
    Chat chat;
    if (returning_.size() > 30) {
      chat = returning_.front();
      returning_.pop_front();
    } else {
      const uint64_t system = prng_.NextBelow(4);
      for (uint64_t i = 0; i < 2 * system; ++i) chat.keys.push_back(KeyOf(100 * system + i));
    }
    const bool is_long = prng_.NextBelow(3) == 0;
    for (uint64_t i = 1 + prng_.NextBelow(6); i > 0; --i) chat.keys.push_back(KeyOf(next_block_++));
    Use(chat.keys, is_long ? 500 + prng_.NextBelow(100) : prng_.NextBelow(20));
    const bool returns = prng_.NextBelow(10) == 0 ? !is_long : is_long;
    if (returns && chat.turns++ < 3) returning_.push_back(chat);
  }

  // Victims that were not the oldest.
  uint64_t by_worth = 0;
  uint64_t pieces = 0;

 private:
  static constexpr uint32_t kBlocks = 200;
  struct Chat {
    std::vector<uint64_t> keys;
    int turns = 0;
  };
  struct Here {
    BlockId id{};
    BlockFacts facts{};
  };

  static uint64_t KeyOf(uint64_t block) { return Prng(block).Next64(); }

  void Use(const std::vector<uint64_t>& keys, uint64_t output_tokens) {
    size_t hits = 0;
    for (; hits < keys.size() && here_.contains(keys[hits]); ++hits) {
      policy_.Remove(here_[keys[hits]].id);
      judge_.Remove(here_[keys[hits]].id);
    }
    if (prng_.NextChance(4)) {
      policy_.Advance(now_ms_);
      judge_.Advance(now_ms_);
    }
    BlockId parent = hits == 0 ? BlockId::None() : here_[keys[hits - 1]].id;
    for (size_t i = hits; i < keys.size(); ++i) {
      const BlockFacts facts = {
          .key = keys[i], .parent = parent, .depth = static_cast<uint32_t>(i)};
      parent = NewId();
      here_[keys[i]] = {.id = parent, .facts = facts};
      keys_[parent] = keys[i];
    }
    const RequestFacts request = {.time_ms = prng_.NextChance(20) ? 0 : now_ms_,
                                  .keys = keys,
                                  .prompt_tokens = keys.size() * 16 + prng_.NextBelow(16),
                                  .output_tokens = output_tokens,
                                  .asked_blocks = keys.size() - prng_.NextBelow(2),
                                  .hit_blocks = hits};
    Begin(request);
    judge_.Begin(request);
    const size_t pause_at = prng_.NextBelow(4 * keys.size());
    for (size_t i = keys.size(); i-- > 0;) {
      Add(here_[keys[i]]);
      if (i != pause_at) continue;
      auto paused = policy_.Pause();
      judge_.Between([this] { EndView(); });
      policy_.Resume(std::move(paused));
    }
    policy_.End();
    judge_.End();
    if (prng_.NextChance(5)) EndView();
    ASSERT_EQ(policy_.size(), judge_.size());
    Victim();
  }

  // Whole, or in pieces of a few keys.
  void Begin(const RequestFacts& request) {
    if (prng_.NextChance(2)) return policy_.Begin(request);
    const uint64_t keys_max = 1 + prng_.NextBelow(request.keys.size() + 1);
    std::unique_ptr<Policy::Use> use;
    for (bool all = false; !all; ++pieces) {
      uint64_t keys_left = keys_max;
      all = policy_.BeginSome(request, use, keys_left);
      ASSERT_LE(keys_left, keys_max);
    }
  }
  void Add(const Here& block) {
    policy_.Add(block.id, block.facts);
    judge_.Add(block.id, block.facts);
  }
  // No request: a view was the last to hold a block.
  void EndView() {
    const BlockId block = Victim();
    policy_.Remove(block);
    judge_.Remove(block);
    Add(here_[keys_[block]]);
  }

  BlockId Victim() {
    const BlockId victim = judge_.Victim().value();
    EXPECT_EQ(policy_.Victim(), victim);
    by_worth += victim != judge_.Oldest() ? 1 : 0;
    return victim;
  }
  BlockId NewId() {
    if (keys_.size() < kBlocks) return BlockId(static_cast<uint32_t>(keys_.size()));
    const BlockId victim = Victim();
    policy_.Evict(victim);
    judge_.Evict(victim);
    here_.erase(keys_[victim]);
    return victim;
  }

  QuirePolicy& policy_;
  NaiveQuire& judge_;
  Prng prng_;
  uint64_t now_ms_ = 0;
  uint64_t next_block_ = 1000;
  std::deque<Chat> returning_;
  std::map<uint64_t, Here> here_;       // by key
  std::map<BlockId, uint64_t> keys_{};  // by id
};

TEST(QuireLockstep, EqualsASearchOfAllBlocks) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    QuirePolicy policy;
    NaiveQuire judge;
    Conversations conversations(policy, judge, seed);
    for (int request = 0; request < 3600 && !HasFailure(); ++request) {
      // For a while there is no memory to learn with.
      if (request == 2400 || request == 2500) {
        policy.SetHistory(request == 2400 ? 0 : UINT64_MAX);
        judge.SetLearns(request != 2400);
      }
      conversations.Request();
      if (HasFailure()) ADD_FAILURE() << "seed " << seed << ", request " << request;
    }
    EXPECT_GT(conversations.by_worth, 1000u) << "else an order by age would pass";
    EXPECT_GT(conversations.pieces, 3600u) << "else all began at once";
  }
}

}  // namespace
}  // namespace quire::evict
