// What a cold store finds again after it was closed, killed, cut off from power, or damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tier/cold.h"
#include "tier/cold_test_util.h"
#include "tier/tools.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

class ColdRestartTest : public ColdTest {
 protected:
  void ExpectAll(uint64_t first, uint64_t count, std::string_view domain = {}) {
    for (uint64_t i = first; i < first + count; ++i) {
      ASSERT_TRUE(Has(Record(i, domain))) << i;
      ASSERT_EQ(Load(Record(i, domain)).outcome, kOk) << i;
    }
  }
  void Damage(const std::string& name, uint64_t offset) {
    auto* contents = files_->Contents("store/" + name);
    ASSERT_NE(contents, nullptr) << name;
    ASSERT_LT(offset, contents->size());
    (*contents)[offset] ^= std::byte{0x10};
  }
};

TEST_F(ColdRestartTest, EverythingIsFoundFromTheCatalogueWithoutReadingPayload) {
  Open();
  PutAll(0, 30);
  Reopen();
  EXPECT_EQ(store_->Stats().records, 30);
  EXPECT_EQ(store_->recovery().records_from_catalogue, 30);
  EXPECT_EQ(store_->recovery().records_found, 0);
  EXPECT_EQ(store_->recovery().segments_scanned,
            1);  // the one that was being written, from its end
  ExpectAll(0, 30);
}

TEST_F(ColdRestartTest, WritingGoesOnWhereItStopped) {
  Open();
  PutAll(0, 3);
  Reopen();
  PutAll(3, 3);
  Reopen();
  ExpectAll(0, 6);
  EXPECT_EQ(files_->Contents("store/segment-000001"), nullptr);
}

TEST_F(ColdRestartTest, WhatWasDurableSurvivesPowerCutsAndKills) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = seed, .latency_us_max = 100},
                                           clock_);
    Open();
    PutAll(0, 5 + seed % 10);
    for (uint64_t i = 50; i < 55; ++i) Put(Record(i), i);
    std::vector<StoreCompletion> done;
    for (uint64_t i = 0; i < seed % 5; ++i) store_->Tick(done, 20);
    Crash(/*power=*/seed % 2 == 0);
    SCOPED_TRACE(seed);
    ExpectAll(0, 5 + seed % 10);
    for (uint64_t i = 50; i < 55; ++i) {
      if (Has(Record(i))) Load(Record(i));  // the right bytes or a miss
    }
    PutAll(60, 10);
    Crash(/*power=*/true);
    ExpectAll(60, 10);
    store_.reset();
  }
}

// A process may die before its store has a catalogue: then the ends of segments are looked at.
TEST_F(ColdRestartTest, WhatAKillLeftHalfWrittenIsNotTakenForDamageLater) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = seed, .latency_us_max = 100},
                                           clock_);
    Open();
    for (uint64_t i = 0; i < 25; ++i) Put(Record(i), i);
    std::vector<StoreCompletion> done;
    for (uint64_t i = 0; i < seed % 7; ++i) store_->Tick(done, 20);
    files_->KillProcess();
    store_.reset();
    files_->Restart();
    if (files_->Contents("store/catalogue.db") != nullptr) {
      ASSERT_TRUE(files_->Remove("store/catalogue.db"));
    }
    Open();
    PutAll(60, 5);
    EXPECT_EQ(Flush(), kOk);
    store_.reset();
    const auto verified = VerifyStore(*files_, "store");
    ASSERT_TRUE(verified) << verified.error().message;
    EXPECT_EQ(verified->damaged, 0) << "seed " << seed;
  }
}

// Of a store without a catalogue the ends of segments are read, also where calls fail now and then.
TEST_F(ColdRestartTest, ATornRecordIsNoneThoughCallsFailWhileItIsLookedAt) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = seed, .latency_us_max = 100},
                                           clock_);
    Open();
    PutAll(0, 5);
    files_->KillProcess();
    store_.reset();
    files_->Restart();
    for (const char* end : {"", "-wal", "-journal"}) {
      static_cast<void>(files_->Remove(std::string("store/catalogue.db") + end));
    }
    Damage("segment-000000", 4 * layout_.record_bytes() + layout_.header_bytes() + 100);
    files_->set_rates({.call_error = 60});
    auto opened = ColdStore::Open(options_, *files_, clock_);
    files_->set_rates({});
    if (!opened) continue;  // it is said that it cannot be opened
    store_ = std::move(*opened);
    EXPECT_FALSE(Has(Record(4))) << seed;
    store_.reset();
  }
}

