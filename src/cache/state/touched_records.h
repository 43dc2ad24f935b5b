// How many block records a hold of the cache's lock touches.
#ifndef QUIRE_CACHE_STATE_TOUCHED_RECORDS_H_
#define QUIRE_CACHE_STATE_TOUCHED_RECORDS_H_

#include <cstdint>
#include <utility>

namespace quire::cache {

/// Most block records that one hold of the cache's lock may touch, and most blocks of a path that a
/// verb is asked to go over in one hold: longer work goes in pieces. A verb that cannot tell how
/// many a step touches begins none after the first half of them: TouchedRecords::MayGoOn.
inline constexpr uint32_t kRecordsPerHold = 256;
inline constexpr uint32_t kBlocksPerHold = 48;

/// Counts records that are found, changed, leased or let go of, in one hold of the lock after the
/// other.
///
/// Threads: not synchronised; the caller holds its lock
class TouchedRecords {
 public:
  void Count(uint32_t records) { count_ += records; }
  /// Those since the last call.
  uint32_t Take() { return std::exchange(count_, 0); }
  /// Another step may begin in this hold of the lock.
  bool MayGoOn(uint32_t records = kRecordsPerHold / 2) const { return count_ < records; }

 private:
  uint32_t count_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_TOUCHED_RECORDS_H_
