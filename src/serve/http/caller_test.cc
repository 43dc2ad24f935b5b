#include "serve/http/caller.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::serve::http {
namespace {

constexpr std::string_view kTwo = R"(
[[tenant]]
name = "alice"
keys = ["alice-0123456789abcdef", "alice-second-0123456789"]
quota = "512MiB"
store_quota = "2GiB"
store_floor = "1GiB"
floor = "1MB"
ttl_s = 60
domain = "team"
weight = 2.5

[[tenant]]
name = "ops"
keys = ["ops-0123456789abcdef"]
operator = true
)";

TEST(KeysFile, SaysWhatEachTenantHas) {
  const KeysFile file = ParseKeysFile(kTwo, "keys.toml").value();
  ASSERT_EQ(file.tenants.size(), 2u);
  const Tenant& alice = file.tenants[0];
  EXPECT_EQ(alice.cache.name, "alice");
  EXPECT_EQ(alice.cache.quota_bytes, 512u << 20);
  EXPECT_EQ(alice.cache.floor_bytes, 1'000'000u);
  EXPECT_EQ(alice.cache.store_quota_bytes, 2u << 30);
  EXPECT_EQ(alice.cache.store_floor_bytes, 1u << 30);
  EXPECT_EQ(alice.cache.ttl_us, 60'000'000u);
  EXPECT_EQ(alice.cache.domain, "team");
  EXPECT_EQ(alice.weight, 2.5);
  EXPECT_EQ(alice.keys.size(), 2u);
  EXPECT_FALSE(alice.is_operator);
  EXPECT_TRUE(file.tenants[1].is_operator);
  // The domain and the operator have half of the cache, less the floor that alice names.
  EXPECT_FALSE(alice.has_fair_share());
  EXPECT_TRUE(file.tenants[1].has_fair_share());
  EXPECT_EQ(FairShareBytes(file, 10'000'000), 2'000'000u);
  EXPECT_EQ(FairShareBytes(file, 1'000'000), 0u);
  EXPECT_EQ(file.domains, std::vector<std::string>{"team"});
}

struct BadFile {
  std::string text;
  std::string complaint;
};

class BadKeysFile : public testing::TestWithParam<BadFile> {};

TEST_P(BadKeysFile, IsRefusedWithTheLineAndWithoutTheKey) {
  const auto file = ParseKeysFile(GetParam().text, "keys.toml");
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(file.error().message, testing::HasSubstr(GetParam().complaint));
  EXPECT_THAT(file.error().message, testing::Not(testing::HasSubstr("secret")));
}

INSTANTIATE_TEST_SUITE_P(
    Each, BadKeysFile,
    testing::Values(
        BadFile{"", "there is no [[tenant]]"}, BadFile{"tenant = 1", "keys.toml:1: 'tenant' must"},
        BadFile{"[[tenant]]\nkeys = [\"secret-0123456789\"]", "'name' is missing"},
        BadFile{"[[tenant]]\nname = \"a\"", "'keys' has no key"},
        BadFile{"[[tenant]]\nname = \"a\"\nkeys = [\"secret\"]", "keys.toml:3: 'keys' has a key"},
        BadFile{"[[tenant]]\nname = \"operator\"\nkeys = [\"secret-0123456789\"]", "is taken"},
        BadFile{"[[tenant]]\nname = \"a b\"\nkeys = [\"secret-0123456789\"]",
                "keys.toml:2: 'name'"},
        BadFile{"[[tenant]]\nname = \"a\"\nkeys = [\"secret-0123456789\"]\nqouta = 1",
                "keys.toml:4: 'qouta' is not a field"},
        BadFile{"[[tenant]]\nname = \"a\"\nkeys = [\"secret-0123456789\"]\nquota = \"1 cup\"",
                "keys.toml:4: 'quota' must"},
        BadFile{"[[tenant]]\nname = \"a\"\nkeys = [\"secret-0123456789\"]\nweight = 0",
                "keys.toml:4: 'weight' must"},
        BadFile{"[[tenant]]\nname = \"a\"\nkeys = [\"secret-0123456789\"]\n"
                "[[tenant]]\nname = \"a\"\nkeys = [\"secret-9876543210\"]",
                "keys.toml:5: 'name' 'a' is taken"},
        BadFile{"[[tenant]]\nname = \"a\"\nkeys = [\"secret-0123456789\"]\n"
                "[[tenant]]\nname = \"b\"\nkeys = [\"secret-0123456789\"]",
                "a key that is there twice"},
        BadFile{"[[tenant]]\nname = ", "keys.toml:2"}));

// The last that is allowed, and the first that is not.
TEST(KeysFile, NamesAndKeysMayBeSoLong) {
  const auto parses = [](size_t name_bytes, size_t key_bytes) {
    const std::string text = "[[tenant]]\nname = \"" + std::string(name_bytes, 'n') +
                             "\"\nkeys = [\"" + std::string(key_bytes, 'k') + "\"]";
    return ParseKeysFile(text, "keys.toml").has_value();
  };
  for (const size_t bytes : {1, 64}) EXPECT_TRUE(parses(bytes, 20)) << bytes;
  for (const size_t bytes : {0, 65}) EXPECT_FALSE(parses(bytes, 20)) << bytes;
  for (const size_t bytes : {16, 256}) EXPECT_TRUE(parses(8, bytes)) << bytes;
  for (const size_t bytes : {15, 257}) EXPECT_FALSE(parses(8, bytes)) << bytes;
}

TEST(KeysFile, NamesAndKeysArePrintable) {
  const auto parses = [](std::string_view name, std::string_view key) {
    return ParseKeysFile(fmt::format("[[tenant]]\nname = '{}'\nkeys = [\"{}\"]", name, key), "k")
        .has_value();
  };
  for (const char* const each : {"!", "~", "0"}) {
    EXPECT_TRUE(parses(each, std::string("0123456789abcdef") + each)) << each;
  }
  for (const char* const each : {" ", "\t", "\xc3\xa9"}) {
    EXPECT_FALSE(parses(std::string("a") + each, "0123456789abcdef")) << each;
    EXPECT_FALSE(parses("a", std::string("0123456789abcdef") + each)) << each;
  }
  EXPECT_FALSE(parses("a", "0123456789abcdef\\u007F"));
}

TEST(KeyTable, FindsWhoseKeyItIs) {
  KeyTable table;
  EXPECT_TRUE(table.empty());
  table.Add("alice-0123456789abcdef", {.tenant = TenantId(1), .name = "alice"});
  table.Add("ops-0123456789abcdef", {.tenant = TenantId(2), .name = "ops", .sees_all = true});
  EXPECT_EQ(table.Find("alice-0123456789abcdef")->name, "alice");
  EXPECT_TRUE(table.Find("ops-0123456789abcdef")->sees_all);
  EXPECT_FALSE(table.Find("ops-0123456789abcde").has_value());
  EXPECT_FALSE(table.Find("ops-0123456789abcdef ").has_value());
  EXPECT_FALSE(table.Find("").has_value());
}

}  // namespace
}  // namespace quire::serve::http
