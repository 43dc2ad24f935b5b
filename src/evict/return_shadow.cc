#include "evict/return_shadow.h"

#include <algorithm>
#include <cmath>

#include "evict/return_model.h"

namespace quire::evict {
namespace {

constexpr uint64_t kUsesPerFitMin = 512;
constexpr uint64_t kUsesPerComparison = 64;
constexpr double kHitsKept = 0.99;        // from one comparison to the next
constexpr uint64_t kMiniatureLeast = 48;  // blocks
constexpr double kStay = 0.5;             // of the lead needed to become the leader, to stay it

}  // namespace

void ReturnShadow::Begin(uint64_t cache_blocks, bool is_full) {
  variance_ += of_request_ * of_request_;
  of_request_ = 0;
  if (!is_full) return;  // how large it is, shows then
  if (every_ < kEveryMost && cache_blocks >= 2 * every_ * kMiniatureLeast) SampleOneIn(every_ * 2);
  if (every_ > 1 && cache_blocks < every_ * kMiniatureLeast) SampleOneIn(every_ / 2);
}

// Blocks that are sampled no more teach nothing.
void ReturnShadow::SampleOneIn(uint64_t every) {
  every_ = every;
  for (BlockId place = watched_.Oldest(); !place.is_none();) {
    const BlockId next = watched_.Next(place);
    if (!Samples(watched_.key(place))) Drop(place);
    place = next;
  }
}

void ReturnShadow::Use(uint64_t key, const ReturnFeatures& features, uint64_t now_ms,
                       uint64_t cache_blocks, uint64_t watched_max) {
  BlockId place = watched_.Find(key);
  if (place.is_none()) {
    place = watched_.Add(key);
  } else {
    Return(place, now_ms);
    if (lru_oldest_ == place) lru_oldest_ = watched_.Next(place);
    watched_.Renew(place);
  }
  Watched& watched = watched_[place];
  if (!watched.in_lru) ++lru_blocks_;
  watched = {.time_ms = now_ms,
             .use = ++uses_,
             .features = features,
             .of_class = static_cast<uint8_t>(model_.ClassOf(model_.Score(features))),
             .in_lru = true};
  by_class_.Append(watched.of_class, place);
  ++model_blocks_;
  if (lru_oldest_.is_none()) lru_oldest_ = place;
  Trim(std::max<uint64_t>(1, cache_blocks / every_), now_ms);
  while (watched_.size() > watched_max) Forget(now_ms);
  if (uses_ % kUsesPerComparison == 0) Compare();
  if (uses_ - uses_at_fit_ >= std::max(kUsesPerFitMin, watched_.size() / 8)) Refit(now_ms);
}

void ReturnShadow::Return(BlockId place, uint64_t now_ms) {
  const Watched& watched = watched_[place];
  model_.CountReturn(watched.of_class, now_ms - watched.time_ms);
  if (!watched.outcome_known) model_.Learn(watched.features, true);
  const bool in_model = by_class_.contains(place);
  if (in_model) {
    by_class_.Remove(watched.of_class, place);
    --model_blocks_;
  }
  if (in_model == watched.in_lru) return;
  lead_ += in_model ? 1 : -1;
  of_request_ += in_model ? 1 : -1;
}

// Both caches back to their size.
void ReturnShadow::Trim(uint64_t blocks, uint64_t now_ms) {
  while (lru_blocks_ > blocks) {
    watched_[lru_oldest_].in_lru = false;
    lru_oldest_ = watched_.Next(lru_oldest_);
    --lru_blocks_;
  }
  for (; model_blocks_ > blocks; --model_blocks_) {
    const BlockId least = LeastWorth(now_ms);
    by_class_.Remove(watched_[least].of_class, least);
  }
}

BlockId ReturnShadow::LeastWorth(uint64_t now_ms) const {
  Candidate least;
  for (uint32_t i = 0; i < ReturnModel::kClasses; ++i) {
    for (const BlockId place : {by_class_.First(i), by_class_.Last(i)}) {
      if (place.is_none()) continue;
      const Watched& watched = watched_[place];
      const Candidate candidate = {.worth = model_.Worth(i, now_ms - watched.time_ms),
                                   .time_ms = watched.time_ms,
                                   .stamp = watched.use,
                                   .block = place};
      if (candidate.Precedes(least)) least = candidate;
    }
  }
  return least.block;
}

// Stops watching the least recently used blocks.
void ReturnShadow::Forget(uint64_t now_ms) {
  const BlockId place = watched_.Oldest();
  const Watched& oldest = watched_[place];
  model_.CountLost(oldest.of_class, now_ms - oldest.time_ms);
  if (!oldest.outcome_known) model_.Learn(oldest.features, false);
  Drop(place);
}

void ReturnShadow::Drop(BlockId place) {
  const Watched& watched = watched_[place];
  if (by_class_.contains(place)) {
    by_class_.Remove(watched.of_class, place);
    --model_blocks_;
  }
  if (watched.in_lru) --lru_blocks_;
  if (lru_oldest_ == place) lru_oldest_ = watched_.Next(place);
  watched_.Remove(place);
}

// By more than chance: between equal caches each request adds to the lead at random, all its blocks
// together. The leader stays the leader until half of that is gone.
void ReturnShadow::Compare() {
  const double chance = std::sqrt(variance_ + of_request_ * of_request_);
  model_leads_ = lead_ > (model_leads_ ? kStay : 1) * chance;
  lead_ *= kHitsKept;
  variance_ *= kHitsKept;
}

void ReturnShadow::Refit(uint64_t now_ms) {
  uses_at_fit_ = uses_;
  std::vector<double> scores;
  scores.reserve(watched_.size() / kPerScore);
  uint64_t i = 0;
  ReturnModel::ClassAges ages = {};
  for (BlockId place = watched_.Oldest(); !place.is_none(); place = watched_.Next(place)) {
    Watched& watched = watched_[place];
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
