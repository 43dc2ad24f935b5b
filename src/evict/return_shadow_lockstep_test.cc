// The shadow beside one whose caches in miniature are plain lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "evict/return_shadow.h"

namespace quire::evict {
namespace {

// The model is a real one: return_model_lockstep_test.cc is about that.
class NaiveShadow {
 public:
  bool Samples(uint64_t key) const { return key != 0 && key % every_ == 0; }

  void Begin(uint64_t cache_blocks, bool is_full) {
    variance_ += of_request_ * of_request_;
    of_request_ = 0;
    if (!is_full) return;
    if (every_ < 16 && cache_blocks / every_ / 2 >= 48) every_ *= 2;
    if (every_ > 1 && cache_blocks < 48 * every_) every_ /= 2;
    std::erase_if(blocks_, [this](const Block& block) { return !Samples(block.key); });
  }

  void Use(uint64_t key, const ReturnFeatures& features, uint64_t now_ms, uint64_t cache_blocks,
           uint64_t watched_max) {
    const auto known = std::ranges::find(blocks_, key, &Block::key);
    if (known != blocks_.end()) {
      model_.CountReturn(known->of_class, now_ms - known->time_ms);
      if (!known->outcome_known) model_.Learn(known->features, true);
      const int lead = (known->in_model ? 1 : 0) - (known->in_lru ? 1 : 0);
      lead_ += lead;
      of_request_ += lead;
      blocks_.erase(known);
    }
    blocks_.push_back({.key = key,
                       .time_ms = now_ms,
                       .use = ++uses_,
                       .features = features,
                       .of_class = model_.ClassOf(model_.Score(features))});
    const uint64_t capacity = std::max<uint64_t>(1, cache_blocks / every_);
    while (Count(&Block::in_lru) > capacity) {
      std::ranges::find(blocks_, true, &Block::in_lru)->in_lru = false;
    }
    while (Count(&Block::in_model) > capacity) LeastWorth(now_ms)->in_model = false;
    while (blocks_.size() > watched_max) {
      const Block& oldest = blocks_.front();
      model_.CountLost(oldest.of_class, now_ms - oldest.time_ms);
      if (!oldest.outcome_known) model_.Learn(oldest.features, false);
      blocks_.erase(blocks_.begin());
    }
    if (uses_ % 64 == 0) Compare();
    if (uses_ - uses_at_fit_ >= std::max<uint64_t>(512, blocks_.size() / 8)) Refit(now_ms);
  }

  const ReturnModel& model() const { return model_; }
  bool model_leads() const { return model_leads_; }
  uint64_t watched() const { return blocks_.size(); }

 private:
  struct Block {
    uint64_t key = 0;
    uint64_t time_ms = 0;
    uint64_t use = 0;
    ReturnFeatures features = {};
    uint32_t of_class = 0;
    bool in_lru = true;
    bool in_model = true;
    bool outcome_known = false;
  };
  using Iterator = std::vector<Block>::iterator;

  uint64_t Count(bool Block::* in) const {
    return static_cast<uint64_t>(std::ranges::count(blocks_, true, in));
  }

  // Of each class the oldest and the newest are looked at.
  Iterator LeastWorth(uint64_t now_ms) {
    const auto rank = [&](const Block& block) {
      return std::tuple(model_.Worth(block.of_class, now_ms - block.time_ms), block.time_ms,
                        block.use);
    };
    std::array<std::array<Iterator, 2>, ReturnModel::kClasses> ends;
    for (auto& of_class : ends) of_class.fill(blocks_.end());
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      if (!block->in_model) continue;
      auto& [first, last] = ends[block->of_class];
      if (first == blocks_.end()) first = block;
      last = block;
    }
    Iterator least = blocks_.end();
    for (const auto& of_class : ends) {
      for (const Iterator block : of_class) {
        if (block == blocks_.end()) continue;
        if (least == blocks_.end() || rank(*block) < rank(*least)) least = block;
      }
    }
    return least;
  }

  void Compare() {
    const double chance = std::sqrt(variance_ + of_request_ * of_request_);
    model_leads_ = lead_ > (model_leads_ ? chance / 2 : chance);
    lead_ *= 0.99;
    variance_ *= 0.99;
  }

