#include "evict/return_shadow.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace quire::evict {
namespace {

constexpr uint64_t kWatchedMin = 16'384;  // enough returns to learn from in the smallest cache
constexpr uint64_t kUsesPerFitMin = 512;
constexpr uint64_t kUsesPerComparison = 64;
constexpr uint64_t kPerScore = 4;   // watched blocks: enough for quantiles
constexpr double kHitsKept = 0.99;  // from one comparison to the next

}  // namespace

std::optional<BlockId> LeastWorth(const LeafOrder& order, const ReturnModel& model,
                                  uint64_t now_ms) {
  std::optional<BlockId> least;
  std::tuple<double, uint64_t, uint64_t> best;
  for (uint32_t i = 0; i < ReturnModel::kClasses; ++i) {
    for (const auto& leaf : {order.FirstOf(i), order.LastOf(i)}) {
      if (!leaf) continue;
      const std::tuple worth(model.Worth(i, now_ms - leaf->weight), leaf->weight, leaf->stamp);
      if (least && worth >= best) continue;
      least = leaf->block;
      best = worth;
    }
  }
  return least;
}

void ReturnShadow::Use(uint64_t key, const ReturnFeatures& features, uint64_t now_ms,
                       uint64_t cache_blocks) {
  const Place place = Watch(key);
  Watched& watched = *place;
  if (!watched.slot.is_none()) {
    Return(watched, now_ms);
  } else if (unused_slots_.empty()) {
    watched.slot = BlockId(slots_++);
  } else {
    watched.slot = unused_slots_.back();
    unused_slots_.pop_back();
  }
  watched.time_ms = now_ms;
  watched.of_class = model_.ClassOf(model_.Score(features));
  watched.outcome_known = false;
  watched.features = features;
  by_worth_.Add(watched.slot, BlockId::None(),
                {.queue = watched.of_class, .weight = now_ms, .stamp = ++uses_});
  if (!watched.in_lru) ++lru_blocks_;
  watched.in_lru = true;
  if (lru_oldest_ == watched_.end()) lru_oldest_ = place;
  Trim(std::max<uint64_t>(1, cache_blocks / kEvery), now_ms);
  while (watched_.size() > std::max(kWatchedMin, 2 * cache_blocks / kEvery)) Forget(now_ms);
  if (uses_ % kUsesPerComparison == 0) Compare();
  if (uses_ - uses_at_fit_ >= std::max(kUsesPerFitMin, watched_.size() / 8)) Refit(now_ms);
}

// Finds what is watched under this key, or starts, and makes it the most recent.
ReturnShadow::Place ReturnShadow::Watch(uint64_t key) {
  const auto [known, is_new] = places_.try_emplace(key);
  if (is_new) {
    known->second = watched_.insert(
        watched_.end(),
        Watched{.key = key, .time_ms = 0, .slot = {}, .of_class = 0, .features = {}});
  } else {
    if (lru_oldest_ == known->second) ++lru_oldest_;
    watched_.splice(watched_.end(), watched_, known->second);
  }
  return known->second;
}

void ReturnShadow::Return(Watched& watched, uint64_t now_ms) {
  model_.CountReturn(watched.of_class, now_ms - watched.time_ms);
  if (!watched.outcome_known) model_.Learn(watched.features, true);
  const bool in_model = by_worth_.contains(watched.slot);
  if (in_model) by_worth_.Remove(watched.slot);
  if (in_model == watched.in_lru) return;
  lead_ += in_model ? 1 : -1;
  ++hits_apart_;
}

// Both caches back to their size.
void ReturnShadow::Trim(uint64_t blocks, uint64_t now_ms) {
  while (lru_blocks_ > blocks) {
    lru_oldest_->in_lru = false;
    ++lru_oldest_;
    --lru_blocks_;
  }
  while (by_worth_.size() > blocks) by_worth_.Remove(*LeastWorth(by_worth_, model_, now_ms));
}

// Stops watching what was used longest ago.
void ReturnShadow::Forget(uint64_t now_ms) {
  const Watched& oldest = watched_.front();
  model_.CountLost(oldest.of_class, now_ms - oldest.time_ms);
  if (!oldest.outcome_known) model_.Learn(oldest.features, false);
  if (by_worth_.contains(oldest.slot)) by_worth_.Remove(oldest.slot);
  if (oldest.in_lru) {
    ++lru_oldest_;
    --lru_blocks_;
  }
  unused_slots_.push_back(oldest.slot);
  places_.erase(oldest.key);
  watched_.pop_front();
}

// By more than chance: hits that only one of two equal caches had would differ by about the square
// root of their number.
void ReturnShadow::Compare() {
  model_leads_ = lead_ > std::sqrt(hits_apart_);
  lead_ *= kHitsKept;
  hits_apart_ *= kHitsKept;
}

void ReturnShadow::Refit(uint64_t now_ms) {
  uses_at_fit_ = uses_;
  std::vector<double> scores;
  scores.reserve(watched_.size() / kPerScore);
  uint64_t i = 0;
  ReturnModel::ClassAges ages = {};
  for (Watched& watched : watched_) {
    const uint64_t age_ms = now_ms - watched.time_ms;
    if (!watched.outcome_known && static_cast<double>(age_ms) > model_.horizon_ms()) {
      watched.outcome_known = true;
      model_.Learn(watched.features, false);
    }
    if (++i % kPerScore == 0) scores.push_back(model_.Score(watched.features));
    ++ages[watched.of_class][ReturnModel::AgeOf(age_ms)];
  }
  model_.Refit(scores, ages);
}

}  // namespace quire::evict