TEST_F(ColdRestartTest, NoSegmentIsCutToTheLengthOfOneThatACrashLeftShort) {
  Open();
  PutAll(0, 12);
  store_.reset();
  files_->Contents("store/segment-000001")->resize(64 << 10);
  for (const bool lock : {true, false}) {
    if (!lock) {
      ASSERT_TRUE(files_->Remove("store/LOCK"));
    }
    Open();
    ExpectAll(0, 12);
    store_.reset();
  }
}

TEST_F(ColdRestartTest, AMissingOrDamagedCatalogueIsRebuilt) {
  Open();
  PutAll(0, 30);
  store_.reset();
  const auto good = *files_->Contents("store/catalogue.db");
  ASSERT_TRUE(files_->Remove("store/catalogue.db"));
  Open();
  EXPECT_TRUE(store_->recovery().catalogue_rebuilt);
  EXPECT_EQ(store_->recovery().records_found, 30);
  ExpectAll(0, 30);
  store_.reset();
  for (uint64_t offset = 0; offset < good.size(); offset += 37) {
    *files_->Contents("store/catalogue.db") = good;
    Damage("catalogue.db", offset);
    Open();
    ASSERT_EQ(store_->Stats().records, 30) << offset;
    ASSERT_EQ(Load(Record(offset % 30)).outcome, kOk);
    store_.reset();
    if (files_->Contents("store/catalogue.db") == nullptr) Open(), store_.reset();
  }
}

TEST_F(ColdRestartTest, ACatalogueFromBeforeIsNotBelieved) {
  Open();
  PutAll(0, 64);
  store_.reset();
  const auto old = *files_->Contents("store/catalogue.db");
  Open();
  PutAll(100, 64);  // every segment is written anew
  store_.reset();
  *files_->Contents("store/catalogue.db") = old;
  Open();
  ExpectAll(100, 64);
  for (uint64_t i = 0; i < 64; ++i) EXPECT_FALSE(Has(Record(i)));
}

TEST_F(ColdRestartTest, DamagedHeadersTakeOnlyTheirOwnRecord) {
  Open();
  PutAll(0, 12);
  store_.reset();
  Damage("segment-000000", 3 * 16384 + 20);
  Damage("segment-000000", 0);
  ASSERT_TRUE(files_->Remove("store/catalogue.db"));
  Open();
  EXPECT_FALSE(Has(Record(0)));
  EXPECT_FALSE(Has(Record(3)));
  EXPECT_EQ(store_->recovery().damaged, 2);
  ExpectAll(1, 2);
  ExpectAll(4, 8);
  Reopen();
  EXPECT_EQ(store_->recovery().damaged, 0);  // said once
}

TEST_F(ColdRestartTest, ASegmentThatWasTruncatedKeepsWhatIsLeft) {
  Open();
  PutAll(0, 20);
  store_.reset();
  files_->Contents("store/segment-000001")->resize(50'000);
  Open();
  ExpectAll(0, 11);
  EXPECT_EQ(Load(Record(12)).outcome, kMiss);
  ExpectAll(16, 4);
  EXPECT_EQ(files_->Contents("store/segment-000001")->size(), kTestSegmentBytes);
}

TEST_F(ColdRestartTest, SwappedSegmentsAreEmptyAndNotEachOther) {
  Open();
  PutAll(0, 16);
  store_.reset();
  std::swap(*files_->Contents("store/segment-000000"), *files_->Contents("store/segment-000001"));
  Open();
  for (uint64_t i = 0; i < 16; ++i) EXPECT_NE(Load(Record(i)).outcome, kOk);
  PutAll(20, 20);
  ExpectAll(20, 20);
}

TEST_F(ColdRestartTest, AnErasedPublisherStaysErased) {
  Open();
  PutAll(0, 10, "a");
  PutAll(0, 5, "b");
  store_->Erase(PublisherOf("a"), 1, 1);
  EXPECT_EQ(WaitOne().outcome, kOk);
  Crash(/*power=*/true);  // before everything is overwritten
  EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 1);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_FALSE(Has(Record(i, "a")));
  ExpectAll(0, 5, "b");
  Flush();
  const auto needle = Record(3, "a").sections()[0].first(64);
  EXPECT_EQ(std::ranges::search(*files_->Contents("store/segment-000000"), needle).size(), 0);
}

