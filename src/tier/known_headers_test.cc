#include "tier/known_headers.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/prng.h"

namespace quire::tier {
namespace {

std::vector<std::byte> HeaderOf(uint64_t bytes, uint64_t seed) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(seed));
}

TEST(KnownHeadersTest, GivesWhatWasKeptThereAndNothingElse) {
  KnownHeaders headers(1 << 20);
  headers.Keep({.generation = 1, .segment = 2, .page = 3}, HeaderOf(4096, 7));
  const auto kept = headers.Find({.generation = 1, .segment = 2, .page = 3});
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(std::vector<std::byte>(kept->begin(), kept->end()), HeaderOf(4096, 7));
  EXPECT_EQ(headers.Find({.generation = 2, .segment = 2, .page = 3}), nullptr);
  EXPECT_EQ(headers.Find({.generation = 1, .segment = 3, .page = 3}), nullptr);
  EXPECT_EQ(headers.Find({.generation = 1, .segment = 2, .page = 4}), nullptr);
}

TEST(KnownHeadersTest, NeverHasMoreThanItMayAndHasWhatWasKeptLast) {
  constexpr uint64_t kBytesMax = 100'000;
  KnownHeaders headers(kBytesMax);
  std::map<KnownHeaders::Place, uint64_t> kept;
  Prng prng(5);
  for (uint32_t i = 0; i < 2000; ++i) {
    const KnownHeaders::Place place = {.generation = prng.NextBelow(4),
                                       .segment = static_cast<uint32_t>(prng.NextBelow(4)),
                                       .page = static_cast<uint32_t>(prng.NextBelow(16))};
    const uint64_t bytes = 4096 * (1 + prng.NextBelow(3));
    // What is known stays as it is: one place has one header.
    const bool was_known = headers.Find(place) != nullptr;
    headers.Keep(place, HeaderOf(bytes, i));
    if (!was_known) kept[place] = i;
    ASSERT_NE(headers.Find(place), nullptr);
    EXPECT_EQ(headers.Find(place)->front(), static_cast<std::byte>(kept[place]));
    ASSERT_LE(headers.memory_bytes(), kBytesMax);
    if (prng.NextChance(200)) {
      headers.Forget();
      EXPECT_EQ(headers.memory_bytes(), 0);
      EXPECT_EQ(headers.Find(place), nullptr);
    }
  }
}

// Of a context that is twice as long as what is kept, read from end to end, by age none would be
// known.
TEST(KnownHeadersTest, KnowsAPartOfWhatIsReadInTurn) {
  KnownHeaders headers(50 * (4096 + 128));
  uint32_t known = 0;
  for (uint32_t i = 0; i < 1000; ++i) {
    const KnownHeaders::Place place = {.page = i % 100};
    known += headers.Find(place) != nullptr ? 1 : 0;
    headers.Keep(place, HeaderOf(4096, i % 100));
  }
  EXPECT_GT(known, 150);
}

TEST(KnownHeadersTest, KeepsNothingThatIsLargerThanAllOfIt) {
  KnownHeaders headers(4096);
  headers.Keep({}, HeaderOf(4096, 1));
  EXPECT_EQ(headers.Find({}), nullptr);
  EXPECT_EQ(headers.memory_bytes(), 0);
}

}  // namespace
}  // namespace quire::tier
