// The spill through C: what the function gets, what its answers do, and how long it is called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/hash.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlock = CWorld::kBlock;

struct Kept {
  static quire_code Store(void* context, const quire_leaving_block* block) {
    auto& kept = *static_cast<Kept*>(context);
    EXPECT_EQ(block->size, sizeof(quire_leaving_block));
    EXPECT_EQ(block->part_count, 1u);
    EXPECT_EQ(block->parts[0].part, 0u);
    std::vector<std::byte> bytes;
    for (const quire_bytes& piece :
         std::span(block->parts[0].pieces, block->parts[0].piece_count)) {
      const auto* begin = static_cast<const std::byte*>(piece.data);
      bytes.insert(bytes.end(), begin, begin + piece.bytes);
    }
    EXPECT_EQ(Crc32c(bytes), block->parts[0].crc32c);
    EXPECT_STREQ(block->publisher, "default");
    EXPECT_STREQ(block->account, "default");
    EXPECT_EQ(block->erase_epoch, 0u);
    EXPECT_EQ(block->retained_until_us, 0u);
    kept.indices.push_back(block->index);
    kept.tokens.insert(kept.tokens.begin(), block->tokens, block->tokens + block->token_count);
    kept.keys.emplace_back(block->key, block->key + sizeof(block->key));
    kept.parents.emplace_back(block->parent_key, block->parent_key + sizeof(block->parent_key));
    kept.pieces = block->parts[0].piece_count;
    return kept.answer;
  }

  quire_code answer = QUIRE_OK;
  std::vector<uint64_t> indices;
  std::vector<TokenId> tokens;
  std::vector<std::vector<uint8_t>> keys;
  std::vector<std::vector<uint8_t>> parents;
  uint32_t pieces = 0;
};

quire_cache_options With(Kept& kept, quire_layout layout = QUIRE_BLOCK_MAJOR) {
  quire_cache_options options = SmallOptions();
  options.layout = layout;
  options.spill_store = &Kept::Store;
  options.spill_context = &kept;
  return options;
}

/// Asks for all of the cache.
quire_code OpenAll(const CWorld& world, quire_sequence** sequence, quire_error* error) {
  auto options = Sized<quire_sequence_options>();
  options.on_full = QUIRE_SPILL;
  options.reserve_tokens = world.Stats().sealed.slots_max * kBlock;
  const std::vector<TokenId> other = {1, 2, 3};
  return quire_open(world.Acquire(other).release(), &options, sequence, error);
}

TEST(SpillInC, TheFunctionGetsWhatLeaves) {
  for (const quire_layout layout : {QUIRE_BLOCK_MAJOR, QUIRE_LAYER_MAJOR}) {
    Kept kept;
    const CWorld world(With(kept, layout));
    const auto prompt = cache::SomeTokens(3 * kBlock, 1);
    world.Run(prompt).reset();
    const auto longer = cache::Join(prompt, cache::SomeTokens(1, 2));
    EXPECT_EQ(quire_plan_resident_tokens(world.Acquire(longer).get()), 3u * kBlock);
    const auto sequence = MustMake<quire_sequence>(
        [&](quire_sequence** made, quire_error* error) { return OpenAll(world, made, error); });
    EXPECT_THAT(kept.indices, ::testing::ElementsAre(2, 1, 0));
    EXPECT_EQ(kept.tokens, prompt);
    EXPECT_EQ(kept.parents[0], kept.keys[1]);
    EXPECT_EQ(kept.parents[1], kept.keys[2]);
    EXPECT_EQ(kept.pieces, layout == QUIRE_BLOCK_MAJOR ? 1u : 4u);
    EXPECT_EQ(quire_plan_reason(world.Acquire(longer).get()), QUIRE_SPILLED);
    EXPECT_EQ(world.Stats().spilled_total, 3u);
  }
}

TEST(SpillInC, AnyOtherAnswerIsAFailureOfThatBlock) {
  Kept kept;
  kept.answer = QUIRE_NO_MEMORY;
  const CWorld world(With(kept));
  const auto prompt = cache::SomeTokens(2 * kBlock, 1);
  world.Run(prompt).reset();
  const auto sequence = MustMake<quire_sequence>(
      [&](quire_sequence** made, quire_error* error) { return OpenAll(world, made, error); });
  EXPECT_EQ(kept.indices.size(), 2u);
  EXPECT_EQ(world.Stats().spill_failed_total, 2u);
  EXPECT_EQ(world.Stats().spilled_total, 0u);
}

TEST(SpillInC, IsCalledAfterTheCacheHandleIsFreed) {
  Kept kept;
  CWorld world(With(kept));
  world.Run(cache::SomeTokens(2 * kBlock, 1)).reset();
  const uint64_t slots = world.Stats().sealed.slots_max;
  auto options = Sized<quire_sequence_options>();
  options.on_full = QUIRE_SPILL;
  const auto sequence = MustMake<quire_sequence>([&](quire_sequence** made, quire_error* error) {
    return quire_open(world.Acquire(cache::SomeTokens(3, 2)).release(), &options, made, error);
  });
  world.cache.reset();
  quire_error error{};
  ASSERT_EQ(quire_sequence_reserve(sequence.get(), slots * kBlock, &error), QUIRE_OK)
      << Show(error);
  EXPECT_EQ(kept.indices.size(), 2u);
}

TEST(SpillInC, WithoutAFunctionOpenSaysSo) {
  const CWorld world;
  quire_error error{};
  quire_sequence* sequence = nullptr;
  EXPECT_EQ(OpenAll(world, &sequence, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, HasSubstr("spill_store"));
  EXPECT_EQ(sequence, nullptr);
}

}  // namespace
}  // namespace quire::embed
