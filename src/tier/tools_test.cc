// What `quire store` sees and mends, and a thousand random damages.
#include "tier/tools.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/thorough.h"
#include "tier/cold_test_util.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

class ToolsTest : public ColdTest {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }

  StoreReport Must(const Result<StoreReport>& report) {
    EXPECT_TRUE(report) << report.error().message;
    return report.value_or(StoreReport{});
  }
  StoreReport Verify() { return Must(VerifyStore(*files_, "store")); }
  StoreReport Repair() { return Must(RepairStore(*files_, "store")); }

  // 20 records of two tenants and of none, one tenant erased once; closed.
  void Fill() {
    Open();
    PutAll(0, 10);
    PutAll(20, 6, "a");
    PutAll(0, 4, "b");
    store_->Erase(PublisherOf("b"), 1, 1);
    Wait(1);
    PutAll(0, 4, "b", 1);
    Flush();
    store_.reset();
  }
  void FlipBit(const std::string& path, uint64_t offset) {
    (*files_->Contents("store/" + path))[offset] ^= std::byte{1};
  }
};

TEST_F(ToolsTest, AGoodStoreIsCountedAndLeftAsItIs) {
  Fill();
  const auto before = *files_->Contents("store/segment-000000");
  const StoreReport report = Verify();
  EXPECT_EQ(report.records, 20);
  EXPECT_EQ(report.damaged, 0);
  EXPECT_EQ(report.bytes, DiskBytes());
  EXPECT_EQ(report.bytes_cap, options_.bytes_cap);
  EXPECT_EQ(*files_->Contents("store/segment-000000"), before);
  uint64_t listed = 0;
  Must(StatStore(*files_, "store", [&](const RecordSummary& record) {
    ++listed;
    EXPECT_EQ(record.record_bytes(), layout_.record_bytes());
  }));
  EXPECT_EQ(listed, 20);
  EXPECT_EQ(Repair().repaired, 0);
  EXPECT_EQ(Must(UpgradeStore(*files_, "store")).records, 20);
}

TEST_F(ToolsTest, BesideTheOwnerOnlyLookingIsAllowed) {
  Open();
  PutAll(0, 9);
  EXPECT_EQ(Must(StatStore(*files_, "store")).records, 9);
  EXPECT_EQ(VerifyStore(*files_, "store").error().code, ErrorCode::kBusy);
  EXPECT_EQ(RepairStore(*files_, "store").error().code, ErrorCode::kBusy);
}

TEST_F(ToolsTest, WhereNoStoreIsNothingIsFoundOrMade) {
  EXPECT_EQ(VerifyStore(*files_, "store").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(files_->Paths().empty());
}

TEST_F(ToolsTest, EveryKindOfDamageIsSeenAndMended) {
  const std::vector<std::function<void()>> damages = {
      [&] { FlipBit("segment-000000", 3 * 16384 + 8000); },  // payload
      [&] { FlipBit("segment-000000", 3 * 16384 + 60); },    // header in the middle
      [&] { FlipBit("segment-000001", 1 * 16384 + 60); },    // the last header of its segment
      [&] { FlipBit("epochs-0", 20); },
      [&] { ASSERT_TRUE(files_->Remove("store/epochs-1")); },
      [&] { FlipBit("catalogue.db", 2 * 4096 - 10); },
      [&] { files_->Contents("store/segment-000000")->resize(7 * 16384); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 5}, clock_);
    Fill();
    damages[i]();
    const uint64_t damaged = Verify().damaged;
    EXPECT_GT(damaged, 0);
    const StoreReport repaired = Repair();
    EXPECT_EQ(repaired.damaged, 0);
    EXPECT_EQ(repaired.repaired, damaged);
    EXPECT_GE(repaired.records, 19);
    EXPECT_EQ(Verify().damaged, 0);
  }
}

