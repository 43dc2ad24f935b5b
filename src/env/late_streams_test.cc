// Streams that are late: each in its order, independent of the others unless Order was called.
#include "env/late_streams.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

constexpr uint32_t kFirst = 0;
constexpr uint32_t kSecond = 1;

TEST(LateStreams, EachIsInItsOrderAndTheyRunApart) {
  uint64_t overtaken = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    LateStreams streams("test", seed);
    std::vector<int> done[2];
    for (int i = 0; i < 100; ++i) {
      streams.Enqueue(kFirst, [&done, i] { done[0].push_back(i); });
      streams.Enqueue(kSecond, [&done, &overtaken, i] {
        done[1].push_back(i);
        // Enqueued after, and done before.
        if (done[0].empty() || done[0].back() < i) ++overtaken;
      });
    }
    EXPECT_LT(streams.done_total(), 200u);
    streams.RunAll();
    EXPECT_EQ(streams.done_total(), streams.enqueued_total());
    for (const std::vector<int>& of_stream : done) {
      ASSERT_EQ(of_stream.size(), 100u);
      for (int i = 0; i < 100; ++i) EXPECT_EQ(of_stream[i], i);
    }
  }
  EXPECT_GT(overtaken, 100u);
}

TEST(LateStreams, OrderedWorkIsNeverOvertaken) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    LateStreams streams("test", seed);
    int written = 0;
    std::vector<int> seen;
    for (int i = 1; i <= 50; ++i) {
      streams.Enqueue(kFirst, [&written, i] { written = i; });
      streams.Order(kFirst, kSecond);
      streams.Enqueue(kSecond, [&] { seen.push_back(written); });
    }
    const LateStreams::Mark mark = streams.Now(kSecond);
    for (int polls = 0; !streams.Poll(mark); ++polls) ASSERT_LT(polls, 10'000);
    for (int i = 1; i <= 50; ++i) EXPECT_GE(seen[i - 1], i);
  }
}

// As an event that is recorded behind nothing but another event.
TEST(LateStreams, AnOrderHoldsWithoutWorkOfItsOwn) {
  constexpr uint32_t kThird = 2;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    LateStreams streams("test", seed);
    bool done = false;
    for (int i = 0; i < 20; ++i) streams.Enqueue(kFirst, [] {});
    streams.Enqueue(kFirst, [&] { done = true; });
    streams.Order(kFirst, kSecond);
    streams.Order(kSecond, kThird);
    const LateStreams::Mark mark = streams.Now(kThird);
    EXPECT_EQ(streams.IsDone(mark), done);
    bool seen = false;
    streams.Enqueue(kThird, [&] { seen = done; });
    if (seed % 2 == 0) {
      streams.RunUpTo(mark);
      EXPECT_TRUE(done);
    }
    streams.RunUpTo(streams.Now(kThird));
    EXPECT_TRUE(seen);
  }
}

TEST(LateStreams, WaitingForOneLeavesTheOtherBehind) {
  int behind = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    LateStreams streams("test", seed);
    bool done[2] = {false, false};
    streams.Enqueue(kFirst, [&] { done[0] = true; });
    streams.Enqueue(kSecond, [&] { done[1] = true; });
    LateFence(streams, streams.Now(kSecond)).Wait();
    EXPECT_TRUE(done[1]);
    behind += done[0] ? 0 : 1;
    streams.RunAll();
  }
  EXPECT_GT(behind, 20);
}

TEST(LateStreams, AFailedDeviceDoesNothingMoreAndSaysSo) {
  LateStreams streams("test", 3);
  int done = 0;
  streams.FailAfter(5);
  for (int i = 0; i < 10; ++i) streams.Enqueue(kFirst, [&] { ++done; });
  LateFence fence(streams, streams.Now(kFirst));
  fence.Wait();
  EXPECT_TRUE(fence.IsDone());
  EXPECT_EQ(done, 5);
  const auto outcome = streams.outcome();
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
  EXPECT_NE(outcome.error().message.find("test: the device failed"), std::string::npos);
  streams.Enqueue(kSecond, [&] { ++done; });
  streams.Repair();
  streams.RunAll();
  EXPECT_EQ(done, 5) << "what was enqueued before the repair is lost";
  streams.Enqueue(kSecond, [&] { ++done; });
  streams.RunAll();
  EXPECT_EQ(done, 6);
  EXPECT_TRUE(streams.outcome().has_value());
}

}  // namespace
}  // namespace quire
