// The cap, what goes first when it is reached, quotas and floors, erasing, and a full disk.
#include <gtest/gtest.h>

#include "tier/cold.h"
#include "tier/cold_test_util.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

// Eight segments of eight records each.
class ColdSpaceTest : public ColdTest {
 protected:
  uint64_t CountOf(std::string_view domain, uint64_t first, uint64_t count) {
    uint64_t found = 0;
    for (uint64_t i = first; i < first + count; ++i) found += Has(Record(i, domain)) ? 1 : 0;
    return found;
  }
  /// Puts a record as the block with so many before it.
  void PutInChain(const TestRecord& record, uint64_t block_index) {
    RecordIdentity identity = record.identity();
    identity.block_index = block_index;
    const PutRequest request = {
        .identity = identity, .layout = &record.layout(), .sections = record.sections(), .tag = 1};
    store_->Put({&request, 1});
    EXPECT_EQ(WaitOne().outcome, kOk);
  }
  void Use(const TestRecord& record, uint64_t block_index) {
    const RecordUse use = {.key = record.identity().key, .block_index = block_index};
    Presence presence = Presence::kUnknown;
    store_->Touch({&use, 1}, {&presence, 1});
    EXPECT_EQ(presence, Presence::kPresent);
  }
};

TEST_F(ColdSpaceTest, TheCapHoldsAtEveryStepAndTheLeastRecentGo) {
  Open();
  for (uint64_t i = 0; i < 200; ++i) {
    PutAll(i, 1);
    for (uint64_t hot = 0; hot < 8 && i >= 8; ++hot) {
      EXPECT_EQ(Load(Record(hot)).outcome, kOk);
    }
    ASSERT_LE(DiskBytes(), options_.bytes_cap);
  }
  // The first segment was read all the time, so it is still there; the one after it is not.
  EXPECT_FALSE(Has(Record(8)));
  EXPECT_TRUE(Has(Record(199)));
  EXPECT_EQ(store_->Stats().records, 64);
  EXPECT_EQ(store_->Stats().evicted, 136);
}

// A prompt that nearly fills the store, then others: its end goes, so that the rest is of use.
TEST_F(ColdSpaceTest, TheEndOfAChainGoesBeforeItsFront) {
  for (const bool with_catalogue : {true, false}) {
    SCOPED_TRACE(with_catalogue);
    files_ =
        std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 5, .latency_us_max = 100}, clock_);
    Open();
    for (uint64_t i = 0; i < 56; ++i) PutInChain(Record(i), /*block_index=*/i);
    Flush();
    if (!with_catalogue) {
      store_.reset();
      EXPECT_TRUE(files_->Remove("store/catalogue.db"));
    }
    Reopen();
    for (uint64_t i = 100; i < 124; ++i) PutInChain(Record(i), 0);
    Flush();
    uint64_t front = 0;
    while (front < 56 && Has(Record(front))) ++front;
    EXPECT_EQ(front, 40) << "two segments of eight went";
    EXPECT_EQ(CountOf({}, 100, 24), 24);
    store_.reset();
  }
}

TEST_F(ColdSpaceTest, UsedFromItsFrontOnAChainGoesFromItsEnd) {
  Open();
  for (uint64_t i = 0; i < 32; ++i) PutInChain(Record(i), i);
  for (uint64_t i = 100; i < 132; ++i) PutInChain(Record(i), i - 100);
  for (uint64_t i = 0; i < 32; ++i) Use(Record(i), i);  // the first one, again
  for (uint64_t i = 200; i < 216; ++i) PutInChain(Record(i), 0);
  Flush();
  EXPECT_EQ(CountOf({}, 0, 32), 32);
  EXPECT_EQ(CountOf({}, 100, 16), 16);
  EXPECT_EQ(CountOf({}, 116, 16), 0);
  // What is made again though it is there is in use, too.
  for (uint64_t i = 100; i < 116; ++i) Put(Record(i), i);
  Wait(16);
  for (uint64_t i = 300; i < 316; ++i) PutInChain(Record(i), 0);
  Flush();
  EXPECT_EQ(CountOf({}, 100, 16), 16);
  EXPECT_EQ(CountOf({}, 16, 16), 0);
}

TEST_F(ColdSpaceTest, ASegmentIsWorthWhatItsMostUsedRecordsAre) {
  Open();
  PutAll(0, 64);
  for (uint64_t i = 8; i < 64; ++i) Use(Record(i), 0);
  Use(Record(0), 0);  // of eight in the segment that is the least recent by far
  PutAll(100, 8);
  EXPECT_TRUE(Has(Record(0)));
  EXPECT_EQ(CountOf({}, 8, 8), 0);
}

