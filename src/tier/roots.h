// Under which roots a cold store has records: what lets a miss say that the prompt is there under
// another profile, geometry or model. A root is the parent of a first block's key.
#ifndef QUIRE_TIER_ROOTS_H_
#define QUIRE_TIER_ROOTS_H_

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "tier/store.h"

namespace quire::tier {

/// The roots of each segment, as far as it has records of first blocks: they go with it.
///
/// Threads: any; takes its own lock, below which nothing is taken
class RootTable {
 public:
  static constexpr uint32_t kOfSegmentMax = 16;    // more are not remembered
  static constexpr uint32_t kOfPublisherMax = 64;  // more are not told

  /// A segment has a record whose parent is this root.
  void Add(uint32_t segment, const PublisherId& publisher, const RecordRoot& root);
  void Forget(uint32_t segment);
  std::vector<RecordRoot> OfSegment(uint32_t segment) const;
  std::vector<RecordRoot> Of(const PublisherId& publisher) const;

 private:
  struct OfSegmentRoots {
    PublisherId publisher{};
    std::vector<RecordRoot> roots{};
  };
  using Counts = std::map<RecordRoot, uint32_t>;  // segments that have it

  mutable Mutex mutex_{LockRank::kLeaf};
  std::map<uint32_t, OfSegmentRoots> segments_ QUIRE_GUARDED_BY(mutex_);
  std::map<PublisherId, Counts> publishers_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_ROOTS_H_
