// A long context of a real model's shape in the smallest codec: the bytes that were planned, all
// the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/prng.h"
#include "cache/planned_bytes.h"
#include "cache/test_util.h"
#include "env/machine.h"
#include "quire/cache.h"

namespace quire::cache {
namespace {

constexpr uint32_t kLongContextLayers = 28;  // Qwen3-0.6B
constexpr uint32_t kHeads = 8;
constexpr uint32_t kDim = 128;
constexpr uint32_t kChunk = 512;  // tokens of a prefill step
// What a short context notices beside its plan: pages of the table of slots, allocator slack.
constexpr uint64_t kSlackBytes = uint64_t{8} << 20;

/// QUIRE_CONTEXT_TOKENS=200000 (minutes, 4 GB) is what docs/lab/live-cache.md reports.
uint64_t ContextTokens() {
  const char* text = std::getenv("QUIRE_CONTEXT_TOKENS");
  return text == nullptr ? 2000 : std::strtoull(text, nullptr, 10);
}

TEST(LongContext, ResidentBytesFollowThePlan) {
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const uint64_t tokens = ContextTokens();
  CacheOptions options{.geometry = Geometry::Uniform(kLongContextLayers, kHeads, kDim),
                       .hot_bytes = 4'000'000'000};
  options.profile = NumericProfile::Uniform(Codec::kBf16);
  for (CodecRule& rule : options.profile.codecs) rule.codec = Codec::kQ25;
  options.tokens_max = tokens;

  Prng prng(1);
  std::vector<float> rows(uint64_t{2} * kChunk * kHeads * kDim);
  for (float& value : rows) value = prng.NextFloat(-2.0f, 2.0f);
  std::vector<TokenId> ids(tokens);
  for (TokenId& id : ids) id = static_cast<TokenId>(prng.NextBelow(150'000));
  const uint64_t resident_before = Must(ResidentBytes());

  const auto cache = Must(Cache::Create(options));
  const auto planned_for = [&](uint64_t length) {
    return Must(PlanBytes(options.geometry, options.profile, length, kChunk)).total();
  };
  const uint64_t plan_bytes = planned_for(tokens);
  const Identity identity;
  const auto sequence = Must(cache->Open(
      Must(cache->Acquire({.identity = &identity, .tokens = ids})), {.step_tokens = kChunk}));

  uint64_t resident_peak = 0;
  for (uint64_t at = 0; at < tokens; at += kChunk) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(kChunk, tokens - at));
    for (uint32_t layer = 0; layer < kLongContextLayers; ++layer) {
      // Other rows for each layer and chunk, from one buffer.
      const float* key = rows.data() + prng.NextBelow(kChunk) * kHeads * kDim;
      const float* value = rows.data() + prng.NextBelow(kChunk) * kHeads * kDim;
      const auto view = [](const float* data) {
        return RowsView{.data = data, .token_stride = kHeads * kDim, .head_stride = kDim};
      };
      Must(sequence->Append(layer, {.key = view(key), .value = view(value), .tokens = count}));
    }
    Must(sequence->Commit(std::span(ids).subspan(at, count)));
    const uint64_t resident = Must(ResidentBytes()) - resident_before;
    const uint64_t planned = planned_for(at + count);
    ASSERT_LE(resident, planned + planned / 50 + kSlackBytes) << "after " << at + count;
    resident_peak = std::max(resident_peak, resident);
  }
  const CacheStats stats = cache->stats();
  std::printf("%lu tokens: plan %lu bytes, resident at most %lu (%+.2f %%), charged %lu\n", tokens,
              plan_bytes, resident_peak,
              100.0 * (static_cast<double>(resident_peak) / static_cast<double>(plan_bytes) - 1),
              stats.hot_bytes_peak);
  if (kSlackBytes < plan_bytes / 200) {
    EXPECT_LE(resident_peak, plan_bytes + plan_bytes / 50);
  }
  EXPECT_EQ(sequence->length(), tokens);
  EXPECT_EQ(stats.evicted_total, 0u);
  EXPECT_LE(stats.hot_bytes_peak, options.hot_bytes);
  EXPECT_LE(resident_peak, stats.hot_bytes_peak + (uint64_t{8} << 20));  // what was paid for
}

}  // namespace
}  // namespace quire::cache
