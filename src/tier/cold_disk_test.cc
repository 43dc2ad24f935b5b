// Disks of which parts fail for good, and very many tenants that are erased: what it costs is what
// lies on those parts, and the store goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/log.h"
#include "tier/cold_test_util.h"
#include "tier/tools.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

// Segments of eight records each; nothing but what is asked for fails.
class ColdDiskTest : public ColdTest {
 protected:
  ColdDiskTest() { SetLogLevel(LogLevel::kOff); }
  ~ColdDiskTest() override { SetLogLevel(LogLevel::kWarn); }
  void NewFiles() {
    store_.reset();
    files_ = std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 5}, clock_);
  }
  // 24 records of no tenant in three segments, 4 of a tenant that was erased once and 3 of another.
  void Fill() {
    Open();
    PutAll(0, 24);
    PutAll(100, 2, "a");
    EXPECT_EQ(Erase("a", 1), kOk);
    PutAll(100, 4, "a", 1);
    PutAll(200, 3, "b");
    EXPECT_EQ(Flush(), kOk);
  }
  StoreOutcome Erase(std::string_view domain, uint64_t epoch) {
    store_->Erase(PublisherOf(domain), epoch, 1000);
    return WaitOne().outcome;
  }
  uint64_t Loadable(uint64_t first, uint64_t count, std::string_view domain = {},
                    uint64_t epoch = 0) {
    uint64_t good = 0;
    for (uint64_t i = first; i < first + count; ++i) {
      good += Load(Record(i, domain, epoch)).outcome == kOk ? 1 : 0;
    }
    return good;
  }
  static Result<StoreReport> Ok(Result<StoreReport> report) {
    EXPECT_TRUE(report) << report.error().message;
    return report;
  }
};

TEST_F(ColdDiskTest, ABadSectorOfASegmentCostsOneRecord) {
  const uint64_t record = layout_.record_bytes();
  for (const bool catalogue : {true, false}) {
    for (const BadSectors kind : {BadSectors::kUntilWritten, BadSectors::kForGood}) {
      for (const uint64_t at : {uint64_t{0}, record * 3, record * 3 + 8192, record * 7 + 4096}) {
        SCOPED_TRACE(testing::Message() << catalogue << " " << int(kind) << " " << at);
        NewFiles();
        Fill();
        store_.reset();
        files_->Damage("store/segment-000000", at, 512, kind);
        if (!catalogue) {
          ASSERT_TRUE(files_->Remove("store/catalogue.db"));
        }
        EXPECT_EQ(Ok(StatStore(*files_, "store"))->records, at % record == 0 ? 30 : 31);
        EXPECT_GE(Ok(VerifyStore(*files_, "store"))->damaged, 1);
        EXPECT_EQ(Ok(VerifyStore(*files_, "store"))->records, 30);
        Open();
        ASSERT_NE(store_, nullptr);
        EXPECT_EQ(Loadable(0, 24), 23);
        EXPECT_EQ(Loadable(0, 24), 23);
        // It is found out, and stored again.
        PutAll(at / record, 1);
        EXPECT_EQ(Loadable(0, 24), 24);
        EXPECT_GE(store_->Stats().damaged + store_->recovery().damaged, 1);
        // It goes on through many recyclings.
        uint64_t stored = 0;
        for (uint64_t i = 300; i < 500; ++i) {
          Put(Record(i), i);
          stored += WaitOne().outcome == kOk ? 1 : 0;
        }
        EXPECT_GE(stored, 195);
        Reopen();
        ASSERT_NE(store_, nullptr);
        EXPECT_GT(Loadable(450, 50), 30);
      }
    }
  }
}

// Files of which one plain read fails, once.
class OneReadFails : public FaultyFiles {
 public:
  using FaultyFiles::FaultyFiles;
  Result<uint64_t> ReadAt(FileId file, uint64_t offset, std::span<std::byte> out) override {
    if (--reads_left == 0) return Fail(ErrorCode::kIo, "one read failed");
    return FaultyFiles::ReadAt(file, offset, out);
  }
  uint64_t reads_left = 0;
};

