// Making caches: refused options, and the messages of the refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cache/core.h"
#include "cache/test_util.h"
#include "env/faulty_memory.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

CacheOptions GoodOptions() {
  return {.geometry = SmallGeometry(),
          .profile = NumericProfile::Uniform(Codec::kF16),
          .hot_bytes = 1 << 20};
}

void ExpectRefused(const CacheOptions& options, ErrorCode code, const std::string& names) {
  const auto made = Cache::Create(options);
  ASSERT_FALSE(made.has_value()) << names;
  EXPECT_EQ(made.error().code, code) << made.error().message;
  EXPECT_THAT(made.error().message, HasSubstr(names));
}

TEST(Create, TellsItsOptionsAndTheBytesOfABlock) {
  const auto cache = MakeCache(GoodOptions());
  EXPECT_EQ(cache->options().hot_bytes, 1u << 20);
  // 2 layers, K and V, 2 heads, 4 channels, 16 tokens, 2 bytes.
  EXPECT_EQ(cache->block_bytes(), 2u * 2 * 2 * 4 * 16 * 2);
  EXPECT_EQ(cache->stats().hot_bytes_limit, 1u << 20);
  EXPECT_EQ(cache->stats().hot_bytes_used, 0u);
}

TEST(Create, NamesTheFieldThatIsWrong) {
  const auto refused = [](const std::string& names, auto change) {
    CacheOptions options = GoodOptions();
    change(options);
    ExpectRefused(options, ErrorCode::kInvalidArgument, names);
  };
  refused("tokens_max", [](CacheOptions& o) { o.tokens_max = 0; });
  refused("policy \"mru\" is none of lru, priority, token_limit, quire",
          [](CacheOptions& o) { o.policy = "mru"; });
  // A policy for replays only.
  refused("policy \"arc\" is none of lru", [](CacheOptions& o) { o.policy = "arc"; });
  refused("0 layers", [](CacheOptions& o) { o.geometry.groups.clear(); });
  refused("layers has 1", [](CacheOptions& o) { o.geometry.groups[0].layers = {0, 1, 1}; });
  refused("heads", [](CacheOptions& o) { o.geometry.groups[0].streams[0].heads = 0; });
  refused("dim", [](CacheOptions& o) { o.geometry.groups[0].streams[1].dim = 0; });
  refused("window_tokens", [](CacheOptions& o) { o.geometry.groups[0].kind = LayerKind::kWindow; });
  refused("codec", [](CacheOptions& o) { o.profile.codecs.clear(); });
  for (const uint32_t block_tokens : {0u, 8u, 24u, 512u}) {
    refused("block_tokens",
            [block_tokens](CacheOptions& o) { o.profile.block_tokens = block_tokens; });
  }
}

TEST(Create, RefusesWhatThisBuildCannotDo) {
  CacheOptions options = GoodOptions();
  options.layout = static_cast<ArenaLayout>(77);
  ExpectRefused(options, ErrorCode::kUnsupported, "layout");
  options = GoodOptions();
  options.profile.codecs[1].codec = static_cast<Codec>(77);
  ExpectRefused(options, ErrorCode::kUnsupported, "codec");
  options = GoodOptions();
  options.profile.open_dtype = static_cast<Codec>(77);
  ExpectRefused(options, ErrorCode::kUnsupported, "open_dtype");
}

TEST(Create, ABudgetOfLessThanOneBlockIsNoSpace) {
  CacheOptions options = GoodOptions();
  const uint64_t charge_bytes = ChargePerSlot(options.geometry, options.profile);
  options.hot_bytes = 0;
  ExpectRefused(options, ErrorCode::kNoSpace, "hot_bytes 0");
  options.hot_bytes = charge_bytes - 1;
  ExpectRefused(options, ErrorCode::kNoSpace, "hot_bytes " + std::to_string(charge_bytes - 1));
  options.hot_bytes = charge_bytes;
  EXPECT_EQ(MakeCache(options)->stats().sealed.slots_max, 1u);
  // More than the address space holds, and more than the 32 bits of a slot id, are two things.
  options.hot_bytes = uint64_t{1} << 63;
  options.geometry = Geometry::Uniform(/*layers=*/64, /*kv_heads=*/64, /*head_dim=*/1024);
  ExpectRefused(options, ErrorCode::kNoSpace, "sealed");
}

// Ids of slots are 32 bits wide, and the largest is "none": slots beyond that stay unused.
TEST(Create, ABudgetHasNoMoreSlotsThanIdsCanName) {
  const CacheOptions options = GoodOptions();
  const auto classes = Must(SlotClasses::Create(options));
  const uint64_t charge_bytes = classes.charge_bytes(uint32_t{0});
  const Capacity large = classes.CapacityFor(uint64_t{1} << 60);
  EXPECT_EQ(large.slots[0], UINT32_MAX - 1);
  EXPECT_EQ(large.ledger_bytes, uint64_t{UINT32_MAX} * charge_bytes - 1);
  const Capacity small = classes.CapacityFor(10 * charge_bytes + 5);
  EXPECT_EQ(small.slots[0], 10u);
  EXPECT_EQ(small.ledger_bytes, 10 * charge_bytes + 5);
}

TEST(Create, FailureSweepOverReservations) {
  const auto host = MakeHostMemory(false);
  uint64_t failures = 0;
  for (uint64_t failing = 0;; ++failing) {
    FaultyMemory memory(*host, failing);
    {
      CacheOptions options = GoodOptions();
      options.memory = &memory;
      const auto core = Core::Make(options);
      ASSERT_EQ(core.has_value(), !memory.failed());
      if (core) break;
      EXPECT_EQ(core.error().code, ErrorCode::kNoSpace);
      EXPECT_THAT(core.error().message, HasSubstr("injected"));
    }
    EXPECT_EQ(memory.reserved_bytes(), 0u) << "call " << failing;
    ++failures;
  }
  EXPECT_GE(failures, 4u) << "an arena and its bookkeeping, reserved and committed";
}

TEST(Create, ACacheGivesItsReservationsBack) {
  const auto host = MakeHostMemory(false);
  FaultyMemory memory(*host, std::numeric_limits<uint64_t>::max());
  {
    CacheOptions options = GoodOptions();
    options.memory = &memory;
    const auto core = Must(Core::Make(options));
    EXPECT_GT(memory.reserved_bytes(), 0u);
  }
  EXPECT_EQ(memory.reserved_bytes(), 0u);
}

}  // namespace
}  // namespace quire::cache
