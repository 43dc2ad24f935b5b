#include "evict/reuse_estimator.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire::evict {

ReuseEstimator::ReuseEstimator(uint32_t samples_max) : samples_max_(samples_max) {
  QUIRE_CHECK(samples_max >= 1 && samples_max < 1U << 28);
}

void ReuseEstimator::SetCapacity(uint32_t samples_max) {
  QUIRE_CHECK(samples_max >= 1 && samples_max < 1U << 28);
  if (samples_max == samples_max_) return;
  samples_max_ = samples_max;
  while (last_.size() > samples_max) ForgetLast();
  if (!last_.empty()) Compact();
}

double ReuseEstimator::scale() const { return 0x1p64 / (static_cast<double>(sampled_below_) + 1); }

// Even steps below kPerDoubling, then kPerDoubling steps per doubling.
uint32_t ReuseEstimator::BucketOf(double distance) {
  if (distance < kPerDoubling) return static_cast<uint32_t>(distance);
  int exponent = 0;
  const double fraction = std::frexp(distance / kPerDoubling, &exponent);  // 0.5 to 1
  const auto step = static_cast<uint32_t>((fraction * 2 - 1) * kPerDoubling);
  return std::min(kDistances - 1, static_cast<uint32_t>(exponent) * kPerDoubling + step);
}

double ReuseEstimator::BucketBegin(uint32_t bucket) {
  if (bucket < kPerDoubling) return bucket;
  const uint32_t step = bucket % kPerDoubling;
  return std::ldexp(kPerDoubling + step, static_cast<int>(bucket / kPerDoubling) - 1);
}

void ReuseEstimator::CountAsked(std::span<const uint64_t> keys) {
  uses_ += keys.size();
  for (const uint64_t key : keys) {
    if (IsSampled(key)) CountOne(key);
  }
}

void ReuseEstimator::Touch(std::span<const uint64_t> keys) {
  for (size_t i = keys.size(); i-- > 0;) {
    if (IsSampled(keys[i])) TouchOne(keys[i]);
  }
}

void ReuseEstimator::CountOne(uint64_t key) {
  sampled_uses_ += scale();
  const auto last = last_.find(key);
  if (last == last_.end()) return;
  const double since = static_cast<double>(last_.size()) - UsedUntil(last->second);
  const uint32_t bucket = BucketOf(since * scale());
  if (bucket >= hits_.size()) hits_.resize(bucket + 1);
  hits_[bucket] += scale();
}

void ReuseEstimator::TouchOne(uint64_t key) {
  if (next_moment_ >= tree_.size()) Compact();
  const auto [last, is_new] = last_.try_emplace(key);
  if (!is_new) AddAt(last->second, -1);
  last->second = next_moment_++;
  AddAt(last->second, 1);
  if (last_.size() > samples_max_) ForgetLast();
}

// From now on only keys below the largest are sampled.
void ReuseEstimator::ForgetLast() {
  const auto out = std::prev(last_.end());
  AddAt(out->second, -1);
  sampled_below_ = out->first;
  last_.erase(out);
}

// Moments from 1 again, in the same order, with room for those to come.
void ReuseEstimator::Compact() {
  std::vector<uint32_t*> moments(next_moment_);  // null: nothing was used last then
  for (auto& [key, moment] : last_) moments[moment] = &moment;
  const uint64_t moments_max = uint64_t{samples_max_} * 4 + 2;
  if (tree_.size() > moments_max) {
    tree_ = std::vector<int32_t>(moments_max);  // there were more samples: their memory goes back
  } else {
    tree_.assign(moments_max, 0);
  }
  next_moment_ = 1;
  for (uint32_t* moment : moments) {
    if (moment != nullptr) *moment = next_moment_++;
  }
  // Each of the first moments has one key: the number of keys in the range of each node is known.
  for (uint32_t i = 1; i < tree_.size(); ++i) {
    const uint32_t range = i & -i;
    tree_[i] = static_cast<int32_t>(next_moment_ - 1 - std::min(next_moment_ - 1, i - range));
    tree_[i] = std::min(tree_[i], static_cast<int32_t>(range));
  }
}

void ReuseEstimator::AddAt(uint32_t moment, int32_t change) {
  for (uint32_t i = moment; i < tree_.size(); i += i & -i) tree_[i] += change;
}

uint32_t ReuseEstimator::UsedUntil(uint32_t moment) const {
  int32_t used = 0;
  for (uint32_t i = moment; i > 0; i -= i & -i) used += tree_[i];
  return static_cast<uint32_t>(used);
}

double ReuseEstimator::HitRatio(uint64_t capacity_blocks) const {
  if (uses_ == 0) return 0;
  const auto capacity = static_cast<double>(capacity_blocks);
  const uint32_t last = BucketOf(capacity);
  double hits = 0;
  for (uint32_t i = 0; i < std::min<size_t>(last, hits_.size()); ++i) hits += hits_[i];
  const double begin = BucketBegin(last);
  if (last < hits_.size()) {
    hits += hits_[last] * (capacity - begin) / (BucketBegin(last + 1) - begin);
  }
  // A sample that by chance holds too few uses lacks those of blocks that are used all the time.
  if (capacity_blocks > 0) hits += static_cast<double>(uses_) - sampled_uses_;
  return std::clamp(hits / static_cast<double>(uses_), 0.0, 1.0);
}

}  // namespace quire::evict
