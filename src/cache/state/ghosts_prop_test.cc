// Ghosts in lock step with a naive list, oldest first.
#include "cache/state/ghosts.h"

#include <algorithm>
#include <list>
#include <utility>

#include "base/prng.h"
#include "cache/state/lock_step.h"

namespace quire::cache {
namespace {

constexpr uint64_t kKeys = 30;

Digest KeyOf(uint64_t number) {
  Digest key{};
  const uint64_t bits = Prng(number).Next64();
  for (size_t i = 0; i < 8; ++i) key[i] = static_cast<uint8_t>(bits >> (8 * i));
  return key;
}

class GhostsLockStep {
 public:
  void Step(Prng& prng) {
    const uint64_t number = prng.NextBelow(kKeys);
    const auto known = std::ranges::find(naive_, number, &Known::first);
    switch (prng.NextBelow(8)) {
      case 0:
        most_ = prng.NextBelow(kKeys + 5);
        real_.SetCapacity(most_);
        break;
      case 1:
        if (!prng.NextChance(8)) break;
        real_.Clear();
        naive_.clear();
        break;
      case 2:
        real_.Remove(KeyOf(number));
        if (known != naive_.end()) naive_.erase(known);
        break;
      default: {
        const uint64_t gone_us = prng.Next64();
        real_.Add(KeyOf(number), {.gone_us = gone_us});
        if (known != naive_.end()) naive_.erase(known);
        naive_.emplace_back(number, gone_us);
      }
    }
    while (naive_.size() > most_) naive_.pop_front();
    ASSERT_EQ(real_.size(), naive_.size());
    ASSERT_EQ(real_.empty(), naive_.empty());
    for (uint64_t i = 0; i < kKeys; ++i) {
      const auto ghost = real_.Find(KeyOf(i));
      const auto expected = std::ranges::find(naive_, i, &Known::first);
      ASSERT_EQ(ghost.has_value(), expected != naive_.end());
      if (ghost) {
        ASSERT_EQ(ghost->gone_us, expected->second);
      }
    }
  }

 private:
  using Known = std::pair<uint64_t, uint64_t>;  // number, when it went

  Ghosts real_;
  std::list<Known> naive_;
  uint64_t most_ = 0;
};

RC_GTEST_PROP(GhostsProperty, AgreeWithNaiveOnes, (const std::vector<uint64_t>& seeds)) {
  GhostsLockStep both;
  StepFromSeeds(both, seeds, 4);
}

}  // namespace
}  // namespace quire::cache
