// Writing: any chunking, type and stride gives the same bytes; cursors per layer; Commit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_bits.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

// All bytes of the written blocks, in token order.
std::vector<std::byte> Bytes(const TestCache& cache, const Sequence& sequence) {
  const BlockListView view = Must(sequence.View(0, StreamRole::kKey));
  std::vector<std::byte> bytes;
  for (const std::byte* slot : view.slots()) {
    const std::byte* const begin = OnHost(slot);
    bytes.insert(bytes.end(), begin, begin + cache.cache->block_bytes());
  }
  return bytes;
}

// Values that need rounding, subnormals and overflow included, so that two ways of writing them
// would show.
float Awkward(uint64_t i) {
  Prng prng(i);
  switch (i % 7) {
    case 0: return prng.NextFloat(-1e-7f, 1e-7f);
    case 1: return prng.NextFloat(-3e5f, 3e5f);
    default: return prng.NextFloat(-4.0f, 4.0f);
  }
}

struct Rows {
  explicit Rows(uint64_t tokens) : values(tokens * 2 * 4) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = Awkward(i);
  }
  LayerRows From(uint64_t begin, uint32_t tokens) const {
    const RowsView rows{.data = values.data() + begin * 8,
                        .dtype = Codec::kF32,
                        .token_stride = 8,
                        .head_stride = 4};
    return {.key = rows, .value = rows, .tokens = tokens};
  }
  std::vector<float> values;  // [tokens, 2 heads, 4]
};

TEST(Append, AnyChunkingGivesTheSameBytes) {
  for (const Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
    constexpr uint32_t kTokens = 75;
    const Rows rows(kTokens);
    const auto tokens = SomeTokens(kTokens, 1);
    std::vector<std::byte> row_by_row;
    for (const uint32_t chunk : {1u, 3u, 15u, 16u, 17u, 33u, 75u}) {
      // A cache each: fresh pages are zero, so bytes that were never written compare equal.
      TestCache cache(8, SmallGeometry(), NumericProfile::Uniform(codec));
      const auto sequence = cache.Open(tokens);
      for (uint32_t begin = 0; begin < kTokens; begin += chunk) {
        const uint32_t count = std::min(chunk, kTokens - begin);
        for (uint32_t layer : {0u, 1u}) Must(sequence->Append(layer, rows.From(begin, count)));
        Must(sequence->Commit(std::span(tokens).subspan(begin, count)));
      }
      if (chunk == 1) row_by_row = Bytes(cache, *sequence);
      EXPECT_EQ(Bytes(cache, *sequence), row_by_row) << CodecName(codec) << " chunk " << chunk;
    }
  }
}

TEST(Append, TokensMayComeHeadsFirst) {
  TestCache cache(8);
  const Stream stream = cache.model.geometry().groups[0].streams[0];
  const auto tokens = SomeTokens(40, 1);
  const auto usual = cache.Run(tokens);
  const auto turned = cache.Open(tokens, {.publish = false});
  ASSERT_EQ(turned->length(), 32u);
  std::vector<std::vector<float>> keep;
  for (uint32_t layer : {0u, 1u}) {
    LayerRows rows{.tokens = 8};
    for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue}) {
      keep.push_back(FakeModel::HeadsFirst(
          cache.model.Rows(tokens, 32, layer, {role, stream.heads, stream.dim}), stream));
      RowsView& view = role == StreamRole::kKey ? rows.key : rows.value;
      view = {.data = keep.back().data(),
              .dtype = Codec::kF32,
              .token_stride = stream.dim,
              .head_stride = int64_t{8} * stream.dim};
    }
    Must(turned->Append(layer, rows));
  }
  Must(turned->Commit(std::span(tokens).subspan(32)));
  EXPECT_EQ(cache.model.Differs(*turned, tokens), "");
}

