// The C interface does what the C++ one does: hits, cuts, forks, statistics, damage, handles freed
// in any order.
#include <gtest/gtest.h>

#include <cstring>

#include "base/version.h"
#include "embed/handles.h"
#include "embed/test_util.h"

extern "C" const char* QuireC99Life(void);

namespace quire::embed {
namespace {

constexpr uint32_t kBlock = CWorld::kBlock;

TEST(CLife, AProgramInC99) { EXPECT_STREQ(QuireC99Life(), "ok"); }

TEST(CLife, TheVersionHasOneHome) { EXPECT_EQ(quire_version(), kVersion); }

TEST(CLife, ASecondPromptFindsWholeBlocksAndReadsTheSameValues) {
  const CWorld world;
  const auto prompt = cache::SomeTokens(3 * kBlock + 5, 1);
  const auto first = world.Run(prompt);
  EXPECT_EQ(quire_sequence_length(first.get()), prompt.size());

  const auto plan = world.Acquire(prompt);
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 3 * kBlock);
  EXPECT_EQ(quire_plan_missing_tokens(plan.get()), 5u);
  EXPECT_EQ(quire_plan_reason(plan.get()), QUIRE_PARTIAL_BLOCK);

  const auto second = world.Open(prompt);
  EXPECT_EQ(quire_sequence_length(second.get()), 3 * kBlock);
  world.Feed(*second, prompt);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(CWorld::Gathered(*second, layer, QUIRE_KEY), world.Expected(prompt, layer, 0));
    EXPECT_EQ(CWorld::Gathered(*second, layer, QUIRE_VALUE), world.Expected(prompt, layer, 1));
  }
  EXPECT_EQ(world.Stats().hit_tokens, 6 * kBlock);
}

TEST(CLife, APlanSaysWhereThePromptWentAnotherWay) {
  const CWorld world;
  const auto prompt = cache::SomeTokens(3 * kBlock + 5, 1);
  const auto first = world.Run(prompt);
  uint64_t token = 7;
  EXPECT_EQ(quire_plan_differs_at(world.Acquire(prompt).get(), &token), 0);
  EXPECT_EQ(token, 7u);
  auto other = prompt;
  other[kBlock + 3] += 1;
  EXPECT_EQ(quire_plan_differs_at(world.Acquire(other).get(), &token), 1);
  EXPECT_EQ(token, kBlock + 3);
  EXPECT_EQ(quire_plan_differs_at(nullptr, &token), 0);
}

TEST(CLife, EveryFieldOfTheIdentitySeparates) {
  CWorld world;
  const auto prompt = cache::SomeTokens(kBlock + 1, 1);
  const auto sequence = world.Run(prompt);
  const auto resident = [&](const quire_identity& identity) {
    world.identity = identity;
    return quire_plan_resident_tokens(world.Acquire(prompt).get());
  };
  const quire_identity same = SomeIdentityC();
  EXPECT_EQ(resident(same), kBlock);
  std::vector<quire_identity> others(9, same);
  others[0].weights[31] = 1;
  others[1].adapter = "legal-de";
  others[2].adapter_version = 1;
  others[3].position_encoding = "rope:theta=10001";
  others[4].position_encoding = nullptr;
  others[5].domain = "tenant2";
  others[6].domain_secret[31] = 1;
  others[7].domain_epoch = 1;
  others[8].domain = nullptr;
  for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(resident(others[i]), 0u) << i;
  // NULL is the empty text.
  quire_identity no_adapter = same;
  no_adapter.adapter = nullptr;
  EXPECT_EQ(resident(no_adapter), kBlock);
}

TEST(CLife, NoReuseAndPrivateBlocksAreHonoured) {
  const CWorld world;
  const auto prompt = cache::SomeTokens(kBlock + 1, 1);
  auto options = Sized<quire_sequence_options>();
  options.private_blocks = 1;
  const auto secret = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
    return quire_open(world.Acquire(prompt).release(), &options, out, error);
  });
  world.Feed(*secret, prompt);
  EXPECT_EQ(world.Stats().published_blocks, 0u);

  const auto open = world.Run(prompt);
  auto request = Sized<quire_acquire_request>();
  request.identity = &world.identity;
  request.tokens = prompt.data();
  request.token_count = prompt.size();
  request.no_reuse = 1;
  const auto plan = MustMake<quire_plan>([&](quire_plan** out, quire_error* error) {
    return quire_acquire(world.cache.get(), &request, out, error);
  });
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 0u);
  EXPECT_EQ(quire_plan_reason(plan.get()), QUIRE_NOT_ASKED);
}