TEST_F(ColdRestartTest, OneGoodCopyOfTheEpochsIsEnough) {
  for (const std::string name : {"epochs-0", "epochs-1"}) {
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 5}, clock_);
    Open();
    PutAll(0, 3, "b");
    PutAll(0, 1, "a");
    store_->Erase(PublisherOf("a"), 7, 1);
    Wait(1);
    store_.reset();
    Damage(name, 40);
    Open();
    EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 7);
    ExpectAll(0, 3, "b");
    store_.reset();
    ASSERT_TRUE(files_->Remove("store/" + name));
    Open();
    EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 7);
    EXPECT_FALSE(store_->Stats().epochs_damaged);
    store_.reset();
  }
}

TEST_F(ColdRestartTest, WithoutEpochsNothingOfNamedTenantsIsServed) {
  Open();
  PutAll(0, 5, "a");
  PutAll(0, 5);
  store_.reset();
  const auto both = [&](const std::function<void(const std::string&)>& act) {
    act("epochs-0");
    act("epochs-1");
  };
  const auto expect_nothing_named = [&] {
    Open();
    EXPECT_TRUE(store_->Stats().epochs_damaged);
    for (uint64_t i = 0; i < 5; ++i) EXPECT_FALSE(Has(Record(i, "a")));
    ExpectAll(0, 5);
    Put(Record(9, "a"), 9);
    EXPECT_EQ(WaitOne().outcome, kUnknownEpoch);
    EXPECT_EQ(Flush(), kIo);  // what is there of "a" may be erased, and is not overwritten
    store_.reset();
  };
  const auto good = *files_->Contents("store/epochs-0");
  both([&](const std::string& name) { Damage(name, 9); });
  expect_nothing_named();
  both([&](const std::string& name) { ASSERT_TRUE(files_->Remove("store/" + name)); });
  expect_nothing_named();
  both([&](const std::string& name) {
    files_->Close(files_->Open("store/" + name, {.create = true}).value());
    *files_->Contents("store/" + name) = good;
  });
  Open();
  ExpectAll(0, 5, "a");
  EXPECT_EQ(Flush(), kOk);
}

// What cannot be said is done: the bytes go.
TEST_F(ColdRestartTest, AnErasureWithoutEpochsTakesWhatIsThere) {
  for (const std::string who : {"", "a"}) {
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 7}, clock_);
    Open();
    PutAll(0, 5, who);
    PutAll(10, 15, "b");
    store_.reset();
    for (const char* name : {"epochs-0", "epochs-1"}) Damage(name, 9);
    Open();
    ASSERT_TRUE(store_->Stats().epochs_damaged);
    const PublisherId publisher = PublisherOf(who);
    store_->Erase(publisher, store_->EpochOf(publisher) + 1, 1);
    EXPECT_EQ(WaitOne().outcome, kUnknownEpoch);
    for (uint64_t i = 0; i < 5; ++i) EXPECT_FALSE(Has(Record(i, who)));
    Put(Record(9, who, 1), 9);  // it takes nothing new of it either: that could not be told apart
    EXPECT_EQ(WaitOne().outcome, kUnknownEpoch);
    EXPECT_EQ(Flush(), kIo);  // "b" may have been erased earlier
    store_->Erase(PublisherOf("b"), store_->EpochOf(PublisherOf("b")) + 1, 2);
    EXPECT_EQ(WaitOne().outcome, kUnknownEpoch);
    EXPECT_EQ(Flush(), kOk);
    store_.reset();
    Open();
    for (uint64_t i = 0; i < 5; ++i) EXPECT_FALSE(Has(Record(i, who))) << who;
    store_.reset();
  }
}

