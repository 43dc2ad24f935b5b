// What callers want kept, through C: policies by name, priorities and pins.
#include <gmock/gmock.h>

#include <cstddef>

#include "embed/test_util.h"

namespace quire::embed {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlock = CWorld::kBlock;

quire_cache_options ByPriority() {
  quire_cache_options options = SmallOptions();
  options.policy = "priority";
  options.eviction_batch = QUIRE_ADAPTIVE;
  return options;
}

uint64_t Evict(const CWorld& world, uint64_t blocks) {
  uint64_t evicted = 0;
  quire_error error{};
  EXPECT_EQ(quire_cache_evict(world.cache.get(), blocks, &evicted, &error), QUIRE_OK)
      << Show(error);
  return evicted;
}

TEST(KeepInC, APinHoldsUntilItIsTakenBack) {
  const CWorld world;
  quire_error error{};
  const auto prompt = cache::SomeTokens(3 * kBlock, 1);
  auto request = Sized<quire_acquire_request>();
  request.identity = &world.identity;
  request.tokens = prompt.data();
  request.token_count = prompt.size();
  uint64_t blocks = 7;
  EXPECT_EQ(quire_pin(world.cache.get(), 0, &request, 0, &blocks, &error), QUIRE_NOT_FOUND);
  EXPECT_THAT(error.message, HasSubstr("0 of 3 blocks"));
  EXPECT_EQ(blocks, 7u) << "out-parameters are not written after a failure";
  world.Run(prompt);
  EXPECT_EQ(quire_pin(world.cache.get(), 0, &request, 0, &blocks, &error), QUIRE_OK) << Show(error);
  EXPECT_EQ(blocks, 3u);
  EXPECT_EQ(Evict(world, 10), 0u);
  EXPECT_EQ(quire_unpin(world.cache.get(), 9, &request, &error), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_unpin(world.cache.get(), 0, &request, &error), QUIRE_OK);
  EXPECT_EQ(quire_unpin(world.cache.get(), 0, &request, &error), QUIRE_NOT_FOUND);
  EXPECT_EQ(Evict(world, 10), 3u);
  EXPECT_EQ(quire_pin(world.cache.get(), 0, &request, 0, nullptr, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_pin(nullptr, 0, &request, 0, &blocks, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_unpin(world.cache.get(), 0, nullptr, &error), QUIRE_INVALID_ARGUMENT);
}

TEST(KeepInC, PrioritiesDecideWhatGoes) {
  const CWorld world(ByPriority());
  quire_error error{};
  const auto wanted = cache::SomeTokens(2 * kBlock, 1);
  auto retention = Sized<quire_retention>();
  retention.priority = 90;
  EXPECT_EQ(quire_sequence_retain(world.Run(wanted).get(), &retention, &error), QUIRE_OK)
      << Show(error);
  world.Run(cache::SomeTokens(2 * kBlock, 2));
  EXPECT_EQ(Evict(world, 2), 2u);
  const auto next = cache::Join(wanted, cache::SomeTokens(1, 3));
  EXPECT_EQ(quire_plan_resident_tokens(world.Acquire(next).get()), 2u * kBlock);

  const auto sequence = world.Run(wanted);
  for (const int32_t priority : {0, 1, 100}) {
    retention.priority = priority;
    EXPECT_EQ(quire_sequence_retain(sequence.get(), &retention, &error), QUIRE_OK) << priority;
  }
  for (const int32_t priority : {-1, 101, 256 + 50}) {
    retention.priority = priority;
    EXPECT_EQ(quire_sequence_retain(sequence.get(), &retention, &error), QUIRE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(quire_sequence_retain(sequence.get(), nullptr, &error), QUIRE_INVALID_ARGUMENT);
  retention.priority = 1;
  const CWorld other;
  EXPECT_EQ(quire_sequence_retain(other.Run(wanted).get(), &retention, &error), QUIRE_UNSUPPORTED);
}

TEST(KeepInC, OlderCallersHaveNoPolicyToName) {
  quire_cache_options options = SmallOptions();
  options.size = offsetof(quire_cache_options, policy);
  options.policy = reinterpret_cast<const char*>(8);  // not theirs, not read
  const CWorld world(options);
  EXPECT_EQ(Evict(world, 1), 0u);
}

}  // namespace
}  // namespace quire::embed