// It may be of a tenant that was erased, and without its headers the store cannot tell.
TEST_F(ToolsTest, OfWhatRepairTakesAwayNoByteStays) {
  Fill();
  FlipBit("segment-000000", 3 * 16384 + 8000);
  files_->set_rates({.call_error = 2});
  for (int i = 0; i < 5; ++i) static_cast<void>(RepairStore(*files_, "store"));
  files_->set_rates({});
  Repair();
  EXPECT_EQ(Verify().damaged, 0);
  const auto segment = std::span(*files_->Contents("store/segment-000000"));
  const auto payload = segment.subspan(3 * 16384 + 4096, 16384 - 4096);
  EXPECT_TRUE(std::ranges::all_of(payload, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(ToolsTest, AZeroedSegmentIsItsLostRecords) {
  Fill();
  const uint64_t records = Verify().records;
  std::ranges::fill(*files_->Contents("store/segment-000000"), std::byte{0});
  const StoreReport zeroed = Verify();
  EXPECT_EQ(zeroed.records, records - 8);
  EXPECT_EQ(zeroed.damaged, 8);
  EXPECT_EQ(Repair().repaired, 8);
}

TEST_F(ToolsTest, AStretchThatIsZeroedIsItsLostRecords) {
  Fill();
  auto& contents = *files_->Contents("store/segment-000000");
  std::fill_n(contents.begin() + 2 * 16384, 3 * 16384, std::byte{0});
  EXPECT_EQ(Verify().damaged, 3);
  std::fill_n(contents.begin() + 6 * 16384, 2 * 16384, std::byte{0});
  EXPECT_EQ(Verify().damaged, 5);
}

// What an erasure or a new owner of a segment took is no loss.
TEST_F(ToolsTest, WhatWasErasedOrRecycledIsNotLost) {
  options_ = Options(2);
  Fill();
  EXPECT_EQ(Verify().damaged, 0);
  Open();
  PutAll(300, 40);
  store_->Erase(PublisherOf("a"), 1, 1);
  Wait(1);
  files_->KillProcess();
  store_.reset();
  files_->Restart();
  EXPECT_EQ(Verify().damaged, 0);
}

TEST_F(ToolsTest, WhatAKillCutsOffIsUnfinished) {
  const uint64_t seeds = Thorough(12, 60);
  uint64_t unfinished = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = seed, .latency_us_max = 100},
                                           clock_);
    Open();
    PutAll(0, seed % 12);
    for (uint64_t i = 0; i < 20; ++i) Put(Record(100 + i), 100 + i);
    Put(Record(200, "a"), 200);
    std::vector<StoreCompletion> done;
    for (uint64_t i = 0; i < seed % 5; ++i) {
      clock_.Advance(300'000);
      store_->Tick(done, 20);
    }
    files_->KillProcess();
    store_.reset();
    files_->Restart();
    const StoreReport killed = Verify();
    EXPECT_EQ(killed.damaged, 0);
    unfinished += killed.unfinished;
    EXPECT_EQ(Repair().damaged, 0);
    Open();
    store_.reset();
    EXPECT_EQ(Verify().damaged, 0);
    EXPECT_EQ(Verify().unfinished, 0);
  }
  EXPECT_GT(unfinished, seeds / 6);
}

TEST_F(ToolsTest, ABadSectorCostsWhatIsOnIt) {
  Fill();
  const uint64_t records = Verify().records;
  for (const uint64_t page : {0, 3 * 4 + 1, 5 * 4}) {
    files_->Damage("store/segment-000000", page * 4096, 512, BadSectors::kUntilWritten);
  }
  StoreReport report = Verify();
  EXPECT_EQ(report.damaged, 3);
  EXPECT_EQ(report.records, records - 3);
  files_->Damage("store/segment-000001", 0, kTestSegmentBytes, BadSectors::kUntilWritten);
  report = Verify();
  EXPECT_EQ(report.records, records - 3 - 2);
  EXPECT_EQ(report.damaged, 3 + 2);
  EXPECT_EQ(Must(StatStore(*files_, "store")).records, records - 2 - 2);
}

TEST_F(ToolsTest, BesideItsOwnerAStoreIsVerifiedWithoutALock) {
  Open();
  PutAll(0, 9);
  const auto lock = *files_->Contents("store/LOCK");
  const auto look = [&](const std::function<void()>& pause) {
    return Must(VerifyStoreBeside(*files_, "store", pause));
  };
  uint64_t pauses = 0;
  EXPECT_EQ(look([&] { ++pauses; }).records, 9);
  EXPECT_EQ(pauses, 0);
  // Damage stays; what its owner puts right meanwhile, here by an erasure, is none.
  PutAll(0, 2, "a");
  FlipBit("segment-000000", 3 * 16384 + 8000);
  FlipBit("segment-000002", 8000);
  EXPECT_EQ(look([&] { ++pauses; }).damaged, 2);
  const StoreReport report = look([&] {
    store_->Erase(PublisherOf("a"), 1, 1);
    Wait(1);
    Flush();
  });
  EXPECT_EQ(report.damaged, 1);
  EXPECT_EQ(pauses, 1);
  EXPECT_EQ(*files_->Contents("store/LOCK"), lock);
  PutAll(20, 3);
}

// Records whose end the owner did not send yet, and epochs of which one copy is half written.
TEST_F(ToolsTest, BesideItsOwnerWhatIsBeingWrittenIsNoDamage) {
  options_.chunk_bytes = 64 << 10;
  Open();
  PutAll(0, 1);
  uint64_t looks = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    Put(Record(100 + i), 100 + i);
    if (i % 10 == 9) store_->Erase(PublisherOf("a"), i, 1000 + i);
    std::vector<StoreCompletion> done;
    store_->Tick(done, i % 3 * 50);
    EXPECT_EQ(Must(VerifyStoreBeside(*files_, "store",
                                     [&] {
                                       for (int t = 0; t < 5; ++t) store_->Tick(done, 1000);
                                       ++looks;
                                     }))
                  .damaged,
              0)
        << i;
  }
}

