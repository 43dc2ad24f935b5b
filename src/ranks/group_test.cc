#include "ranks/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "ranks/test_ranks.h"

namespace quire::ranks {
namespace {

using ::testing::TestWithParam;

std::vector<uint32_t> Numbers(uint32_t rank, size_t count) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), rank * 1000);
  return numbers;
}

std::span<const std::byte> Bytes(const std::vector<uint32_t>& numbers) {
  return std::as_bytes(std::span(numbers));
}
std::span<std::byte> Bytes(std::vector<uint32_t>& numbers) {
  return std::as_writable_bytes(std::span(numbers));
}

class GroupOf : public TestWithParam<uint32_t> {};

TEST_P(GroupOf, GivesTheSameAnswersInWhateverOrderMessagesCome) {
  const uint32_t size = GetParam();
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    RunRanks(size, {.seed = seed, .delay_us_max = 300}, [&](Group& group) {
      const uint32_t rank = group.rank();
      for (uint32_t root = 0; root < size; ++root) {
        std::vector<uint32_t> numbers = Numbers(rank, 5);
        ASSERT_TRUE(group.Broadcast(root, Bytes(numbers)));
        EXPECT_EQ(numbers, Numbers(root, 5));
        std::vector<std::byte> any(rank == root ? root * 3 : 77, std::byte(root));
        ASSERT_TRUE(group.BroadcastAny(root, any));
        EXPECT_EQ(any, std::vector<std::byte>(root * 3, std::byte(root)));
      }
      std::vector<uint32_t> all(size * 4);
      ASSERT_TRUE(group.AllGather(Bytes(Numbers(rank, 4)), Bytes(all)));
      const auto lengths = group.AllGatherAny(Bytes(Numbers(rank, rank)));
      ASSERT_TRUE(lengths);
      for (uint32_t other = 0; other < size; ++other) {
        EXPECT_TRUE(std::ranges::equal(std::span(all).subspan(other * 4, 4), Numbers(other, 4)));
        EXPECT_TRUE(std::ranges::equal((*lengths)[other], Bytes(Numbers(other, other))));
      }
      ASSERT_TRUE(group.Barrier());
    });
  }
}

// Each rank works on what came while the next segment is under way.
TEST_P(GroupOf, ShiftsSegmentsRoundTheRingBesideComputation) {
  const uint32_t size = GetParam();
  RunRanks(size, {.seed = 3, .delay_us_max = 300}, [&](Group& group) {
    std::vector<uint32_t> segment = Numbers(group.rank(), 64);
    std::vector<uint32_t> next(64);
    for (uint32_t hop = 0; hop < size; ++hop) {
      auto shift = group.Shift(Bytes(std::as_const(segment)), Bytes(next));
      ASSERT_TRUE(shift);
      EXPECT_EQ(segment, Numbers((group.rank() + size - hop) % size, 64));
      ASSERT_TRUE(shift->Wait());
      std::swap(segment, next);
    }
    EXPECT_EQ(segment, Numbers(group.rank(), 64));
    EXPECT_EQ(group.traffic().sent_bytes, size == 1 ? 0 : size * 64 * sizeof(uint32_t));
  });
}

