// An engine after a restart: nothing is in memory, and a store that the tests turn has its prompts.
#ifndef QUIRE_SERVE_AFTER_RESTART_TEST_UTIL_H_
#define QUIRE_SERVE_AFTER_RESTART_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "cache/below/test_store.h"
#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {

/// Time passes with each piece of work, by as much as a test says.
class SlowExecutor final : public Executor {
 public:
  SlowExecutor(std::unique_ptr<Executor> inner, ManualClock& clock, const uint64_t& ns)
      : inner_(std::move(inner)), clock_(clock), ns_(ns) {}
  uint32_t worker_count() const override { return inner_->worker_count(); }
  void Run(uint32_t items, void (*work)(void* context, uint32_t item, uint32_t worker),
           void* context) override {
    passed_ns_ += ns_;
    clock_.Advance(passed_ns_ / 1000);
    passed_ns_ %= 1000;
    inner_->Run(items, work, context);
  }

 private:
  const std::unique_ptr<Executor> inner_;
  ManualClock& clock_;
  const uint64_t& ns_;
  uint64_t passed_ns_ = 0;
};

class AfterRestartTest : public EngineTest {
 protected:
  static constexpr uint64_t kTokens = 400;
  static constexpr uint64_t kReusable = 384;  // whole blocks that leave a token to compute

  AfterRestartTest() { store_ = machine_.store.get(); }
  ~AfterRestartTest() override { End(); }

  void End() {
    engine_.reset();
    cache_.reset();
  }
  static Request Of(uint64_t seed) {
    return {.prompt = SomeTokens(kTokens, seed), .max_tokens = 4};
  }

  /// The same without what is cached.
  static Request Computed(Request request) {
    request.reuse = false;
    return request;
  }

  /// An engine that has seen nothing yet, on an empty cache whose store has the prompts of seeds
  /// [0, count). Sets cold_, what they are answered, and empty_bytes_.
  void MakeAfterRestart(uint64_t blocks, uint64_t count = 1) {
    Make(200);
    for (uint64_t seed = 0; seed < count; ++seed) cold_.push_back(RunOne(Computed(Of(seed))));
    ASSERT_TRUE(machine_.store->Flush().has_value());
    End();
    machine_.Restart();
    store_ = machine_.store.get();
    Make(blocks);
    executor_ = std::make_unique<SlowExecutor>(std::move(executor_), clock_, ns_per_run_);
    engine_ = MakeEngine(*cache_);
    empty_bytes_ = cache_->stats().hot_bytes_used;
  }
  void EvictAll() const {
    while (cache_->Evict(100) > 0) {
    }
  }
  bool NothingIsLeft() const {
    EvictAll();
    return cache_->stats().hot_bytes_used == empty_bytes_;
  }
  /// One step of the engine, and so many of the store.
  void Turn(uint64_t store_ticks) {
    engine_->Tick();
    for (; store_ticks > 0; --store_ticks) machine_.transfers->Tick(30);
  }
  std::vector<Response> Drive(std::span<const Request> requests, uint64_t store_ticks = 5) {
    TestClient client(*engine_);
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(client.Submit(request));
    return Finish(client, ids, store_ticks);
  }
  std::vector<Response> Finish(TestClient& client, std::span<const RequestId> ids,
                               uint64_t store_ticks = 5) {
    for (uint64_t turn = 0; !client.AllEnded(); ++turn) {
      if (turn == 10'000) {
        ADD_FAILURE() << "some requests never ended";
        break;
      }
      Turn(store_ticks);
      clock_.Advance(1);
      client.TakeAll();
    }
    std::vector<Response> responses;
    for (const RequestId id : ids) {
      responses.push_back(client.Of(id).response.value_or(Response{}));
    }
    return responses;
  }
  Response DriveOne(const Request& request, uint64_t store_ticks = 5) {
    return Drive({&request, 1}, store_ticks)[0];
  }

  /// What is told of a prompt adds up.
  static void CheckSums(const Response& response, uint64_t tokens = kTokens) {
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
    EXPECT_EQ(response.reused_tokens + response.computed_tokens, tokens);
    EXPECT_LE(response.loaded_tokens, response.reused_tokens);
    if (response.preemptions > 0) return;
    EXPECT_EQ(response.loaded_tokens, response.reused_tokens);
    EXPECT_EQ(MissingOf(response), response.computed_tokens);
  }
  static uint64_t MissingOf(const Response& response) {
    return std::accumulate(response.missing.begin(), response.missing.end(), uint64_t{0},
                           [](uint64_t sum, const MissRun& run) { return sum + run.tokens; });
  }

  cache::TestStore machine_;
  std::vector<Response> cold_;
  uint64_t empty_bytes_ = 0;
  uint64_t ns_per_run_ = 0;  // of the executor, after the restart
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_AFTER_RESTART_TEST_UTIL_H_
