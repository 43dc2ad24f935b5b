// The heap that a cache takes is what its slots' charges pay for, under every policy.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "cache/test_util.h"
#include "evict/policies.h"

namespace quire::cache {
namespace {

// The allocator of a sanitizer does not count.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounts = false;
#else
constexpr bool kCounts = true;
#endif

uint64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class PolicyMemory : public testing::TestWithParam<std::tuple<std::string_view, uint64_t, int>> {};

TEST_P(PolicyMemory, HeapIsWhatTheChargesPayFor) {
  if (!kCounts) GTEST_SKIP() << "the heap cannot be measured";
  constexpr uint64_t kBlock = 16;
  const auto [policy, hot_bytes, tenants] = GetParam();
  const Geometry geometry = Geometry::Uniform(/*layers=*/1, /*kv_heads=*/1, /*dim=*/16);
  const Identity identity = SomeIdentity();
  const uint64_t before = HeapBytes();
  const auto cache = MakeCache({.geometry = geometry,
                                .profile = NumericProfile::Uniform(Codec::kF16, kBlock),
                                .hot_bytes = hot_bytes,
                                .policy = std::string(policy)});
  std::vector<TenantId> ids = {kDefaultTenant};
  for (int i = 0; i < tenants; ++i) {
    ids.push_back(Must(cache->AddTenant({.name = "tenant " + std::to_string(i)})));
  }
  const uint64_t slots = cache->stats().sealed.slots_max;
  uint64_t peak = 0;
  // The whole cache over and over, so that all that is remembered is there.
  for (uint64_t i = 0; i < 20 * slots; ++i) {
    const std::vector<TokenId> prompt = SomeTokens(3 * kBlock + 1, i + 1);
    const auto sequence = Must(
        cache->Open(Must(cache->Acquire(
                        {.tenant = ids[i % ids.size()], .identity = &identity, .tokens = prompt})),
                    {}));
    const std::vector<float> rows(16 * prompt.size(), 1.0F);
    const RowsView view = {
        .data = rows.data(), .dtype = Codec::kF32, .token_stride = 16, .head_stride = 16};
    Must(sequence->Append(
        0, {.key = view, .value = view, .tokens = static_cast<uint32_t>(prompt.size())}));
    Must(sequence->Commit(prompt));
    if (i % 31 == 0) peak = std::max(peak, HeapBytes() - before);
  }
  const CacheStats stats = cache->stats();
  const uint64_t pages = stats.sealed.slots_used * 4096;
  ASSERT_GT(stats.sealed.slots_used, slots - 8);
  const uint64_t paid = stats.hot_bytes_used - pages;
  EXPECT_LE(static_cast<double>(peak), 1.05 * static_cast<double>(paid))
      << slots << " slots, " << peak << " bytes of heap, " << paid << " charged";
}

INSTANTIATE_TEST_SUITE_P(All, PolicyMemory,
                         testing::Combine(testing::ValuesIn(evict::PolicyNames()),
                                          testing::Values(uint64_t{2} << 20, uint64_t{7} << 20),
                                          testing::Values(0, 16)),
                         [](const auto& all) {
                           return std::string(std::get<0>(all.param)) + "_" +
                                  std::to_string(std::get<1>(all.param) >> 20) + "MiB_" +
                                  std::to_string(std::get<2>(all.param)) + "tenants";
                         });

}  // namespace
}  // namespace quire::cache