TEST(CLife, CutsForksAndStartsAfresh) {
  const CWorld world;
  auto history = cache::SomeTokens(2 * kBlock + 5, 1);
  const auto sequence = world.Run(history);
  const auto fork = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
    return quire_sequence_fork(sequence.get(), out, error);
  });
  EXPECT_EQ(quire_sequence_length(fork.get()), history.size());
  EXPECT_EQ(quire_sequence_rollback(sequence.get(), kBlock + 3, nullptr), QUIRE_OK);
  EXPECT_EQ(quire_sequence_length(sequence.get()), kBlock + 3);
  auto shorter = history;
  shorter.resize(kBlock + 3);
  EXPECT_EQ(CWorld::Gathered(*sequence, 1, QUIRE_KEY), world.Expected(shorter, 1, 0));
  EXPECT_EQ(CWorld::Gathered(*fork, 1, QUIRE_KEY), world.Expected(history, 1, 0));

  EXPECT_EQ(quire_sequence_reserve(sequence.get(), 5 * kBlock, nullptr), QUIRE_OK);
  auto stats = Sized<quire_sequence_stats>();
  EXPECT_EQ(quire_sequence_get_stats(sequence.get(), &stats, nullptr), QUIRE_OK);
  EXPECT_EQ(stats.tokens_used, kBlock + 3);
  EXPECT_EQ(stats.tokens_reserved, 5 * kBlock);
  EXPECT_EQ(stats.blocks_shared, 1u);
  EXPECT_EQ(stats.blocks_own, 4u);
  EXPECT_EQ(stats.bytes, 5 * world.Stats().sealed.slot_bytes);

  EXPECT_EQ(quire_sequence_reset(sequence.get(), nullptr), QUIRE_OK);
  EXPECT_EQ(quire_sequence_length(sequence.get()), 0u);
}

TEST(CLife, BlocksAreWhatAKernelOfOnesOwnReads) {
  const CWorld world;
  const auto history = cache::SomeTokens(kBlock + 3, 1);
  const auto sequence = world.Run(history);
  auto blocks = Sized<quire_layer_blocks>();
  ASSERT_EQ(quire_sequence_blocks(sequence.get(), 1, &blocks, nullptr), QUIRE_OK);
  const LayerBlocks same = sequence->sequence->Blocks(1);
  ASSERT_EQ(blocks.block_count, same.block_count());
  const auto* base = static_cast<const std::byte*>(blocks.base);
  for (uint64_t i = 0; i < same.block_count(); ++i) {
    EXPECT_EQ(blocks.sealed[i], same.sealed(i));
    EXPECT_EQ(blocks.open[i], same.open(i));
    EXPECT_EQ(base + blocks.slots[i] * blocks.slot_stride_bytes, same.sealed(i));
  }
  EXPECT_EQ(blocks.tokens, history.size());
  EXPECT_EQ(blocks.key.codec, QUIRE_F16);
  EXPECT_EQ(blocks.key.inner, QUIRE_AXIS_TOKEN);
  EXPECT_EQ(blocks.value.inner, QUIRE_AXIS_DIM);
  EXPECT_EQ(blocks.key.heads, 2u);
  EXPECT_EQ(blocks.value.dim, 4u);
  EXPECT_EQ(blocks.key.block_tokens, kBlock);
  EXPECT_EQ(blocks.value.offset_bytes, same.value.offset_bytes);
  EXPECT_EQ(blocks.value.head_stride_bytes, same.value.head_stride_bytes);
}

TEST(CLife, GroupsAndLatentsAreTaken) {
  const uint32_t layers[] = {0, 1, 2};
  const quire_stream latent = {.role = QUIRE_LATENT, .heads = 1, .dim = 8};
  const quire_layer_group group = {.kind = QUIRE_FULL,
                                   .window_tokens = 0,
                                   .sink_tokens = 0,
                                   .layer_count = 3,
                                   .layers = layers,
                                   .stream_count = 1,
                                   .streams = &latent};
  quire_cache_options options = SmallOptions();
  options.layers = options.kv_heads = options.head_dim = 0;
  options.group_count = 1;
  options.groups = &group;
  options.codec = QUIRE_F32;
  const CWorld world(options);
  const std::vector<TokenId> prompt = {1, 2, 3};
  const auto sequence = world.Open(prompt);
  std::vector<float> rows(3 * 8);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  const quire_rows view = CWorld::Packed(rows, {StreamRole::kLatent, 1, 8});
  EXPECT_EQ(quire_sequence_append(sequence.get(), 2, &view, nullptr, 3, nullptr), QUIRE_OK);
  std::vector<float> out(rows.size());
  EXPECT_EQ(
      quire_sequence_gather(sequence.get(), 2, QUIRE_LATENT, 0, 3, out.data(), out.size(), nullptr),
      QUIRE_OK);
  EXPECT_EQ(out, rows);
  EXPECT_EQ(quire_sequence_append(sequence.get(), 1, &view, &view, 3, nullptr),
            QUIRE_INVALID_ARGUMENT);
}

