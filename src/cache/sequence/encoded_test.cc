// Codecs that encode: open blocks, sealed once, and everything else as with the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr Codec kEncoding[] = {Codec::kFp8E4m3, Codec::kFp8E5m2, Codec::kInt8, Codec::kInt4,
                               Codec::kNf4,     Codec::kFp4,     Codec::kQ25};

NumericProfile ProfileOf(Codec k, Codec v, Codec open = Codec::kF16) {
  NumericProfile profile = NumericProfile::Uniform(open);
  profile.codecs = {{StreamRole::kKey, k}, {StreamRole::kValue, v}};
  return profile;
}

Geometry SmallHeads(uint32_t dim = 64) { return Geometry::Uniform(/*layers=*/2, 2, dim); }

/// What the sequence gives back of one stream.
std::vector<float> Gathered(const Sequence& sequence, uint32_t layer, const Stream& stream,
                            uint64_t begin, uint64_t end) {
  std::vector<float> out((end - begin) * stream.heads * stream.dim);
  Must(sequence.Gather(layer, stream.role, begin, end, out));
  return out;
}

/// Root mean square of the difference over that of what should be there.
double RelativeError(const TestCache& cache, const Sequence& sequence,
                     std::span<const TokenId> history, const Stream& stream) {
  const auto got = Gathered(sequence, 1, stream, 0, history.size());
  const auto want = FakeModel::HeadsFirst(cache.model.Rows(history, 0, 1, stream), stream);
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    power += want[i] * want[i];
  }
  return std::sqrt(error / power);
}

TEST(Encoded, KeepsValuesAsWellAsTheCodecCan) {
  const auto tokens = SomeTokens(6 * kBlock + 5, 1);
  for (const Codec codec : kEncoding) {
    TestCache cache(40, SmallHeads(), ProfileOf(codec, codec));
    const auto sequence = cache.Run(tokens);
    const double limit = codec == Codec::kQ25    ? 0.35
                         : codec == Codec::kInt8 ? 0.01
                         : codec < Codec::kInt8  ? 0.1
                                                 : 0.2;
    for (const Stream& stream : cache.model.geometry().groups[0].streams) {
      const double error = RelativeError(cache, *sequence, tokens, stream);
      EXPECT_LT(error, limit) << CodecName(codec);
      EXPECT_GT(error, 1e-5) << CodecName(codec) << ": nothing was encoded";
    }
  }
}

TEST(Encoded, AHitHasTheBytesOfTheMiss) {
  const auto tokens = SomeTokens(5 * kBlock + 1, 1);
  for (const Codec codec : kEncoding) {
    TestCache cache(60, SmallHeads(), ProfileOf(codec, Codec::kInt8));
    const auto first = cache.Run(tokens);
    const auto second = cache.Open(tokens);
    EXPECT_EQ(second->length(), 5u * kBlock);
    // Computed again in other chunks: deduplicated, because the bytes are the same.
    const auto third = Must(cache.cache->Open(cache.Acquire(tokens, false), {}));
    for (uint64_t end = 7; end < tokens.size(); end += 7) {
      Must(cache.model.Feed(*third, std::span(tokens).first(end)));
    }
    for (const Stream& stream : cache.model.geometry().groups[0].streams) {
      const auto want = Gathered(*first, 0, stream, 0, 5 * kBlock);
      EXPECT_EQ(Gathered(*second, 0, stream, 0, 5 * kBlock), want);
      EXPECT_EQ(Gathered(*third, 0, stream, 0, 5 * kBlock - 16),
                Gathered(*first, 0, stream, 0, 5 * kBlock - 16));
    }
    EXPECT_EQ(cache.cache->stats().published_blocks, 5u);
    EXPECT_EQ(cache.cache->Verify().damaged, 0u);
  }
}

