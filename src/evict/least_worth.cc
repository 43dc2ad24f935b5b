#include "evict/least_worth.h"

#include <utility>

namespace quire::evict {

void LeastWorth::StartAfresh(By by) {
  by_ = by;
  versions_.fill(UINT64_MAX);
}

void LeastWorth::Offer(uint32_t of_class, const Candidate& candidate) {
  offers_[of_class] = candidate;
  const bool stays_first = of_class == first_ && candidate.Precedes(offers_[next_]);
  const bool stays_behind =
      of_class != first_ && of_class != next_ && !candidate.Precedes(offers_[next_]);
  if (!stays_first && !stays_behind) Rank();
}

void LeastWorth::Rank() {
  first_ = 0;
  next_ = 1;
  if (offers_[next_].Precedes(offers_[first_])) std::swap(first_, next_);
  for (uint32_t i = 2; i < offers_.size(); ++i) {
    if (offers_[i].Precedes(offers_[first_])) {
      next_ = std::exchange(first_, i);
    } else if (offers_[i].Precedes(offers_[next_])) {
      next_ = i;
    }
  }
}

BlockId LeastWorth::Find(const LeafOrder& order, const ReturnModel& model, uint64_t now_ms) {
  if (by_ != By::kWorth || now_ms != now_ms_ || model.fits() != fits_) StartAfresh(By::kWorth);
  now_ms_ = now_ms;
  fits_ = model.fits();
  for (uint32_t i = 0; i < ReturnModel::kClasses; ++i) {
    if (versions_[i] == order.version(i)) continue;
    versions_[i] = order.version(i);
    Candidate least;
    for (const LeafOrder::Leaf* leaf : {order.FirstOf(i), order.LastOf(i)}) {
      if (leaf == nullptr) continue;
      const Candidate candidate = {.worth = model.Worth(i, now_ms - leaf->weight),
                                   .time_ms = leaf->weight,
                                   .stamp = leaf->stamp,
                                   .block = leaf->block};
      if (candidate.Precedes(least)) least = candidate;
    }
    Offer(i, least);
  }
  return offers_[first_].block;
}

BlockId LeastWorth::FindOldest(const LeafOrder& order) {
  if (by_ != By::kAge) StartAfresh(By::kAge);
  for (uint32_t i = 0; i < ReturnModel::kClasses; ++i) {
    if (versions_[i] == order.version(i)) continue;
    versions_[i] = order.version(i);
    const LeafOrder::Leaf* leaf = order.FirstOf(i);
    Offer(i, leaf != nullptr ? Candidate{.stamp = leaf->stamp, .block = leaf->block} : Candidate{});
  }
  return offers_[first_].block;
}

}  // namespace quire::evict