// As in a store that an older build has filled, which counted uses without depth.
TEST_F(ColdSpaceTest, ATimeOfUseMayLieBeforeTheOneBefore) {
  options_ = Options(24);  // more than are looked at before one goes
  Open();
  for (uint64_t i = 0; i < 192; ++i) PutInChain(Record(i), 0);
  for (uint64_t i = 184; i < 192; ++i) Use(Record(i), /*block_index=*/1000);
  PutInChain(Record(200), 0);
  EXPECT_EQ(CountOf({}, 184, 8), 0);
  EXPECT_EQ(CountOf({}, 0, 184), 184);
}

TEST_F(ColdSpaceTest, AFloorIsKeptAgainstOthersAndNotAgainstItself) {
  options_.limits = {{.publisher = PublisherOf("a"), .bytes_floor = 2 * kTestSegmentBytes}};
  Open();
  PutAll(0, 32, "a");
  PutAll(100, 104, "b");
  EXPECT_EQ(CountOf("a", 0, 32), 16);
  // Six segments, each of which begins with a void: "a" was there before.
  EXPECT_EQ(CountOf("b", 100, 104), 6 * 7);
  PutAll(200, 100, "a");  // it takes back what others have above their floors
  EXPECT_GE(CountOf("a", 200, 100), 48);
}

TEST_F(ColdSpaceTest, AQuotaIsNeverExceeded) {
  options_.limits = {{.publisher = PublisherOf("a"), .bytes_quota = 2 * kTestSegmentBytes},
                     {.publisher = PublisherOf("none"), .bytes_quota = 1000}};
  Open();
  PutAll(100, 8, "b");
  PutAll(0, 40, "a");
  EXPECT_LE(CountOf("a", 0, 40), 16);
  EXPECT_EQ(CountOf("b", 100, 8), 8);
  Put(Record(1, "none"));
  EXPECT_EQ(WaitOne().outcome, kQuota);
}

TEST_F(ColdSpaceTest, MorePublishersThanSegmentsTakeTurns) {
  Open();
  for (uint64_t i = 0; i < 30; ++i) PutAll(i, 1, "tenant" + std::to_string(i % 15));
  EXPECT_TRUE(Has(Record(29, "tenant14")));
  EXPECT_EQ(store_->Stats().records, 8);
}

TEST_F(ColdSpaceTest, EverythingProtectedIsNoSpace) {
  options_.limits = {{.publisher = PublisherOf("a"), .bytes_floor = 8 * kTestSegmentBytes}};
  Open();
  PutAll(0, 64, "a");
  Put(Record(1, "b"));
  EXPECT_EQ(WaitOne().outcome, kNoSpace);
  EXPECT_EQ(CountOf("a", 0, 64), 64);
}

TEST_F(ColdSpaceTest, ASegmentThatIsReadIsNotWrittenAnew) {
  files_ =
      std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 1, .latency_us_max = 100}, clock_);
  Open();
  PutAll(0, 64);
  for (uint64_t i = 0; i < 64; ++i) Get(Record(i), i);  // of every segment
  Put(Record(100), 100);
  const auto ended = Wait(65);
  EXPECT_EQ(ended.at(100).outcome, kBusy);
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(ended.at(i).outcome, kOk);
  PutAll(100, 1);
}

TEST_F(ColdSpaceTest, ErasingActsAtOnceIsDurableAndOverwrites) {
  Open();
  PutAll(0, 12, "a");
  PutAll(0, 4, "b");
  Get(Record(5, "a"), 5);
  Put(Record(50, "a"), 50);
  store_->Erase(PublisherOf("a"), 1, 7);
  EXPECT_FALSE(Has(Record(5, "a")));
  EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 1);
  const auto ended = Wait(3);
  EXPECT_EQ(ended.at(7).outcome, kOk);
  EXPECT_EQ(ended.at(5).outcome, kErased);
  EXPECT_EQ(ended.at(50).outcome, kErased);
  EXPECT_EQ(Load(Record(6, "a")).outcome, kErased);
  Put(Record(5, "a"));
  EXPECT_EQ(WaitOne().outcome, kErased);
  Flush();
  EXPECT_EQ(store_->Stats().bytes_erased, 0);
  EXPECT_EQ(CountOf("b", 0, 4), 4);
  // No byte of it is left anywhere.
  const TestRecord& gone = Record(5, "a");
  for (const std::string& path : files_->Paths()) {
    EXPECT_EQ(std::ranges::search(*files_->Contents(path), gone.sections()[0].first(64)).size(), 0)
        << path;
    EXPECT_EQ(std::ranges::search(*files_->Contents(path),
                                  std::as_bytes(std::span(gone.identity().key)).first(16))
                  .size(),
              0)
        << path;
  }
  PutAll(0, 3, "a", 1);
  EXPECT_EQ(Load(Record(1, "a", 1)).outcome, kOk);
}