TEST(Encoded, OpenFormsAreDroppedWhenTheirBlockIsWhole) {
  TestCache cache(60, SmallHeads(), ProfileOf(Codec::kInt8, Codec::kNf4));
  const auto tokens = SomeTokens(20 * kBlock, 1);
  const auto sequence = cache.Open(tokens, {.step_tokens = 64});
  const CacheStats opened = cache.cache->stats();
  EXPECT_EQ(opened.sealed.slots_used, 20u);
  EXPECT_EQ(opened.open.slots_used, 64u / kBlock + 1);
  for (uint64_t end = 64; end <= tokens.size(); end += 64) {
    Must(cache.model.Feed(*sequence, std::span(tokens).first(end)));
    EXPECT_LE(cache.cache->stats().open.slots_used, 64u / kBlock + 1);
  }
  EXPECT_LE(cache.cache->stats().open.slots_used, 1u) << "the prompt is read";
  auto more = tokens;
  for (int i = 0; i < 40; ++i) {
    more.push_back(i);
    Must(cache.model.Feed(*sequence, more));
    EXPECT_LE(cache.cache->stats().open.slots_used, 2u);
  }
  const CacheStats stats = cache.cache->stats();
  EXPECT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
  sequence->Reset();
  EXPECT_EQ(cache.cache->stats().open.slots_used, 0u);
}

TEST(Encoded, GoesBackToBlockBoundariesAndIntoTheOpenBlock) {
  const auto tokens = SomeTokens(4 * kBlock + 9, 1);
  for (uint64_t position = 0; position <= tokens.size(); ++position) {
    TestCache cache(60, SmallHeads(), ProfileOf(Codec::kInt8, Codec::kInt8));
    const auto untouched = cache.Run(tokens, {.publish = false});
    const auto sequence = cache.Run(tokens, {.publish = false});
    const auto rolled = sequence->Rollback(position);
    ASSERT_EQ(rolled.has_value(), position % kBlock == 0 || position >= 4 * kBlock) << position;
    if (!rolled) {
      EXPECT_EQ(rolled.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(rolled.error().message, HasSubstr("encoded"));
      EXPECT_EQ(sequence->length(), tokens.size());
      continue;
    }
    // Read on as before: the same bytes as without the detour.
    Must(cache.model.Feed(*sequence, tokens));
    for (const Stream& stream : cache.model.geometry().groups[0].streams) {
      EXPECT_EQ(Gathered(*sequence, 1, stream, 0, tokens.size()),
                Gathered(*untouched, 1, stream, 0, tokens.size()));
    }
  }
}

TEST(Encoded, UncommittedRowsCanBeCutAnywhere) {
  const auto tokens = SomeTokens(3 * kBlock + 9, 1);
  for (uint64_t position = kBlock; position <= tokens.size(); ++position) {
    TestCache cache(60, SmallHeads(), ProfileOf(Codec::kInt8, Codec::kInt8));
    const auto sequence = cache.Open(tokens);
    Must(cache.model.Feed(*sequence, std::span(tokens).first(kBlock)));
    for (const uint32_t layer : {0u, 1u}) {
      Must(cache.model.AppendLayer(*sequence, layer,
                                   Join(std::span(tokens).first(position), SomeTokens(40, 2))));
    }
    Must(sequence->Rollback(position));
    Must(cache.model.Feed(*sequence, tokens));
    TestCache other(60, SmallHeads(), ProfileOf(Codec::kInt8, Codec::kInt8));
    const auto straight = other.Run(tokens);
    for (const Stream& stream : cache.model.geometry().groups[0].streams) {
      EXPECT_EQ(Gathered(*sequence, 0, stream, 0, tokens.size()),
                Gathered(*straight, 0, stream, 0, tokens.size()));
    }
  }
}

TEST(Encoded, ForksPartAtAnyLength) {
  for (const uint64_t length : {kBlock, kBlock + 1, 3 * kBlock - 1, 3 * kBlock + 7}) {
    TestCache cache(60, SmallHeads(), ProfileOf(Codec::kInt4, Codec::kInt8));
    const auto tokens = SomeTokens(length, 1);
    const auto sequence = cache.Run(tokens);
    const auto fork = Must(sequence->Fork());
    const auto left = Join(tokens, SomeTokens(40, 2));
    const auto right = Join(tokens, SomeTokens(40, 3));
    Must(cache.model.Feed(*sequence, left));
    Must(cache.model.Feed(*fork, right));
    for (const Stream& stream : cache.model.geometry().groups[0].streams) {
      EXPECT_LT(RelativeError(cache, *sequence, left, stream), 0.2);
      EXPECT_LT(RelativeError(cache, *fork, right, stream), 0.2);
    }
  }
}

TEST(Encoded, WindowsAndCodecsTogether) {
  Geometry geometry = SmallHeads();
  geometry.groups[0].layers = {0};
  geometry.groups.push_back(geometry.groups[0]);
  geometry.groups[1].layers = {1};
  geometry.groups[1].kind = LayerKind::kWindow;
  geometry.groups[1].window_tokens = 40;
  TestCache cache(200, geometry, ProfileOf(Codec::kInt8, Codec::kInt8));
  const auto tokens = SomeTokens(400, 1);
  const auto sequence = cache.Open(tokens, {.step_tokens = 50});
  for (uint64_t end = 50; end <= tokens.size(); end += 50) {
    Must(cache.model.Feed(*sequence, std::span(tokens).first(end)));
  }
  const Stream& stream = geometry.groups[0].streams[0];
  const auto got = Gathered(*sequence, 1, stream, 365, 400);
  const auto want = FakeModel::HeadsFirst(cache.model.Rows(tokens, 365, 1, stream), stream);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 4.0f);
  EXPECT_EQ(cache.Resident(tokens), 384u);
}

