// A mutex whose holder runs the short sections of those who wait for it.
#ifndef QUIRE_BASE_COMBINING_MUTEX_H_
#define QUIRE_BASE_COMBINING_MUTEX_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/lock_ranks.h"
#include "base/thread_annotations.h"

namespace quire {

/// A mutex with a rank, for data that many short sections change: where threads contend, what they
/// change would travel from core to core with the lock, and they would be slower together than one
/// alone. Here a thread that has to wait leaves its section with the thread that holds the lock,
/// which runs it and goes on with what is in its own core's cache.
///
/// Waiting is first come, first served, whether for the lock or with a section; one who waits looks
/// for kSpinTime and then sleeps. A holder runs at most kSectionsMax sections of others before one
/// of them takes over, so it is held up for that many.
///
/// Threads: any. A section runs exactly once, before Run returns, on this thread or on another: it
///          must not use what belongs to a thread. It may take locks of higher rank
/// Cost:    alone, two atomic operations as a Mutex. The order is checked only with
///          QUIRE_DEBUG_CHECKS
/// Source:  combining, Hendler et al., SPAA 2010; a queue of sections, Fatourou and Kallimanis,
///          PPoPP 2012
class QUIRE_CAPABILITY("mutex") CombiningMutex {
 public:
  static constexpr uint32_t kSectionsMax = 64;

  explicit CombiningMutex(LockRank rank) : rank_(rank) {}
  CombiningMutex(const CombiningMutex&) = delete;
  CombiningMutex& operator=(const CombiningMutex&) = delete;

  /// Runs `section` under the lock and returns what it returns, or throws here what it throws.
  /// Write `mutex_.Run([&]() QUIRE_REQUIRES(mutex_) { ... });`
  template <typename Section>
  std::invoke_result_t<Section&> Run(Section&& section) QUIRE_EXCLUDES(this) {
    using Answer = std::invoke_result_t<Section&>;
    std::exception_ptr thrown;
    if constexpr (std::is_void_v<Answer>) {
      RunCaught(section, thrown);
      if (thrown) std::rethrow_exception(std::move(thrown));
    } else {
      std::optional<Answer> answer;
      RunCaught([&]() QUIRE_NO_THREAD_SAFETY_ANALYSIS { answer.emplace(section()); }, thrown);
      if (thrown) std::rethrow_exception(std::move(thrown));
      return *std::move(answer);
    }
  }

  void Lock() QUIRE_ACQUIRE();
  /// Runs what others have left meanwhile.
  void Unlock() QUIRE_RELEASE();
  /// False when another thread holds it.
  [[nodiscard]] bool TryLock() QUIRE_TRY_ACQUIRE(true);

  LockRank rank() const { return rank_; }

 private:
  struct Turn;

  // What a section throws must not end in the thread that runs it for another.
  template <typename Section>
  void RunCaught(Section&& section, std::exception_ptr& thrown) QUIRE_EXCLUDES(this) {
    // The analysis cannot know that the lock is held when this is called: RunAny sees to it.
    auto caught = [&]() QUIRE_NO_THREAD_SAFETY_ANALYSIS {
      try {
        section();
      } catch (...) {
        thrown = std::current_exception();
      }
    };
    RunAny(&caught, &Call<decltype(caught)>);
  }
  template <typename Section>
  static void Call(void* section) noexcept {
    (*static_cast<Section*>(section))();
  }
  void RunAny(void* section, void (*call)(void*) noexcept);
  bool Enter(Turn& turn);
  void Await(Turn& turn);
  void End(Turn& turn, uint32_t state);
  Turn* TakeQueue();

  const LockRank rank_;
  Turn* queue_ = nullptr;  // the holder's: who was waiting when it last looked, in order
  // Guards Turn::wake of those who sleep. Nothing else is taken while it is held.
  std::mutex sleep_mutex_;
  // kFree, kHeld, or held with the address of the Turn that came last. On a cache line of its own:
  // those who come to wait write it while the holder works on what lies beside the mutex.
  alignas(64) std::atomic<uintptr_t> state_ = 0;
};

}  // namespace quire

#endif  // QUIRE_BASE_COMBINING_MUTEX_H_
