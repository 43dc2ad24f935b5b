// What lies below the memory of a replay: a store, whose index, segments and choice of what goes
// are those of the cold store, without bytes and disk; and a remote, which keeps everything.
#ifndef QUIRE_APPS_REPLAY_STORE_H_
#define QUIRE_APPS_REPLAY_STORE_H_

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

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
  /// The keys of those that went since the last call.
  std::vector<uint64_t> TakeRecycled();

 private:
  void BeginSegment();

  tier::SegmentTable segments_;
  tier::ColdIndex index_;
  tier::UseClock uses_;
  std::optional<uint32_t> active_{};
  uint64_t written_ = 0;
  uint64_t recycled_ = 0;
  std::vector<std::vector<uint64_t>> keys_{};  // by segment
  std::vector<uint64_t> recycled_keys_{};
};

/// What a machine writes to a remote.
enum class ReplayRemoteWrites : uint8_t {
  kReused = 1,    // what is used again, in memory or in the store
  kRecycled = 2,  // that, and what the store recycles
  kAll = 3,
};

/// Threads: one at a time
class ReplayRemote {
 public:
  bool Has(uint64_t key) const { return keys_.contains(key); }
  void Put(uint64_t key) { keys_.insert(key); }
  uint64_t written() const { return keys_.size(); }

 private:
  std::unordered_set<uint64_t> keys_;
};

}  // namespace quire::app

#endif  // QUIRE_APPS_REPLAY_STORE_H_