// A bad sector at the end of a segment makes the store read its pages one by one.
TEST_F(ColdDiskTest, AReadThatFailsOnceWhileASegmentIsScannedCostsNoRecord) {
  for (uint64_t read = 1; read <= 60; ++read) {
    SCOPED_TRACE(read);
    store_.reset();
    auto files = std::make_unique<OneReadFails>(FaultyFilesOptions{.seed = 5}, clock_);
    OneReadFails& fails = *files;
    files_ = std::move(files);
    Fill();
    store_.reset();
    files_->Damage("store/segment-000000", 7 * layout_.record_bytes() + 4096, 512,
                   BadSectors::kForGood);
    ASSERT_TRUE(files_->Remove("store/catalogue.db"));
    fails.reads_left = read;
    static_cast<void>(ColdStore::Open(options_, *files_, clock_));
    fails.reads_left = 0;
    Open();
    ASSERT_NE(store_, nullptr);
    EXPECT_EQ(Loadable(0, 24), 23);
    EXPECT_EQ(Loadable(100, 4, "a", 1), 4);
    EXPECT_EQ(Loadable(200, 3, "b"), 3);
  }
}

TEST_F(ColdDiskTest, ALockFileOnBadSectorsIsReplaced) {
  Fill();
  store_.reset();
  files_->Damage("store/LOCK", 0, 4096, BadSectors::kForGood);
  for (int round = 0; round < 2; ++round) {
    Open();
    ASSERT_NE(store_, nullptr);
    EXPECT_EQ(ColdStore::Open(options_, *files_, clock_).error().code, ErrorCode::kBusy);
    EXPECT_EQ(Loadable(0, 24), 24);
    store_.reset();
  }
}

TEST_F(ColdDiskTest, RepairSalvagesTheRest) {
  for (const uint64_t at : {uint64_t{0}, uint64_t{5 * 16384}, uint64_t{5 * 16384 + 4096}}) {
    SCOPED_TRACE(at);
    NewFiles();
    Fill();
    store_.reset();
    files_->Damage("store/segment-000001", at, 512, BadSectors::kUntilWritten);
    files_->Obstruct("store/segment-000002");
    const auto repaired = Ok(RepairStore(*files_, "store"));
    EXPECT_EQ(repaired->damaged, 0);
    EXPECT_EQ(repaired->records, 31 - 8 - 1);
    EXPECT_THAT(files_->Paths(), testing::Contains("store/segment-000002.damaged"));
    Open();
    EXPECT_EQ(Loadable(0, 24), 15);
    PutAll(300, 50);
  }
}

TEST_F(ColdDiskTest, WhatIsNoFileInASegmentsPlaceIsLeftAlone) {
  Fill();
  store_.reset();
  files_->Obstruct("store/segment-000001");
  EXPECT_EQ(Ok(StatStore(*files_, "store"))->records, 31 - 8);
  EXPECT_EQ(Ok(VerifyStore(*files_, "store"))->damaged, 8);  // as the catalogue knows
  Open();
  ASSERT_NE(store_, nullptr);
  EXPECT_EQ(Loadable(0, 24), 16);
  EXPECT_EQ(Loadable(100, 4, "a", 1), 4);
  PutAll(300, 100);
  EXPECT_EQ(Erase("a", 2), kOk);
  EXPECT_EQ(Flush(), kIo);  // something of it may be there
  Reopen();
  EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 2);
  EXPECT_EQ(Loadable(390, 10), 10);
}

// Files of which one cannot be opened so many times.
class RefusesToOpen : public FaultyFiles {
 public:
  using FaultyFiles::FaultyFiles;
  Result<FileId> Open(const std::string& path, const OpenOptions& options) override {
    if (path == refused && times > 0) {
      --times;
      return Fail(ErrorCode::kIo, path + ": permission denied");
    }
    return FaultyFiles::Open(path, options);
  }
  std::string refused{};
  uint64_t times = 0;
};

