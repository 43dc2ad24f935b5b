// Callers on several threads and the thread that turns the engine.
#include "serve/driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <semaphore>
#include <string_view>
#include <thread>

#include "base/sync_point.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class DriverTest : public EngineTest {
 protected:
  /// Awaits the end of a request.
  Response Await(RequestId id) {
    while (auto event = engine_->Await(id)) {
      if (auto* response = std::get_if<Response>(&*event)) return std::move(*response);
    }
    ADD_FAILURE() << "no Response";
    return {};
  }
};

TEST_F(DriverTest, EndsThoughTheTickTookInWhatWasToWakeIt) {
  Make(24);
  std::binary_semaphore asked(0);
  std::atomic<bool> waits = false;
  std::atomic<bool> waited = false;
  const SyncPointHandler handler([&](std::string_view name) {
    if (name == "driver: asked to end") asked.release();
    if (name == "driver: before a tick" && waits && !waited.exchange(true)) asked.acquire();
  });
  {
    const Driver driver(*engine_);
    Await(engine_->Submit({.prompt = SomeTokens(20, 1), .max_tokens = 2}).value());
    waits = true;
    while (!waited) {
      engine_->CancelAll();  // wakes it; the tick under way may take that in
      std::this_thread::yield();
    }
  }
  EXPECT_TRUE(waited);
}

TEST_F(DriverTest, SaysWhoHoldsWhatToAnyThread) {
  engine_options_.events_max = 8;
  Make(64);
  Driver driver(*engine_);
  EXPECT_TRUE(driver.Sequences().empty());
  const RequestId id = engine_->Submit({.prompt = SomeTokens(40, 1), .max_tokens = 500}).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 50; ++call) {
        const auto list = driver.Sequences();
        ASSERT_EQ(list.size(), 1);  // what it says is not read, so it does not end
        EXPECT_EQ(list[0].request, id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine_->Cancel(id);
  Await(id);
}

TEST_F(DriverTest, CallersOnManyThreadsGetTheAnswersOfOne) {
  constexpr uint64_t kCallers = 4;
  constexpr uint64_t kRequests = 12;
  engine_options_.admission = Admission::kGrow;
  engine_options_.events_max = 8;
  Make(24);
  const auto request_of = [](uint64_t number) {
    return Request{.prompt = SomeTokens(20 + number % 5 * 16, 1 + number % 3),
                   .max_tokens = static_cast<uint32_t>(5 + number % 7 * 4)};
  };
  std::vector<Response> alone;
  for (uint64_t i = 0; i < kCallers * kRequests; ++i) {
    Request request = request_of(i);
    request.reuse = false;
    alone.push_back(RunOne(request));
  }
  {
    const Driver driver(*engine_);
    std::vector<std::thread> callers;
    for (uint64_t caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back([&, caller] {
        for (uint64_t i = 0; i < kRequests; ++i) {
          const uint64_t number = caller * kRequests + i;
          const RequestId id = engine_->Submit(request_of(number)).value();
          const bool cancel = number % 5 == 4;
          if (cancel) {
            engine_->Await(id);
            engine_->Cancel(id);
          }
          const Response response = Await(id);
          if (cancel && response.finish == Finish::kCancelled) continue;
          EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
          EXPECT_EQ(response.logits_digest, alone[number].logits_digest) << number;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(DriverTest, ItsEndCancelsWhatIsUnderWayAndWakesWhoWaits) {
  Make(64);
  std::vector<RequestId> ids;
  std::vector<std::thread> callers;
  {
    const Driver driver(*engine_);
    for (uint64_t i = 0; i < 3; ++i) {
      ids.push_back(engine_->Submit({.prompt = SomeTokens(50, 1 + i), .max_tokens = 900}).value());
    }
    for (const RequestId id : ids) engine_->Await(id);
    for (const RequestId id : ids) {
      callers.emplace_back([&, id] { EXPECT_EQ(Await(id).finish, Finish::kCancelled); });
    }
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(DriverTest, ItSleepsUntilSomethingChanges) {
  Make(64);
  const Driver driver(*engine_);
  EXPECT_EQ(Await(engine_->Submit({.prompt = SomeTokens(20, 1)}).value()).finish, Finish::kLength);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // Woken by a request that comes while it sleeps.
  EXPECT_EQ(Await(engine_->Submit({.prompt = SomeTokens(20, 2)}).value()).finish, Finish::kLength);
}

TEST_F(DriverTest, CallsBetweenTicksAlsoWhileNothingIsAsked) {
  Make(24);
  std::counting_semaphore<> called(0);
  std::atomic<bool> asks = true;
  {
    const Driver driver(*engine_, {.call =
                                       [&] {
                                         if (asks) called.release();
                                       },
                                   .every_us = 1'000});
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(called.try_acquire_for(std::chrono::minutes(1)));
    EXPECT_EQ(Await(engine_->Submit({.prompt = SomeTokens(20, 1)}).value()).finish,
              Finish::kLength);
    asks = false;
  }
}

}  // namespace
}  // namespace quire::serve
