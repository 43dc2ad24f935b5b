// Blocks on their way to the store: what the mover asks of each cache.
#ifndef QUIRE_CACHE_STORING_H_
#define QUIRE_CACHE_STORING_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/below.h"
#include "cache/locked_state.h"

namespace quire::cache {

/// Threads: any
class Storing {
 public:
  explicit Storing(LockedState& cache) : cache_(cache) {}

  const LockedState& cache() const { return cache_; }
  struct Backlog {
    uint64_t queued = 0;      // blocks that wait to be written
    uint64_t lost_total = 0;  // and those that left memory unwritten
  };
  Backlog backlog() const;
  /// The sections of a record, which are there until the call returns.
  struct Sections {
    std::vector<std::span<const std::byte>> bytes{};
    std::vector<uint32_t> crcs{};  // of each
  };
  using Writer = std::function<void(const BlockToWrite& block, const Sections& sections)>;
  /// Calls write() with the next block, if there is one: false. A block that does not have its
  /// checksum any more is quarantined instead.
  bool WriteNext(const Writer& write);
  void EndWrite(const StoredForm& form, Below below, bool again);
  /// What was handed out of memory since the last call and is durable below; some of it, in the
  /// order of use.
  std::vector<StoredForm> TakeUsed();
  /// Of that, the store does not have this any more.
  void OfferAgain(std::span<const StoredForm> lost);

 private:
  LockedState& cache_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STORING_H_