TEST_F(ColdSpaceTest, SaysWhatEachPublisherHas) {
  Open();
  PutAll(0, 9, "a");  // eight to a segment
  PutAll(0, 3, "b");
  const auto usage = [&](std::string_view of, uint64_t records, uint64_t segments) {
    const PublisherUsage expected = {.records = records,
                                     .bytes_live = records * layout_.record_bytes(),
                                     .bytes = segments * store_->segment_bytes()};
    return store_->UsageOf(PublisherOf(of)) == expected;
  };
  const auto all_as_put = [&] { return usage("a", 9, 2) && usage("b", 3, 1) && usage("c", 0, 0); };
  EXPECT_TRUE(all_as_put());
  Reopen();
  EXPECT_TRUE(all_as_put());
  Crash(/*power=*/true);
  EXPECT_TRUE(all_as_put());
  store_->Erase(PublisherOf("a"), 1, 7);
  EXPECT_EQ(WaitOne().outcome, kOk);
  EXPECT_TRUE(usage("a", 0, 0));
  EXPECT_TRUE(usage("b", 3, 1));
}

TEST_F(ColdSpaceTest, RecordsOfAnEpochThatTheStoreWasNotToldAreRefused) {
  Open();
  Put(Record(1, "a", 3));
  EXPECT_EQ(WaitOne().outcome, kUnknownEpoch);
  store_->Erase(PublisherOf("a"), 3, 1);
  EXPECT_EQ(WaitOne().outcome, kOk);
  PutAll(1, 1, "a", 3);
}

TEST_F(ColdSpaceTest, AnErasureThatCannotBeSavedSaysSoAndIsTriedAgain) {
  Open();
  PutAll(0, 2, "a");
  files_->set_rates({.sync_error = 1, .call_error = 1});
  store_->Erase(PublisherOf("a"), 1, 7);
  EXPECT_EQ(WaitOne().outcome, kIo);
  EXPECT_FALSE(Has(Record(1, "a")));
  Put(Record(1, "a", 1));  // a crash now would leave a record of an epoch that no file knows
  EXPECT_EQ(WaitOne().outcome, kIo);
  files_->set_rates({});
  Flush();  // it is tried again without being asked
  PutAll(1, 1, "a", 1);
  Crash(/*power=*/true);
  EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 1);
  EXPECT_FALSE(Has(Record(1, "a")));
}

