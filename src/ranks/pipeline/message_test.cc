#include "ranks/pipeline/message.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace quire::ranks::pipeline {
namespace {

Message SomeStep() {
  Message message = {.command = Command::kStep, .number = 7, .sequence = 3, .position = 9};
  message.state.fill(0xab);
  message.items = {{.sequence = 1, .tokens = 2, .wanted = Wanted::kAll},
                   {.sequence = 5, .tokens = 1, .wanted = Wanted::kNone}};
  message.tokens = {10, 20, 30};
  message.rows = {1.0f, -2.5f, 0.0f};
  return message;
}

TEST(PipelineMessage, ComesBackAsItWas) {
  Message message = SomeStep();
  message.tokens_least = 16;
  message.tokens_most = 32;
  message.reason = MissReason::kEvicted;
  message.reuse = false;
  message.opens = true;
  message.options = {
      .reserve_tokens = 100, .step_tokens = 64, .on_full = OnFull::kHalt, .publish = false};
  message.error = Error{ErrorCode::kNoSpace, "rank 1: full"};
  message.digests.resize(2);
  message.digests[1].fill(4);
  message.text = "f16";
  const auto read = Decode(Encode(message));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->command, message.command);
  EXPECT_EQ(read->number, message.number);
  EXPECT_EQ(read->state, message.state);
  EXPECT_EQ(read->sequence, message.sequence);
  EXPECT_EQ(read->position, message.position);
  EXPECT_EQ(read->tokens_least, message.tokens_least);
  EXPECT_EQ(read->tokens_most, message.tokens_most);
  EXPECT_EQ(read->reason, message.reason);
  EXPECT_EQ(read->reuse, message.reuse);
  EXPECT_EQ(read->opens, message.opens);
  EXPECT_EQ(read->options.reserve_tokens, message.options.reserve_tokens);
  EXPECT_EQ(read->options.step_tokens, message.options.step_tokens);
  EXPECT_EQ(read->options.on_full, message.options.on_full);
  EXPECT_EQ(read->options.publish, message.options.publish);
  ASSERT_TRUE(read->error.has_value());
  EXPECT_EQ(read->error->code, message.error->code);
  EXPECT_EQ(read->error->message, message.error->message);
  EXPECT_EQ(read->items, message.items);
  EXPECT_EQ(read->tokens, message.tokens);
  EXPECT_EQ(read->digests, message.digests);
  EXPECT_EQ(read->text, message.text);
  EXPECT_EQ(read->rows, message.rows);
}

TEST(PipelineMessage, IsRefusedWhereItEndsEarlyOrLate) {
  std::vector<std::byte> bytes = Encode(SomeStep());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Decode(std::span(bytes).first(length)).has_value()) << length;
  }
  bytes.push_back({});
  EXPECT_FALSE(Decode(bytes).has_value());
}

TEST(PipelineMessage, OfOtherBytesIsReadOrRefused) {
  const std::vector<std::byte> whole = Encode(SomeStep());
  Prng prng(1);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = whole;
    for (uint64_t n = prng.NextBelow(4) + 1; n > 0; --n) {
      bytes[prng.NextBelow(bytes.size())] = static_cast<std::byte>(prng.NextBelow(256));
    }
    const auto read = Decode(bytes);
    if (!read) {
      EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
      continue;
    }
    uint64_t tokens = 0;
    for (const MessageItem& item : read->items) tokens += item.tokens;
    if (read->command == Command::kStep) {
      EXPECT_EQ(tokens, read->tokens.size());
    }
  }
}

TEST(PipelineMessage, OfAnotherBuildSaysSo) {
  std::vector<std::byte> bytes = Encode(SomeStep());
  bytes[0] ^= std::byte{1};
  const auto read = Decode(bytes);
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().message.find("another build"), std::string::npos);
}

}  // namespace
}  // namespace quire::ranks::pipeline