// An erasure that cannot reach everything says so, and goes on where it can.
TEST_F(ColdDiskTest, WhatIsErasedInAFileThatCannotBeOpenedIsSaidAndGoesLater) {
  for (const bool is_erased_before : {false, true}) {
    SCOPED_TRACE(is_erased_before);
    store_.reset();
    auto files = std::make_unique<RefusesToOpen>(FaultyFilesOptions{.seed = 5}, clock_);
    RefusesToOpen& refuses = *files;
    files_ = std::move(files);
    Open();
    PutAll(0, 8, "a");
    PutAll(100, 4, "b");
    EXPECT_EQ(Flush(), kOk);
    const auto needle = Record(3, "a").sections()[0].first(64);
    const std::string path = "store/segment-000000";
    ASSERT_FALSE(std::ranges::search(*files_->Contents(path), needle).empty());
    refuses.refused = path;
    if (is_erased_before) {
      files_->Damage(path, 3 * layout_.record_bytes() + 4096, 512, BadSectors::kForGood);
      EXPECT_EQ(Erase("a", 1), kOk);
      EXPECT_EQ(Flush(), kIo);
      store_.reset();
      files_->MendDisk();
    }
    refuses.times = 100;
    Reopen();
    if (!is_erased_before) {
      EXPECT_EQ(Flush(), kOk);
      EXPECT_EQ(Erase("a", 1), kOk);
    }
    EXPECT_EQ(Flush(), kIo);
    refuses.times = 0;
    Reopen();
    EXPECT_EQ(Flush(), kOk);
    EXPECT_TRUE(std::ranges::search(*files_->Contents(path), needle).empty());
    EXPECT_EQ(Loadable(100, 4, "b"), 4);
    EXPECT_FALSE(Has(Record(3, "a")));
  }
}

TEST_F(ColdDiskTest, AFileThatCannotBeOpenedAtOnceIsTriedAgain) {
  auto files = std::make_unique<RefusesToOpen>(FaultyFilesOptions{.seed = 5}, clock_);
  RefusesToOpen& refuses = *files;
  files_ = std::move(files);
  Fill();
  refuses.refused = "store/segment-000001";
  refuses.times = 2;
  Reopen();
  EXPECT_EQ(Loadable(0, 24), 24);
  EXPECT_EQ(store_->recovery().damaged, 0);
}

// One copy of the epochs cannot be read, written or opened: it is replaced, and erasing goes on.
TEST_F(ColdDiskTest, ACopyOfTheEpochsThatFailsIsReplaced) {
  for (const std::string copy : {"store/epochs-0", "store/epochs-1"}) {
    const std::vector<std::function<void()>> damages = {
        [&] { files_->Damage(copy, 0, 1 << 20, BadSectors::kUntilWritten); },
        [&] { files_->Damage(copy, 0, 1 << 20, BadSectors::kForGood); },
        [&] { files_->Obstruct(copy); },
        [&] { ASSERT_TRUE(files_->Remove(copy)); },
    };
    for (size_t i = 0; i < damages.size(); ++i) {
      for (const bool is_open : {false, true}) {
        SCOPED_TRACE(testing::Message() << copy << " " << i << " " << is_open);
        NewFiles();
        Fill();
        if (!is_open) store_.reset();
        damages[i]();
        if (is_open) {
          EXPECT_EQ(Erase("a", 2), kOk);
          store_.reset();
        }
        const uint64_t there = is_open ? 27 : 31;
        EXPECT_EQ(Ok(StatStore(*files_, "store"))->records, there);
        EXPECT_EQ(Ok(VerifyStore(*files_, "store"))->records, there);
        Open();
        ASSERT_NE(store_, nullptr);
        EXPECT_FALSE(store_->Stats().epochs_damaged);
        EXPECT_EQ(Loadable(0, 24), 24);
        EXPECT_EQ(Loadable(200, 3, "b"), 3);
        EXPECT_EQ(Erase("a", 3), kOk);
        EXPECT_EQ(Erase("b", 1), kOk);
        // Two copies say so: each alone is enough.
        store_.reset();
        for (const std::string gone : {"store/epochs-0", "store/epochs-1"}) {
          std::vector<std::byte> saved = *files_->Contents(gone);
          ASSERT_TRUE(files_->Remove(gone));
          Open();
          // What had nothing left was erased for that process alone.
          EXPECT_EQ(store_->EpochOf(PublisherOf("a")), is_open ? 2 : 3);
          EXPECT_EQ(store_->EpochOf(PublisherOf("b")), 1);
          EXPECT_FALSE(store_->Stats().epochs_damaged);
          store_.reset();
        }
        EXPECT_EQ(Ok(VerifyStore(*files_, "store"))->damaged, 0);
      }
    }
  }
}

