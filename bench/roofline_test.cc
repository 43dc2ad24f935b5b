// Wide bounds: they catch a loop that the compiler dropped or a wrong unit, not a slow machine.
#include <gtest/gtest.h>

#include "bench/bench.h"

namespace quire::bench {
namespace {

TEST(Roofline, ReadsAtAPlausibleSpeed) {
  Roofline roofline(64 << 20);
  for (const uint32_t threads : {1u, 2u}) {
    const double speed = roofline.ReadGbPerSecond(threads);
    EXPECT_GT(speed, 0.05) << threads;
    EXPECT_LT(speed, 1000.0 * threads) << threads;
  }
}

TEST(Roofline, OfOneByteIsOneChunk) {
  Roofline roofline(1);
  EXPECT_GT(roofline.ReadGbPerSecond(1), 0.0);
}

TEST(FmaPeak, IsPlausible) {
  for (const uint32_t threads : {1u, 2u}) {
    const double peak = FmaPeakGflops(threads);
    EXPECT_GT(peak, 0.1) << threads;
    EXPECT_LT(peak, 1000.0 * threads) << threads;
  }
}

}  // namespace
}  // namespace quire::bench
