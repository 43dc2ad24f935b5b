// How the ranks of a pipeline reach each other: each sends to the next one, and hears the one
// before.
#ifndef QUIRE_RANKS_PIPELINE_RING_H_
#define QUIRE_RANKS_PIPELINE_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "quire/env.h"
#include "quire/error.h"
#include "ranks/group.h"

namespace quire::ranks::pipeline {

/// A rank's place in the ring. What is sent arrives whole, once and in order. A thread of its own
/// moves it on while the rank computes, and lets the next rank know that this one is there: so a
/// rank is lost when its process is, not when its layers take long.
///
/// Threads:  one at a time
/// Lifetime: group and clock must outlive it, and meanwhile the group is its own
class Ring {
 public:
  Ring(Group& group, const Clock& clock);
  /// Waits until what was sent has left and the rank before ends too, unless one is lost.
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t ranks() const { return ranks_; }

  /// Gives bytes to the next rank. Does not wait until it takes them: two ranks that send to each
  /// other would wait for ever.
  ///
  /// Errors: those of the group, of now or before
  Result<void> Send(std::vector<std::byte> bytes);
  /// Waits for what the rank before sends next.
  ///
  /// Errors: those of the group. kIo names the ranks that were not heard for its deadline
  Result<std::vector<std::byte>> Receive();
  /// Whether all ranks are there still, as far as this one knows. Does not wait.
  ///
  /// Errors: those of the group, of now or before
  Result<void> Check();
  /// This rank cannot go on: it and all others end with this error. Returns the first that was.
  Error Break(Error error);

 private:
  // A message under way: its length first, then its bytes. Lengths that none has say that the rank
  // is there, or that no more comes.
  struct Outgoing {
    uint64_t bytes_count = 0;
    std::vector<std::byte> bytes{};
    Transfer length{};
    Transfer payload{};
  };
  struct Incoming {
    uint64_t bytes_count = 0;
    std::vector<std::byte> bytes{};
    Transfer length{};
    Transfer payload{};
    bool has_length = false;
  };

  void Run();
  Result<bool> Move();
  Result<void> Put(uint64_t bytes_count, std::vector<std::byte> bytes);
  Result<bool> MoveOut();
  Result<bool> MoveIn();
  Result<void> Await();

  Group& group_;
  const Clock& clock_;
  const uint32_t rank_;
  const uint32_t ranks_;

  // Of the thread alone.
  std::deque<Outgoing> sent_;  // whose bytes must stay
  std::optional<Incoming> coming_;
  bool said_all_ = false;    // to the next rank
  bool heard_all_ = false;   // of the one before
  uint64_t sent_us_ = 0;     // when anything was sent last
  uint64_t heard_us_ = 0;    // when anything came last
  uint64_t message_us_ = 0;  // when a message came or went last

  Mutex mutex_{LockRank::kLeaf};
  CondVar changed_;
  std::deque<std::vector<std::byte>> outbox_ QUIRE_GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> inbox_ QUIRE_GUARDED_BY(mutex_);
  std::optional<Error> asked_to_break_ QUIRE_GUARDED_BY(mutex_);
  std::optional<Error> broken_ QUIRE_GUARDED_BY(mutex_);
  bool ending_ QUIRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire::ranks::pipeline

#endif  // QUIRE_RANKS_PIPELINE_RING_H_
