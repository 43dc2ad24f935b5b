#include "ranks/tenant_change.h"

#include <gtest/gtest.h>

#include <string>

namespace quire::ranks {
namespace {

const TenantChange kChange = {.kind = TenantChange::Kind::kAdd,
                              .tenant = TenantId(7),
                              .options = {.name = "a",
                                          .quota_bytes = 1,
                                          .floor_bytes = 2,
                                          .domain = "team",
                                          .shared = true,
                                          .ttl_us = 3,
                                          .store_quota_bytes = 4,
                                          .store_floor_bytes = 5}};

TEST(TenantChange, IsReadAsItWasWritten) {
  const auto read = ReadTenantChange(Write(kChange));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->kind, TenantChange::Kind::kAdd);
  EXPECT_EQ(read->tenant, TenantId(7));
  EXPECT_EQ(read->options.name, "a");
  EXPECT_EQ(read->options.domain, "team");
  EXPECT_EQ(read->options.quota_bytes, 1u);
  EXPECT_EQ(read->options.floor_bytes, 2u);
  EXPECT_TRUE(read->options.shared);
  EXPECT_EQ(read->options.ttl_us, 3u);
  EXPECT_EQ(read->options.store_quota_bytes, 4u);
  EXPECT_EQ(read->options.store_floor_bytes, 5u);
}

TEST(TenantChange, OtherBytesAreRefused) {
  const std::string bytes = Write(kChange);
  const size_t header = bytes.size() - 5;  // name and domain
  for (size_t size = 0; size <= header; ++size) {
    EXPECT_FALSE(ReadTenantChange(bytes.substr(0, size)).has_value()) << size;
  }
  for (const char kind : {'\0', '\5', '\xff'}) {
    std::string other = bytes;
    other[0] = kind;
    EXPECT_FALSE(ReadTenantChange(other).has_value());
  }
}

}  // namespace
}  // namespace quire::ranks
