#include "remote/libcurl.h"

#include <gtest/gtest.h>

namespace quire::remote {
namespace {

TEST(Libcurl, IsLoadedOnce) {
  const Libcurl* const curl = LoadLibcurl().value();
  EXPECT_EQ(curl, LoadLibcurl().value());
  EXPECT_STREQ(curl->easy_strerror(CURLE_OK), "No error");
}

TEST(Libcurl, AMissingLibraryOrFunctionIsNamed) {
  const auto missing = LoadLibcurlFrom("libcurl.so.none");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(missing.error().message.find("libcurl.so.none"), std::string::npos);
  EXPECT_NE(missing.error().message.find("install the package libcurl4"), std::string::npos);
  const auto another = LoadLibcurlFrom("libc.so.6");
  ASSERT_FALSE(another.has_value());
  EXPECT_NE(another.error().message.find("curl_"), std::string::npos);
}

}  // namespace
}  // namespace quire::remote
