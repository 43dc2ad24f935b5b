#include "remote/resp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/prng.h"

namespace quire::remote {
namespace {

using Step = RespReader::Step;

/// Feeds a text in pieces of at most so many bytes, and appends what comes out.
Step Feed(RespReader& reader, std::string_view text, size_t piece, uint64_t bulk_max,
          std::vector<RespValue>& values, const ObjectSink& sink = {}) {
  while (true) {
    RespValue value;
    const Step step = reader.Next(bulk_max, value, sink);
    if (step == Step::kValue) {
      values.push_back(std::move(value));
      continue;
    }
    if (step != Step::kMore || text.empty()) return step;
    const std::span<std::byte> room = reader.Room();
    EXPECT_FALSE(room.empty());
    const size_t bytes = std::min({piece, text.size(), room.size()});
    std::transform(text.begin(), text.begin() + static_cast<ptrdiff_t>(bytes), room.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    reader.Received(bytes);
    text.remove_prefix(bytes);
  }
}

TEST(Resp, RepliesInAnyPieces) {
  const std::string long_bulk(100'000, 'x');
  const std::string text =
      "+OK\r\n-ERR "
      "no\r\n:-5\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*0\r\n*2\r\n:1\r\n*2\r\n$1\r\nb\r\n+c\r\n$"
      "0\r\n\r\n$100000\r\n" +
      long_bulk + "\r\n:7\r\n";
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{1000}, text.size()}) {
    RespReader reader;
    std::vector<RespValue> values;
    ASSERT_EQ(Feed(reader, text, piece, 1 << 20, values), Step::kMore);
    ASSERT_EQ(values.size(), 11u);
    EXPECT_EQ(values[0].text, "OK");
    EXPECT_EQ(values[1].kind, RespValue::kError);
    EXPECT_EQ(values[2].integer, -5);
    EXPECT_EQ(values[3].bulk(), "a\r\n");
    EXPECT_EQ(values[4].kind, RespValue::kNull);
    EXPECT_EQ(values[6].kind, RespValue::kArray);
    ASSERT_EQ(values[7].items.size(), 2u);
    EXPECT_EQ(values[7].items[1].items[1].text, "c");
    EXPECT_EQ(values[9].bulk(), long_bulk);
    EXPECT_EQ(values[10].integer, 7);
  }
}

TEST(Resp, ASinkGetsTheBytesOfBulks) {
  const std::string bulk(300'000, 'x');
  const std::string text = "$300000\r\n" + bulk + "\r\n$0\r\n\r\n:7\r\n$2\r\nyz\r\n";
  for (const size_t piece : {size_t{1}, size_t{1000}, text.size()}) {
    RespReader reader;
    std::vector<RespValue> values;
    std::string sunk;
    const auto sink = [&](std::span<const std::byte> bytes) {
      sunk.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    ASSERT_EQ(Feed(reader, text, piece, 1 << 20, values, sink), Step::kMore);
    ASSERT_EQ(values.size(), 4u);
    EXPECT_EQ(values[0].integer, 300'000);
    EXPECT_TRUE(values[0].bytes.empty());
    EXPECT_EQ(values[1].integer, 0);
    EXPECT_EQ(values[2].integer, 7);
    EXPECT_EQ(sunk, bulk + "yz");
  }
}

TEST(Resp, WhatIsNoReplyIsRefused) {
  const auto step_of = [](std::string_view text, uint64_t bulk_max = 100) {
    RespReader reader;
    std::vector<RespValue> values;
    return Feed(reader, text, 7, bulk_max, values);
  };
  for (const std::string_view bad :
       {"x\r\n", "\r\n", ":\r\n", ":1x\r\n", "$-2\r\n", "$1\r\nabc", "*2000000\r\n",
        "$99999999999999999999\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"}) {
    EXPECT_EQ(step_of(bad), Step::kBad) << bad;
  }
  EXPECT_EQ(step_of("+" + std::string(5000, 'a')), Step::kBad);
  EXPECT_EQ(step_of("$101\r\n"), Step::kTooLong);
  EXPECT_EQ(step_of("$100\r\n"), Step::kMore);
}

TEST(Resp, Commands) {
  EXPECT_EQ(RespCommand({"GET", "k"}), "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
  EXPECT_EQ(RespCommandBefore({"SET", "k"}, 5), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\n");
}

}  // namespace
}  // namespace quire::remote
