// Sequences that stream are opened without waiting for the disk.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cache/below/test_store.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

class OpeningTest : public testing::Test {
 protected:
  OpeningTest() {
    CacheOptions more;
    more.store = store_.store.get();
    more.clock = &store_.clock;
    test_ = std::make_unique<TestCache>(160, SmallGeometry(), EncodedInt8(), 0, more);
    Write();
  }

  /// The store has it, and memory nothing of it.
  void Write() {
    const auto sequence = test_->Open(prompt_, streams_);
    while (sequence->length() < prompt_.size()) {
      const uint64_t end = std::min<uint64_t>(prompt_.size(), sequence->length() + 8);
      Must(test_->model.Feed(*sequence, std::span(prompt_).first(end)));
    }
  }
  Result<std::unique_ptr<Opening>> Begin() {
    return test_->cache->BeginOpen(test_->Acquire(prompt_), streams_);
  }
  /// Tokens [1024, 1392) of one stream, which stay in memory.
  std::vector<float> InMemory(const Sequence& sequence) {
    const Stream key = test_->model.GroupOf(0).streams[0];
    std::vector<float> out((1392 - 1024) * key.heads * key.dim);
    Must(sequence.Gather(0, key.role, 1024, 1392, out));
    return out;
  }
  uint64_t used() const { return test_->cache->stats().hot_bytes_used; }
  /// The disk answers what is asked for from now on only when LetGo says so.
  void Hang() { store_.files.set_latency_us_max(1'000'000'000); }
  void LetGo() {
    store_.files.set_latency_us_max(100);
    store_.clock.Advance(1'000'000'000);
  }

  TestStore store_;
  std::unique_ptr<TestCache> test_;
  const SequenceOptions streams_{
      .reserve_tokens = 1400, .step_tokens = 8, .resident_tokens = 200, .query_heads = 1};
  const std::vector<TokenId> prompt_ = SomeTokens(1400, 1);
};

TEST_F(OpeningTest, WaitsForNothingUntilItIsAsked) {
  const auto at_once = Must(test_->cache->Open(test_->Acquire(prompt_), streams_));
  ASSERT_EQ(at_once->length(), 1392);
  const std::vector<float> expected = InMemory(*at_once);
  Hang();
  const uint64_t begin_us = store_.clock.NowMicros();
  const auto opening = Must(Begin());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(opening->IsDone(0));
  EXPECT_FALSE(opening->IsDone(5'000));
  EXPECT_LE(store_.clock.NowMicros() - begin_us, 10'000);
  LetGo();
  while (!opening->IsDone(0)) store_.transfers->Tick(1000);
  const auto sequence = Must(opening->Take());
  EXPECT_EQ(sequence->length(), 1392);
  EXPECT_EQ(InMemory(*sequence), expected);
}

TEST_F(OpeningTest, TakeWaits) {
  const auto opening = Must(Begin());
  EXPECT_EQ(Must(opening->Take())->length(), 1392);
}

TEST_F(OpeningTest, GivesEverythingBackAtItsEnd) {
  const uint64_t before = used();
  Hang();
  auto opening = Must(Begin());
  EXPECT_FALSE(opening->IsDone(0));
  EXPECT_GT(used(), before);
  LetGo();
  opening.reset();
  EXPECT_EQ(used(), before);
}

TEST_F(OpeningTest, BeginsBeforeABlockThatIsDamaged) {
  store_.DamageSegments(64 << 10);
  const auto sequence = Must(Must(Begin())->Take());
  EXPECT_LT(sequence->length(), 1392);
}

TEST_F(OpeningTest, NothingToWaitForIsRefused) {
  const auto refused = test_->cache->BeginOpen(test_->Acquire(prompt_), {.reserve_tokens = 1400});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(OpeningTest, NoRoomIsSaidAtOnceWhereNothingIsBeingWritten) {
  std::vector<std::unique_ptr<Sequence>> all;
  while (auto more = test_->cache->Open(test_->Acquire(prompt_), streams_)) {
    all.push_back(*std::move(more));
  }
  const auto refused = Begin();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
}

// What memory has, and the store is still being given.
TEST_F(OpeningTest, WaitsForWhatIsBeingWritten) {
  const std::vector<TokenId> other = SomeTokens(600, 3);
  Must(test_->model.Feed(*test_->Open(other, {}), other));
  const auto opening = Must(test_->cache->BeginOpen(test_->Acquire(other), streams_));
  EXPECT_FALSE(opening->IsDone(0));
  EXPECT_EQ(Must(opening->Take())->length(), 592);
}

TEST_F(OpeningTest, WaitsASecondForWhatIsNotWritten) {
  const std::vector<TokenId> other = SomeTokens(600, 3);
  Must(test_->model.Feed(*test_->Open(other, {}), other));
  Hang();
  const auto opening = Must(test_->cache->BeginOpen(test_->Acquire(other), streams_));
  store_.clock.Advance(900'000);
  EXPECT_FALSE(opening->IsDone(0));
  store_.clock.Advance(200'000);
  EXPECT_TRUE(opening->IsDone(0));
  EXPECT_EQ(Must(opening->Take())->length(), 0);
  LetGo();
}

}  // namespace
}  // namespace quire::cache
