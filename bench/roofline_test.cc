// Wide bounds: they catch a loop that the compiler dropped or a wrong unit, not a slow machine.
#include "bench/roofline.h"

#include <gtest/gtest.h>

namespace quire::bench {
namespace {

TEST(ReadSeconds, AreOfAPlausibleSpeed) {
  constexpr uint64_t kBytes = 64 << 20;
  const Stream stream(kBytes);
  for (const uint32_t threads : {1u, 2u}) {
    const auto executor = MakeThreadPool(threads);
    const double gigabytes_per_second = kBytes * 1e-9 / ReadSeconds(stream.runs(), *executor);
    EXPECT_GT(gigabytes_per_second, 0.05) << threads;
    EXPECT_LT(gigabytes_per_second, 1000.0 * threads) << threads;
  }
}

TEST(ReadSeconds, TakesRunsThatAreNoMultipleOfFourVectors) {
  alignas(64) const std::byte bytes[192] = {};
  const auto executor = MakeThreadPool(1);
  EXPECT_GE(ReadSeconds({{bytes, 64}, {bytes + 64, 64}}, *executor), 0.0);
  EXPECT_GE(ReadSeconds({{bytes, 192}}, *executor), 0.0);
}

TEST(Stream, OfOneByteIsOneRun) {
  const Stream stream(1);
  EXPECT_EQ(stream.runs().size(), 1u);
}

TEST(SecondsPerGigaflop, IsPlausible) {
  for (const uint32_t threads : {1u, 2u}) {
    const auto executor = MakeThreadPool(threads);
    const double gigaflops = 1 / SecondsPerGigaflop(*executor);
    EXPECT_GT(gigaflops, 0.1) << threads;
    EXPECT_LT(gigaflops, 1000.0 * threads) << threads;
  }
}

}  // namespace
}  // namespace quire::bench
