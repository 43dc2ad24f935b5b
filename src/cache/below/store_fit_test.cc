// Stores that are made for the blocks of their caches.
#include <gtest/gtest.h>

#include <string>

#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

// Blocks that an ordinary store has no room for: an empty one is made for them, and one that has
// something is refused by name, or nothing would ever be stored.
TEST(StoreOfLongBlocks, IsMadeForThemOrRefused) {
  TestStore store;
  CacheOptions options{.profile = NumericProfile::Uniform(Codec::kF16)};
  options.profile.block_tokens = kBlockTokensMax;
  options.geometry = Geometry::Uniform(8, 4, 64);
  options.hot_bytes = uint64_t{64} << 20;
  options.store = store.store.get();
  options.clock = &store.clock;
  const uint64_t segment_bytes = uint64_t{1} << 20;
  store.store.reset();
  store.options.bytes_cap = uint64_t{32} << 20;
  store.options.segment_bytes = segment_bytes;
  store.options.staging_bytes = uint64_t{8} << 20;
  store.Open();
  options.store = store.store.get();
  {
    const auto cache = Must(Cache::Create(options));
    ASSERT_GT(cache->block_bytes(), segment_bytes);
    const Identity identity = SomeIdentity();
    const auto prompt = SomeTokens(3 * kBlockTokensMax + 1, 1);
    FakeModel model(options.geometry);
    const auto sequence =
        Must(cache->Open(Must(cache->Acquire({.identity = &identity, .tokens = prompt})), {}));
    Must(model.Feed(*sequence, prompt));
    Must(store.store->Flush());
    EXPECT_EQ(store.store->stats().records, 3);
  }
  options.geometry = Geometry::Uniform(32, 4, 64);
  const auto refused = Cache::Create(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("a block of 256 tokens takes"), std::string::npos);
  options.profile.block_tokens = kBlock;
  EXPECT_TRUE(Cache::Create(options));
}

}  // namespace
}  // namespace quire::cache