TEST(Encoded, RefusedGrowthChangesNothing) {
  const auto tokens = SomeTokens(10 * kBlock, 1);
  for (uint64_t slots = 1; slots < 24; ++slots) {
    TestCache cache(slots, SmallHeads(), ProfileOf(Codec::kInt8, Codec::kInt8));
    auto opened = cache.TryOpen(std::span(tokens).first(1), {.on_full = OnFull::kHalt});
    if (!opened) continue;
    std::vector<TokenId> history;
    for (uint64_t end = 20; end <= tokens.size(); end += 20) {
      const std::string before = cache.Snapshot();
      const auto longer = std::span(tokens).first(end);
      if (!(*opened)->Reserve(end)) {
        EXPECT_EQ(cache.Snapshot(), before);
        break;
      }
      Must(cache.model.Feed(**opened, longer));
      history.assign(longer.begin(), longer.end());
    }
    EXPECT_EQ((*opened)->length(), history.size());
    opened->reset();
    cache.cache->Evict(1000);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
  }
}

TEST(Encoded, BytesAreWhatTheCodecPromises) {
  const Geometry qwen3 = Geometry::Uniform(2, 8, 128);
  const auto bytes = [&](Codec codec) {
    return static_cast<double>(Must(Cache::Create({.geometry = qwen3,
                                                   .profile = ProfileOf(codec, codec),
                                                   .hot_bytes = uint64_t{1} << 30}))
                                   ->block_bytes());
  };
  const double f16 = bytes(Codec::kF16);
  for (const Codec codec : {Codec::kFp8E4m3, Codec::kFp8E5m2, Codec::kInt8}) {
    EXPECT_LE(bytes(codec) / f16, 0.52) << CodecName(codec);
  }
  for (const Codec codec : {Codec::kInt4, Codec::kNf4, Codec::kFp4}) {
    EXPECT_LE(bytes(codec) / f16, 0.285) << CodecName(codec);
  }
  EXPECT_LE(bytes(Codec::kQ25) / f16, 2.75 / 16);
}

TEST(Encoded, ViewsAreOfOtherCodecsOnly) {
  TestCache cache(20, SmallHeads(), ProfileOf(Codec::kInt8, Codec::kF16));
  const auto sequence = cache.Run(SomeTokens(20, 1));
  const auto view = sequence->View(0, StreamRole::kValue);
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace quire::cache
