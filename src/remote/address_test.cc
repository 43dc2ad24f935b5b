#include "remote/address.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace quire::remote {
namespace {

TEST(RemoteAddress, OfRedis) {
  const auto one = ParseRemote("redis://cache-1");
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(one->hosts, (std::vector<HostAndPort>{{.host = "cache-1", .port = 6379}}));
  EXPECT_FALSE(one->tls);
  const auto all = ParseRemote("rediss://me@a:1,[::1]:2,c/team/prod/?ca=/etc/ca.pem");
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_TRUE(all->tls);
  EXPECT_EQ(all->user, "me");
  EXPECT_EQ(all->hosts, (std::vector<HostAndPort>{{.host = "a", .port = 1},
                                                  {.host = "::1", .port = 2},
                                                  {.host = "c", .port = 6379}}));
  EXPECT_EQ(all->prefix, "team/prod");
  EXPECT_EQ(all->request_us, 0u);
  EXPECT_EQ(ParseRemote("redis://a?timeout=2.5&ca=f")->request_us, 2'500'000u);
  EXPECT_EQ(ParseRemote("s3://bucket?timeout=600")->request_us, 600'000'000u);
  EXPECT_EQ(all->ca_file, "/etc/ca.pem");
  EXPECT_EQ(Describe(*one), "redis://cache-1:6379");
}

TEST(RemoteAddress, OfS3) {
  const auto aws = ParseRemote("s3://bucket/a/b?region=eu-west-1");
  ASSERT_TRUE(aws) << aws.error().message;
  EXPECT_EQ(aws->bucket, "bucket");
  EXPECT_EQ(aws->prefix, "a/b");
  EXPECT_EQ(aws->region, "eu-west-1");
  EXPECT_TRUE(aws->tls);
  EXPECT_FALSE(aws->path_style);
  const auto own = ParseRemote("s3://bucket?endpoint=http://127.0.0.1:9000/");
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(own->endpoint, "http://127.0.0.1:9000");
  EXPECT_TRUE(own->path_style);
  EXPECT_FALSE(own->tls);
  EXPECT_FALSE(ParseRemote("s3://bucket?endpoint=http://h&style=virtual")->path_style);
}

TEST(RemoteAddress, WhatIsNoneIsRefusedWithoutItsSecrets) {
  for (const char* bad : {"",
                          "redis",
                          "http://host",
                          "redis://",
                          "redis:///p",
                          "redis://ho st",
                          "redis://a:0",
                          "redis://a:99999",
                          "redis://a:x",
                          "redis://[::1",
                          "redis://a/{p}",
                          "redis://a/p q",
                          "redis://a?region=x",
                          "redis://a?what=1",
                          "redis://a?timeout=",
                          "redis://a?timeout=0",
                          "redis://a?timeout=nan",
                          "redis://a?timeout=601",
                          "redis://a?timeout=5s",
                          "s3://",
                          "s3://ab",
                          "s3://bu cket",
                          "s3://bucket?endpoint=ftp://x",
                          "s3://bucket?endpoint=http://a b",
                          "s3://bucket?style=x",
                          "s3://bucket?endpoint=http://user:pw@host"}) {
    const auto address = ParseRemote(bad);
    ASSERT_FALSE(address) << bad;
    EXPECT_EQ(address.error().code, ErrorCode::kInvalidArgument);
  }
  for (const char* bad : {"redis://me:hunter2@host", "http://me:hunter2@host"}) {
    EXPECT_EQ(ParseRemote(bad).error().message.find("hunter2"), std::string::npos);
  }
}

TEST(RemoteAddress, CredentialsOfAFile) {
  const std::string path = testing::TempDir() + "/credentials";
  std::ofstream(path) << "[default]\naws_access_key_id = a\naws_secret_access_key=b\n\n[other]\n"
                         "aws_access_key_id=c\naws_secret_access_key = d\naws_session_token = e\n";
  setenv("AWS_SHARED_CREDENTIALS_FILE", path.c_str(), 1);
  const auto address = ParseRemote("s3://bucket");
  unsetenv("AWS_PROFILE");
  EXPECT_EQ(CredentialsFor(*address)->s3_key_id, "a");
  EXPECT_EQ(CredentialsFor(*address)->s3_secret, "b");
  setenv("AWS_PROFILE", "other", 1);
  EXPECT_EQ(CredentialsFor(*address)->s3_session_token, "e");
  setenv("AWS_PROFILE", "none", 1);
  EXPECT_EQ(CredentialsFor(*address).error().code, ErrorCode::kNotFound);
  unsetenv("AWS_PROFILE");
  unsetenv("AWS_SHARED_CREDENTIALS_FILE");
}

}  // namespace
}  // namespace quire::remote
