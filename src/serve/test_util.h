// What tests of the engine share.
#ifndef QUIRE_SERVE_TEST_UTIL_H_
#define QUIRE_SERVE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "env/clock.h"
#include "model/random_model.h"
#include "quire/identity.h"
#include "serve/driver.h"
#include "serve/engine.h"
#include "serve/faulty_cache.h"

namespace quire::serve {

/// Of the models that the tests draw at random.
inline constexpr uint32_t kTestVocab = 96;

inline std::vector<TokenId> SomeTokens(uint64_t count, uint64_t seed) {
  std::vector<TokenId> tokens(count);
  Prng prng(seed);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(kTestVocab));
  return tokens;
}

/// One text after the other.
inline std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline constexpr uint32_t kBlockTokens = 16;

/// An engine on a small random model with room for `blocks` blocks.
class EngineTest : public testing::Test {
 protected:
  void Make(uint64_t blocks, uint32_t chunk_tokens = 32) {
    const model::ModelConfig config = model::SmallConfig();
    model_ = model::Model::Create(config, model::RandomTensors(config, ComputeType::kF32, 7), {})
                 .value();
    MakeWithModel(blocks, chunk_tokens);
  }

  /// The same around the model that is there.
  void MakeWithModel(uint64_t blocks, uint32_t chunk_tokens = 32) {
    const model::ModelConfig& config = model_->config();
    CacheOptions options{.geometry = model::GeometryOf(config),
                         .profile = NumericProfile::Uniform(Codec::kF32, kBlockTokens),
                         .hot_bytes = uint64_t{1} << 30,
                         .tokens_max = cache_tokens_max_,
                         .clock = &clock_,
                         .store = store_};
    // The charge of one block, by asking for the most that fit.
    const CacheStats stats = Cache::Create(options).value()->stats();
    const uint64_t charge = options.hot_bytes / stats.sealed.slots_max;
    options.hot_bytes = charge * (blocks + 1) - 1;  // with what sequences take besides
    cache_ = Cache::Create(options).value();
    ASSERT_EQ(cache_->stats().sealed.slots_max, blocks);
    if (faults_ != nullptr) faulty_cache_ = std::make_unique<FaultyCache>(*cache_, *faults_);
    executor_ = MakeThreadPool(threads_);
    engine_options_.chunk_tokens_min = chunk_tokens;
    engine_options_.chunk_tokens_max = chunk_tokens;
    attention_ = MakeCpuAttention().value();
    engine_ = MakeEngine(faults_ != nullptr ? static_cast<Cache&>(*faulty_cache_) : *cache_);
  }

  std::unique_ptr<Engine> MakeEngine(Cache& cache) {
    return Engine::Create({.model = *model_,
                           .cache = cache,
                           .attention = *attention_,
                           .executor = *executor_,
                           .clock = clock_},
                          Identity{.weights = model_->fingerprint(), .domain = {.name = "test"}},
                          engine_options_)
        .value();
  }

  std::vector<Response> Run(std::vector<Request> requests, const OnEvent& on_event = {}) {
    return RunAll(*engine_, std::move(requests), on_event);
  }
  Response RunOne(const Request& request, const OnEvent& on_event = {}) {
    return Run({request}, on_event)[0];
  }

  // To be set before Make.
  CacheFaults* faults_ = nullptr;
  DiskStore* store_ = nullptr;
  EngineOptions engine_options_;
  uint32_t threads_ = 2;
  uint64_t cache_tokens_max_ = 4096;

  ManualClock clock_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<FaultyCache> faulty_cache_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_TEST_UTIL_H_
