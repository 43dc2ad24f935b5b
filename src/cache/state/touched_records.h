// How many block records a hold of the cache's lock touches.
#ifndef QUIRE_CACHE_STATE_TOUCHED_RECORDS_H_
#define QUIRE_CACHE_STATE_TOUCHED_RECORDS_H_

#include <cstdint>
#include <utility>

namespace quire::cache {

/// Most block records that one hold of the cache's lock may touch, and most blocks of a path that a
/// verb handles in one hold: longer work is cut into pieces. A verb that cannot tell how many
/// records a step touches begins no step after the first half of them: TouchedRecords::MayGoOn.
inline constexpr uint32_t kRecordsPerHold = 256;
inline constexpr uint32_t kBlocksPerHold = 48;

/// Counts records that are found, changed, leased or released in each hold of the lock.
///
/// Threads: not synchronised; the caller holds its lock
class TouchedRecords {
 public:
  void Count(uint32_t records) { count_ += records; }
  /// The count since the last call.
  uint32_t Take() { return std::exchange(count_, 0); }
  /// Whether another step may begin in this hold of the lock.
  bool MayGoOn(uint32_t records = kRecordsPerHold / 2) const { return count_ < records; }

 private:
  uint32_t count_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_TOUCHED_RECORDS_H_
