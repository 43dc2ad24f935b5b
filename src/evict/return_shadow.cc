#include "evict/return_shadow.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cmath>

#include "evict/least_worth.h"

namespace quire::evict {
namespace {

constexpr uint64_t kWatchedMin = 16'384;  // enough returns to learn from in the smallest cache
constexpr uint64_t kUsesPerFitMin = 512;
constexpr uint64_t kUsesPerComparison = 64;
constexpr uint64_t kPerScore = 4;   // watched blocks: enough for quantiles
constexpr double kHitsKept = 0.99;  // from one comparison to the next

}  // namespace

struct ReturnShadow::Places {
  absl::flat_hash_map<uint64_t, BlockId> by_key;  // never walked
};

ReturnShadow::ReturnShadow() : places_(std::make_unique<Places>()) {}

ReturnShadow::~ReturnShadow() = default;

void ReturnShadow::Use(uint64_t key, const ReturnFeatures& features, uint64_t now_ms,
                       uint64_t cache_blocks) {
  const BlockId place = Watch(key);
  Watched& watched = watched_[place.number()];
  if (by_use_.contains(place)) {
    Return(place, now_ms);
    if (lru_oldest_ == place) lru_oldest_ = by_use_.Next(place);
    by_use_.Remove(place);
  }
  by_use_.Append(0, place);
  watched.time_ms = now_ms;
  watched.use = ++uses_;
  watched.of_class = model_.ClassOf(model_.Score(features));
  watched.outcome_known = false;
  features_[place.number()] = features;
  by_class_.Append(watched.of_class, place);
  ++model_blocks_;
  if (!watched.in_lru) ++lru_blocks_;
  watched.in_lru = true;
  if (lru_oldest_.is_none()) lru_oldest_ = place;
  Trim(std::max<uint64_t>(1, cache_blocks / kEvery), now_ms);
  while (places_->by_key.size() > std::max(kWatchedMin, 2 * cache_blocks / kEvery)) Forget(now_ms);
  if (uses_ % kUsesPerComparison == 0) Compare();
  if (uses_ - uses_at_fit_ >= std::max(kUsesPerFitMin, places_->by_key.size() / 8)) Refit(now_ms);
}

// Finds what is watched under this key, or a place for it.
BlockId ReturnShadow::Watch(uint64_t key) {
  const auto [known, is_new] = places_->by_key.try_emplace(key);
  if (!is_new) return known->second;
  if (unused_places_.empty()) {
    unused_places_.emplace_back(static_cast<uint32_t>(watched_.size()));
    watched_.emplace_back();
    features_.emplace_back();
  }
  known->second = unused_places_.back();
  unused_places_.pop_back();
  watched_[known->second.number()] = {.key = key};
  return known->second;
}

void ReturnShadow::Return(BlockId place, uint64_t now_ms) {
  const Watched& watched = watched_[place.number()];
  model_.CountReturn(watched.of_class, now_ms - watched.time_ms);
  if (!watched.outcome_known) model_.Learn(features_[place.number()], true);
  const bool in_model = by_class_.contains(place);
  if (in_model) {
    by_class_.Remove(place);
    --model_blocks_;
  }
  if (in_model == watched.in_lru) return;
  lead_ += in_model ? 1 : -1;
  ++hits_apart_;
}

// Both caches back to their size.
void ReturnShadow::Trim(uint64_t blocks, uint64_t now_ms) {
  while (lru_blocks_ > blocks) {
    watched_[lru_oldest_.number()].in_lru = false;
    lru_oldest_ = by_use_.Next(lru_oldest_);
    --lru_blocks_;
  }
  for (; model_blocks_ > blocks; --model_blocks_) by_class_.Remove(LeastWorth(now_ms));
}

BlockId ReturnShadow::LeastWorth(uint64_t now_ms) const {
  Candidate least;
  for (uint32_t i = 0; i < ReturnModel::kClasses; ++i) {
    for (const BlockId place : {by_class_.First(i), by_class_.Last(i)}) {
      if (place.is_none()) continue;
      const Watched& watched = watched_[place.number()];
      const Candidate candidate = {.worth = model_.Worth(i, now_ms - watched.time_ms),
                                   .time_ms = watched.time_ms,
                                   .stamp = watched.use,
                                   .block = place};
      if (candidate.Precedes(least)) least = candidate;
    }
  }
  return least.block;
}

// Stops watching what was used longest ago.
void ReturnShadow::Forget(uint64_t now_ms) {
  const BlockId place = by_use_.First(0);
  const Watched& oldest = watched_[place.number()];
  model_.CountLost(oldest.of_class, now_ms - oldest.time_ms);
  if (!oldest.outcome_known) model_.Learn(features_[place.number()], false);
  if (by_class_.contains(place)) {
    by_class_.Remove(place);
    --model_blocks_;
  }
  if (oldest.in_lru) {
    lru_oldest_ = by_use_.Next(place);
    --lru_blocks_;
  }
  places_->by_key.erase(oldest.key);
  by_use_.Remove(place);
  unused_places_.push_back(place);
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
  scores.reserve(places_->by_key.size() / kPerScore);
  uint64_t i = 0;
  ReturnModel::ClassAges ages = {};
  for (BlockId place = by_use_.First(0); !place.is_none(); place = by_use_.Next(place)) {
    Watched& watched = watched_[place.number()];
    const uint64_t age_ms = now_ms - watched.time_ms;
    if (!watched.outcome_known && static_cast<double>(age_ms) > model_.horizon_ms()) {
      watched.outcome_known = true;
      model_.Learn(features_[place.number()], false);
    }
    if (++i % kPerScore == 0) scores.push_back(model_.Score(features_[place.number()]));
    ++ages[watched.of_class][ReturnModel::AgeOf(age_ms)];
  }
  model_.Refit(scores, ages);
}

}  // namespace quire::evict