TEST(Append, TakesRowsOfEveryTypeAndRoundsThemOnce) {
  constexpr uint32_t kTokens = 20;
  const Rows f32(kTokens);
  const auto tokens = SomeTokens(kTokens, 1);
  for (const Codec input : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
    for (const Codec stored : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
      TestCache cache(4, SmallGeometry(), NumericProfile::Uniform(stored));
      std::vector<std::byte> data;
      std::vector<float> expected;  // [heads, tokens, dim]
      for (const float value : f32.values) {
        const uint16_t half = input == Codec::kF16 ? F32ToF16(value) : F32ToBf16(value);
        const float given = input == Codec::kF32   ? value
                            : input == Codec::kF16 ? F16ToF32(half)
                                                   : Bf16ToF32(half);
        const auto* bytes = input == Codec::kF32 ? reinterpret_cast<const std::byte*>(&value)
                                                 : reinterpret_cast<const std::byte*>(&half);
        data.insert(data.end(), bytes, bytes + (input == Codec::kF32 ? 4 : 2));
        float kept = given;
        if (stored != input && stored == Codec::kF16) {
          kept = std::isfinite(given) ? std::clamp(given, -65504.0f, 65504.0f) : given;
          kept = F16ToF32(F32ToF16(kept));
        } else if (stored != input && stored == Codec::kBf16) {
          kept = Bf16ToF32(F32ToBf16(given));
        }
        expected.push_back(kept);
      }
      const RowsView rows{.data = data.data(), .dtype = input, .token_stride = 8, .head_stride = 4};
      const auto sequence = cache.Open(tokens);
      Must(sequence->Append(0, {.key = rows, .value = rows, .tokens = kTokens}));
      std::vector<float> out(expected.size());
      for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue}) {
        Must(sequence->Gather(0, role, 0, kTokens, out));
        EXPECT_EQ(out, FakeModel::HeadsFirst(expected, {role, 2, 4}))
            << CodecName(input) << " stored as " << CodecName(stored);
      }
    }
  }
}

TEST(Gather, AnyRangeHasTheWrittenRows) {
  TestCache cache(8);
  const auto tokens = SomeTokens(53, 1);
  const auto sequence = cache.Run(tokens);
  const Stream stream = cache.model.geometry().groups[0].streams[1];
  for (uint64_t begin = 0; begin <= tokens.size(); begin += 3) {
    for (uint64_t end = begin; end <= tokens.size(); ++end) {
      for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue}) {
        std::vector<float> out((end - begin) * stream.heads * stream.dim + 1, -1000.0f);
        Must(sequence->Gather(1, role, begin, end, out));
        EXPECT_EQ(out.back(), -1000.0f) << "past the end";
        out.pop_back();
        const auto rows = cache.model.Rows(std::span(tokens).first(end), begin, 1,
                                           {role, stream.heads, stream.dim});
        ASSERT_EQ(out, FakeModel::HeadsFirst(rows, stream)) << begin << ".." << end;
      }
    }
  }
}

TEST(Gather, RefusesMissingTokens) {
  TestCache cache(8);
  const auto sequence = cache.Run(SomeTokens(20, 1));
  std::vector<float> out(20 * 8);
  const auto refused = [&](uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                           size_t room) {
    const auto gathered = sequence->Gather(layer, role, begin, end, std::span(out).first(room));
    return !gathered && gathered.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(0, StreamRole::kKey, 0, 21, 160));
  EXPECT_TRUE(refused(0, StreamRole::kKey, 3, 2, 160));
  EXPECT_TRUE(refused(0, StreamRole::kKey, 0, 20, 159));
  EXPECT_TRUE(refused(0, StreamRole::kLatent, 0, 20, 160));
  EXPECT_TRUE(refused(2, StreamRole::kKey, 0, 20, 160));
  EXPECT_FALSE(refused(0, StreamRole::kKey, 0, 20, 160));
}

