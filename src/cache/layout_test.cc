// Arenas in other orders, sequences in one run of slots, and views of them as one array.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr ArenaLayout kLayouts[] = {ArenaLayout::kBlockMajor, ArenaLayout::kLayerMajor,
                                    ArenaLayout::kHeadMajor};

/// 64 slots: a power of two, so that a buddy system begins with one block.
struct LayoutCache {
  LayoutCache(ArenaLayout layout, Placement placement, Geometry geometry = SmallGeometry(),
              Codec codec = Codec::kF32)
      : model(geometry) {
    CacheOptions options{.geometry = std::move(geometry),
                         .profile = NumericProfile::Uniform(codec),
                         .layout = layout,
                         .placement = placement,
                         .hot_bytes = 1 << 20};
    cache = MakeCache(options);
    {
      const auto sequence = Must(TryOpen(SomeTokens(1, 1)));
      options.hot_bytes = 65 * SlotCharges(cache->stats()) - 1;
    }
    cache = MakeCache(options);
  }

  Result<std::unique_ptr<Sequence>> TryOpen(std::span<const TokenId> prompt,
                                            const SequenceOptions& options = {}) {
    return cache->Open(
        Must(cache->Acquire(
            {.identity = &identity, .tokens = prompt, .reuse = !options.contiguous})),
        options);
  }
  std::unique_ptr<Sequence> Run(std::span<const TokenId> prompt,
                                const SequenceOptions& options = {}) {
    auto sequence = Must(TryOpen(prompt, options));
    Must(model.Feed(*sequence, prompt));
    return sequence;
  }

  FakeModel model;
  Identity identity = SomeIdentity();
  std::unique_ptr<Cache> cache;
};

float At(const TensorView& view, std::initializer_list<int64_t> index) {
  const int64_t element =
      std::inner_product(index.begin(), index.end(), view.strides.begin(), int64_t{0});
  return OnHost(static_cast<const float*>(view.data))[element];
}

TEST(Layout, EveryArenaHoldsTheSameValues) {
  // K and V of different widths: pieces of the larger size.
  Geometry uneven = SmallGeometry();
  uneven.groups[0].streams[1].dim = 7;
  Geometry latent = Geometry::Uniform(3, 1, 5);
  latent.groups[0].streams = {{.role = StreamRole::kLatent, .heads = 1, .dim = 5}};
  const auto tokens = SomeTokens(70, 1);
  for (const ArenaLayout layout : kLayouts) {
    for (const Geometry& geometry : {SmallGeometry(), uneven, latent}) {
      for (const Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
        LayoutCache cache(layout, Placement::kFreeList, geometry, codec);
        const auto first = cache.Run(tokens);
        const auto second = cache.Run(Join(std::span(tokens).first(40), SomeTokens(20, 2)));
        const auto fork = Must(first->Fork());
        Must(first->Rollback(37));
        const auto other = Join(std::span(tokens).first(37), SomeTokens(30, 3));
        Must(cache.model.Feed(*first, other));
        EXPECT_EQ(cache.model.Differs(*first, other), "");
        EXPECT_EQ(cache.model.Differs(*fork, tokens), "");
        EXPECT_EQ(cache.cache->stats().published_blocks, 4u + 1 + 2);
        EXPECT_EQ(cache.cache->Verify().damaged, 0u);
        if (geometry == latent) continue;
        FlipBit(*fork, 1);
        EXPECT_EQ(cache.cache->Verify().damaged, 1u) << ArenaLayoutName(layout);
      }
    }
  }
}

