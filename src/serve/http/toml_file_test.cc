#include "serve/http/toml_file.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace quire::serve::http {
namespace {

TEST(BytesOf, KnowsEveryUnit) {
  const std::pair<const char*, uint64_t> units[] = {
      {"", 1},        {"KB", 1'000},      {"MB", 1'000'000},      {"GB", 1'000'000'000},
      {"KiB", 1'024}, {"MiB", 1'048'576}, {"GiB", 1'073'741'824}, {"TiB", 1'099'511'627'776},
  };
  for (const auto& [unit, bytes] : units) {
    EXPECT_EQ(BytesOf(std::string("0") + unit), 0u) << unit;
    EXPECT_EQ(BytesOf(std::string("3") + unit), 3 * bytes) << unit;
    const uint64_t most = UINT64_MAX / bytes;
    EXPECT_EQ(BytesOf(std::to_string(most) + unit), most * bytes) << unit;
    if (bytes == 1) continue;
    EXPECT_FALSE(BytesOf(std::to_string(most + 1) + unit).has_value()) << unit;
  }
  for (const char* const text : {"", "MB", "-1", "1 MB", "1.5GB", "1mb", "1TB", "1B", "0x10",
                                 "18446744073709551616", "1MBs"}) {
    EXPECT_FALSE(BytesOf(text).has_value()) << text;
  }
}

TEST(TomlTable, NumbersMayBeWhatBoundsThem) {
  for (const auto& [text, is_number] : std::initializer_list<std::pair<const char*, bool>>{
           {"0.5", true}, {"2.0", true}, {"2", true}, {"0.49", false}, {"2.01", false}}) {
    TomlTable table = *ParseToml(std::string("x = ") + text, "file");
    EXPECT_EQ(table.Number("x", 1, 0.5, 2).has_value(), is_number) << text;
    EXPECT_EQ(table.Number("y", 1, 0.5, 2), 1.0);
  }
}

}  // namespace
}  // namespace quire::serve::http
