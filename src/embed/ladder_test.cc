// A precision ladder, from C: what a store brings back is found by those that accept its error.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "embed/test_util.h"

namespace quire::embed {
namespace {

/// With what a store is given; 0: as what grows cold in memory.
class LadderC : public testing::TestWithParam<quire_codec> {
 protected:
  LadderC() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_ladder_XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~LadderC() override { std::filesystem::remove_all(directory_); }

  quire_disk_store* OpenStore() {
    quire_disk_store_options options = Sized<quire_disk_store_options>();
    options.directory = directory_.c_str();
    options.bytes_cap = 16 << 20;
    options.staging_bytes = 2 << 20;
    quire_disk_store* store = nullptr;
    EXPECT_EQ(quire_disk_store_open(&options, &store, &error_), QUIRE_OK) << Show(error_);
    return store;
  }

  static quire_acquire_request RequestOf(const CWorld& world, const std::vector<TokenId>& prompt,
                                         float error_max) {
    auto request = Sized<quire_acquire_request>();
    request.identity = &world.identity;
    request.tokens = prompt.data();
    request.token_count = prompt.size();
    request.approximate_error_max = error_max;
    return request;
  }

  /// What is found of a prompt, with what the store loads.
  Owned<quire_plan> Find(const CWorld& world, const std::vector<TokenId>& prompt, float error_max) {
    const quire_acquire_request request = RequestOf(world, prompt, error_max);
    quire_plan* plan = nullptr;
    EXPECT_EQ(quire_acquire(world.cache.get(), &request, &plan, &error_), QUIRE_OK) << Show(error_);
    quire_plan* loaded = nullptr;
    EXPECT_EQ(quire_load(plan, 0, &loaded, &error_), QUIRE_OK) << Show(error_);
    return Owned<quire_plan>(loaded);
  }

  std::string directory_;
  quire_error error_{};
};

INSTANTIATE_TEST_SUITE_P(StoreCodec, LadderC, testing::Values(0, QUIRE_Q25),
                         [](const auto& of) { return of.param == 0 ? "same" : "q25"; });

TEST_P(LadderC, WhatComesBackIsFoundByThoseThatAcceptIt) {
  const auto prompt = cache::SomeTokens(5 * CWorld::kBlock + 3, 1);
  quire_cache_options options = SmallOptions();
  options.codec = QUIRE_INT4;
  options.open_codec = QUIRE_F16;
  options.residual_tokens = QUIRE_PRECISION_LADDER;
  options.store_codec = GetParam();
  {
    quire_disk_store* const store = OpenStore();
    options.disk_store = store;
    const CWorld world(options);
    const auto sequence = world.Open(prompt);
    world.Feed(*sequence, prompt);
    EXPECT_EQ(CWorld::Gathered(*sequence, 1, QUIRE_VALUE), world.Expected(prompt, 1, 1));
    ASSERT_EQ(quire_disk_store_flush(store, &error_), QUIRE_OK) << Show(error_);
    quire_disk_store_free(store);
  }
  options.disk_store = OpenStore();
  const CWorld world(options);
  const auto exact = Find(world, prompt, 0);
  EXPECT_EQ(quire_plan_resident_tokens(exact.get()), 0u);
  EXPECT_EQ(quire_plan_reason(exact.get()), QUIRE_APPROXIMATE);
  EXPECT_EQ(std::string(quire_reason_name(QUIRE_APPROXIMATE)), "approximate");
  EXPECT_EQ(quire_plan_approximate_tokens(exact.get()), 0u);
  auto plan = Find(world, prompt, 1);
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 5 * CWorld::kBlock);
  EXPECT_EQ(quire_plan_approximate_tokens(plan.get()), 5 * CWorld::kBlock);
  const float error = quire_plan_approximate_error(plan.get());
  EXPECT_GT(error, GetParam() == 0 ? 0.001f : 0.2f);
  EXPECT_LT(error, GetParam() == 0 ? 0.2f : 0.7f);
  EXPECT_EQ(quire_plan_resident_tokens(Find(world, prompt, error / 100).get()), 0u);
  const auto sequence = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* failed) {
    return quire_open(plan.release(), nullptr, out, failed);
  });
  quire_sequence_stats stats = Sized<quire_sequence_stats>();
  ASSERT_EQ(quire_sequence_get_stats(sequence.get(), &stats, &error_), QUIRE_OK) << Show(error_);
  EXPECT_EQ(stats.tokens_approximate, 5 * CWorld::kBlock);
  EXPECT_NEAR(static_cast<double>(stats.approximate_error_ppm), error * 1e6, 1.0);
  const quire_acquire_request request = RequestOf(world, prompt, -1);
  quire_plan* none = nullptr;
  EXPECT_EQ(quire_acquire(world.cache.get(), &request, &none, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_plan_approximate_tokens(nullptr), 0u);
  EXPECT_EQ(quire_plan_approximate_error(nullptr), 0.0f);
  quire_disk_store_free(options.disk_store);
}

}  // namespace
}  // namespace quire::embed
