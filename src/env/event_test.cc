#include "env/event.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

namespace quire {
namespace {

bool Readable(const Event& event, int timeout_ms) {
  pollfd waiting = {.fd = event.descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, timeout_ms) == 1;
}

TEST(Event, IsReadableFromSetToClear) {
  const auto event = Event::Create();
  ASSERT_TRUE(event) << event.error().message;
  EXPECT_FALSE(Readable(**event, 0));
  (*event)->Clear();
  EXPECT_FALSE(Readable(**event, 0));
  (*event)->Set();
  (*event)->Set();
  EXPECT_TRUE(Readable(**event, 0));
  EXPECT_TRUE(Readable(**event, 0));
  (*event)->Clear();
  EXPECT_FALSE(Readable(**event, 0));
}

TEST(Event, WakesAnotherThread) {
  const auto event = Event::Create();
  ASSERT_TRUE(event);
  std::thread setter([&] { (*event)->Set(); });
  EXPECT_TRUE(Readable(**event, 10'000));
  setter.join();
}

}  // namespace
}  // namespace quire
