#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace quire {
namespace {

Json Object(std::string_view text) { return ParseJson(text, "test").value(); }

TEST(Json, ParseErrorNamesSourceAndPlace) {
  const auto broken = ParseJson("{\"a\": 1,\n  oops}", "config.json");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(broken.error().message.starts_with("config.json: ")) << broken.error().message;
  EXPECT_NE(broken.error().message.find("line 2"), std::string::npos) << broken.error().message;
}

TEST(Json, HostileTextsAreErrors) {
  for (const std::string_view text : {"", "{", "\xff\xfe", "{\"a\":1}x", "nan", "\"\\ud800\""}) {
    EXPECT_FALSE(ParseJson(text, "t")) << text;
  }
  EXPECT_FALSE(ParseJson(std::string(200'000, '['), "t"));
}

TEST(Json, DepthIsLimitedOutsideStrings) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseJson(nested(kJsonDepthMax), "t"));
  EXPECT_EQ(ParseJson(nested(kJsonDepthMax + 1), "t").error().message,
            "t: nested deeper than 256 levels");
  EXPECT_TRUE(ParseJson("\"\\\"" + nested(1000) + "\"", "t"));
  EXPECT_TRUE(ParseJson("[" + std::string(1000, ' ') + "[1],[2],[3]]", "t"));
}

TEST(Json, GetsEachType) {
  const Json object =
      Object(R"({"yes":true,"n":7,"minus":-7,"big":18446744073709551615,"x":1.5,"s":"text"})");
  EXPECT_EQ(JsonGet<bool>(object, "yes", "t"), true);
  EXPECT_EQ(JsonGet<uint32_t>(object, "n", "t"), 7u);
  EXPECT_EQ(JsonGet<uint64_t>(object, "big", "t"), UINT64_MAX);
  EXPECT_EQ(JsonGet<int64_t>(object, "minus", "t"), -7);
  EXPECT_EQ(JsonGet<int64_t>(object, "n", "t"), 7);
  EXPECT_EQ(JsonGet<double>(object, "x", "t"), 1.5);
  EXPECT_EQ(JsonGet<double>(object, "n", "t"), 7.0);
  EXPECT_EQ(JsonGet<std::string>(object, "s", "t"), "text");
}

TEST(Json, NothingIsConvertedOrWraps) {
  const Json object = Object(R"({"minus":-1,"x":1.0,"big":4294967296,"s":"7","b":true,
                                 "huge":18446744073709551615})");
  EXPECT_FALSE(JsonGet<uint64_t>(object, "minus", "t"));
  EXPECT_FALSE(JsonGet<uint64_t>(object, "x", "t"));
  EXPECT_FALSE(JsonGet<uint32_t>(object, "big", "t"));
  EXPECT_FALSE(JsonGet<int64_t>(object, "huge", "t"));
  EXPECT_FALSE(JsonGet<uint64_t>(object, "s", "t"));
  EXPECT_FALSE(JsonGet<uint64_t>(object, "b", "t"));
  EXPECT_FALSE(JsonGet<bool>(object, "s", "t"));
}

TEST(Json, MessagesNameTheField) {
  const Json object = Object(R"({"layers":"many"})");
  EXPECT_EQ(JsonGet<uint32_t>(object, "layers", "config.json").error().message,
            "config.json: field layers must be a whole number in 0..2^32-1, found \"many\"");
  EXPECT_EQ(JsonGet<uint32_t>(object, "heads", "config.json").error().message,
            "config.json: field heads is missing");
  EXPECT_EQ(JsonGet<bool>(Json(3), "heads", "config.json").error().message,
            "config.json: heads expected in an object, found number");
}

TEST(Json, FallbackOnlyWhenMissingOrNull) {
  const Json object = Object(R"({"none":null,"s":"text"})");
  EXPECT_EQ(JsonGetOr<uint32_t>(object, "heads", 8, "t"), 8u);
  EXPECT_EQ(JsonGetOr<uint32_t>(object, "none", 8, "t"), 8u);
  EXPECT_FALSE(JsonGetOr<uint32_t>(object, "s", 8, "t"));
  EXPECT_FALSE(JsonGetOr<uint32_t>(Json::array(), "s", 8, "t"));
}

}  // namespace
}  // namespace quire
