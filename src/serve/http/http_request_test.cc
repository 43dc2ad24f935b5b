#include "serve/http/http_request.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::serve::http {
namespace {

const HeaderField kHost{.name = "Host", .value = "localhost"};

ApiResult<HttpRequest> Read(std::vector<HeaderField> fields, std::string_view target = "/a",
                            uint32_t version = 11) {
  return ReadHead({.method = "POST", .target = target, .version = version}, fields);
}

uint32_t StatusOf(const ApiResult<HttpRequest>& read) { return read ? 200 : read.error().status; }

TEST(ReadHead, KnowsOneWayOnlyWhereABodyEnds) {
  EXPECT_TRUE(Read({kHost, {"transfer-encoding", "Chunked"}})->has_body);
  EXPECT_TRUE(Read({kHost, {"content-length", "10"}})->has_body);
  EXPECT_FALSE(Read({kHost, {"Content-Length", "00"}})->has_body);
  EXPECT_FALSE(Read({kHost})->has_body);
  for (const char* const coding :
       {"", "xchunked", "identity", "gzip", "gzip, chunked", "chunked, chunked", "chunked;q=1"}) {
    EXPECT_EQ(StatusOf(Read({kHost, {"Transfer-Encoding", coding}})), 400u) << coding;
  }
  for (const char* const length : {"0, 0", "+1", "-1", "1 1", "a"}) {
    EXPECT_EQ(StatusOf(Read({kHost, {"Content-Length", length}})), 400u) << length;
  }
  const HeaderField chunked{.name = "Transfer-Encoding", .value = "chunked"};
  const HeaderField length{.name = "Content-Length", .value = "3"};
  EXPECT_EQ(StatusOf(Read({kHost, chunked, chunked})), 400u);
  EXPECT_EQ(StatusOf(Read({kHost, chunked, length})), 400u);
  EXPECT_EQ(StatusOf(Read({kHost, length, length})), 400u);
  EXPECT_EQ(StatusOf(Read({kHost, chunked}, "/a", 10)), 400u);
}

TEST(ReadHead, KnowsOneHost) {
  EXPECT_EQ(StatusOf(Read({})), 400u);
  EXPECT_EQ(StatusOf(Read({}, "/a", 10)), 200u);
  EXPECT_EQ(StatusOf(Read({kHost, kHost})), 400u);
  EXPECT_EQ(StatusOf(Read({{"Host", "a b"}})), 400u);
  EXPECT_EQ(StatusOf(Read({{"Host", "user@host"}})), 400u);
  EXPECT_EQ(Read({{"host", "[::1]:80"}})->host, "[::1]:80");
}

TEST(ReadHead, TakesAllFormsOfATarget) {
  EXPECT_EQ(Read({kHost}, "/a/b?c=/d")->path, "/a/b");
  const auto absolute = Read({kHost}, "HTTPS://other:1/a?b");
  EXPECT_EQ(absolute->host, "other:1");
  EXPECT_EQ(absolute->path, "/a");
  EXPECT_EQ(Read({kHost}, "http://other")->path, "/");
  EXPECT_EQ(Read({kHost}, "http://other?a")->path, "/");
  EXPECT_EQ(Read({kHost}, "*")->path, "*");
  for (const char* const bad : {"", "a", "http://", "http:///a", "http://u@h/a", "ftp://h/a"}) {
    EXPECT_EQ(StatusOf(Read({kHost}, bad)), 400u) << bad;
  }
}

TEST(ReadHead, ExpectsOneThing) {
  EXPECT_TRUE(Read({kHost, {"Expect", "100-Continue"}})->wants_continue);
  EXPECT_FALSE(Read({kHost, {"Expect", "100-continue"}}, "/a", 10)->wants_continue);
  EXPECT_EQ(StatusOf(Read({kHost, {"Expect", "more"}})), 417u);
}

TEST(ReadHead, PassesHarmlessNamesOn) {
  EXPECT_EQ(Read({kHost, {"X-Request-Id", "a-1"}})->request_id, "a-1");
  EXPECT_TRUE(Read({kHost, {"X-Request-Id", "a\"b"}})->request_id.starts_with("req_"));
  EXPECT_EQ(Read({kHost, {"traceparent", "00-1"}})->traceparent, "00-1");
  EXPECT_EQ(Read({kHost, {"traceparent", std::string(129, 'a')}})->traceparent, "");
}

TEST(IsFromAnotherSite, GoesByWhatTheBrowserSays) {
  const auto foreign = [](const char* origin, const char* site) {
    return IsFromAnotherSite({.host = "localhost:80", .origin = origin, .fetch_site = site});
  };
  EXPECT_FALSE(foreign("", ""));
  EXPECT_FALSE(foreign("http://LOCALHOST:80", ""));
  EXPECT_TRUE(foreign("http://localhost", ""));
  EXPECT_TRUE(foreign("null", ""));
  EXPECT_FALSE(foreign("", "none"));
  EXPECT_FALSE(foreign("https://proxy.example", "same-origin"));
  EXPECT_TRUE(foreign("", "same-site"));
  EXPECT_TRUE(foreign("", "cross-site"));
}

TEST(BearerOf, TakesTheSchemeInAnyCase) {
  EXPECT_EQ(BearerOf("Bearer a"), "a");
  EXPECT_EQ(BearerOf("bEARER   a"), "a");
  for (const char* const none : {"", "Bearer", "Bearer ", "Basic a", "Bearera", "a"}) {
    EXPECT_EQ(BearerOf(none), "") << none;
  }
}

TEST(HttpDate, IsTheOneOfTheRfc) {
  EXPECT_EQ(HttpDate(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
}

}  // namespace
}  // namespace quire::serve::http