TEST(GatherPadded, ANullSequenceIsAnError) {
  TestCache cache(4);
  const auto sequence = cache.Run(SomeTokens(5, 1));
  const Sequence* const batch[] = {sequence.get(), nullptr};
  std::vector<float> out(1000);
  const auto refused = GatherPadded(batch, 0, StreamRole::kKey, 10, out);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(GatherPadded, PutsZerosAfterEachSequence) {
  TestCache cache(20);
  const std::vector<std::vector<TokenId>> histories = {SomeTokens(20, 1), SomeTokens(1, 2),
                                                       SomeTokens(33, 3)};
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<const Sequence*> batch;
  std::vector<float> expected;
  constexpr uint64_t kTokensMax = 35;
  for (const auto& history : histories) {
    sequences.push_back(cache.Run(history));
    batch.push_back(sequences.back().get());
    const auto rows = cache.model.Rows(history, 0, 1, {StreamRole::kValue, 2, 4});
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint64_t t = 0; t < kTokensMax; ++t) {
        for (uint32_t d = 0; d < 4; ++d) {
          expected.push_back(t < history.size() ? rows[(t * 2 + head) * 4 + d] : 0.0f);
        }
      }
    }
  }
  // Rows that are not committed do not show.
  Must(cache.model.AppendLayer(*sequences[1], 1, Join(histories[1], SomeTokens(2, 9))));
  std::vector<float> out(expected.size(), -1000.0f);
  Must(GatherPadded(batch, 1, StreamRole::kValue, kTokensMax, out));
  EXPECT_EQ(out, expected);

  const auto refused = [&](uint64_t tokens_max, size_t room, const std::string& names) {
    const std::vector<float> before = out;
    const auto gathered =
        GatherPadded(batch, 1, StreamRole::kValue, tokens_max, std::span(out).first(room));
    ASSERT_FALSE(gathered.has_value()) << names;
    EXPECT_EQ(gathered.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(gathered.error().message, HasSubstr(names));
    EXPECT_EQ(out, before);
  };
  refused(32, out.size(), "sequence " + std::to_string(batch[2]->id().number()));
  refused(kTokensMax, out.size() - 1, "do not fit");
  refused(uint64_t{1} << 61, out.size(), "do not fit");  // the product is past 64 bits
}

TEST(Append, RefusesBadRowsAndChangesNothing) {
  TestCache cache(4);
  const auto tokens = SomeTokens(20, 1);
  const auto sequence = cache.Open(tokens, {.on_full = OnFull::kHalt});
  const Rows rows(80);
  const std::string before = cache.Snapshot();
  const auto refused = [&](uint32_t layer, const std::string& names, auto change) {
    LayerRows bad = rows.From(0, 2);
    change(bad);
    const auto appended = sequence->Append(layer, bad);
    ASSERT_FALSE(appended.has_value()) << names;
    EXPECT_EQ(appended.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(appended.error().message, HasSubstr(names));
  };
  refused(2, "layer 2 of a model with 2", [](LayerRows&) {});
  refused(0, "key has no data", [](LayerRows& r) { r.key.data = nullptr; });
  refused(0, "value has no data", [](LayerRows& r) { r.value = {}; });
  refused(0, "strides", [](LayerRows& r) { r.key.token_stride = 3; });
  refused(0, "strides", [](LayerRows& r) { r.value.head_stride = -4; });
  refused(0, "dtype", [](LayerRows& r) { r.value.dtype = static_cast<Codec>(99); });
  refused(0, "dtype", [](LayerRows& r) { r.key.dtype = Codec::kInt8; });
  const auto full = sequence->Append(0, rows.From(0, 65));
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(cache.Snapshot(), before);
  EXPECT_EQ(sequence->cursor(0), 0u);
  Must(sequence->Append(0, rows.From(0, 0)));
  EXPECT_EQ(sequence->cursor(0), 0u);
}

TEST(Append, StopsAtTheLongestSequence) {
  const auto cache = MakeCache({.geometry = SmallGeometry(),
                                .profile = NumericProfile::Uniform(Codec::kF16),
                                .hot_bytes = 1 << 20,
                                .tokens_max = 20});
  const Identity identity = SomeIdentity();
  const auto tokens = SomeTokens(20, 1);
  const auto sequence =
      Must(cache->Open(Must(cache->Acquire({.identity = &identity, .tokens = tokens})), {}));
  const Rows rows(21);
  const auto refused = sequence->Append(0, rows.From(0, 21));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("tokens_max"));
  EXPECT_FALSE(sequence->Reserve(21).has_value());
  Must(sequence->Append(0, rows.From(0, 20)));
}

