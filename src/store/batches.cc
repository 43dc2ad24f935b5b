#include "store/batches.h"

#include <string>
#include <utility>

#include "env/clock.h"

namespace quire::store {

uint64_t Batches::Enter() {
  MutexLock lock(mutex_);
  known_.try_emplace(made_ + 1);
  return ++made_;
}

void Batches::End(uint64_t id, std::vector<BlockResult> results) {
  MutexLock lock(mutex_);
  Batch& batch = known_.at(id);
  batch.results = std::move(results);
  batch.ended = true;
  ended_.push_back(id);
  if (batch.waiters > 0) {
    some_ended_.NotifyAll();
  } else {
    event_->Set();
  }
}

BlockBatch Batches::Take(Known::iterator batch) {
  BlockBatch taken = {.id = batch->first, .results = std::move(batch->second.results)};
  known_.erase(batch);
  return taken;
}

Result<BlockBatch> Batches::Wait(uint64_t id, uint64_t timeout_us) {
  const Clock& clock = SystemClock();
  const uint64_t begin_us = clock.NowMicros();
  MutexLock lock(mutex_);
  while (true) {
    const auto found = known_.find(id);
    if (found == known_.end()) {
      return Fail(ErrorCode::kNotFound, "store: no batch " + std::to_string(id) + ", or taken");
    }
    if (found->second.ended) {
      std::erase(ended_, id);
      return Take(found);
    }
    const uint64_t waited_us = clock.NowMicros() - begin_us;
    if (waited_us >= timeout_us) {
      return Fail(ErrorCode::kDeadline,
                  "store: batch " + std::to_string(id) + " did not end in time");
    }
    ++found->second.waiters;
    some_ended_.WaitFor(mutex_, timeout_us - waited_us);
    const auto still = known_.find(id);
    if (still != known_.end()) --still->second.waiters;
  }
}

std::vector<BlockBatch> Batches::Drain() {
  std::vector<BlockBatch> drained;
  MutexLock lock(mutex_);
  event_->Clear();
  std::erase_if(ended_, [&](uint64_t id) QUIRE_REQUIRES(mutex_) {
    const auto found = known_.find(id);
    if (found->second.waiters > 0) return false;
    drained.push_back(Take(found));
    return true;
  });
  return drained;
}

}  // namespace quire::store
