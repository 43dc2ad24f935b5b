// Batches that callers handed in, until a caller takes their results.
#ifndef QUIRE_STORE_BATCHES_H_
#define QUIRE_STORE_BATCHES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "env/event.h"
#include "quire/store.h"

namespace quire::store {

/// Threads: any
class Batches {
 public:
  explicit Batches(std::unique_ptr<Event> event) : event_(std::move(event)) {}

  /// The number of a new batch. From here on it can be waited for.
  uint64_t Enter();
  /// Ends a batch, once.
  void End(uint64_t id, std::vector<BlockResult> results);

  /// As BlockStore::Wait and BlockStore::Drain.
  Result<BlockBatch> Wait(uint64_t id, uint64_t timeout_us);
  std::vector<BlockBatch> Drain();
  int event_fd() const { return event_->descriptor(); }

 private:
  struct Batch {
    std::vector<BlockResult> results{};
    bool ended = false;
    uint32_t waiters = 0;
  };
  using Known = std::map<uint64_t, Batch>;

  BlockBatch Take(Known::iterator batch) QUIRE_REQUIRES(mutex_);

  const std::unique_ptr<Event> event_;
  Mutex mutex_{LockRank::kLeaf};
  CondVar some_ended_;
  Known known_ QUIRE_GUARDED_BY(mutex_);
  std::deque<uint64_t> ended_ QUIRE_GUARDED_BY(mutex_);  // and not taken
  uint64_t made_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::store

#endif  // QUIRE_STORE_BATCHES_H_
