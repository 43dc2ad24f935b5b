// Reading in place: pointers and strides, what a lease keeps alive, geometries of every kind.
#include <gtest/gtest.h>

#include <cstring>

#include "base/float_bits.h"
#include "cache/core.h"
#include "cache/sequence/sequence_impl.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

float At(const TensorView& tensor, int64_t head, int64_t token, int64_t dim) {
  const int64_t index =
      head * tensor.strides[0] + token * tensor.strides[1] + dim * tensor.strides[2];
  if (tensor.dtype == Codec::kF32) return OnHost(static_cast<const float*>(tensor.data))[index];
  const uint16_t code = OnHost(static_cast<const uint16_t*>(tensor.data))[index];
  return tensor.dtype == Codec::kF16 ? F16ToF32(code) : Bf16ToF32(code);
}

// Empty if the view shows `rows` [tokens, heads, dim].
std::string Shows(const BlockListView& view, const std::vector<float>& rows, const Stream& stream) {
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < view.block_count(); ++i) {
    const TensorView block = view.block(i);
    if (block.rank != 3 || block.device != TestDeviceName()) return "not a tensor of rank 3 there";
    if (block.shape[0] != stream.heads || block.shape[2] != stream.dim) return "shape";
    if (i + 1 < view.block_count() && block.shape[1] != kBlock) return "a hole";
    for (int64_t head = 0; head < block.shape[0]; ++head) {
      for (int64_t t = 0; t < block.shape[1]; ++t) {
        for (int64_t d = 0; d < block.shape[2]; ++d) {
          const uint64_t row = tokens + static_cast<uint64_t>(t);
          if (At(block, head, t, d) != rows[(row * stream.heads + head) * stream.dim + d]) {
            return "value of token " + std::to_string(row);
          }
        }
      }
    }
    tokens += static_cast<uint64_t>(block.shape[1]);
  }
  if (tokens != view.tokens()) return "tokens";
  return tokens * stream.heads * stream.dim == rows.size() ? "" : "length";
}

