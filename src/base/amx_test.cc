#include "base/amx.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace quire {
namespace {

#if defined(__x86_64__)

AmxConfig TilesOf(uint32_t rows) {
  AmxConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, rows, 64);
  return config;
}

AmxConfig Stored() {
  AmxConfig config;
  asm volatile("sttilecfg %0" : "=m"(config));
  return config;
}

TEST(Amx, AScopeLeavesTheConfigurationThatItFound) {
  if (!UsableAmx().int8) GTEST_SKIP() << "no tiles here";
  {
    const AmxScope outer;
    LoadAmxConfig(TilesOf(7));
    {
      const AmxScope inner;
      LoadAmxConfig(TilesOf(16));
    }
    const AmxConfig found = Stored();
    const AmxConfig want = TilesOf(7);
    EXPECT_EQ(std::memcmp(&found, &want, sizeof(want)), 0);
  }
  EXPECT_EQ(Stored().palette, 0);
}

TEST(Amx, EveryThreadMayUseTiles) {
  if (!UsableAmx().int8) GTEST_SKIP() << "no tiles here";
  std::thread([] {
    alignas(64) uint8_t in[1024];
    alignas(64) uint8_t out[1024] = {};
    for (size_t i = 0; i < sizeof(in); ++i) in[i] = static_cast<uint8_t>(i * 7);
    const AmxScope scope;
    LoadAmxConfig(TilesOf(16));
    LoadAmxTile<3>(in, 64);
    StoreAmxTile<3>(out, 64);
    EXPECT_EQ(std::memcmp(in, out, sizeof(in)), 0);
  }).join();
}

#endif

}  // namespace
}  // namespace quire