  void Refit(uint64_t now_ms) {
    uses_at_fit_ = uses_;
    std::vector<double> scores;
    ReturnModel::ClassAges ages = {};
    for (size_t i = 0; i < blocks_.size(); ++i) {
      Block& block = blocks_[i];
      const uint64_t age_ms = now_ms - block.time_ms;
      if (!block.outcome_known && static_cast<double>(age_ms) > model_.horizon_ms()) {
        block.outcome_known = true;
        model_.Learn(block.features, false);
      }
      if (i % 4 == 3) scores.push_back(model_.Score(block.features));
      ages[block.of_class][ReturnModel::AgeOf(age_ms)] += 1;
    }
    model_.Refit(scores, ages);
  }

  ReturnModel model_;
  std::vector<Block> blocks_;  // watched, least recent first
  uint64_t every_ = 16;
  double lead_ = 0;
  double of_request_ = 0;
  double variance_ = 0;
  bool model_leads_ = false;
  uint64_t uses_ = 0;
  uint64_t uses_at_fit_ = 0;
};

// Blocks of three kinds: used again at once, after long, or never. What the first feature says of
// the kind is right nine times of ten.
class Traffic {
 public:
  explicit Traffic(uint64_t seed) : prng_(seed) {}

  struct Use {
    uint64_t key = 0;
    ReturnFeatures features = {};
  };

  Use Next(uint64_t long_after) {
    const uint64_t kind = prng_.NextBelow(3);
    uint64_t number = next_++;
    if (kind == 0 && number > 4) number -= 1 + prng_.NextBelow(4);
    if (kind == 1 && number > long_after) number -= long_after;
    const bool returns = number % 3 == 1;
    const bool says = prng_.NextBelow(10) > 0 ? returns : !returns;
    return {.key = number * 16 + (prng_.NextChance(8) ? 4 : 16),
            .features = {1, says ? 1.0F : -1.0F, prng_.NextFloat(-1, 1)}};
  }
  uint64_t Below(uint64_t limit) { return prng_.NextBelow(limit); }

 private:
  Prng prng_;
  uint64_t next_ = 0;
};

struct Regime {
  uint64_t cache_blocks;
  uint64_t watched_max;
  uint64_t long_after;
  bool is_full;
};

TEST(ReturnShadowLockstep, EqualsPlainLists) {
  // Both that fit by recency and that do not, and sizes at which the sample changes.
  constexpr Regime kRegimes[] = {
      {16, 200, 40, false},  {320, 300, 60, false},    {767, 300, 90, true}, {192, 300, 60, true},
      {96, 200, 100, true},  {47, 150, 30, true},      {96, 60, 30, true},   {768, 300, 40, true},
      {1536, 300, 90, true}, {16 * 20, 500, 45, false}};
  uint64_t leads = 0;
  uint64_t compared = 0;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    ReturnShadow shadow;
    NaiveShadow judge;
    Traffic traffic(seed);
    uint64_t now_ms = 0;
    for (const Regime& regime : kRegimes) {
      for (int request = 0; request < 700; ++request) {
        shadow.Begin(regime.cache_blocks, regime.is_full);
        judge.Begin(regime.cache_blocks, regime.is_full);
        now_ms += traffic.Below(200);
        for (uint64_t i = 1 + traffic.Below(4); i > 0; --i) {
          const Traffic::Use use = traffic.Next(regime.long_after);
          ASSERT_EQ(shadow.Samples(use.key), judge.Samples(use.key));
          if (!shadow.Samples(use.key)) continue;
          shadow.Use(use.key, use.features, now_ms, regime.cache_blocks, regime.watched_max);
          judge.Use(use.key, use.features, now_ms, regime.cache_blocks, regime.watched_max);
          ASSERT_EQ(shadow.watched(), judge.watched());
          ASSERT_EQ(shadow.model().fits(), judge.model().fits());
          ASSERT_EQ(shadow.model().Score(use.features), judge.model().Score(use.features));
          ASSERT_EQ(shadow.model().horizon_ms(), judge.model().horizon_ms());
          ASSERT_EQ(shadow.model().Worth(3, 500), judge.model().Worth(3, 500));
          ASSERT_EQ(shadow.model_leads(), judge.model_leads())
              << "seed " << seed << ", cache of " << regime.cache_blocks << ", request " << request;
          leads += judge.model_leads() ? 1 : 0;
          ++compared;
        }
      }
    }
    EXPECT_GT(judge.model().fits(), 10u);
  }
  EXPECT_GT(leads, compared / 10) << "else the model's cache was not looked at";
  EXPECT_LT(leads, compared * 9 / 10);
}

}  // namespace
}  // namespace quire::evict
