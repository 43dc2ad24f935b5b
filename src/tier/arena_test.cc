// The arena in lock step with a byte map.
#include "tier/arena.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace quire::tier {
namespace {

TEST(Arena, TakesTheFirstThatIsLongEnough) {
  constexpr uint64_t kBytes = 300;
  Arena arena(kBytes);
  std::vector<bool> taken(kBytes);
  struct Stretch {
    uint64_t begin;
    uint64_t bytes;
  };
  std::vector<Stretch> held;
  Prng prng(5);
  const auto first_fit = [&](uint64_t bytes) -> std::optional<uint64_t> {
    uint64_t run = 0;
    for (uint64_t i = 0; i < kBytes; ++i) {
      run = taken[i] ? 0 : run + 1;
      if (run == bytes) return i + 1 - bytes;
    }
    return std::nullopt;
  };
  const auto mark = [&](const Stretch& stretch, bool value) {
    for (uint64_t i = 0; i < stretch.bytes; ++i) taken[stretch.begin + i] = value;
  };
  uint64_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (prng.NextChance(2)) {
      const uint64_t bytes = 1 + prng.NextBelow(40);
      arena.Prepare();
      const auto at = arena.Take(bytes);
      ASSERT_EQ(at, first_fit(bytes)) << "step " << step;
      if (!at) {
        ++refused;
        continue;
      }
      held.push_back({.begin = *at, .bytes = bytes});
      mark(held.back(), true);
    } else if (!held.empty()) {
      const size_t i = prng.NextBelow(held.size());
      arena.Give(held[i].begin, held[i].bytes);
      if (prng.NextChance(4)) {  // thought better of
        arena.TakeAt(held[i].begin, held[i].bytes);
        continue;
      }
      mark(held[i], false);
      held.erase(held.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  EXPECT_GT(refused, 100u);
  for (const Stretch& stretch : held) arena.Give(stretch.begin, stretch.bytes);
  arena.Prepare();
  EXPECT_EQ(arena.Take(kBytes), 0u) << "all of it grew together";
}

}  // namespace
}  // namespace quire::tier
