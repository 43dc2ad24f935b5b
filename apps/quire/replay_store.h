// A store below the memory of a replay: the index, the segments and the choice of what goes are
// those of the cold store; only the bytes and the disk are left out.
#ifndef QUIRE_APPS_REPLAY_STORE_H_
#define QUIRE_APPS_REPLAY_STORE_H_

#include <cstdint>
#include <optional>

#include "tier/cold_index.h"
#include "tier/segments.h"
#include "tier/use_clock.h"

namespace quire::app {

/// Threads: one at a time
class ReplayStore {
 public:
  /// Room for at least two segments.
  ReplayStore(uint64_t blocks, uint64_t segment_blocks);

  bool Has(uint64_t key) const;
  /// A block that has so many before it is read, or in use in memory: whether it is there.
  bool Use(uint64_t key, uint64_t block_index);
  /// A block is written; one that is there is in use.
  void Put(uint64_t key, uint64_t block_index);

  uint64_t written() const { return written_; }
  /// Blocks that went because their segment was written anew.
  uint64_t recycled() const { return recycled_; }

 private:
  void BeginSegment();

  tier::SegmentTable segments_;
  tier::ColdIndex index_;
  tier::UseClock uses_;
  std::optional<uint32_t> active_{};
  uint64_t written_ = 0;
  uint64_t recycled_ = 0;
};

}  // namespace quire::app

#endif  // QUIRE_APPS_REPLAY_STORE_H_
