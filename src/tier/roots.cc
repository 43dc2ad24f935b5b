#include "tier/roots.h"

#include <algorithm>
#include <utility>

namespace quire::tier {

void RootTable::Add(uint32_t segment, const PublisherId& publisher, const RecordRoot& root) {
  MutexLock lock(mutex_);
  OfSegmentRoots& known = segments_[segment];
  known.publisher = publisher;
  if (known.roots.size() >= kOfSegmentMax) return;
  if (std::ranges::find(known.roots, root) != known.roots.end()) return;
  known.roots.push_back(root);
  ++publishers_[publisher][root];
}

void RootTable::Forget(uint32_t segment) {
  MutexLock lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) return;
  const OfSegmentRoots gone = std::move(found->second);
  segments_.erase(found);
  const auto counts = publishers_.find(gone.publisher);
  for (const RecordRoot& root : gone.roots) {
    if (--counts->second[root] == 0) counts->second.erase(root);
  }
  if (counts != publishers_.end() && counts->second.empty()) publishers_.erase(counts);
}

std::vector<RecordRoot> RootTable::OfSegment(uint32_t segment) const {
  MutexLock lock(mutex_);
  const auto found = segments_.find(segment);
  return found == segments_.end() ? std::vector<RecordRoot>() : found->second.roots;
}

std::vector<RecordRoot> RootTable::Of(const PublisherId& publisher) const {
  MutexLock lock(mutex_);
  const auto found = publishers_.find(publisher);
  if (found == publishers_.end()) return {};
  std::vector<RecordRoot> roots;
  for (const auto& [root, count] : found->second) {
    if (roots.size() == kOfPublisherMax) break;
    roots.push_back(root);
  }
  return roots;
}

}  // namespace quire::tier
