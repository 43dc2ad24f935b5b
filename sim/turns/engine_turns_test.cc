// One engine, the thread that ticks it and its callers: requests and sessions are submitted, read,
// cancelled and ended, while others evict blocks of the cache. In every order an answer equals that
// of the request alone, and no thread waits for ever.
#include "serve/engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "model/random_model.h"
#include "serve/driver.h"
#include "sim/turns/seeded_cache.h"
#include "sim/turns/turns.h"

namespace quire::sim {
namespace {

using serve::Engine;
using serve::Finish;
using serve::Request;
using serve::RequestId;
using serve::Response;

constexpr uint64_t kRequests = 8;

/// What all runs share: a small model, some requests and their answers alone.
class Answers {
 public:
  Answers() {
    for (uint64_t i = 0; i < kRequests; ++i) {
      std::vector<TokenId> prompt(8 + i % 4 * kBlock);
      Prng prng(i % 3);
      for (TokenId& token : prompt) token = static_cast<TokenId>(prng.NextBelow(96));
      requests_.push_back(
          {.prompt = std::move(prompt), .max_tokens = static_cast<uint32_t>(1 + i % 5 * 5)});
    }
    const BusyClock clock;
    const auto cache = MakeCache(64, clock);
    const auto engine = MakeEngine(*cache, clock, {});
    for (const Request& request : requests_) {
      alone_.push_back(serve::RunAll(*engine, {request})[0]);
    }
  }

  std::unique_ptr<Cache> MakeCache(uint64_t blocks, const Clock& clock, BlockOps* ops = nullptr) {
    CacheOptions options{.geometry = model::GeometryOf(model_->config()),
                         .profile = NumericProfile::Uniform(Codec::kF32, kBlock),
                         .ops = ops,
                         .clock = &clock};
    options.hot_bytes = blocks * cache::ChargePerSlot(options.geometry, options.profile);
    return cache::Must(Cache::Create(std::move(options)));
  }
  std::unique_ptr<Engine> MakeEngine(Cache& cache, const Clock& clock,
                                     const serve::EngineOptions& options) {
    return cache::Must(Engine::Create(
        {.model = *model_,
         .cache = cache,
         .attention = *attention_,
         .executor = *executor_,
         .clock = clock},
        Identity{.weights = model_->fingerprint(), .domain = {.name = "test"}}, options));
  }
  const Request& request(uint64_t i) const { return requests_[i]; }
  const Response& alone(uint64_t i) const { return alone_[i]; }

 private:
  const std::unique_ptr<model::Model> model_ = cache::Must(model::Model::Create(
      model::SmallConfig(), model::RandomTensors(model::SmallConfig(), ComputeType::kF32, 7), {}));
  const std::unique_ptr<AttentionBackend> attention_ = cache::Must(MakeCpuAttention());
  const std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
  std::vector<Request> requests_;
  std::vector<Response> alone_;
};

Answers& Shared() {
  static Answers answers;
  return answers;
}

class Serving {
 public:
  explicit Serving(uint64_t seed) : seed_(seed), prng_(seed) {
    Shared();  // before the schedule begins
    cache_ = Shared().MakeCache(6 + prng_.NextBelow(20), clock_, &ops_);
    serve::EngineOptions options;
    options.chunk_tokens_min = 8;
    options.chunk_tokens_max = 32;
    if (prng_.NextChance(2)) options.admission = serve::Admission::kGrow;
    options.running_max = 1 + static_cast<uint32_t>(prng_.NextBelow(4));
    options.requests_max = 2 + static_cast<uint32_t>(prng_.NextBelow(8));
    options.events_max = 8;
    options.stall_us = 2000;
    options.outside_retry_us = 500;
    engine_ = Shared().MakeEngine(*cache_, clock_, options);
  }

