// Requests and replies between a caller and the thread that does the work.
#ifndef QUIRE_REMOTE_OBJECT_QUEUE_H_
#define QUIRE_REMOTE_OBJECT_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "remote/objects.h"

namespace quire::remote {

/// Threads: any
class ObjectQueue {
 public:
  void Ask(ObjectRequest request) {
    MutexLock lock(mutex_);
    asked_.push_back(std::move(request));
  }
  std::vector<ObjectRequest> TakeAsked() {
    MutexLock lock(mutex_);
    return std::exchange(asked_, {});
  }
  void Answer(ObjectReply reply) {
    MutexLock lock(mutex_);
    answered_.push_back(std::move(reply));
    changed_.NotifyAll();
  }
  /// As Objects::Take.
  void TakeAnswered(std::vector<ObjectReply>& replies, uint64_t wait_us) {
    MutexLock lock(mutex_);
    if (answered_.empty() && wait_us > 0) changed_.WaitFor(mutex_, wait_us);
    std::ranges::move(answered_, std::back_inserter(replies));
    answered_.clear();
  }

  void Stop() { stops_ = true; }
  bool stops() const { return stops_; }

 private:
  Mutex mutex_{LockRank::kLeaf};
  CondVar changed_;
  std::vector<ObjectRequest> asked_ QUIRE_GUARDED_BY(mutex_);
  std::vector<ObjectReply> answered_ QUIRE_GUARDED_BY(mutex_);
  std::atomic<bool> stops_ = false;
};

/// The reply to a request that was not done. What was to be put goes back.
inline ObjectReply NotDone(ObjectRequest&& request, ObjectOutcome outcome, std::string detail) {
  ObjectReply reply{.tag = request.tag, .outcome = outcome, .detail = std::move(detail)};
  if (request.verb == ObjectVerb::kPut) reply.bytes = std::move(request.bytes);
  return reply;
}

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_OBJECT_QUEUE_H_