TEST(Layout, AHeadMajorRunIsOneArrayOfTokens) {
  const auto tokens = SomeTokens(3 * kBlock + 5, 1);
  LayoutCache cache(ArenaLayout::kHeadMajor, Placement::kFirstFit);
  const auto sequence = cache.Run(tokens, {.contiguous = true});
  for (const Stream& stream : cache.model.geometry().groups[0].streams) {
    for (const uint32_t layer : {0u, 1u}) {
      const BlockListView view = Must(sequence->View(layer, stream.role));
      const TensorView array = Must(view.array());
      ASSERT_EQ(array.rank, 3u);
      EXPECT_EQ(array.shape[0], 2);
      EXPECT_EQ(array.shape[1], 3 * kBlock + 5);
      EXPECT_EQ(array.shape[2], 4);
      EXPECT_EQ(array.strides[1], 4);
      EXPECT_EQ(array.strides[2], 1);
      EXPECT_EQ(array.data, view.slots()[0] + view.layout().offset_bytes) << "never a copy";
      const auto rows = cache.model.Rows(tokens, 0, layer, stream);
      for (int64_t token = 0; token < array.shape[1]; ++token) {
        for (int64_t head = 0; head < 2; ++head) {
          for (int64_t d = 0; d < 4; ++d) {
            EXPECT_EQ(At(array, {head, token, d}), rows[(token * 2 + head) * 4 + d]);
          }
        }
      }
    }
  }
}

TEST(Layout, OtherRunsAreOneArrayOfBlocks) {
  const auto tokens = SomeTokens(3 * kBlock, 1);
  for (const ArenaLayout layout : {ArenaLayout::kBlockMajor, ArenaLayout::kLayerMajor}) {
    LayoutCache cache(layout, Placement::kBuddy);
    const auto sequence = cache.Run(tokens, {.contiguous = true});
    const Stream& stream = cache.model.geometry().groups[0].streams[0];
    const BlockListView view = Must(sequence->View(1, stream.role));
    const TensorView array = Must(view.array());
    ASSERT_EQ(array.rank, 4u);
    EXPECT_EQ(array.shape[0], 3);
    EXPECT_EQ(array.shape[2], kBlock);
    if (layout == ArenaLayout::kLayerMajor) {
      // Exactly [blocks, heads, block_tokens, head_dim], without gaps.
      EXPECT_EQ(array.strides, (std::array<int64_t, 5>{2 * kBlock * 4, kBlock * 4, 4, 1}));
    }
    const auto rows = cache.model.Rows(tokens, 0, 1, stream);
    for (int64_t token = 0; token < 3 * kBlock; ++token) {
      EXPECT_EQ(At(array, {token / kBlock, 1, token % kBlock, 3}), rows[(token * 2 + 1) * 4 + 3]);
    }
  }
}

TEST(Layout, ScatteredBlocksAreNoArray) {
  LayoutCache cache(ArenaLayout::kBlockMajor, Placement::kFreeList);
  auto first = cache.Run(SomeTokens(kBlock + 1, 1));
  auto second = cache.Run(SomeTokens(kBlock + 1, 2));
  Must(cache.model.Feed(*first, Join(SomeTokens(kBlock + 1, 1), SomeTokens(2 * kBlock, 3))));
  const auto array = Must(first->View(0, StreamRole::kKey)).array();
  ASSERT_FALSE(array.has_value());
  EXPECT_EQ(array.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(array.error().message, HasSubstr("contiguous"));
}

TEST(Contiguous, GrowsInPlaceOrFails) {
  for (const Placement placement : {Placement::kFirstFit, Placement::kBestFit, Placement::kBuddy}) {
    LayoutCache cache(ArenaLayout::kHeadMajor, placement);
    const auto tokens = SomeTokens(10 * kBlock, 1);
    auto sequence = cache.Run(std::span(tokens).first(2 * kBlock), {.contiguous = true});
    Must(cache.model.Feed(*sequence, std::span(tokens).first(5 * kBlock)));
    EXPECT_TRUE(Must(sequence->View(0, StreamRole::kKey)).array().has_value());
    // Another run follows: growing has no free slots behind it, nothing changes, and it stays
    // usable.
    std::vector<std::unique_ptr<Sequence>> neighbours;
    while (true) {
      auto neighbour = cache.TryOpen(SomeTokens(1, 5), {.contiguous = true});
      if (!neighbour) break;
      neighbours.push_back(*std::move(neighbour));
    }
    const std::string before = ToJson(sequence->stats());
    const auto used = cache.cache->stats().hot_bytes_used;
    const auto grown = sequence->Reserve(12 * kBlock);
    ASSERT_FALSE(grown.has_value());
    EXPECT_EQ(grown.error().code, ErrorCode::kNoSpace);
    EXPECT_EQ(ToJson(sequence->stats()), before);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, used);
    EXPECT_EQ(cache.model.Differs(*sequence, std::span(tokens).first(5 * kBlock)), "");
    neighbours.clear();
    Must(cache.model.Feed(*sequence, tokens));
    EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
    EXPECT_TRUE(Must(sequence->View(0, StreamRole::kKey)).array().has_value());
    sequence.reset();
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
  }
}