TEST_F(ColdSpaceTest, AFullDiskStopsGrowingAndReadingGoesOn) {
  Open();
  PutAll(0, 17);
  files_->set_disk_bytes(DiskBytes() + 20'000);
  uint64_t stored = 0;
  for (uint64_t i = 17; i < 60; ++i) {
    Put(Record(i), i);
    stored += WaitOne().outcome == kOk ? 1 : 0;
  }
  EXPECT_TRUE(store_->Stats().disk_full);
  EXPECT_EQ(stored, 43);  // in place of older ones
  EXPECT_EQ(store_->Stats().records, 20);
  EXPECT_TRUE(Has(Record(59)));
  EXPECT_EQ(Load(Record(59)).outcome, kOk);
}

// A write failed in its only segment, and no other can be made.
TEST_F(ColdSpaceTest, WhatIsStoredIsNotGivenUpForAWriteThatIsLikelyToFail) {
  Open();
  PutAll(0, 3);
  files_->set_disk_bytes(DiskBytes());
  files_->set_rates({.write_error = 1});
  Put(Record(3), 3);
  EXPECT_EQ(WaitOne().outcome, kIo);
  files_->set_rates({});
  EXPECT_EQ(Flush(), kOk);
  Put(Record(4), 4);
  EXPECT_EQ(WaitOne().outcome, kIo);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(Load(Record(i)).outcome, kOk) << i;
  clock_.Advance(31'000'000);
  PutAll(5, 1);  // in place of these
  EXPECT_EQ(Load(Record(5)).outcome, kOk);
}

// What was erased there cannot be overwritten, and no other segment can be made. A caller that
// is told that the store is busy asks again and again.
TEST_F(ColdSpaceTest, AnErasedSegmentThatCannotBeOverwrittenIsNoRoomThatComesSoon) {
  Open();
  PutAll(0, 3, "a");
  files_->set_disk_bytes(DiskBytes());
  files_->set_rates({.write_error = 1});
  store_->Erase(PublisherOf("a"), 1, 7);
  EXPECT_EQ(Flush(), kIo);
  Put(Record(4, "b"), 4);
  std::map<uint64_t, StoreCompletion> ended;
  while (!ended.contains(4)) ended.merge(Wait(1));
  EXPECT_EQ(ended[4].outcome, kNoSpace);
  files_->set_rates({});
  Flush();
  EXPECT_EQ(Flush(), kOk);
  PutAll(5, 1, "b");
  EXPECT_EQ(Load(Record(5, "b")).outcome, kOk);
}

TEST_F(ColdSpaceTest, WithoutRoomForOneSegmentNothingIsStoredAndNothingStops) {
  files_->set_disk_bytes(100'000);
  Open();
  for (uint64_t i = 0; i < 5; ++i) {
    Put(Record(i), i);
    EXPECT_EQ(WaitOne().outcome, kNoSpace);
  }
  EXPECT_EQ(Load(Record(1)).outcome, kAbsent);
  EXPECT_TRUE(store_->Stats().disk_full);
  // There is room again.
  files_->set_disk_bytes(~uint64_t{0});
  clock_.Advance(31'000'000);
  PutAll(1, 1);
  EXPECT_FALSE(store_->Stats().disk_full);
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
}

TEST_F(ColdSpaceTest, ACatalogueThatOutgrowsItsShareGoes) {
  options_.catalogue_bytes_max = 8192;
  Open();
  PutAll(0, 30);
  EXPECT_EQ(files_->Contents("store/catalogue.db"), nullptr);
  EXPECT_EQ(Load(Record(29)).outcome, kOk);
  Reopen();
  EXPECT_EQ(store_->Stats().records, 30);
}

// The disk had no room for it: when it has again the catalogue comes back whole, without a restart.
TEST_F(ColdSpaceTest, ACatalogueComesBackWhenTheDiskHasRoomAgain) {
  Open();
  PutAll(0, 5);
  files_->set_disk_bytes(files_->bytes_used());
  PutAll(5, 3);
  EXPECT_EQ(files_->Contents("store/catalogue.db"), nullptr);
  files_->set_disk_bytes(~uint64_t{0});
  clock_.Advance(60'000'000);
  PutAll(8, 2);
  EXPECT_NE(files_->Contents("store/catalogue.db"), nullptr);
  Crash(/*power=*/false);
  EXPECT_FALSE(store_->recovery().catalogue_rebuilt);
  EXPECT_EQ(store_->recovery().records_from_catalogue, 10);
  EXPECT_EQ(store_->Stats().records, 10);
}

TEST_F(ColdSpaceTest, AnEmptyStoreIsMadeForLongRecords) {
  const RecordLayout large = TestLayout(16, 1, 120'000);
  const uint64_t bytes = large.record_bytes();
  Open();
  ASSERT_GT(bytes, store_->record_bytes_max());
  EXPECT_GE(store_->FitRecords(bytes), bytes);
  Reopen();  // as a process that ended before it wrote anything
  EXPECT_GE(store_->record_bytes_max(), bytes);
  for (uint64_t i = 0; i < 20; ++i) {
    Put(TestRecord(i, large), i);
    EXPECT_EQ(WaitOne().outcome, kOk) << i;
    EXPECT_EQ(Load(TestRecord(i, large)).outcome, kOk) << i;
    EXPECT_LE(DiskBytes(), options_.bytes_cap);
  }
  // It has something now, and stays as it is.
  const uint64_t most = store_->record_bytes_max();
  EXPECT_EQ(store_->FitRecords(most + 1), most);
  Crash(/*power=*/true);
  EXPECT_EQ(Load(TestRecord(19, large)).outcome, kOk);
  EXPECT_EQ(store_->record_bytes_max(), most);
}

TEST_F(ColdSpaceTest, AStoreIsNotMadeForRecordsThatItsCapHasNoRoomFor) {
  Open();
  const uint64_t most = store_->record_bytes_max();
  EXPECT_EQ(store_->FitRecords(options_.bytes_cap / 2), most);
  EXPECT_EQ(store_->FitRecords(most), most);
  PutAll(1, 3);
  EXPECT_EQ(Load(Record(2)).outcome, kOk);
  // What passes through staging whole is no longer than that.
  options_.staging_bytes = 128 << 10;
  store_.reset();
  Open();
  EXPECT_EQ(store_->FitRecords(1000), 64 << 10);
}

}  // namespace
}  // namespace quire::tier
