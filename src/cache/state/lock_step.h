// What property tests share that drive an object and a naive one side by side.
#ifndef QUIRE_CACHE_STATE_LOCK_STEP_H_
#define QUIRE_CACHE_STATE_LOCK_STEP_H_

// gtest before rapidcheck
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

#include "base/prng.h"

namespace quire::cache {

/// Takes so many steps from each seed, both.Step(prng), and ends at the first that differs. To be
/// called in an RC_GTEST_PROP: a run that fails is shortened by taking seeds away.
template <class LockStep>
void StepFromSeeds(LockStep& both, const std::vector<uint64_t>& seeds, int steps) {
  for (const uint64_t seed : seeds) {
    Prng prng(seed);
    for (int i = 0; i < steps; ++i) {
      both.Step(prng);
      RC_ASSERT(!::testing::Test::HasFailure());
    }
  }
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_LOCK_STEP_H_
