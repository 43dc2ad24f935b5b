// Runs code of a test while a call has released its lock.
#ifndef QUIRE_CACHE_MEANWHILE_TEST_UTIL_H_
#define QUIRE_CACHE_MEANWHILE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/sync_point.h"

namespace quire::cache {

/// Runs `then` when `point` is reached for the nth time while it lives; the point must be reached.
class Meanwhile {
 public:
  Meanwhile(std::string point, std::function<void()> then, int nth = 1)
      : point_(std::move(point)),
        then_(std::move(then)),
        left_(nth),
        handler_([this](std::string_view name) {
          // On another thread: the thread at the point may hold locks that come later in the order.
          if (name == point_ && left_ > 0 && --left_ == 0) std::thread(then_).join();
        }) {}
  ~Meanwhile() { EXPECT_EQ(left_, 0) << point_; }
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;

 private:
  const std::string point_;
  const std::function<void()> then_;
  int left_;
  const SyncPointHandler handler_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_MEANWHILE_TEST_UTIL_H_
