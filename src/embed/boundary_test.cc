// What crosses between C and C++: codes, cut messages, thrown things, and structs of other lengths.
#include "embed/boundary.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "embed/test_util.h"

namespace quire::embed {
namespace {

TEST(Boundary, ThrownThingsBecomeCodes) {
  quire_error error{};
  EXPECT_EQ(Boundary(&error, []() -> Result<void> { throw std::bad_alloc(); }), QUIRE_NO_MEMORY);
  EXPECT_EQ(error.code, QUIRE_NO_MEMORY);
  EXPECT_STREQ(error.message, "out of memory");
  EXPECT_EQ(Boundary(&error, []() -> Result<void> { throw std::length_error("too long"); }),
            QUIRE_INTERNAL);
  EXPECT_STREQ(error.message, "too long");
  EXPECT_EQ(Boundary(&error, []() -> Result<void> { throw 7; }), QUIRE_INTERNAL);
  EXPECT_EQ(Boundary(nullptr, []() -> Result<void> { throw 7; }), QUIRE_INTERNAL);
}

TEST(Boundary, SuccessClearsTheErrorOfAnEarlierCall) {
  quire_error error{};
  Report(&error, QUIRE_IO, "disk");
  EXPECT_EQ(Boundary(&error, []() -> Result<void> { return {}; }), QUIRE_OK);
  EXPECT_EQ(error.code, QUIRE_OK);
  EXPECT_STREQ(error.message, "");
}

TEST(Boundary, MessagesAreCutToTheirRoomAndEnd) {
  constexpr size_t kRoom = sizeof(quire_error::message) - 1;
  for (const size_t length : {size_t{0}, kRoom - 1, kRoom, kRoom + 1, size_t{5000}}) {
    quire_error error{};
    std::memset(error.message, 'z', sizeof(error.message));
    Report(&error, QUIRE_IO, std::string(length, 'a'));
    EXPECT_EQ(std::string(error.message), std::string(std::min(length, kRoom), 'a'));
  }
  EXPECT_EQ(sizeof(quire_error), 512u);
}

TEST(Boundary, CodesHaveTheNamesOfCpp) {
  for (int code = 1; code <= 10; ++code) {
    EXPECT_EQ(quire_code_name(code), ErrorCodeName(static_cast<ErrorCode>(code)));
  }
  EXPECT_STREQ(quire_code_name(QUIRE_OK), "ok");
  EXPECT_STREQ(quire_code_name(QUIRE_NO_MEMORY), "no_memory");
  EXPECT_STREQ(quire_code_name(QUIRE_INTERNAL), "internal");
  // 257 is 1 in eight bits.
  for (const int code : {11, 63, 66, 255, 256, 257, -1, -255, INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ(quire_code_name(code), "unknown") << code;
  }
  EXPECT_STREQ(quire_reason_name(QUIRE_NEVER_SEEN), "never_seen");
  EXPECT_STREQ(quire_reason_name(QUIRE_WINDOW_PASSED), "window_passed");
  EXPECT_STREQ(quire_reason_name(QUIRE_QUOTA), "quota");
  for (const int reason : {0, 77, 257, -1}) {
    EXPECT_STREQ(quire_reason_name(reason), "unknown") << reason;
  }
}

// A struct as a newer header could have it.
template <typename T>
struct Longer {
  T known = Sized<T>();
  uint64_t more = 0;

  Longer() { known.size = sizeof(Longer); }
};

TEST(Structs, OfANewerCallerAreReadAsLongAsTheyAskNothingNew) {
  Longer<quire_attention_options> options;
  options.known.threads = 3;
  const auto read = ReadStruct(&options.known, "options");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->threads, 3u);
  options.more = 1;
  const auto refused = ReadStruct(&options.known, "options");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

TEST(Structs, ThatMayBeNullHaveDefaults) {
  EXPECT_FALSE(ReadStruct<quire_attention_options>(nullptr, "options").has_value());
  EXPECT_TRUE(ReadOptions<quire_attention_options>(nullptr, "options").has_value());
  EXPECT_FALSE(CheckOutput<quire_sequence_stats>(nullptr, "stats").has_value());
}

TEST(Structs, HalfAFieldIsNone) {
  quire_cache_options options = SmallOptions();
  options.policy = "quire";
  for (size_t cut = 0; cut < sizeof(options.policy); ++cut) {
    options.size = offsetof(quire_cache_options, policy) + cut;
    EXPECT_EQ(ReadStruct(&options, "options")->policy, nullptr) << cut;
  }
  // Later fields of four bytes lie two to a word.
  options.residual_tokens = 16;
  options.open_codec = QUIRE_BF16;
  options.codec_fallback = 1;
  options.size = offsetof(quire_cache_options, codec_fallback);
  EXPECT_EQ(ReadStruct(&options, "options")->open_codec, QUIRE_BF16);
  EXPECT_EQ(ReadStruct(&options, "options")->codec_fallback, 0);
}

TEST(Enums, NumbersOfMoreThanEightBitsAreNotCut) {
  EXPECT_EQ(ToEnum<StreamRole>(QUIRE_VALUE, "role").value(), StreamRole::kValue);
  for (const int number : {0, -1, 256, 257, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(ToEnum<StreamRole>(number, "role").has_value()) << number;
  }
  EXPECT_EQ(ToEnum(0, "codec", Codec::kBf16).value(), Codec::kBf16);
}

}  // namespace
}  // namespace quire::embed