TEST_P(GroupOf, MatchesMessagesOfAPairInTheOrderOfTheCalls) {
  const uint32_t size = GetParam();
  RunRanks(size, {.seed = 5, .delay_us_max = 300}, [&](Group& group) {
    constexpr uint32_t kCount = 8;
    std::vector<std::vector<uint32_t>> numbers(kCount);
    std::vector<Transfer> under_way;
    for (uint32_t i = 0; i < kCount; ++i) {
      const bool sends = group.rank() == 0;
      for (uint32_t other = 1; sends && other < size; ++other) {
        numbers[i] = Numbers(i, 9);
        auto sent = group.Send(other, Bytes(std::as_const(numbers[i])));
        ASSERT_TRUE(sent);
        under_way.push_back(*std::move(sent));
      }
      if (sends) continue;
      numbers[i].resize(9);
      auto received = group.Receive(0, Bytes(numbers[i]));
      ASSERT_TRUE(received);
      under_way.push_back(*std::move(received));
    }
    // From the last one on: which is asked first decides nothing.
    std::ranges::reverse(under_way);
    for (Transfer& transfer : under_way) ASSERT_TRUE(transfer.Wait());
    if (group.rank() == 0) return;
    for (uint32_t i = 0; i < kCount; ++i) EXPECT_EQ(numbers[i], Numbers(i, 9));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, GroupOf, testing::Values(1, 2, 3, 4, 8));

// What the ranks say of a run that ends with an error.
std::vector<Error> ErrorsOf(uint32_t size, const Schedule& schedule,
                            const std::function<Result<void>(Group& group)>& run,
                            const GroupOptions& options = {}) {
  Mutex mutex{LockRank::kLeaf};
  std::vector<Error> errors(size, Error{ErrorCode::kCancelled, "ended well"});
  RunRanks(
      size, schedule,
      [&](Group& group) {
        auto done = run(group);
        MutexLock lock(mutex);
        if (!done) errors[group.rank()] = std::move(done).error();
      },
      options);
  return errors;
}

// Whatever the others were doing, and whichever of them notices first.
TEST(Group, NamesARankThatDiesOnAllOthers) {
  for (uint64_t after = 0; after < 40; after += 3) {
    const uint32_t victim = after % 4;
    const auto errors = ErrorsOf(
        4, {.seed = after + 1, .delay_us_max = 50, .death = Schedule::Death{victim, after}},
        [](Group& group) -> Result<void> {
          std::vector<uint32_t> all(4);
          std::vector<uint32_t> segment = Numbers(group.rank(), 16);
          std::vector<uint32_t> next(16);
          for (uint32_t round = 0; round < 8; ++round) {
            QUIRE_TRY(group.Broadcast(round % 4, Bytes(segment)));
            QUIRE_ASSIGN(auto shift, group.Shift(Bytes(std::as_const(segment)), Bytes(next)));
            QUIRE_TRY(shift.Wait());
            const uint32_t rank = group.rank();
            QUIRE_TRY(group.AllGather(BytesOf(rank), Bytes(all)));
          }
          return {};
        },
        {.deadline_us = 1'000'000});
    // On a busy machine ranks that did not run for so long are named too.
    const std::string name = "rank ([0-3], )*" + std::to_string(victim) + "[ ,]";
    for (uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(errors[rank].message, testing::ContainsRegex(name))
          << "after " << after << ", rank " << rank;
      EXPECT_EQ(errors[rank].code, ErrorCode::kIo);
    }
  }
}

TEST(Group, TellsAllOthersWhyARankCannotGoOn) {
  const auto errors = ErrorsOf(3, {}, [](Group& group) -> Result<void> {
    QUIRE_TRY(group.Barrier());
    if (group.rank() == 1) {
      return std::unexpected(group.Fail({ErrorCode::kNoSpace, "rank 1: the disk is full"}));
    }
    QUIRE_TRY(group.Barrier());
    return {};
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, ErrorCode::kNoSpace);
    EXPECT_EQ(error.message, "rank 1: the disk is full");
  }
}

TEST(Group, RanksAtDifferentCallsAreAnError) {
  const auto errors = ErrorsOf(2, {}, [](Group& group) -> Result<void> {
    std::vector<uint32_t> numbers(group.rank() + 1);
    std::vector<uint32_t> all(2 * numbers.size());
    return group.AllGather(Bytes(std::as_const(numbers)), Bytes(all));
  });
  for (const Error& error : errors) EXPECT_EQ(error.code, ErrorCode::kCorrupt) << error.message;
}

TEST(Group, SaysTheSameAfterItsFirstFailure) {
  const auto errors = ErrorsOf(2, {},
                               [](Group& group) -> Result<void> {
                                 if (group.rank() == 1) return {};  // it leaves
                                 const auto first = group.Barrier();
                                 const auto second = group.Broadcast(0, {});
                                 EXPECT_FALSE(first || second);
                                 EXPECT_EQ(first.error().message, second.error().message);
                                 return first;
                               },
                               {.deadline_us = 150'000});
  EXPECT_NE(errors[0].message.find("rank 1 was not heard for 150 ms"), std::string::npos)
      << errors[0].message;
}

TEST(Group, ATransferThatIsDroppedFailsOnBothSides) {
  const auto errors = ErrorsOf(2, {}, [](Group& group) -> Result<void> {
    std::vector<uint32_t> numbers(4);
    if (group.rank() == 0) {
      QUIRE_ASSIGN(Transfer dropped, group.Receive(1, Bytes(numbers)));
    } else {
      QUIRE_ASSIGN(Transfer received, group.Receive(0, Bytes(numbers)));
      QUIRE_TRY(received.Wait());
    }
    return group.Barrier();
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.message, "ranks: rank 0 gave up receive");
  }
}

}  // namespace
}  // namespace quire::ranks