TEST(CLife, OptionsReachTheCache) {
  quire_cache_options options = SmallOptions();
  options.codec = QUIRE_BF16;
  options.value_codec = QUIRE_F32;
  options.block_tokens = 32;
  options.compute = QUIRE_COMPUTE_F16;
  options.arithmetic = "other";
  options.tokens_max = 77;
  options.huge_pages = 1;
  options.placement = QUIRE_BEST_FIT;
  const CWorld world(options);
  const CacheOptions& made = world.cache->cache->options();
  EXPECT_EQ(made.geometry, Geometry::Uniform(2, 2, 4));
  EXPECT_EQ(made.profile.CodecFor(StreamRole::kKey).value(), Codec::kBf16);
  EXPECT_EQ(made.profile.CodecFor(StreamRole::kLatent).value(), Codec::kBf16);
  EXPECT_EQ(made.profile.CodecFor(StreamRole::kValue).value(), Codec::kF32);
  EXPECT_EQ(made.profile.block_tokens, 32u);
  EXPECT_EQ(made.profile.compute, ComputeType::kF16);
  EXPECT_EQ(made.profile.arithmetic, "other");
  EXPECT_EQ(made.tokens_max, 77u);
  EXPECT_TRUE(made.huge_pages);
  EXPECT_EQ(made.placement, Placement::kBestFit);
  // Nothing said means what the same C++ program gets.
  const CWorld plain;
  EXPECT_EQ(plain.cache->cache->options().profile, NumericProfile::Uniform(Codec::kF16));
  EXPECT_EQ(plain.cache->cache->options().tokens_max, CacheOptions{}.tokens_max);
}

TEST(CLife, StatisticsAreThoseOfCpp) {
  const CWorld world;
  const auto sequence = world.Run(cache::SomeTokens(2 * kBlock + 1, 1));
  const CacheStats cpp = world.cache->cache->stats();
  const quire_cache_stats c = world.Stats();
  EXPECT_EQ(c.hot_bytes_limit, 1u << 20);
  EXPECT_EQ(c.hot_bytes_used, cpp.hot_bytes_used);
  EXPECT_EQ(c.sealed.slots_used, 3u);
  EXPECT_EQ(c.sealed.slots_max, cpp.sealed.slots_max);
  EXPECT_EQ(c.sealed_second.slots_max, 0u);
  EXPECT_EQ(c.published_blocks, 2u);
  EXPECT_EQ(c.lookups, 1u);
  EXPECT_EQ(c.sequences, 1u);

  const std::string json = ToJson(cpp);
  size_t length = 0;
  EXPECT_EQ(quire_cache_stats_json(world.cache.get(), nullptr, 0, &length, nullptr), QUIRE_OK);
  EXPECT_EQ(length, json.size());
  std::vector<char> text(length + 1, 'z');
  length = 0;
  EXPECT_EQ(
      quire_cache_stats_json(world.cache.get(), text.data(), text.size() - 1, &length, nullptr),
      QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(length, json.size());
  EXPECT_EQ(text[0], 'z');
  EXPECT_EQ(quire_cache_stats_json(world.cache.get(), text.data(), text.size(), &length, nullptr),
            QUIRE_OK);
  EXPECT_EQ(text.data(), json);
}

TEST(CLife, DamageIsFoundAndItsReasonGiven) {
  const CWorld world;
  const auto prompt = cache::SomeTokens(2 * kBlock + 1, 1);
  const auto sequence = world.Run(prompt);
  uint64_t blocks = 0;
  uint64_t damaged = 0;
  EXPECT_EQ(quire_cache_verify(world.cache.get(), &blocks, &damaged, nullptr), QUIRE_OK);
  EXPECT_EQ(blocks, 2u);
  EXPECT_EQ(damaged, 0u);
  cache::FlipBit(*sequence->sequence, 1);
  EXPECT_EQ(quire_cache_verify(world.cache.get(), &blocks, &damaged, nullptr), QUIRE_OK);
  EXPECT_EQ(damaged, 1u);
  const auto plan = world.Acquire(prompt);
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), kBlock);
  EXPECT_EQ(quire_plan_reason(plan.get()), QUIRE_DAMAGED);
}