// However often a save fails in the middle of a copy, the other one is whole.
TEST_F(ColdRestartTest, EpochsOutliveWritesThatFail) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = seed, .latency_us_max = 100},
                                           clock_);
    Open();
    PutAll(0, 1, "a");
    files_->set_rates({.write_error = 4, .sync_error = 4, .short_write = 4});
    uint64_t durable = 0;
    for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
      store_->Erase(PublisherOf("a"), epoch, epoch);
      if (WaitOne().outcome == kOk) durable = epoch;
      std::vector<StoreCompletion> done;
      for (uint64_t turn = 0; turn < seed % 4 * 700; ++turn) {  // until it is tried again, or not
        store_->Tick(done, 0);
        clock_.Advance(1000);
      }
    }
    if (seed % 3 == 0) {
      store_.reset();
      files_->set_rates({});
      Open();
    } else {
      files_->set_rates({});
      Crash(/*power=*/seed % 3 == 1);
    }
    EXPECT_FALSE(store_->Stats().epochs_damaged);
    EXPECT_GE(store_->EpochOf(PublisherOf("a")), durable);
    store_.reset();
  }
}

TEST_F(ColdRestartTest, EpochsFromBeforeAnErasureAreNotBelieved) {
  Open();
  PutAll(0, 5, "a");
  const auto old = *files_->Contents("store/epochs-0");
  store_->Erase(PublisherOf("a"), 1, 1);
  Wait(1);
  PutAll(0, 2, "a", 1);
  store_.reset();
  for (const char* name : {"store/epochs-0", "store/epochs-1"}) *files_->Contents(name) = old;
  Open();
  EXPECT_TRUE(store_->Stats().epochs_damaged);
  EXPECT_FALSE(Has(Record(1, "a", 1)));
  EXPECT_FALSE(Has(Record(1, "a")));
}

TEST_F(ColdRestartTest, ANewerVersionIsRefusedAndLeftAsItIs) {
  Open();
  PutAll(0, 3);
  store_.reset();
  auto& segment = *files_->Contents("store/segment-000000");
  segment[8] = std::byte{2};
  const uint32_t crc = Crc32c(std::span(segment).first(12));
  std::memcpy(&segment[12], &crc, 4);
  const auto before = segment;
  const auto opened = ColdStore::Open(options_, *files_, clock_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(opened.error().message, testing::HasSubstr("version"));
  EXPECT_EQ(*files_->Contents("store/segment-000000"), before);
}

TEST_F(ColdRestartTest, ALowerCapIsKeptFromTheStart) {
  Open();
  PutAll(0, 64);
  store_.reset();
  options_ = Options(3);
  Open();
  EXPECT_LE(DiskBytes(), options_.bytes_cap);
  EXPECT_EQ(store_->Stats().records, 24);
  ExpectAll(40, 24);
  PutAll(100, 30);
  EXPECT_LE(DiskBytes(), options_.bytes_cap);
}

TEST_F(ColdRestartTest, AStoreKeepsItsOwnSegmentLength) {
  Open();
  PutAll(0, 20);
  store_.reset();
  options_.segment_bytes = 64 << 10;
  Open();
  ExpectAll(0, 20);
  PutAll(20, 20);
  ExpectAll(0, 40);
}

// Every operation that changes something fails once, and everything after it: what was durable
// before is there afterwards.
TEST_F(ColdRestartTest, FailureSweep) {
  bool stopped = true;
  uint64_t runs = 0;
  for (uint64_t after = 1; stopped; ++after, ++runs) {
    ASSERT_LT(after, 2000);
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = after}, clock_);
    Open();
    PutAll(0, 6, "a");
    PutAll(20, 1, "b");
    files_->StopAfter(after);
    for (uint64_t i = 10; i < 16; ++i) Put(Record(i, "a"), i);
    Wait(6);
    store_->Erase(PublisherOf("b"), 1, 1);
    const bool erased = WaitOne().outcome == kOk;
    stopped = files_->stopped();
    Crash(/*power=*/true);
    ExpectAll(0, 6, "a");
    EXPECT_EQ(store_->EpochOf(PublisherOf("b")) == 1 || !erased, true);
    store_.reset();
    // The same while it opens.
    files_->StopAfter(after);
    if (auto opened = ColdStore::Open(options_, *files_, clock_)) store_ = std::move(*opened);
    Crash(/*power=*/true);
    ExpectAll(0, 6, "a");
    store_.reset();
  }
  EXPECT_GT(runs, 10);
}

}  // namespace
}  // namespace quire::tier
