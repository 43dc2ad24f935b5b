// Packets of the socket: their frozen bytes, and every way in which one can break its word.
#include "store/socket/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "store/test_util.h"

namespace quire::store {
namespace {

constexpr uint64_t kSlab = 1 << 20;

struct Sent {
  RequestHeader header{.kind = 1, .count = 2, .number = 7, .name_bytes = 2};
  std::vector<PacketItem> items = {{.offset = 0, .bytes = 5000, .key_bytes = 3},
                                   {.offset = 8192, .bytes = 100, .key_bytes = 5}};
  std::string name = "ns";
  std::string keys = "keyother";
};

std::vector<std::byte> Packed(const Sent& sent) {
  PacketWriter writer;
  writer.Add(sent.header);
  writer.Add(sent.name);
  for (const PacketItem& item : sent.items) writer.Add(item);
  writer.Add(sent.keys);
  return writer.Take();
}

TEST(StoreProtocol, AWholeRequestIsRead) {
  const auto packet = Packed({});
  const auto request = ParseRequest(packet, kSlab);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->kind, PacketKind::kPut);
  EXPECT_EQ(request->number, 7);
  EXPECT_EQ(request->name_space, "ns");
  ASSERT_EQ(request->blocks.size(), 2);
  EXPECT_EQ(request->blocks[0].key, "key");
  EXPECT_EQ(request->blocks[1].key, "other");
  EXPECT_EQ(request->blocks[1].offset, 8192);
  EXPECT_EQ(request->blocks[1].bytes, 100);
}

TEST(StoreProtocol, BytesAreFrozen) {
  const std::vector<uint8_t> hello = {'Q', 'U', 'I', 'R', 'E', 'S', 'O', 'C',
                                      1,   0,   0,   0,   0,   0,   0,   0};
  PacketWriter writer;
  writer.Add(Hello{});
  const auto packet = writer.Take();
  EXPECT_TRUE(std::ranges::equal(packet, std::as_bytes(std::span(hello))));
  const auto reply =
      MakeReply({.kind = PacketKind::kGet,
                 .number = 258,
                 .results = {{.outcome = BlockOutcome::kTooSmall, .bytes = 65'537}}});
  const std::vector<uint8_t> bytes = {2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0,
                                      4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0};
  EXPECT_TRUE(std::ranges::equal(reply, std::as_bytes(std::span(bytes))));
}

TEST(StoreProtocol, WhatBreaksItsWordIsRefused) {
  const std::vector<std::function<void(Sent&)>> breaks = {
      [](Sent& sent) { sent.header.kind = 0; },
      [](Sent& sent) { sent.header.kind = kPacketKindMax + 1; },
      [](Sent& sent) { sent.header.count = 0; },
      [](Sent& sent) { sent.header.count = 3; },
      [](Sent& sent) { sent.header.count = ~uint32_t{0}; },
      [](Sent& sent) { sent.header.kind = static_cast<uint32_t>(PacketKind::kFlush); },
      [](Sent& sent) { sent.header.kind = static_cast<uint32_t>(PacketKind::kExists); },
      [](Sent& sent) { sent.header.name_bytes = 1; },
      [](Sent& sent) { sent.header.name_bytes = ~uint32_t{0}; },
      [](Sent& sent) { sent.items[0].bytes = kSlab + 1; },
      [](Sent& sent) { sent.items[0].bytes = ~uint64_t{0}; },
      [](Sent& sent) { sent.items[0].offset = kSlab - 4999; },
      [](Sent& sent) { sent.items[0].offset = ~uint64_t{0}; },
      [](Sent& sent) { sent.items[0].bytes = sent.items[1].bytes = kSlab / 2 + 1; },
      [](Sent& sent) { sent.items[0].key_bytes = 4; },
      [](Sent& sent) { sent.items[1].key_bytes = ~uint32_t{0}; },
      [](Sent& sent) { sent.keys += "x"; },
      [](Sent& sent) { sent.keys.pop_back(); }};
  for (size_t i = 0; i < breaks.size(); ++i) {
    Sent sent;
    breaks[i](sent);
    const auto request = ParseRequest(Packed(sent), kSlab);
    ASSERT_FALSE(request) << i;
    EXPECT_EQ(request.error().code, ErrorCode::kCorrupt) << i;
  }
  const auto packet = Packed({});
  for (size_t bytes = 0; bytes < packet.size(); ++bytes) {
    EXPECT_FALSE(ParseRequest(std::span(packet).first(bytes), kSlab)) << bytes;
  }
}

TEST(StoreProtocol, GreetingsAreOfOurVersion) {
  const auto code = [](const Hello& hello) {
    PacketWriter writer;
    writer.Add(hello);
    const auto parsed = ParseHello(writer.Take());
    return parsed ? std::nullopt : std::optional(parsed.error().code);
  };
  EXPECT_EQ(code({}), std::nullopt);
  EXPECT_EQ(code({.version = 2}), ErrorCode::kUnsupported);
  EXPECT_EQ(code({.magic = {'G', 'E', 'T', ' ', '/'}}), ErrorCode::kCorrupt);
  EXPECT_EQ(ParseHello({}).error().code, ErrorCode::kCorrupt);
}

TEST(StoreProtocol, AnswersAndStatsComeBack) {
  BlockStoreStats stats;
  stats.blocks = 3;
  stats.memory_hits = 5;
  stats.clients = 2;
  stats.disk_full = true;
  auto numbers = NumbersOf(stats);
  const auto reply =
      ParseReply(MakeReply({.kind = PacketKind::kStats, .number = 1, .numbers = numbers}));
  ASSERT_TRUE(reply);
  const BlockStoreStats again = StatsOf(reply->numbers);
  EXPECT_EQ(again.blocks, 3);
  EXPECT_EQ(again.memory_hits, 5);
  EXPECT_EQ(again.clients, 2);
  EXPECT_TRUE(again.disk_full);
  numbers.push_back(77);  // of a later version
  EXPECT_EQ(StatsOf(numbers).blocks, 3);
  EXPECT_EQ(StatsOf(std::span(numbers).first(1)).blocks, 3);

  auto packet = MakeReply({.kind = PacketKind::kPut, .number = 1, .results = {{}, {}}});
  ASSERT_TRUE(ParseReply(packet));
  EXPECT_FALSE(ParseReply(std::span(packet).first(packet.size() - 1)));
  packet[16] = std::byte{200};  // an outcome
  EXPECT_FALSE(ParseReply(packet));
  packet[0] = std::byte{0};
  EXPECT_FALSE(ParseReply(packet));
}

}  // namespace
}  // namespace quire::store
