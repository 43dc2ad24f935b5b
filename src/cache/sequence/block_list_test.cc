// The list of a sequence's blocks beside plain vectors, with forks that share chunks.
#include "cache/sequence/block_list.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/bits.h"
#include "base/prng.h"

namespace quire::cache {
namespace {

constexpr uint32_t kClasses = 2;

/// The obvious version.
struct Naive {
  std::vector<SlotId> slots[kClasses];
  std::vector<BlockId> published;
  std::vector<TokenId> tokens;

  void Resize(uint64_t blocks, uint32_t block_tokens) {
    for (auto& of_class : slots) of_class.resize(blocks, SlotId::None());
    if (published.size() > blocks) published.resize(blocks);
    if (tokens.size() > blocks * block_tokens) tokens.resize(blocks * block_tokens);
  }
};

struct Pair {
  BlockList list;
  Naive naive;
};

void ExpectEqual(const Pair& pair, uint32_t block_tokens) {
  const auto& [list, naive] = pair;
  ASSERT_EQ(list.size(), naive.slots[0].size());
  ASSERT_EQ(list.published(), naive.published.size());
  ASSERT_EQ(list.tokens(), naive.tokens.size());
  for (uint64_t block = 0; block < list.size(); ++block) {
    for (uint32_t c = 0; c < kClasses; ++c) ASSERT_EQ(list.slot(c, block), naive.slots[c][block]);
  }
  ASSERT_EQ(list.PublishedBlocks(0, list.published()), naive.published);
  for (uint64_t block = 0; block < list.tokens() / block_tokens; ++block) {
    const auto shown = list.BlockTokens(block);
    ASSERT_TRUE(std::equal(shown.begin(), shown.end(),
                           naive.tokens.begin() + static_cast<ptrdiff_t>(block * block_tokens)));
  }
}

// What a sequence does: grows, fills in slots, ids and tokens, goes back, forks, ends.
TEST(BlockList, InLockStepWithVectorsAndForks) {
  for (const uint32_t block_tokens : {1U, 3U, 16U, 100U, 256U, 2000U}) {
    Prng prng(block_tokens);
    std::vector<Pair> pairs;
    pairs.push_back({BlockList(kClasses, block_tokens, /*keeps_tokens=*/true), {}});
    const uint64_t chunk = pairs[0].list.chunk_blocks();
    for (int step = 0; step < 600; ++step) {
      Pair& pair = pairs[prng.NextBelow(pairs.size())];
      auto& [list, naive] = pair;
      const uint64_t size = list.size();
      switch (prng.NextBelow(7)) {
        case 0:
        case 1: {  // grow
          const uint64_t blocks = size + 1 + prng.NextBelow(2 * chunk);
          if (blocks > 6 * chunk) break;
          list.Own(size);
          list.Resize(blocks);
          naive.Resize(blocks, block_tokens);
          break;
        }
        case 2: {  // go back
          const uint64_t blocks = prng.NextBelow(size + 1);
          list.Own(blocks);
          list.Resize(blocks);
          naive.Resize(blocks, block_tokens);
          break;
        }
        case 3: {  // a slot of a block anywhere
          if (size == 0) break;
          const uint64_t block = prng.NextBelow(size);
          const auto c = static_cast<uint32_t>(prng.NextBelow(kClasses));
          const SlotId slot(static_cast<uint32_t>(prng.NextBelow(1000)));
          list.Own(block);
          list.SetSlot(c, block, slot);
          naive.slots[c][block] = slot;
          break;
        }
        case 4: {  // the next blocks get ids
          list.Own(list.published());
          for (uint64_t n = prng.NextBelow(chunk); n > 0 && list.published() < size; --n) {
            const BlockId id(static_cast<uint32_t>(prng.NextBelow(1000)));
            list.AddPublished(id);
            naive.published.push_back(id);
          }
          break;
        }
        case 5: {  // tokens
          const uint64_t room = size * block_tokens - list.tokens();
          std::vector<TokenId> tokens(prng.NextBelow(std::min<uint64_t>(room, 3000) + 1));
          for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(50'000));
          list.Own(list.tokens() / block_tokens);
          list.AddTokens(tokens);
          naive.tokens.insert(naive.tokens.end(), tokens.begin(), tokens.end());
          break;
        }
        default: {  // fork, or end one
          if (pairs.size() == 6) {
            pairs.erase(pairs.begin() + static_cast<ptrdiff_t>(prng.NextBelow(pairs.size())));
            break;
          }
          const uint64_t blocks = prng.NextBelow(size + 1);
          const uint64_t shared_end = prng.NextBelow(blocks + 1);
          Pair forked{list.Fork(blocks, shared_end), naive};
          forked.naive.Resize(blocks, block_tokens);
          pairs.push_back(std::move(forked));
          break;
        }
      }
      for (const Pair& one : pairs) ExpectEqual(one, block_tokens);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(BlockList, AForkTakesLittleHoweverLongItsPathIs) {
  BlockList list(1, 16, /*keeps_tokens=*/true);
  list.Resize(6000);
  const uint64_t whole_bytes = 6000 * list.block_bytes();
  EXPECT_LT(list.BytesToFork(6000, 6000), whole_bytes / 40);
  EXPECT_EQ(list.BytesToOwn(0), 0u);
  const BlockList fork = list.Fork(6000, 6000);
  EXPECT_GT(list.BytesToOwn(0), whole_bytes * 9 / 10) << "all but the last chunk is shared now";
  EXPECT_EQ(list.BytesToOwn(6000), 0u);
  EXPECT_GT(fork.BytesToOwn(0), whole_bytes * 9 / 10);
}

TEST(BlockList, GrowingIsPaidForByTheAddedEntries) {
  BlockList list(2, 16, /*keeps_tokens=*/false);
  uint64_t paid = 0;
  for (const uint64_t blocks : {1U, 2U, 5U, 63U, 64U, 65U, 500U}) {
    paid += list.BytesToGrow(blocks);
    list.Resize(blocks);
    EXPECT_GE(paid, blocks * list.block_bytes());
    EXPECT_LE(paid, (2 * blocks + 4) * list.block_bytes());
    EXPECT_EQ(list.BytesToGrow(blocks), 0u);
  }
}

// Of blocks of 16 tokens a chunk has 64; the first chunk grows from 4 by doubling, and so does the
// last of a copy. An entry of one class without tokens is 8 bytes.
TEST(BlockList, BytesCanBeWorkedOutByHand) {
  BlockList list(1, 16, /*keeps_tokens=*/false);
  EXPECT_EQ(list.chunk_blocks(), 64u);
  EXPECT_EQ(list.block_bytes(), 8u);
  EXPECT_EQ(BlockList(3, 16, /*keeps_tokens=*/true).block_bytes(), 3 * 4 + 4 + 16 * 4u);
  EXPECT_EQ(BlockList(1, 2000, /*keeps_tokens=*/false).chunk_blocks(), 4u);
  constexpr uint64_t kCapacities[][2] = {{1, 4},   {4, 4},   {5, 8},   {33, 64},
                                         {64, 64}, {65, 68}, {69, 72}, {500, 512}};
  for (const auto& [blocks, capacity] : kCapacities) {
    EXPECT_EQ(list.BytesToGrow(blocks), capacity * 8) << blocks << " blocks";
  }
  list.Resize(70);  // room for 72
  EXPECT_EQ(list.BytesToGrow(72), 0u);
  EXPECT_EQ(list.BytesToGrow(73), 8 * 8u);
  EXPECT_EQ(list.BytesToGrow(UINT64_MAX / 2), UINT64_MAX) << "it saturates";

  // Two pointers of a chunk each, and 192 bytes for a chunk that is copied.
  EXPECT_EQ(list.BytesToFork(70, 70), 2 * 16 + 192 + 8 * 8u);
  EXPECT_EQ(list.BytesToFork(70, 63), 2 * 16 + 2 * 192 + (64 + 8) * 8u);
  EXPECT_EQ(list.BytesToFork(64, 64), 16u);
  list.Resize(200);
  BlockList fork = list.Fork(200, 130);  // chunks 0 and 1 are shared
  for (BlockList* one : {&list, &fork}) {
    EXPECT_EQ(one->owned_begin(), 128u);
    EXPECT_EQ(one->BytesToOwn(128), 0u);
    EXPECT_EQ(one->BytesToOwn(127), 64 * 8u);
    EXPECT_EQ(one->BytesToOwn(0), 2 * 64 * 8u);
  }
  fork.Own(64);
  EXPECT_EQ(fork.owned_begin(), 64u);
  EXPECT_EQ(list.owned_begin(), 128u);
}

}  // namespace
}  // namespace quire::cache