// Every stream of every layer, by views.
std::string ViewsDiffer(const FakeModel& model, const Sequence& sequence,
                        std::span<const TokenId> history) {
  for (uint32_t layer = 0; layer < model.geometry().layer_count(); ++layer) {
    for (const Stream& stream : model.GroupOf(layer).streams) {
      const auto rows = model.Rows(history, 0, layer, stream);
      const auto wrong = Shows(Must(sequence.View(layer, stream.role)), rows, stream);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

TEST(View, PointersAndStridesReadTheValues) {
  for (const Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
    TestCache cache(8, SmallGeometry(), NumericProfile::Uniform(codec));
    const auto tokens = SomeTokens(37, 1);
    const auto sequence = cache.Run(tokens);
    EXPECT_EQ(ViewsDiffer(cache.model, *sequence, tokens), "");
    EXPECT_EQ(Must(sequence->View(0, StreamRole::kKey)).block_count(), 3u);
  }
}

TEST(View, OfNothingIsEmpty) {
  TestCache cache(8);
  const auto sequence = cache.Open(SomeTokens(37, 1));
  const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
  EXPECT_EQ(view.tokens(), 0u);
  EXPECT_EQ(view.block_count(), 0u);
  EXPECT_FALSE(sequence->View(2, StreamRole::kKey).has_value());
  EXPECT_FALSE(sequence->View(0, StreamRole::kLatent).has_value());
}

TEST(View, KernelsGetTheSameSlots) {
  TestCache cache(8);
  const auto tokens = SomeTokens(37, 1);
  const auto sequence = cache.Run(tokens, {.reserve_tokens = 60});
  const BlockListView view = Must(sequence->View(1, StreamRole::kValue));
  const LayerBlocks blocks = sequence->Blocks(1);
  EXPECT_EQ(blocks.tokens, 37u);
  ASSERT_GE(blocks.block_count(), 3u);
  for (uint64_t block = 0; block < 3; ++block) {
    EXPECT_EQ(view.slots()[block], blocks.sealed(block));
    EXPECT_EQ(view.slots()[block], blocks.open(block));
  }
  EXPECT_EQ(blocks.value.offset_bytes, view.layout().offset_bytes);
  EXPECT_EQ(blocks.key.inner, InnerAxis::kToken);
  EXPECT_EQ(blocks.value.inner, InnerAxis::kDim);
}

TEST(Lease, KeepsSlotsAfterTheSequenceIsGone) {
  TestCache cache(4);
  const auto tokens = SomeTokens(37, 1);
  const Stream stream = cache.model.geometry().groups[0].streams[0];
  const auto rows = cache.model.Rows(tokens, 0, 0, stream);
  auto sequence = cache.Run(tokens);
  auto view = std::make_unique<BlockListView>(Must(sequence->View(0, StreamRole::kKey)));
  sequence.reset();
  EXPECT_EQ(cache.slots_used(), 3u) << "two published, one private tail";
  EXPECT_EQ(cache.cache->Evict(100), 0u);
  EXPECT_EQ(cache.cache->BlockMap(), "0  SSp.\n");
  EXPECT_FALSE(cache.TryOpen(SomeTokens(2 * kBlock, 2)).has_value());
  const auto other = cache.Run(SomeTokens(kBlock, 3));
  EXPECT_EQ(Shows(*view, rows, stream), "");
  view.reset();
  EXPECT_EQ(cache.slots_used(), 3u) << "the tail is free, the others may be evicted";
  EXPECT_EQ(cache.cache->Evict(100), 2u);
}

TEST(Lease, AViewedTailIsNotWrittenOver) {
  for (const bool commit : {true, false}) {
    TestCache cache(8);
    const auto tokens = SomeTokens(20, 1);
    const Stream stream = cache.model.geometry().groups[0].streams[0];
    const auto rows = cache.model.Rows(tokens, 0, 0, stream);
    const auto sequence = cache.Open(tokens);
    for (uint32_t layer : {0u, 1u}) Must(cache.model.AppendLayer(*sequence, layer, tokens));
    if (commit) Must(sequence->Commit(tokens));
    const BlockListView view = Must(sequence->View(0, StreamRole::kKey));
    for (const uint64_t position : {18u, 16u, 7u, 0u}) {
      Must(sequence->Rollback(position));
      const auto other = Join(std::span(tokens).first(position), SomeTokens(30, 2));
      Must(cache.model.Feed(*sequence, other));
      EXPECT_EQ(Shows(view, rows, stream), "") << position;
      EXPECT_EQ(cache.model.Differs(*sequence, other), "") << position;
      Must(sequence->Rollback(position));
      for (uint32_t layer : {0u, 1u}) Must(cache.model.AppendLayer(*sequence, layer, tokens));
      if (commit) Must(sequence->Commit(std::span(tokens).subspan(position)));
    }
  }
}

TEST(Lease, AppendingBehindAViewDoesNotCopy) {
  TestCache cache(1);
  const auto tokens = SomeTokens(10, 1);
  const Stream stream = cache.model.geometry().groups[0].streams[1];
  const auto sequence = cache.Run(std::span(tokens).first(4));
  const BlockListView view = Must(sequence->View(1, StreamRole::kValue));
  Must(cache.model.Feed(*sequence, tokens));
  EXPECT_EQ(Shows(view, cache.model.Rows(std::span(tokens).first(4), 0, 1, stream), stream), "");
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
}

// The sequence's block was replaced by an equal one of another sequence; the view still has the
// first.
TEST(Lease, OutlivesDeduplication) {
  TestCache cache(8);
  const auto tokens = SomeTokens(2 * kBlock, 1);
  const Stream stream = cache.model.geometry().groups[0].streams[0];
  auto late = cache.Open(tokens);
  for (uint32_t layer : {0u, 1u}) Must(cache.model.AppendLayer(*late, layer, tokens));
  auto view = std::make_unique<BlockListView>(Must(late->View(0, StreamRole::kKey)));
  const auto early = cache.Run(tokens);
  Must(late->Commit(tokens));
  EXPECT_EQ(cache.slots_used(), 4u);
  const auto other = cache.Run(SomeTokens(2 * kBlock, 2));
  EXPECT_EQ(Shows(*view, cache.model.Rows(tokens, 0, 0, stream), stream), "");
  view.reset();
  EXPECT_EQ(cache.slots_used(), 4u);
  EXPECT_EQ(cache.model.Differs(*late, tokens), "");
}

TEST(Lease, IsReleasedOnce) {
  static_assert(!std::is_copy_constructible_v<Lease>);
  static_assert(!std::is_copy_constructible_v<BlockListView>);
  const auto core = Must(Core::Make(OnTestDevice({.geometry = SmallGeometry(),
                                                  .profile = NumericProfile::Uniform(Codec::kF16),
                                                  .hot_bytes = 1 << 20})));
  OwnedSlots slots = std::move(Must(core->holds().Allocate({}, {3}, 0)).slots);
  Lease lease = core->holds().MakeLease(slots[0]);
  slots.Disown();
  EXPECT_EQ(lease.block_count(), 3u);
  lease.Release();
  EXPECT_EQ(core->stats().sealed.slots_used, 0u);
  EXPECT_TRUE(lease.empty());
  lease.Release();
}

TEST(Lease, MovedViewsReleaseOnce) {
  TestCache cache(4);
  const auto sequence = cache.Run(SomeTokens(20, 1), {.publish = false});
  BlockListView a = Must(sequence->View(0, StreamRole::kKey));
  BlockListView b = Must(sequence->View(0, StreamRole::kValue));
  b = std::move(a);
  sequence->Reset();
  EXPECT_EQ(cache.slots_used(), 2u);
  {
    const BlockListView last = std::move(b);
  }
  EXPECT_EQ(cache.slots_used(), 0u);
}

TEST(Kinds, OneLatentStream) {
  const Geometry mla{.groups = {{.kind = LayerKind::kFull,
                                 .layers = {0, 1, 2},
                                 .streams = {{StreamRole::kLatent, 1, 24}}}}};
  TestCache cache(8, mla);
  EXPECT_EQ(cache.cache->block_bytes(), 3u * 24 * kBlock * 2);
  const auto tokens = SomeTokens(40, 1);
  auto sequence = cache.Run(tokens);
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
  EXPECT_EQ(ViewsDiffer(cache.model, *sequence, tokens), "");
  const LayerBlocks blocks = sequence->Blocks(1);
  EXPECT_EQ(blocks.key.offset_bytes, blocks.value.offset_bytes) << "one stream, read as K and as V";
  EXPECT_FALSE(sequence->View(0, StreamRole::kKey).has_value());
  const auto fork = Must(sequence->Fork());
  Must(sequence->Rollback(20));
  Must(cache.model.Feed(*sequence, tokens));
  EXPECT_EQ(cache.model.Differs(*fork, tokens), "");
  // A value beside a latent has no stream to go to.
  std::vector<float> row(24);
  const RowsView rows{.data = row.data(), .token_stride = 24, .head_stride = 24};
  const auto refused = sequence->Append(0, {.key = rows, .value = rows, .tokens = 1});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(Kinds, TwoGroupsOfLayers) {
  const Geometry mixed{
      .groups = {{.kind = LayerKind::kFull,
                  .layers = {1, 3},
                  .streams = {{StreamRole::kKey, 1, 8}, {StreamRole::kValue, 1, 5}}},
                 {.kind = LayerKind::kWindow,
                  .layers = {0, 2, 4},
                  .window_tokens = 64,
                  .sink_tokens = 4,
                  .streams = {{StreamRole::kKey, 3, 2}, {StreamRole::kValue, 3, 2}}}}};
  for (const Codec codec : {Codec::kF32, Codec::kBf16}) {
    TestCache cache(16, mixed, NumericProfile::Uniform(codec));
    const auto tokens = SomeTokens(70, 1);
    const auto sequence = cache.Run(tokens);
    EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
    EXPECT_EQ(ViewsDiffer(cache.model, *sequence, tokens), "");
    const auto hit = cache.Run(Join(tokens, SomeTokens(5, 2)));
    EXPECT_EQ(cache.model.Differs(*hit, Join(tokens, SomeTokens(5, 2))), "");
  }
}

TEST(Kinds, EveryBlockSize) {
  for (const uint32_t block_tokens : {16u, 32u, 64u, 128u, 256u}) {
    TestCache cache(8, SmallGeometry(), NumericProfile::Uniform(Codec::kF16, block_tokens));
    const auto tokens = SomeTokens(2 * block_tokens + 1, 1);
    const auto sequence = cache.Run(tokens);
    EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
    EXPECT_EQ(cache.Resident(tokens), 2 * block_tokens);
    EXPECT_EQ(cache.slots_used(), 3u);
  }
}

TEST(Kinds, KeysAndValuesMayDifferInCodec) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kBf16);
  profile.codecs[0].codec = Codec::kF32;
  TestCache cache(8, SmallGeometry(), profile);
  const auto tokens = SomeTokens(40, 1);
  const auto sequence = cache.Run(tokens);
  EXPECT_EQ(ViewsDiffer(cache.model, *sequence, tokens), "");
  EXPECT_EQ(Must(sequence->View(0, StreamRole::kKey)).block(0).dtype, Codec::kF32);
  EXPECT_EQ(Must(sequence->View(0, StreamRole::kValue)).block(0).dtype, Codec::kBf16);
}

TEST(View, ARangePinsItsBlocksAlone) {
  TestCache cache(20);
  const auto tokens = SomeTokens(6 * kBlock + 5, 1);
  const auto sequence = cache.Run(tokens);
  const BlockListView whole = Must(sequence->View(1, StreamRole::kValue));
  const BlockListView some =
      Must(sequence->View(1, StreamRole::kValue, {.begin = 2 * kBlock + 3, .end = 4 * kBlock}));
  EXPECT_EQ(some.first_token(), 2u * kBlock);
  EXPECT_EQ(some.tokens(), 2u * kBlock);
  EXPECT_TRUE(std::ranges::equal(some.slots(), whole.slots().subspan(2, 2)));
  const BlockListView end = Must(sequence->View(1, StreamRole::kValue, {.begin = 6 * kBlock + 1}));
  EXPECT_EQ(end.first_token(), 6u * kBlock);
  EXPECT_EQ(end.tokens(), 5u);
  EXPECT_EQ(end.block(0).shape[1], 5);
  EXPECT_EQ(Must(some.Unleased().Pin()).first_token(), 2u * kBlock);
  for (const TokenRange range : {TokenRange{.begin = 7, .end = 6}, TokenRange{.begin = 102}}) {
    const auto refused = sequence->View(1, StreamRole::kValue, range);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(View, GatheringATokenPinsOneBlock) {
  TestCache cache(20);
  const auto tokens = SomeTokens(6 * kBlock + 5, 1);
  const auto sequence = cache.Run(tokens);
  const auto& impl = static_cast<const SequenceImpl&>(*sequence);
  EXPECT_EQ(Must(impl.Take(0, StreamRole::kKey, 40, 41)).slots.size(), 1u);
  EXPECT_EQ(Must(impl.Take(0, StreamRole::kKey, 31, 33)).lease.block_count(), 2u);
  EXPECT_EQ(Must(impl.Take(0, StreamRole::kKey, 5, 5)).lease.block_count(), 1u);
  EXPECT_EQ(Must(impl.Take(0, StreamRole::kKey, 1000, 2000)).lease.block_count(), 0u);
}

}  // namespace
}  // namespace quire::cache
