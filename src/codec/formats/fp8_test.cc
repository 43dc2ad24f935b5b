#include "codec/formats/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "base/float_bits.h"

namespace quire::codec {
namespace {

// ml_dtypes is the judge: fp8_golden.py wrote its results.
TEST(Fp8, IsThatOfMlDtypes) {
  std::ifstream file(QUIRE_SOURCE_DIR "/src/codec/formats/fp8_golden.txt");
  std::string line;
  size_t lines = 0;
  while (std::getline(file, line)) {
    ++lines;
    std::istringstream in(line);
    std::string name;
    std::string kind;
    in >> name >> kind;
    const bool e4m3 = name == "fp8_e4m3";
    uint32_t at = 0;
    std::string entry;
    while (in >> entry) {
      if (kind == "values") {
        const auto code = static_cast<uint8_t>(at++);
        const float got = e4m3 ? Fp8E4m3::ValueOf(code) : Fp8E5m2::ValueOf(code);
        const float want =
            std::bit_cast<float>(static_cast<uint32_t>(std::stoul(entry, nullptr, 16)));
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got)) << name << " code " << at - 1;
        } else {
          EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want))
              << name << " code " << at - 1;
        }
        continue;
      }
      const size_t colon = entry.find(':');
      const auto want = static_cast<uint8_t>(std::stoul(entry, nullptr, 16));
      const uint64_t end = at + std::stoul(entry.substr(colon + 1));
      for (; at < end; ++at) {
        const float value = F16ToF32(static_cast<uint16_t>(at));
        ASSERT_EQ(e4m3 ? Fp8E4m3::CodeOf(value) : Fp8E5m2::CodeOf(value), want)
            << name << " f16 " << at;
      }
    }
    EXPECT_EQ(at, kind == "values" ? 256u : 65536u);
  }
  EXPECT_EQ(lines, 4u);
}

}  // namespace
}  // namespace quire::codec