// With one copy an erasure is not confirmed.
TEST_F(ColdDiskTest, OneCopyIsNotEnough) {
  Fill();
  files_->Damage("store/epochs-1", 0, 1 << 20, BadSectors::kForGood);
  files_->Obstruct("store/epochs-1.new");
  EXPECT_EQ(Erase("a", 2), kIo);
  EXPECT_FALSE(Has(Record(100, "a", 1)));
  EXPECT_EQ(Flush(), kIo);
  files_->MendDisk();
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(Erase("a", 3), kOk);
  Crash(/*power=*/true);
  EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 3);
}

// As long as one copy is no good the other one is left as it is: a crash must not cost both.
TEST_F(ColdDiskTest, TheOnlyGoodCopyIsNotWrittenTo) {
  for (const size_t bad : {size_t{0}, size_t{1}}) {
    SCOPED_TRACE(bad);
    NewFiles();
    Fill();
    const std::string path = "store/" + std::string(kEpochNames[bad]);
    const std::string other = "store/" + std::string(kEpochNames[1 - bad]);
    files_->Damage(path, 0, 1 << 20, BadSectors::kForGood);
    files_->Obstruct(path + ".new");
    EXPECT_EQ(Erase("a", 2), kIo);
    const std::vector<std::byte> before = *files_->Contents(other);
    EXPECT_EQ(Erase("a", 3), kIo);
    EXPECT_EQ(*files_->Contents(other), before);
    files_->MendDisk();
    EXPECT_EQ(Erase("a", 4), kOk);
    EXPECT_NE(*files_->Contents(other), before);
  }
}

// A copy that is missing while there is nothing to save is tried again later. What is to be saved
// by then does not wait for that.
TEST_F(ColdDiskTest, WhatIsToBeSavedDoesNotWaitForAMissingCopy) {
  Fill();
  store_.reset();
  files_->Damage("store/epochs-1", 0, 1 << 20, BadSectors::kForGood);
  files_->Obstruct("store/epochs-1.new");
  Open();
  EXPECT_EQ(Erase("never", 1), kIo);
  files_->MendDisk();
  Put(Record(1, "never", 1));
  EXPECT_EQ(WaitOne().outcome, kOk);
  const uint64_t begin_us = clock_.NowMicros();
  EXPECT_EQ(Flush(), kOk);
  EXPECT_LT(clock_.NowMicros() - begin_us, 1'000'000);
}

// What is erased on a bad sector stays there, and is said; everything around it goes.
TEST_F(ColdDiskTest, WhatCannotBeOverwrittenIsSaid) {
  Fill();
  // The second segment of "a": of its newer epoch.
  std::string path;
  const auto needle = Record(101, "a", 1).sections()[0].first(64);
  for (const std::string& some : files_->Paths()) {
    if (!std::ranges::search(*files_->Contents(some), needle).empty()) path = some;
  }
  ASSERT_NE(path, "");
  files_->Damage(path, 16384 + 4096, 512, BadSectors::kForGood);
  EXPECT_EQ(Erase("a", 2), kOk);
  EXPECT_EQ(Erase("b", 1), kOk);
  EXPECT_EQ(Flush(), kIo);
  EXPECT_EQ(Flush(), kIo);
  EXPECT_EQ(store_->Stats().bytes_erased, kTestSegmentBytes);
  for (uint64_t i = 100; i < 104; ++i) {
    const auto tokens = std::as_bytes(std::span(Record(i, "a", 1).identity().tokens));
    EXPECT_TRUE(std::ranges::search(*files_->Contents(path), tokens).empty()) << i;
  }
  files_->MendDisk();
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(store_->Stats().bytes_erased, 0);
  EXPECT_TRUE(std::ranges::search(*files_->Contents(path), needle).empty());
}