  /// How many answers were compared.
  uint64_t Run() {
    Turns turns(seed_);
    turns.Add([this] { Drive(); });
    callers_ = 2 + prng_.NextBelow(2);
    for (uint64_t i = callers_; i > 0; --i) {
      turns.Add([this, seed = prng_.Next64()] {
        Prng prng(seed);
        for (uint64_t left = 2 + prng.NextBelow(5); left > 0; --left) Act(prng);
        if (--callers_ == 0) engine_->CancelAll();  // wakes the thread that ticks the engine
      });
    }
    turns.Run();
    engine_.reset();
    EXPECT_EQ(cache_->stats().sequences, 0u);
    EXPECT_EQ(cache_->Verify().damaged, 0u);
    cache_->Evict(UINT64_MAX);
    EXPECT_EQ(cache_->stats().hot_bytes_used, 0u);
    return answered_;
  }

 private:
  void Drive() {
    while (callers_ > 0) {
      const serve::TickReport report = engine_->Tick();
      // That Tick may have taken the command by which the last caller wakes this thread.
      if (!report.worked && callers_ > 0) engine_->AwaitChange(report.wait_us);
    }
    engine_->CancelAll();
    while (engine_->Tick().worked) {
    }
  }
  void Act(Prng& prng) {
    switch (prng.NextBelow(10)) {
      case 0: cache_->Evict(1 + prng.NextBelow(4)); return;
      case 1: EXPECT_EQ(cache_->Verify().damaged, 0u); return;
      case 2: static_cast<void>(engine_->GiveWay()); return;
      case 3: return Talk(prng);
      default: return Ask(prng);
    }
  }
  void Ask(Prng& prng) {
    const uint64_t number = prng.NextBelow(kRequests);
    const auto id = engine_->Submit(Shared().request(number));
    if (!id) {
      EXPECT_EQ(id.error().code, ErrorCode::kNoSpace) << id.error().message;
      return;
    }
    const bool cancels = prng.NextChance(5);
    const std::optional<Response> response = Await(prng, *id, cancels);
    ASSERT_TRUE(response.has_value());
    if (cancels && response->finish == Finish::kCancelled) return;
    EXPECT_EQ(response->finish, Finish::kLength) << response->error.message;
    EXPECT_EQ(response->tokens, Shared().alone(number).tokens);
    EXPECT_EQ(response->logits_digest, Shared().alone(number).logits_digest) << number;
    ++answered_;
  }
  std::optional<Response> Await(Prng& prng, RequestId id, bool cancels) {
    while (auto event = engine_->Await(id)) {
      if (auto* const response = std::get_if<Response>(&*event)) return std::move(*response);
      if (cancels && prng.NextChance(2)) engine_->Cancel(id);
      for (uint64_t idle = prng.NextBelow(4); idle > 0; --idle) Turns::Yield();
    }
    return std::nullopt;
  }
  // Its first turn gives the answer of the request alone; a fork continues by itself.
  void Talk(Prng& prng) {
    const auto session = engine_->OpenSession({});
    if (!session) return;
    const uint64_t number = prng.NextBelow(kRequests);
    Request turn = Shared().request(number);
    turn.session = *session;
    const auto id = engine_->Submit(turn);
    if (id) {
      const auto response = Await(prng, *id, /*cancels=*/false);
      ASSERT_TRUE(response.has_value());
      EXPECT_EQ(response->finish, Finish::kLength) << response->error.message;
      EXPECT_EQ(response->tokens, Shared().alone(number).tokens);
      ++answered_;
      if (const auto fork = engine_->ForkSession(*session)) {
        turn.session = *fork;
        turn.prompt.resize(4);
        if (const auto next = engine_->Submit(turn)) Await(prng, *next, prng.NextChance(2));
        cache::Must(engine_->EndSession(*fork));
      }
    }
    cache::Must(engine_->EndSession(*session));
  }

  const uint64_t seed_;
  Prng prng_;
  const BusyClock clock_;
  SteppedOps ops_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Engine> engine_;
  uint64_t callers_ = 0;
  uint64_t answered_ = 0;
};

TEST(EngineTurns, InEveryOrderAnswersAreThoseOfARequestAlone) {
  ForSeeds(60, 1, [](uint64_t seed) { return Serving(seed).Run(); });
}

}  // namespace
}  // namespace quire::sim