TEST(Commit, NamesTheLayerThatIsBehindAndChangesNothing) {
  TestCache cache(8);
  const auto tokens = SomeTokens(40, 1);
  const auto sequence = cache.Open(tokens);
  Must(cache.model.AppendLayer(*sequence, 0, tokens));
  Must(cache.model.AppendLayer(*sequence, 1, std::span(tokens).first(30)));
  EXPECT_EQ(sequence->cursor(0), 40u);
  EXPECT_EQ(sequence->cursor(1), 30u);
  const std::string before = cache.Snapshot();
  const auto refused = sequence->Commit(tokens);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("layer 1 has only 30"));
  EXPECT_EQ(cache.Snapshot(), before);
  EXPECT_EQ(sequence->length(), 0u);
  // Commit takes the tokens that all layers have; the others later.
  Must(sequence->Commit(std::span(tokens).first(30)));
  EXPECT_EQ(cache.cache->stats().published_blocks, 1u);
  Must(cache.model.Feed(*sequence, tokens));
  EXPECT_EQ(cache.cache->stats().published_blocks, 2u);
  EXPECT_EQ(cache.model.Differs(*sequence, tokens), "");
  Must(sequence->Commit({}));
}

TEST(Commit, TokensThatAreOnlyWrittenAreNotFound) {
  TestCache cache(8);
  const auto tokens = SomeTokens(40, 1);
  const auto sequence = cache.Open(tokens);
  for (uint32_t layer : {0u, 1u}) Must(cache.model.AppendLayer(*sequence, layer, tokens));
  EXPECT_EQ(cache.Resident(tokens), 0u);
  EXPECT_EQ(sequence->length(), 0u);
  Must(sequence->Commit(tokens));
  EXPECT_EQ(cache.Resident(tokens), 32u);
}

TEST(Commit, BlocksComputedTwiceAtOnceAreKeptOnce) {
  TestCache cache(8);
  const auto tokens = SomeTokens(40, 1);
  const auto a = cache.Open(tokens);
  const auto b = cache.Open(tokens);
  EXPECT_EQ(cache.slots_used(), 6u);
  Must(cache.model.Feed(*a, tokens));
  Must(cache.model.Feed(*b, tokens));
  const CacheStats stats = cache.cache->stats();
  EXPECT_EQ(stats.deduplicated_total, 2u);
  EXPECT_EQ(stats.published_total, 2u);
  EXPECT_EQ(stats.sealed.slots_used, 4u);
  EXPECT_EQ(SlotCharges(stats), 4 * cache.charge_bytes);
  const auto slots_a = Must(a->View(1, StreamRole::kKey));
  const auto slots_b = Must(b->View(1, StreamRole::kKey));
  EXPECT_TRUE(std::ranges::equal(slots_a.slots().first(2), slots_b.slots().first(2)));
  EXPECT_NE(slots_a.slots()[2], slots_b.slots()[2]);
  EXPECT_EQ(a->Blocks(0).sealed(1), b->Blocks(0).sealed(1));
  EXPECT_EQ(cache.model.Differs(*a, tokens), "");
  EXPECT_EQ(cache.model.Differs(*b, tokens), "");
}

}  // namespace
}  // namespace quire::cache
