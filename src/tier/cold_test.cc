// What a cold store does while it runs.
#include "tier/cold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tier/cold_test_util.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

// Records of 16 KiB: eight to a segment.
class ColdStoreTest : public ColdTest {};

TEST_F(ColdStoreTest, GivesBackWhatWasPut) {
  Open();
  PutAll(1, 20);
  for (uint64_t i = 1; i <= 20; ++i) {
    EXPECT_TRUE(Has(Record(i)));
    EXPECT_EQ(Load(Record(i)).outcome, kOk);
  }
  EXPECT_FALSE(Has(Record(21)));
  EXPECT_EQ(Load(Record(21)).outcome, kAbsent);
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.records, 20);
  EXPECT_EQ(stats.bytes_live, 20 * layout_.record_bytes());
  EXPECT_EQ(stats.puts[static_cast<size_t>(kOk)], 20);
  EXPECT_EQ(stats.loads[static_cast<size_t>(kOk)], 20);
  EXPECT_EQ(stats.loads[static_cast<size_t>(kAbsent)], 1);
}

TEST_F(ColdStoreTest, IsDurableAfterTheIntervalAndNotBefore) {
  Open();
  Put(Record(1));
  std::vector<StoreCompletion> done;
  clock_.Advance(options_.commit_interval_us - 1);
  for (int i = 0; i < 20; ++i) store_->Tick(done, 0);
  EXPECT_TRUE(done.empty());
  EXPECT_FALSE(Has(Record(1)));
  clock_.Advance(1);
  EXPECT_EQ(WaitOne().outcome, kOk);
  EXPECT_TRUE(Has(Record(1)));
}

TEST_F(ColdStoreTest, FlushDoesNotWaitForTheInterval) {
  Open();
  Put(Record(1));
  const uint64_t begin_us = clock_.NowMicros();
  store_->Flush(9);
  EXPECT_EQ(Wait(2).at(9).outcome, kOk);
  EXPECT_LT(clock_.NowMicros() - begin_us, options_.commit_interval_us);
  EXPECT_EQ(Flush(), kOk);  // of nothing
}

TEST_F(ColdStoreTest, WhoPutsWhatIsBeingWrittenHearsHowThatEnds) {
  Open();
  files_->set_rates({.write_error = 1});
  Put(Record(1), 1);
  Put(Record(1), 2);
  const auto ended = Wait(2);
  EXPECT_EQ(ended.at(1).outcome, kIo);
  EXPECT_EQ(ended.at(2).outcome, kIo);
}

TEST_F(ColdStoreTest, AFlushEndsThoughTheDiskNeverTakesAnErasure) {
  Open();
  PutAll(0, 1, "a");
  files_->set_rates({.sync_error = 1, .call_error = 1});
  store_->Erase(PublisherOf("a"), 1, 1);
  store_->Flush(2);
  const auto ended = Wait(2);
  EXPECT_EQ(ended.at(1).outcome, kIo);
  EXPECT_EQ(ended.at(2).outcome, kIo);
}

TEST_F(ColdStoreTest, TheSameKeyIsWrittenOnce) {
  Open();
  Put(Record(1), 1);
  Put(Record(1), 2);
  EXPECT_EQ(Wait(2).at(2).outcome, kPresent);
  Put(Record(1), 3);
  EXPECT_EQ(WaitOne().outcome, kPresent);
  EXPECT_EQ(store_->Stats().bytes_put, layout_.record_bytes());
}

TEST_F(ColdStoreTest, SectionsAreReadAlone) {
  Open();
  PutAll(1, 3);
  const uint64_t before = store_->Stats().bytes_read;
  Get(Record(2), 5, 0, 3, 1);
  EXPECT_EQ(WaitOne().outcome, kOk);
  EXPECT_TRUE(Same(Record(2), 5, 3));
  // A header, and the two pages on which the last section lies.
  EXPECT_EQ(store_->Stats().bytes_read - before, 4096 + 4096);
  Get(Record(2), 6, 0, 1, 2);
  EXPECT_EQ(WaitOne().outcome, kOk);
  EXPECT_TRUE(Same(Record(2), 6, 1));
}

