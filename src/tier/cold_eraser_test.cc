// Single records that are taken out of a cold store: gone for lookups, and after a restart.
#include "tier/cold_eraser.h"

#include <gtest/gtest.h>

#include "tier/cold_test_util.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

class ColdRemoverTest : public ColdTest {
 protected:
  StoreOutcome Remove(uint64_t number) {
    store_->Remove(Record(number).identity().key, 500);
    return WaitOne().outcome;
  }
};

TEST(Segment, WhatAFailedWriteLeavesMayReachFurthest) {
  Segment segment = {.tail = 100, .end = 100};
  segment.Leave();
  segment.tail = 50;
  segment.end = 200;
  segment.Fail();
  EXPECT_EQ(segment.end, 50);
  EXPECT_EQ(segment.LeftoverEnd(), 200);
}

TEST_F(ColdRemoverTest, IsGoneAndTheOthersStay) {
  Open();
  PutAll(1, 10);
  EXPECT_EQ(Remove(4), kOk);
  EXPECT_EQ(Remove(4), kAbsent);
  EXPECT_EQ(Remove(99), kAbsent);
  for (uint64_t i = 1; i <= 10; ++i) {
    EXPECT_EQ(Load(Record(i)).outcome, i == 4 ? kAbsent : kOk) << i;
    EXPECT_EQ(store_->RecordBytesOf(Record(i).identity().key),
              i == 4 ? std::nullopt : std::optional(layout_.record_bytes()));
  }
  EXPECT_EQ(store_->Stats().records, 9);
  EXPECT_EQ(store_->Stats().bytes_live, 9 * layout_.record_bytes());
  EXPECT_EQ(store_->Stats().damaged, 0);
}

TEST_F(ColdRemoverTest, MoreThanOneBatch) {
  options_ = Options(32);
  Open();
  constexpr uint64_t kCount = 150;
  for (uint64_t i = 1; i <= kCount; ++i) PutAll(i, 1);
  for (uint64_t i = 1; i <= kCount; ++i) store_->Remove(Record(i).identity().key, i);
  for (const auto& [tag, ended] : Wait(kCount)) EXPECT_EQ(ended.outcome, kOk) << tag;
  EXPECT_EQ(store_->Stats().records, 0);
  Reopen();
  EXPECT_EQ(store_->Stats().records, 0);
}

TEST_F(ColdRemoverTest, ARecordThatIsBeingWrittenIsRemovedAfterwards) {
  Open();
  Put(Record(1), 1);
  store_->Remove(Record(1).identity().key, 2);
  const auto ended = Wait(2);
  EXPECT_EQ(ended.at(1).outcome, kOk);
  EXPECT_EQ(ended.at(2).outcome, kOk);
  EXPECT_FALSE(Has(Record(1)));
}

TEST_F(ColdRemoverTest, FlushWaitsForRemovals) {
  Open();
  PutAll(1, 1);
  store_->Remove(Record(1).identity().key, 1);
  store_->Flush(2);
  std::vector<StoreCompletion> done;
  while (done.size() < 2) store_->Tick(done, 1000);
  EXPECT_EQ(done[0].tag, 1);
  EXPECT_EQ(done[1].tag, 2);
}

// A removal that completed outlives everything, also the catalogue.
TEST_F(ColdRemoverTest, StaysAwayAfterPowerCutsAndWithoutTheCatalogue) {
  Open();
  PutAll(1, 20);
  for (const uint64_t number : {1, 8, 20}) EXPECT_EQ(Remove(number), kOk);
  for (const bool lose_catalogue : {false, true}) {
    SCOPED_TRACE(lose_catalogue);
    if (lose_catalogue) {
      store_.reset();
      ASSERT_TRUE(files_->Remove("store/catalogue.db"));
    }
    lose_catalogue ? Open() : Crash(/*power=*/true);
    for (uint64_t i = 1; i <= 20; ++i) {
      const StoreCompletion ended = Load(Record(i));
      const bool gone = i == 1 || i == 8 || i == 20;
      EXPECT_EQ(ended.outcome == kOk, !gone) << i << " " << StoreOutcomeName(ended.outcome);
    }
  }
}

TEST_F(ColdRemoverTest, WhatIsPutAgainAfterwardsIsFoundAfterEveryRestart) {
  Open();
  PutAll(1, 3);
  EXPECT_EQ(Remove(2), kOk);
  PutAll(2, 1);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    if (round == 1) {
      store_.reset();
      ASSERT_TRUE(files_->Remove("store/catalogue.db"));
      Open();
    } else {
      Crash(/*power=*/round == 0);
    }
    for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(Load(Record(i)).outcome, kOk) << i;
  }
}

// Both lie in one segment. The catalogue is gone, so that both are found in their headers.
TEST_F(ColdRemoverTest, ARecordWrittenAfterADamagedOneOfItsKeyIsTheOneThatIsFound) {
  Open();
  PutAll(1, 3);
  std::vector<std::byte>* segment = files_->Contents("store/segment-000000");
  ASSERT_NE(segment, nullptr);
  // The payload of the second record.
  (*segment)[layout_.record_bytes() + layout_.header_bytes() + 100] ^= std::byte{1};
  EXPECT_EQ(Load(Record(2)).outcome, kMiss);
  PutAll(2, 1);
  store_.reset();
  ASSERT_TRUE(files_->Remove("store/catalogue.db"));
  Open();
  EXPECT_EQ(Load(Record(2)).outcome, kOk);
}

TEST_F(ColdRemoverTest, ADiskThatRefusesIsToldAndTheRecordIsNotFound) {
  Open();
  PutAll(1, 2);
  files_->set_rates({.write_error = 1});
  EXPECT_EQ(Remove(1), kIo);
  EXPECT_FALSE(Has(Record(1)));
  files_->set_rates({.sync_error = 1});
  EXPECT_EQ(Remove(2), kIo);
  EXPECT_FALSE(Has(Record(2)));
  files_->set_rates({});
  PutAll(3, 1);
  EXPECT_EQ(Remove(3), kOk);
}

// Segments are recycled while records of them are removed, and the numbers stay right.
TEST_F(ColdRemoverTest, RemovingWhileSegmentsAreRecycled) {
  options_ = Options(3);
  Open();
  Prng prng(3);
  for (uint64_t i = 1; i <= 300; ++i) {
    Put(Record(i), i);
    const uint64_t other = 1 + prng.NextBelow(i);
    store_->Remove(Record(other).identity().key, 1000 + i);
    Wait(2);
    const StoreCompletion ended = Load(Record(other));
    EXPECT_EQ(ended.outcome, kAbsent) << StoreOutcomeName(ended.outcome);
  }
  EXPECT_GT(store_->Stats().evicted, 0);
  EXPECT_EQ(store_->Stats().bytes_live, store_->Stats().records * layout_.record_bytes());
  const uint64_t records = store_->Stats().records;
  EXPECT_LE(DiskBytes(), options_.bytes_cap);
  Reopen();
  EXPECT_EQ(store_->Stats().records, records);
}

}  // namespace
}  // namespace quire::tier
