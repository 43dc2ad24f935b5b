#include "index/split_set.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "base/prng.h"

namespace quire::index {
namespace {

std::optional<uint32_t> FindNumber(const SplitSet& set, uint32_t hash, uint32_t number) {
  return set.Find(hash, [&](uint32_t candidate) { return candidate == number; });
}

TEST(SplitSet, FindsEveryNumberThroughManySplits) {
  constexpr uint32_t kNumbers = 20 * SplitSet::kBucketElements;
  SplitSet set;
  Prng hashes(1);
  for (uint32_t i = 0; i < kNumbers; ++i) set.Insert(static_cast<uint32_t>(hashes.Next64()), i);
  EXPECT_EQ(set.size(), kNumbers);
  EXPECT_GE(set.bytes(), kNumbers * 9u);
  EXPECT_LE(set.bytes(), kNumbers * 24u);
  hashes = Prng(1);
  for (uint32_t i = 0; i < kNumbers; ++i) {
    const auto hash = static_cast<uint32_t>(hashes.Next64());
    ASSERT_EQ(FindNumber(set, hash, i), i);
    ASSERT_EQ(FindNumber(set, hash ^ 1, i), std::nullopt) << "the hash is compared whole";
    if (i % 3 != 0) set.Erase(hash, i);
  }
  hashes = Prng(1);
  for (uint32_t i = 0; i < kNumbers; ++i) {
    const auto hash = static_cast<uint32_t>(hashes.Next64());
    ASSERT_EQ(FindNumber(set, hash, i).has_value(), i % 3 == 0);
  }
}

TEST(SplitSet, OneHashForAllIsSlowButRight) {
  constexpr uint32_t kNumbers = 3 * SplitSet::kBucketElements;
  SplitSet set;
  for (uint32_t i = 0; i < kNumbers; ++i) set.Insert(UINT32_MAX, i);
  for (uint32_t i = 0; i < kNumbers; i += 100) EXPECT_EQ(FindNumber(set, UINT32_MAX, i), i);
  EXPECT_EQ(FindNumber(set, UINT32_MAX, kNumbers), std::nullopt);
}

TEST(SplitSetDeathTest, TwiceInOrOutIsABug) {
  SplitSet set;
  set.Insert(7, 1);
  EXPECT_DEATH(set.Insert(7, 1), "");
  EXPECT_DEATH(set.Erase(7, 2), "");
  EXPECT_DEATH(set.Erase(8, 1), "");
}

RC_GTEST_PROP(SplitSetProperty, EqualsASetOfPairs, ()) {
  SplitSet set;
  std::set<std::pair<uint32_t, uint32_t>> model;
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  const auto hash_count = *rc::gen::element<uint64_t>(3, 100, uint64_t{1} << 32);
  Prng prng(seed);
  const auto steps = *rc::gen::inRange<uint32_t>(1, 5000);
  for (uint32_t step = 0; step < steps; ++step) {
    const auto hash = static_cast<uint32_t>(prng.NextBelow(hash_count) << prng.NextBelow(2) * 19);
    const auto number = static_cast<uint32_t>(prng.NextBelow(500));
    const bool present = model.contains({hash, number});
    RC_ASSERT(FindNumber(set, hash, number).has_value() == present);
    if (!present) {
      set.Insert(hash, number);
      model.insert({hash, number});
    } else if (prng.NextChance(4)) {
      set.Erase(hash, number);
      model.erase({hash, number});
    }
    RC_ASSERT(set.size() == model.size());
  }
  for (const auto& [hash, number] : model) RC_ASSERT(FindNumber(set, hash, number) == number);
}

}  // namespace
}  // namespace quire::index