TEST_F(ToolsTest, WithoutEpochsRepairOverwritesWhatNamedTenantsHad) {
  Fill();
  FlipBit("epochs-0", 20);
  FlipBit("epochs-1", 20);
  EXPECT_EQ(Verify().records, 10);
  const StoreReport repaired = Repair();
  EXPECT_EQ(repaired.records, 10);
  EXPECT_EQ(repaired.damaged, 0);
  const auto needle = Record(21, "a").sections()[0].first(64);
  for (const std::string& path : files_->Paths()) {
    EXPECT_EQ(std::ranges::search(*files_->Contents(path), needle).size(), 0) << path;
  }
  Open();
  EXPECT_FALSE(store_->Stats().epochs_damaged);
  PutAll(0, 3, "a");
}

// Flips, cuts, swaps, zeros and deletions in every file: whatever comes back is right, the store
// opens, works on, and repair leaves nothing damaged.
TEST_F(ToolsTest, AThousandRandomDamages) {
  Fill();
  std::map<std::string, std::vector<std::byte>> good;
  for (const std::string& path : files_->Paths()) good[path] = *files_->Contents(path);
  Prng prng(1);
  const uint64_t rounds = Thorough(100, 1000);
  uint64_t ok = 0, missed = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    for (const std::string& path : files_->Paths()) ASSERT_TRUE(files_->Remove(path));
    for (const auto& [path, bytes] : good) {
      files_->Close(files_->Open(path, {.create = true}).value());
      *files_->Contents(path) = bytes;
    }
    for (uint64_t i = 0; i <= prng.NextBelow(4); ++i) {
      const auto paths = files_->Paths();
      const std::string& path = paths[prng.NextBelow(paths.size())];
      auto& contents = *files_->Contents(path);
      if (contents.empty()) continue;
      const uint64_t at = prng.NextBelow(contents.size());
      switch (prng.NextBelow(5)) {
        case 0: contents[at] ^= std::byte{1} << prng.NextBelow(8); break;
        case 1: contents.resize(at); break;
        case 2:
          std::fill(contents.begin() + static_cast<ptrdiff_t>(at), contents.end(), std::byte{});
          break;
        case 3: std::swap(contents, *files_->Contents(paths[prng.NextBelow(paths.size())])); break;
        case 4: ASSERT_TRUE(files_->Remove(path)); break;
      }
    }
    Open();
    ASSERT_NE(store_, nullptr);
    for (uint64_t i = 0; i < 10; ++i) {
      for (const TestRecord* record : {&Record(i), &Record(20 + i, "a"), &Record(i, "b", 1)}) {
        (Load(*record).outcome == kOk ? ok : missed) += 1;  // Load compares the bytes
      }
      EXPECT_NE(Load(Record(i, "b")).outcome, kOk);  // erased
    }
    PutAll(100, 3);
    store_.reset();
    if (round % 10 == 0) {
      EXPECT_EQ(Repair().damaged, 0);
    }
  }
  EXPECT_GT(ok, rounds * 10);
  EXPECT_GT(missed, rounds);
}

}  // namespace
}  // namespace quire::tier
