// What bodies of requests take of memory while they are read and looked at, all together.
#ifndef QUIRE_SERVE_HTTP_BODIES_H_
#define QUIRE_SERVE_HTTP_BODIES_H_

#include <atomic>
#include <cstdint>

namespace quire::serve::http {

/// Threads: any
class BodyBudget {
 public:
  /// `used_bytes` is changed by this object alone, and must outlive it.
  BodyBudget(std::atomic<uint64_t>& used_bytes, uint64_t bytes_max)
      : used_bytes_(used_bytes), bytes_max_(bytes_max) {}

  [[nodiscard]] bool TryTake(uint64_t bytes) {
    uint64_t used = used_bytes_;
    do {
      if (bytes > bytes_max_ - used) return false;
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void Give(uint64_t bytes) { used_bytes_ -= bytes; }

 private:
  std::atomic<uint64_t>& used_bytes_;
  const uint64_t bytes_max_;
};

/// What one request has of it.
///
/// Threads: one at a time
class BodyCharge {
 public:
  /// These are every request's own, so that others' large bodies keep no small one away. The number
  /// of connections bounds them.
  static constexpr uint64_t kFreeBytes = 16 << 10;

  explicit BodyCharge(BodyBudget& budget) : budget_(budget) {}
  ~BodyCharge() { Release(); }
  BodyCharge(const BodyCharge&) = delete;
  BodyCharge& operator=(const BodyCharge&) = delete;

  /// The body has so many bytes, or is going to. False: there is no room, and nothing was taken.
  [[nodiscard]] bool GrowTo(uint64_t bytes) {
    if (bytes <= kFreeBytes + taken_) return true;
    const uint64_t more = bytes - kFreeBytes - taken_;
    if (!budget_.TryTake(more)) return false;
    taken_ += more;
    return true;
  }
  void Release() {
    budget_.Give(taken_);
    taken_ = 0;
  }

 private:
  BodyBudget& budget_;
  uint64_t taken_ = 0;
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_BODIES_H_
