// What tests of the model need of the cache: one of the model's shape, and sequences of it.
#ifndef QUIRE_MODEL_TEST_CACHE_H_
#define QUIRE_MODEL_TEST_CACHE_H_

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "model/config.h"
#include "model/model.h"
#include "model/random_model.h"
#include "quire/cache.h"

namespace quire::model {

inline std::unique_ptr<Model> MakeModel(const ModelConfig& config, ComputeType type,
                                        uint64_t seed = 1, const LoadOptions& options = {}) {
  auto model = Model::Create(config, RandomTensors(config, type, seed), options);
  EXPECT_TRUE(model.has_value()) << model.error().message;
  return *std::move(model);
}

inline std::unique_ptr<Cache> MakeCache(const ModelConfig& config, Codec codec,
                                        uint64_t hot_bytes = 1 << 28) {
  CacheOptions options;
  options.geometry = GeometryOf(config);
  options.profile = NumericProfile::Uniform(IsIdentity(codec) ? codec : Codec::kBf16);
  for (CodecRule& rule : options.profile.codecs) rule.codec = codec;
  options.hot_bytes = hot_bytes;
  auto cache = Cache::Create(std::move(options));
  EXPECT_TRUE(cache.has_value()) << cache.error().message;
  return *std::move(cache);
}

inline std::unique_ptr<AttentionBackend> MakeAttention() {
  auto attention = MakeCpuAttention();
  EXPECT_TRUE(attention.has_value()) << attention.error().message;
  return *std::move(attention);
}

/// A sequence that starts with what the cache has of `prompt`.
inline std::unique_ptr<Sequence> OpenSequence(Cache& cache, const Model& model,
                                              std::span<const TokenId> prompt, bool reuse = false,
                                              OnFull on_full = OnFull::kHalt) {
  const Identity identity{.weights = model.fingerprint(),
                          .adapter = {},
                          .position_encoding = model.position_encoding(),
                          .domain = {.name = "test"}};
  auto plan = cache.Acquire({.identity = &identity, .tokens = prompt, .reuse = reuse});
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  auto sequence = cache.Open(*std::move(plan), {.reserve_tokens = 1, .on_full = on_full});
  EXPECT_TRUE(sequence.has_value()) << sequence.error().message;
  return *std::move(sequence);
}

/// Tokens that look like nothing.
inline std::vector<TokenId> SomeTokens(size_t count, uint32_t vocab, uint64_t seed) {
  Prng prng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(vocab));
  return tokens;
}

}  // namespace quire::model

#endif  // QUIRE_MODEL_TEST_CACHE_H_