// They say what the bytes were when the caller compared them, whatever happened to them since.
TEST_F(ColdStoreTest, ChecksumsOfTheCallerAreTheRecords) {
  Open();
  for (const bool right : {true, false}) {
    const TestRecord& record = Record(right ? 1 : 2);
    std::vector<uint32_t> crcs;
    for (const auto& section : record.sections()) crcs.push_back(Crc32c(section));
    if (!right) ++crcs[1];
    Put(record, 1, crcs);
    EXPECT_EQ(WaitOne().outcome, kOk);
    const StoreCompletion ended = Load(record);
    EXPECT_EQ(ended.outcome, right ? kOk : kMiss);
    EXPECT_EQ(ended.miss, right ? RecordMiss::kNone : RecordMiss::kPayloadDamaged);
  }
}

TEST_F(ColdStoreTest, RecordsLargerThanAChunkPassThroughSeveral) {
  const RecordLayout large = TestLayout(16, 1, 60'000);
  Open();
  const TestRecord record(7, large);
  Put(record);
  EXPECT_EQ(WaitOne().outcome, kOk);
  EXPECT_EQ(Load(record).outcome, kOk);
}

TEST_F(ColdStoreTest, OneOversizedRecordIsRefused) {
  const RecordLayout large = TestLayout(16, 1, 64 << 10);
  Open();
  Put(TestRecord(7, large));
  EXPECT_EQ(WaitOne().outcome, kTooLarge);
  EXPECT_EQ(store_->Stats().bytes_written, 0);
}

TEST_F(ColdStoreTest, MoreThanTheStagingHoldsIsRefusedAndNotWaitedFor) {
  Open();
  uint64_t busy = 0;
  for (uint64_t i = 0; i < 60; ++i) Put(Record(i), i);  // 960 KiB; half a megabyte is there
  for (const auto& [tag, ended] : Wait(60)) busy += ended.outcome == kBusy ? 1 : 0;
  EXPECT_GT(busy, 20);
  EXPECT_EQ(store_->Stats().records, 60 - busy);
}

TEST_F(ColdStoreTest, ManyRecordsBecomeFewRequests) {
  Open();
  for (uint64_t i = 0; i < 8; ++i) Put(Record(i), i);
  EXPECT_EQ(store_->Stats().in_flight, 2);  // 128 KiB in chunks of 64
  Wait(8);
}

TEST_F(ColdStoreTest, ALoadThatIsLateEndsAtItsDeadline) {
  files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 1, .latency_us_max = 50'000},
                                         clock_);
  Open();
  PutAll(1, 20);
  const uint64_t now_us = clock_.NowMicros();
  for (uint64_t i = 1; i <= 20; ++i) Get(Record(i), i, now_us + 20'000);
  uint64_t late = 0, in_time = 0;
  for (const auto& [tag, ended] : Wait(20)) {
    late += ended.outcome == kDeadline ? 1 : 0;
    in_time += ended.outcome == kOk ? 1 : 0;
  }
  EXPECT_EQ(late + in_time, 20);
  EXPECT_GT(late, 0);
  EXPECT_GT(in_time, 0);
  EXPECT_EQ(store_->Stats().loads_pending, 0);
  EXPECT_EQ(Load(Record(3)).outcome, kOk);
}

TEST_F(ColdStoreTest, WhatIsCancelledIsNotTouched) {
  Open();
  PutAll(1, 3);
  Get(Record(1), 1);
  Get(Record(2), 2);
  store_->Cancel(1);
  loaded_[1].sections.clear();  // its memory is gone
  const auto ended = Wait(2);
  EXPECT_EQ(ended.at(1).outcome, kCancelled);
  EXPECT_EQ(ended.at(2).outcome, kOk);
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
}

TEST_F(ColdStoreTest, AnotherIdentityIsAMissWithItsReasonAndNothingElseChanges) {
  Open();
  PutAll(1, 1);
  const auto load_as = [&](const std::function<void(RecordIdentity&)>& change) {
    TestRecord other(1, layout_);
    change(other.identity());
    return Load(other);
  };
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.profile[0] ^= 1; }).miss, RecordMiss::kOtherProfile);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.geometry[0] ^= 1; }).miss,
            RecordMiss::kOtherGeometry);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.key[31] ^= 1; }).miss, RecordMiss::kOtherKey);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.block_index = 99; }).miss, RecordMiss::kOtherTokens);
  EXPECT_EQ(load_as([](RecordIdentity& i) { i.publisher = PublisherOf("x"); }).miss,
            RecordMiss::kOtherPublisher);
  EXPECT_EQ(Load(TestRecord(1, TestLayout(16, 3, 3000))).miss, RecordMiss::kOtherLayout);
  EXPECT_EQ(Load(TestRecord(1, TestLayout(16, 2, 3001))).miss, RecordMiss::kOtherLayout);
  EXPECT_EQ(store_->Stats().damaged, 0);
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
}

