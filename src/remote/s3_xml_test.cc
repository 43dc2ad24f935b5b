#include "remote/s3_xml.h"

#include <gtest/gtest.h>

namespace quire::remote {
namespace {

TEST(S3Xml, Lists) {
  const auto list = ParseS3List(
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Name>b</Name><Contents><Key>p/1</Key>"
      "<Size>3</Size></Contents><Contents><Key>p/2</Key></Contents><IsTruncated>true</IsTruncated>"
      "</ListBucketResult>");
  ASSERT_TRUE(list);
  EXPECT_EQ(list->keys, (std::vector<std::string>{"p/1", "p/2"}));
  EXPECT_TRUE(list->truncated);
  EXPECT_TRUE(ParseS3List("<ListBucketResult></ListBucketResult>")->keys.empty());
  EXPECT_FALSE(ParseS3List("<ListBucketResult><Contents><Key>p"));
  EXPECT_FALSE(ParseS3List(""));
}

TEST(S3Xml, Errors) {
  EXPECT_EQ(S3ErrorCode("<Error><Code>NoSuchBucket</Code></Error>"), "NoSuchBucket");
  EXPECT_EQ(S3ErrorCode("<Error><Code>cut"), "");
  EXPECT_EQ(S3ErrorCode("<html>"), "");
}

}  // namespace
}  // namespace quire::remote
