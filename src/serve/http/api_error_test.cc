#include "serve/http/api_error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace quire::serve::http {
namespace {

TEST(ApiError, EachFailureHasItsStatusAndItsCode) {
  struct Row {
    ErrorCode code;
    uint32_t status;
    std::string type;
    std::string name;
  };
  const Row rows[] = {
      {ErrorCode::kInvalidArgument, 400, "invalid_request_error", ""},
      {ErrorCode::kUnsupported, 400, "invalid_request_error", "unsupported"},
      {ErrorCode::kTooLarge, 400, "invalid_request_error", "context_length_exceeded"},
      {ErrorCode::kNotFound, 404, "invalid_request_error", "not_found"},
      {ErrorCode::kBusy, 409, "conflict_error", "busy"},
      {ErrorCode::kNoSpace, 429, "rate_limit_error", "no_space"},
      {ErrorCode::kCancelled, 503, "server_error", "cancelled"},
      {ErrorCode::kDeadline, 504, "timeout_error", "deadline"},
      {ErrorCode::kCorrupt, 500, "server_error", "corrupt"},
      {ErrorCode::kIo, 500, "server_error", "io"},
  };
  std::set<ErrorCode> seen;
  for (const Row& row : rows) {
    const ApiError error = FromError({.code = row.code, .message = "why"});
    EXPECT_EQ(error.status, row.status) << row.name;
    EXPECT_EQ(error.type, row.type) << row.name;
    EXPECT_EQ(error.code, row.name);
    // Other messages are the caller's own affair; these tell of the machine or of others.
    const bool hides = row.status >= 500 ? row.code != ErrorCode::kCancelled : row.status > 400;
    EXPECT_EQ(error.message != "why", hides) << row.name;
    EXPECT_EQ(error.detail, hides ? "why" : "") << row.name;
    seen.insert(row.code);
  }
  for (uint8_t code = 1; ErrorCodeName(ErrorCode{code}) != "unknown"; ++code) {
    EXPECT_TRUE(seen.contains(ErrorCode{code})) << ErrorCodeName(ErrorCode{code});
  }
}

TEST(ApiError, OfAFile) {
  EXPECT_EQ(FromFileError({.code = ErrorCode::kNoSpace, .message = "/a"}).status, 507u);
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kNotFound, ErrorCode::kCorrupt}) {
    ApiError error = FromFileError({.code = code, .message = "/a: gone"});
    EXPECT_EQ(error.status, 500u);
    EXPECT_EQ(error.message.find("/a"), std::string::npos);
    LogDetail(error, "req_1");
    EXPECT_NE(error.message.find("req_1"), std::string::npos);
    EXPECT_EQ(error.detail, "");
  }
  EXPECT_EQ(FromFileError({.code = ErrorCode::kCancelled, .message = "why"}).status, 503u);
}

TEST(ApiError, RepeatsLittle) {
  EXPECT_EQ(Echo("abc", 3), "abc");
  EXPECT_EQ(Echo("abcd", 3), "abc...");
  const ApiError error = BadRequest(std::string(999, 'p'), std::string(999, 'm')).error();
  EXPECT_LT(error.param.size(), 210u);
  EXPECT_LT(error.message.size(), 410u);
}

TEST(ApiError, AsJson) {
  EXPECT_EQ(Dump(ErrorJson(BadRequest("n", "too many").error())),
            R"({"error":{"message":"too many","type":"invalid_request_error","param":"n",)"
            R"("code":null}})");
  EXPECT_EQ(Dump(ErrorJson(NotFound("nothing").error())),
            R"({"error":{"message":"nothing","type":"invalid_request_error","param":null,)"
            R"("code":"not_found"}})");
  EXPECT_EQ(BadRequest("n", "").error().status, 400u);
  EXPECT_EQ(NotFound("").error().status, 404u);
  EXPECT_EQ(TooMany("").error().status, 429u);
  EXPECT_EQ(TooMany("").error().code, "too_many_requests");
  EXPECT_EQ(Dump(OrderedJson("a\xff")), "\"a\xef\xbf\xbd\"") << "what is not UTF-8";
}

}  // namespace
}  // namespace quire::serve::http
