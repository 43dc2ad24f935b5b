#include "cuda/waiting_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <type_traits>
#include <vector>

#include "base/bits.h"

namespace quire::cuda {
namespace {

constexpr WrittenStream StreamAt(uint64_t offset_bytes) {
  return {.layout = {.heads = 2, .dim = 8, .block_tokens = 16, .offset_bytes = offset_bytes}};
}

constexpr SealedStream SealedAt(uint64_t offset_bytes) {
  return {.open = StreamAt(offset_bytes).layout, .sealed = StreamAt(offset_bytes).layout};
}

class WaitingBlocksTest : public testing::Test {
 protected:
  WrittenBlock Tokens(uint32_t slot, uint32_t begin, uint16_t count) {
    return {.slot = &slots_[slot], .token_begin = begin, .tokens = count};
  }
  SealedBlock Seal(uint32_t from, uint32_t to) {
    return {.open_slot = &slots_[from], .sealed_slot = &slots_[to]};
  }
  ChecksumArgs Sums(uint32_t slot, uint32_t sections = 1, uint64_t bytes = 100) {
    ChecksumArgs args{.slots = {&slots_[slot]}, .slot_count = 1, .count = 1, .bytes = bytes};
    args.sections = sections;
    args.results = next_result_;
    next_result_ += sections;
    return args;
  }
  /// How many blocks each launch had; those that seal are below zero, slots of checksums in the
  /// thousands.
  std::vector<int> Launched() {
    std::vector<int> counts;
    waiting_.LaunchAll([&](const auto& args) {
      if constexpr (std::is_same_v<decltype(args), const ChecksumArgs&>) {
        counts.push_back(static_cast<int>(1000 * args.slot_count));
      } else {
        const auto count = static_cast<int>(args.count);
        const bool seals = std::is_same_v<decltype(args), const EncodeArgs&>;
        counts.push_back(seals ? -count : count);
      }
    });
    return counts;
  }

  std::array<std::byte, 1000> slots_{};
  std::array<uint32_t, 1000> results_{};
  uint32_t* next_result_ = results_.data();
  WaitingBlocks waiting_;
};

TEST_F(WaitingBlocksTest, WhatIsApartIsLaunchedTogether) {
  for (uint32_t slot = 0; slot < 10; ++slot) {
    EXPECT_TRUE(waiting_.Write(StreamAt(0), Tokens(slot, 3, 1)));
    EXPECT_TRUE(waiting_.Write(StreamAt(64), Tokens(slot, 3, 1)));
    EXPECT_TRUE(waiting_.Write(StreamAt(0), Tokens(slot, 4, 2)));
    EXPECT_TRUE(waiting_.Seal(SealedAt(0), Seal(slot, 20 + slot)));
    EXPECT_TRUE(waiting_.Seal(SealedAt(64), Seal(slot, 20 + slot)));
  }
  EXPECT_EQ(Launched(), (std::vector{30, -20}));
  EXPECT_EQ(Launched(), std::vector<int>());
}

TEST_F(WaitingBlocksTest, WhatTouchesWhatWaitsDoesNotJoin) {
  ASSERT_TRUE(waiting_.Write(StreamAt(0), Tokens(0, 3, 4)));
  EXPECT_FALSE(waiting_.Write(StreamAt(0), Tokens(0, 6, 1)));
  WrittenStream of_f16 = StreamAt(0);
  of_f16.dtype = Codec::kF16;
  EXPECT_FALSE(waiting_.Write(of_f16, Tokens(0, 0, 16))) << "the same plane";
  ASSERT_TRUE(waiting_.Seal(SealedAt(0), Seal(0, 1)));
  EXPECT_FALSE(waiting_.Write(StreamAt(0), Tokens(0, 0, 1))) << "it is read there";
  EXPECT_FALSE(waiting_.Write(StreamAt(0), Tokens(1, 0, 1))) << "it is written there";
  EXPECT_FALSE(waiting_.Seal(SealedAt(0), Seal(2, 1))) << "twice to one place";
  EXPECT_FALSE(waiting_.Seal(SealedAt(0), Seal(1, 2))) << "of what is sealed now";
  EXPECT_FALSE(waiting_.Seal(SealedAt(64), Seal(2, 0))) << "over what is read";
  EXPECT_EQ(Launched(), (std::vector{1, -1}));
  EXPECT_TRUE(waiting_.Write(StreamAt(0), Tokens(0, 6, 1)));
}

TEST_F(WaitingBlocksTest, ALaunchHasTwoStreamsAndSoManyBlocks) {
  ASSERT_TRUE(waiting_.Write(StreamAt(0), Tokens(0, 0, 1)));
  ASSERT_TRUE(waiting_.Write(StreamAt(64), Tokens(0, 0, 1)));
  EXPECT_FALSE(waiting_.Write(StreamAt(128), Tokens(0, 0, 1)));
  for (uint32_t slot = 1; slot < kBlocksOfLaunch - 1; ++slot) {
    ASSERT_TRUE(waiting_.Write(StreamAt(0), Tokens(slot, 0, 1)));
  }
  EXPECT_FALSE(waiting_.Write(StreamAt(0), Tokens(kBlocksOfLaunch, 0, 1)));
  for (uint32_t slot = 0; slot < kBlocksOfLaunch; ++slot) {
    ASSERT_TRUE(waiting_.Seal(SealedAt(0), Seal(200 + slot, 400 + slot)));
  }
  EXPECT_FALSE(waiting_.Seal(SealedAt(0), Seal(600, 601)));
  EXPECT_EQ(Launched(), (std::vector{128, -128}));
}

TEST_F(WaitingBlocksTest, ChecksumsOfSlotsThatAreCutAlikeAreLaunchedTogether) {
  ASSERT_TRUE(waiting_.Seal(SealedAt(0), Seal(0, 1)));
  for (uint32_t slot = 0; slot < kChecksumsOfLaunch / 2; ++slot) {
    ASSERT_TRUE(waiting_.Sum(Sums(slot, 2)));
  }
  EXPECT_FALSE(waiting_.Sum(Sums(50, 2))) << "no room";
  EXPECT_EQ(Launched(), (std::vector{-1, 32'000}));
  ASSERT_TRUE(waiting_.Sum(Sums(0)));
  EXPECT_FALSE(waiting_.Sum(Sums(1, 1, 200))) << "cut otherwise";
  EXPECT_FALSE(waiting_.Sum(Sums(1))) << "its result is not the next one";
  EXPECT_EQ(Launched(), std::vector{1000});
  EXPECT_EQ(Launched(), std::vector<int>());
}

TEST_F(WaitingBlocksTest, NothingIsWrittenBeforeChecksumsThatWait) {
  ASSERT_TRUE(waiting_.Sum(Sums(0)));
  EXPECT_FALSE(waiting_.Write(StreamAt(0), Tokens(0, 3, 4)));
  EXPECT_FALSE(waiting_.Seal(SealedAt(0), Seal(1, 0)));
  EXPECT_EQ(Launched(), std::vector{1000});
  EXPECT_TRUE(waiting_.Write(StreamAt(0), Tokens(0, 3, 4)));
}

}  // namespace
}  // namespace quire::cuda