TEST_F(ColdStoreTest, DamageIsAMissAndIsForgotten) {
  Open();
  PutAll(1, 3);
  auto& segment = *files_->Contents("store/segment-000000");
  segment[16384 + 4096 + 100] ^= std::byte{4};  // payload of the second
  EXPECT_EQ(Load(Record(2)).miss, RecordMiss::kPayloadDamaged);
  EXPECT_FALSE(Has(Record(2)));
  segment[2 * 16384 + 50] ^= std::byte{4};  // header of the third
  EXPECT_EQ(Load(Record(3)).miss, RecordMiss::kHeaderDamaged);
  EXPECT_EQ(store_->Stats().damaged, 2);
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
  Put(Record(2));  // computed again, it is stored again
  EXPECT_EQ(WaitOne().outcome, kOk);
  EXPECT_EQ(Load(Record(2)).outcome, kOk);
}

TEST_F(ColdStoreTest, ATruncatedSegmentIsAMiss) {
  Open();
  PutAll(1, 8);
  files_->Contents("store/segment-000000")->resize(7 * 16384 + 5000);
  EXPECT_EQ(Load(Record(8)).miss, RecordMiss::kTruncated);
  EXPECT_EQ(Load(Record(7)).outcome, kOk);
}

TEST_F(ColdStoreTest, ScrubbingFindsDamageThatNobodyReads) {
  options_.scrub_bytes_per_s = 1 << 20;
  Open();
  PutAll(1, 9);  // the first segment is full
  (*files_->Contents("store/segment-000000"))[3 * 16384 + 9000] ^= std::byte{1};
  std::vector<StoreCompletion> done;
  for (int i = 0; i < 3000 && store_->Stats().damaged == 0; ++i) {
    store_->Tick(done, 1000);
    clock_.Advance(1000);
  }
  EXPECT_EQ(store_->Stats().damaged, 1);
  EXPECT_FALSE(Has(Record(4)));
  EXPECT_TRUE(Has(Record(5)));
}

TEST_F(ColdStoreTest, AReadErrorIsNoDamage) {
  Open();
  PutAll(1, 1);
  files_->set_rates({.read_error = 1});
  EXPECT_EQ(Load(Record(1)).outcome, kIo);
  files_->set_rates({});
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
}

TEST_F(ColdStoreTest, AFailedWriteOrSyncIsNotDurableAndTheNextIs) {
  for (const FaultRates& rates :
       {FaultRates{.write_error = 1}, FaultRates{.short_write = 1}, FaultRates{.sync_error = 1}}) {
    Open();
    PutAll(1, 2);
    files_->set_rates(rates);
    Put(Record(3), 3);
    EXPECT_EQ(WaitOne().outcome, kIo);
    EXPECT_FALSE(Has(Record(3)));
    files_->set_rates({});
    PutAll(3, 1);
    EXPECT_EQ(Load(Record(1)).outcome, kOk);
    EXPECT_EQ(Load(Record(3)).outcome, kOk);
    store_.reset();
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 5}, clock_);
  }
}

TEST_F(ColdStoreTest, ASecondOwnerIsToldSo) {
  Open();
  const auto second = ColdStore::Open(options_, *files_, clock_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kBusy);
  EXPECT_THAT(second.error().message, testing::HasSubstr("another process has it open"));
  Reopen();
}

TEST_F(ColdStoreTest, SizesThatNoStoreCanHaveAreRefused) {
  const auto refuses = [&](const std::function<void(ColdOptions&)>& change) {
    ColdOptions options = options_;
    change(options);
    const auto opened = ColdStore::Open(options, *files_, clock_);
    return !opened && opened.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](ColdOptions& o) { o.bytes_cap = 100'000; }));
  EXPECT_TRUE(refuses([](ColdOptions& o) { o.bytes_cap = 0; }));
  EXPECT_TRUE(refuses([](ColdOptions& o) { o.segment_bytes = 100'000; }));
  EXPECT_TRUE(refuses([](ColdOptions& o) { o.segment_bytes = uint64_t{1} << 40; }));
  EXPECT_TRUE(refuses([](ColdOptions& o) { o.chunk_bytes = 4096; }));
  EXPECT_FALSE(refuses([](ColdOptions&) {}));
}

}  // namespace
}  // namespace quire::tier
