#include "remote/redis_slots.h"

#include <gtest/gtest.h>

namespace quire::remote {
namespace {

RespValue Number(int64_t number) { return {.kind = RespValue::kInteger, .integer = number}; }
RespValue Text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {.kind = RespValue::kBulk, .bytes = {bytes.begin(), bytes.end()}};
}
RespValue Array(std::vector<RespValue> items) {
  return {.kind = RespValue::kArray, .items = std::move(items)};
}

TEST(RedisSlots, AreThoseOfTheServer) {
  // redis-cli cluster keyslot
  EXPECT_EQ(RedisSlotOf("foo"), 12182u);
  EXPECT_EQ(RedisSlotOf("bar"), 5061u);
  EXPECT_EQ(RedisSlotOf("123456789"), 12739u);
  EXPECT_EQ(RedisSlotOf("a{bar}b"), RedisSlotOf("bar"));
  EXPECT_NE(RedisSlotOf("a{}b"), RedisSlotOf(""));
}

TEST(RedisSlots, Redirects) {
  const HostAndPort from{.host = "here", .port = 1};
  const auto moved = ParseRedirect("MOVED 3999 10.0.0.1:6381", from);
  ASSERT_TRUE(moved);
  EXPECT_FALSE(moved->asks);
  EXPECT_EQ(moved->slot, 3999u);
  EXPECT_EQ(moved->to, (HostAndPort{.host = "10.0.0.1", .port = 6381}));
  EXPECT_TRUE(ParseRedirect("ASK 1 ::1:7000", from)->asks);
  EXPECT_EQ(ParseRedirect("ASK 1 ::1:7000", from)->to.host, "::1");
  EXPECT_EQ(ParseRedirect("MOVED 1 :7000", from)->to.host, "here");
  for (const char* bad : {"ERR x", "MOVED", "MOVED 1", "MOVED 99999 a:1", "MOVED x a:1",
                          "MOVED 1 a:0", "MOVED 1 a:99999", "MOVED 1 a:"}) {
    EXPECT_FALSE(ParseRedirect(bad, from)) << bad;
  }
}

TEST(RedisSlots, AMapIsTakenWholeOrNotAtAll) {
  const HostAndPort from{.host = "seed", .port = 9};
  const auto node = [](std::string_view host, int64_t port) {
    return Array({Text(host), Number(port), Text("id")});
  };
  RedisSlotMap map;
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.OwnerOf(5), nullptr);
  ASSERT_TRUE(map.Take(Array({Array({Number(0), Number(8000), node("a", 1), node("r", 2)}),
                              Array({Number(8001), Number(16383), node("", 3)})}),
                       from));
  EXPECT_EQ(map.OwnerOf(8000)->host, "a");
  EXPECT_EQ(*map.OwnerOf(16383), (HostAndPort{.host = "seed", .port = 3}));
  EXPECT_TRUE(map.HasReplicas(*map.OwnerOf(0)));
  EXPECT_FALSE(map.HasReplicas(*map.OwnerOf(16383)));
  map.Move(3, {.host = "c", .port = 4});
  EXPECT_EQ(map.OwnerOf(3)->host, "c");
  EXPECT_FALSE(map.Take(Array({Array({Number(0), Number(16384), node("a", 1)})}), from));
  EXPECT_FALSE(map.Take(Array({Array({Number(5), Number(1), node("a", 1)})}), from));
  EXPECT_FALSE(map.Take(Array({Array({Number(0), Number(1), node("a", 0)})}), from));
  EXPECT_FALSE(map.Take(Number(1), from));
  EXPECT_EQ(map.OwnerOf(3)->host, "c");
}

}  // namespace
}  // namespace quire::remote
