// Which sequences live, so that whoever holds what stands in the way can be named.
#ifndef QUIRE_CACHE_SEQUENCES_H_
#define QUIRE_CACHE_SEQUENCES_H_

#include <atomic>
#include <cstdint>
#include <map>

#include "base/check.h"
#include "base/mutex.h"
#include "quire/identity.h"

namespace quire::cache {

class Holds;
class LockedState;
class Publishing;
class SequenceImpl;

/// Threads: any
class Sequences {
 public:
  ~Sequences() { QUIRE_CHECK_MSG(count_ == 0, "a sequence outlives its cache"); }

  uint64_t count() const { return count_; }
  SequenceId NextId() { return SequenceId(next_++); }
  void Add(SequenceId id, const SequenceImpl& sequence) {
    MutexLock lock(mutex_);
    sequences_.emplace(id, &sequence);
    ++count_;
  }
  void Remove(SequenceId id) {
    MutexLock lock(mutex_);
    sequences_.erase(id);
    --count_;
  }
  /// In the order of their ids. None of them ends meanwhile.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    MutexLock lock(mutex_);
    for (const auto& [id, sequence] : sequences_) visit(*sequence);
  }

 private:
  mutable Mutex mutex_{LockRank::kSequences};
  std::map<SequenceId, const SequenceImpl*> sequences_ QUIRE_GUARDED_BY(mutex_);
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> next_{1};
};

/// What a sequence works with, for as long as it lives.
struct SequenceVerbs {
  LockedState& cache;
  Holds& holds;
  Publishing& publishing;
  Sequences& sequences;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCES_H_