TEST(CLife, ResizeUpAndDown) {
  quire_cache_options options = SmallOptions();
  options.hot_bytes_max = 2 << 20;
  const CWorld world(options);
  auto sequence = world.Run(cache::SomeTokens(3 * kBlock + 1, 1));
  quire_error error{};
  ASSERT_EQ(quire_cache_resize(world.cache.get(), 2 << 20, &error), QUIRE_OK) << Show(error);
  EXPECT_EQ(world.Stats().hot_bytes_limit, 2u << 20);
  EXPECT_EQ(quire_cache_resize(world.cache.get(), (2 << 20) + 1, &error), QUIRE_TOO_LARGE);
  EXPECT_EQ(quire_cache_resize(world.cache.get(), 1, &error), QUIRE_NO_SPACE);
  EXPECT_EQ(quire_cache_resize(world.cache.get(), 10'000, &error), QUIRE_BUSY);
  EXPECT_NE(std::string(error.message).find("sequence 1 (2)"), std::string::npos) << Show(error);
  EXPECT_EQ(world.Stats().hot_bytes_limit, 2u << 20);
  sequence.reset();
  ASSERT_EQ(quire_cache_resize(world.cache.get(), 10'000, &error), QUIRE_OK) << Show(error);
  EXPECT_EQ(world.Stats().hot_bytes_limit, 10'000u);
  EXPECT_EQ(world.Stats().published_blocks, 2u);
}

// Callers of the first version have no field for it.
TEST(CLife, OptionsOfTheFirstVersionAreTaken) {
  quire_cache_options options = SmallOptions();
  options.size = offsetof(quire_cache_options, hot_bytes_max);
  options.hot_bytes_max = 1;  // not theirs
  const CWorld world(options);
  EXPECT_EQ(world.cache->cache->options().hot_bytes_max, 0u);
}

TEST(CLife, EvictAndTrimSayWhatWent) {
  const CWorld world;
  world.Run(cache::SomeTokens(3 * kBlock, 1));
  uint64_t evicted = 0;
  EXPECT_EQ(quire_cache_evict(world.cache.get(), 2, &evicted, nullptr), QUIRE_OK);
  EXPECT_EQ(evicted, 2u);
  EXPECT_EQ(quire_cache_evict(world.cache.get(), UINT64_MAX, &evicted, nullptr), QUIRE_OK);
  EXPECT_EQ(evicted, 1u);
  EXPECT_EQ(world.Stats().sealed.slots_used, 0u);
  uint64_t bytes = 0;
  EXPECT_EQ(quire_cache_trim(world.cache.get(), &bytes, nullptr), QUIRE_OK);
  EXPECT_GT(bytes, 0u);
}

TEST(CLife, AFullBudgetIsACodeAndTheSequenceGoesOn) {
  quire_cache_options options = SmallOptions();
  options.hot_bytes =
      3 * cache::ChargePerSlot(cache::SmallGeometry(), NumericProfile::Uniform(Codec::kF16)) - 1;
  const CWorld world(options);
  const auto history = cache::SomeTokens(2 * kBlock, 1);
  const auto sequence = world.Run(history);
  quire_error error{};
  EXPECT_EQ(quire_sequence_reserve(sequence.get(), 2 * kBlock + 1, &error), QUIRE_NO_SPACE);
  EXPECT_NE(std::string(error.message).find("no room"), std::string::npos) << error.message;
  EXPECT_EQ(quire_sequence_rollback(sequence.get(), kBlock + 1, &error), QUIRE_NO_SPACE);
  EXPECT_EQ(quire_sequence_length(sequence.get()), 2 * kBlock);
  EXPECT_EQ(CWorld::Gathered(*sequence, 0, QUIRE_KEY), world.Expected(history, 0, 0));
}

TEST(CLife, HandlesMayBeFreedInAnyOrder) {
  const auto prompt = cache::SomeTokens(kBlock + 1, 1);
  auto world = std::make_unique<CWorld>();
  auto sequence = world->Run(prompt);
  auto plan = world->Acquire(prompt);
  auto view = world->View(*sequence, 0, QUIRE_VALUE);
  world.reset();
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), kBlock);
  plan.reset();
  EXPECT_EQ(quire_sequence_length(sequence.get()), prompt.size());
  sequence.reset();
  auto tensor = Sized<quire_tensor>();
  EXPECT_EQ(quire_view_tensor(view.get(), 0, &tensor, nullptr), QUIRE_OK);
  float first = 0;
  std::memcpy(&first, tensor.data, sizeof(first));
  EXPECT_EQ(quire_view_tokens(view.get()), prompt.size());
}

}  // namespace
}  // namespace quire::embed