TEST(Contiguous, RollsBackAndStaysOneArray) {
  LayoutCache cache(ArenaLayout::kHeadMajor, Placement::kFirstFit);
  const auto tokens = SomeTokens(6 * kBlock, 1);
  for (uint64_t position = 0; position <= tokens.size(); position += 7) {
    const auto sequence = cache.Run(tokens, {.contiguous = true});
    Must(sequence->Rollback(position));
    const auto other = Join(std::span(tokens).first(position), SomeTokens(90, 2));
    Must(cache.model.Feed(*sequence, other));
    EXPECT_EQ(cache.model.Differs(*sequence, other), "");
    EXPECT_TRUE(Must(sequence->View(0, StreamRole::kKey)).array().has_value());
  }
  // A view shows the block, so it cannot be overwritten, and a copy would lie elsewhere.
  const auto sequence = cache.Run(tokens, {.contiguous = true});
  const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  const auto rolled = sequence->Rollback(kBlock + 3);
  ASSERT_FALSE(rolled.has_value());
  EXPECT_EQ(rolled.error().code, ErrorCode::kBusy);
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
}

TEST(Contiguous, SaysWhatItNeeds) {
  const auto tokens = SomeTokens(3 * kBlock, 1);
  LayoutCache paged(ArenaLayout::kBlockMajor, Placement::kFreeList);
  const auto without_runs = paged.TryOpen(tokens, {.contiguous = true});
  ASSERT_FALSE(without_runs.has_value());
  EXPECT_EQ(without_runs.error().code, ErrorCode::kUnsupported);

  LayoutCache cache(ArenaLayout::kBlockMajor, Placement::kFirstFit);
  {
    const auto published = cache.Run(tokens);
  }
  auto plan = Must(cache.cache->Acquire({.identity = &cache.identity, .tokens = tokens}));
  const auto shares = cache.cache->Open(std::move(plan), {.contiguous = true});
  ASSERT_FALSE(shares.has_value());
  EXPECT_EQ(shares.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(shares.error().message, HasSubstr("reuse = false"));

  const auto bad = Cache::Create({.geometry = SmallGeometry(),
                                  .profile = NumericProfile::Uniform(Codec::kF16),
                                  .layout = ArenaLayout::kHeadMajor,
                                  .hot_bytes = 1 << 20,
                                  .huge_pages = true});
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
}

TEST(Layout, TrimGivesSharedPagesBackWithTheirLastSlot) {
  for (const ArenaLayout layout : kLayouts) {
    LayoutCache cache(layout, Placement::kFirstFit);
    auto first = cache.Run(SomeTokens(5 * kBlock, 1), {.publish = false});
    auto second = cache.Run(SomeTokens(5 * kBlock, 2), {.publish = false});
    first.reset();
    EXPECT_GT(cache.cache->Trim(), 0u);
    EXPECT_EQ(cache.cache->Trim(), 0u);
    EXPECT_EQ(cache.model.Differs(*second, SomeTokens(5 * kBlock, 2)), "")
        << "what is in use stays";
    second.reset();
    EXPECT_GT(cache.cache->Trim(), 0u);
  }
}

}  // namespace
}  // namespace quire::cache