TEST_F(ColdDiskTest, ATenantThatNeverStoredTakesNoEntry) {
  Fill();
  const uint64_t length = files_->Contents("store/epochs-0")->size();
  for (uint64_t i = 0; i < 5000; ++i) {
    store_->Erase(PublisherOf("never-" + std::to_string(i)), 1, i);
    EXPECT_EQ(store_->EpochOf(PublisherOf("never-" + std::to_string(i))), 1);
  }
  for (const auto& [tag, ended] : Wait(5000)) ASSERT_EQ(ended.outcome, kOk);
  EXPECT_EQ(files_->Contents("store/epochs-0")->size(), length);
  // A publisher that stores afterwards is remembered.
  Put(Record(1, "never-7", 0));
  EXPECT_EQ(WaitOne().outcome, kErased);
  PutAll(1, 1, "never-7", 1);
  Crash(/*power=*/true);
  EXPECT_FALSE(store_->Stats().epochs_damaged);
  EXPECT_EQ(store_->EpochOf(PublisherOf("never-7")), 1);
  EXPECT_EQ(store_->EpochOf(PublisherOf("never-8")), 0);
  EXPECT_EQ(Load(Record(1, "never-7", 1)).outcome, kOk);
}

// Each stores a record and is erased; the files grow, segments give way, the cap holds.
TEST_F(ColdDiskTest, VeryManyTenantsAreErased) {
  const uint64_t count = std::getenv("QUIRE_MANY_TENANTS") != nullptr ? 1'000'000 : 20'000;
  options_ = Options(40 + static_cast<uint32_t>(count / 1000));
  Open();
  constexpr uint64_t kAtOnce = 80;
  constexpr uint64_t kPuts = 8;  // as many as staging takes, for each has a segment
  const auto name = [](uint64_t i) { return "tenant-" + std::to_string(i); };
  const RecordLayout small = TestLayout(1, 1, 64);
  for (uint64_t first = 0; first < count; first += kAtOnce) {
    std::vector<TestRecord> records;
    for (uint64_t i = first; i < first + kAtOnce; ++i) records.emplace_back(i, small, name(i));
    // What is being overwritten has to be waited for.
    for (uint64_t stored = 0, rounds = 0; stored < kAtOnce; ++rounds) {
      ASSERT_LT(rounds, 10'000);
      clock_.Advance(100);
      const uint64_t some = std::min(kPuts, kAtOnce - stored);
      for (uint64_t i = stored; i < stored + some; ++i) Put(records[i], i);
      for (const auto& [tag, ended] : Wait(some)) {
        ASSERT_THAT(ended.outcome, testing::AnyOf(kOk, kPresent, kBusy));
        if (tag == stored && ended.outcome != kBusy) ++stored;
      }
    }
    for (uint64_t i = first; i < first + kAtOnce; ++i) store_->Erase(PublisherOf(name(i)), 1, i);
    for (const auto& [tag, ended] : Wait(kAtOnce, 1'000'000'000)) {
      ASSERT_EQ(ended.outcome, kOk) << tag << " " << StoreOutcomeName(ended.outcome);
    }
    ASSERT_LE(DiskBytes(), options_.bytes_cap);
  }
  EXPECT_EQ(Flush(), kOk);
  for (const bool power : {false, true}) {
    Crash(power);
    ASSERT_FALSE(store_->Stats().epochs_damaged);
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(store_->EpochOf(PublisherOf(name(i))), 1) << i;
    }
  }
  const TestRecord again(7, small, name(7), 1);
  Put(again);
  EXPECT_EQ(WaitOne().outcome, kOk);
  EXPECT_LE(DiskBytes(), options_.bytes_cap);
}

}  // namespace
}  // namespace quire::tier
