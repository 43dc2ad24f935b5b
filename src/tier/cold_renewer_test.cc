// What an old data key sealed is written anew while the store is used, and then the key goes.
#include "tier/cold_renewer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/log.h"
#include "keys/cipher.h"
#include "tier/cold_test_util.h"
#include "tier/rotate.h"
#include "tier/sealed_store.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

class ColdRenewerTest : public StoreTest<SealedStore> {
 protected:
  ColdRenewerTest() {
    keys_ = {.key = std::vector<uint8_t>(keys::kKeyBytes, 7)};
    options_ = Options(12);
    options_.bytes_cap += keys::KeyFileBytesMax(keys::KeysMax(options_.bytes_cap));
    options_.renew_bytes_per_s = uint64_t{1} << 30;
  }
  ~ColdRenewerTest() override { SetLogLevel(LogLevel::kWarn); }

  /// Twelve records of no tenant and twelve of anna's, in two segments each.
  void Fill() {
    PutAll(0, 12);
    PutAll(100, 12, "anna");
    EXPECT_EQ(Flush(), kOk);
  }
  /// The same on another machine, and all of it has old keys.
  void BeginAnew(uint64_t seed, uint64_t latency_us_max) {
    store_.reset();
    files_ = std::make_unique<FaultyFiles>(
        FaultyFilesOptions{.seed = seed, .latency_us_max = latency_us_max}, clock_);
    Open();
    Fill();
    ASSERT_TRUE(store_->RenewKeys());
  }
  std::vector<const TestRecord*> All() {
    std::vector<const TestRecord*> all;
    for (uint64_t i = 0; i < 12; ++i) {
      all.push_back(&Record(i));
      all.push_back(&Record(100 + i, "anna"));
    }
    return all;
  }
  void ForgetCatalogue() {
    for (const std::string& path : files_->Paths()) {
      if (path.find(kCatalogueName) == std::string::npos) continue;
      EXPECT_TRUE(files_->Remove(path));
    }
  }
  uint64_t OldKeys() const { return store_->keys().keys() - store_->keys().owners().size(); }
  /// One turn of the driver, a millisecond long if there was nothing to do.
  void Turn() {
    std::vector<StoreCompletion> done;
    store_->Tick(done, 1000);
    EXPECT_TRUE(done.empty());
    clock_.Advance(1000);
  }
  /// Until no old key is left, or for a minute of the clock.
  void Renew(const std::function<void()>& meanwhile = [] {}) {
    const uint64_t end_us = clock_.NowMicros() + 60'000'000;
    while (OldKeys() > 0 && clock_.NowMicros() < end_us && !files_->stopped()) {
      Turn();
      meanwhile();
    }
  }
};

TEST_F(ColdRenewerTest, EveryRecordIsThereAllTheTime) {
  Open();
  Fill();
  ASSERT_TRUE(store_->RenewKeys());
  EXPECT_EQ(OldKeys(), 2u);
  uint64_t turn = 0;
  Renew([&] {
    for (const TestRecord* record : All()) ASSERT_TRUE(Has(*record));
    const auto all = All();
    if (++turn % 3 != 0) return;
    EXPECT_EQ(Load(*all[turn / 3 % all.size()]).outcome, kOk);
  });
  EXPECT_EQ(OldKeys(), 0u);
  EXPECT_EQ(store_->Stats().renewed, 24u);
  EXPECT_EQ(store_->Stats().records, 24u);
  EXPECT_EQ(store_->Stats().evicted, 0u);
  EXPECT_EQ(store_->Stats().damaged, 0u);
  for (const TestRecord* record : All()) EXPECT_EQ(Load(*record).outcome, kOk);
  Reopen();
  for (const TestRecord* record : All()) EXPECT_EQ(Load(*record).outcome, kOk);
  EXPECT_EQ(store_->Stats().records, 24u);
  // What has a new key is left alone.
  for (int i = 0; i < 30'000; ++i) Turn();
  EXPECT_EQ(store_->Stats().renewed, 0u);
}

// Loads wait for each other, and their records leave the places where they will be read.
TEST_F(ColdRenewerTest, ALoadThatWaitsIsServed) {
  options_.reads_max = 1;
  options_.commit_interval_us = 1000;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    BeginAnew(700 + seed, 3000);
    for (uint64_t i = 0; i < 3 * seed; ++i) Turn();
    const auto all = All();
    for (size_t i = 0; i < all.size(); ++i) Get(*all[i], i);
    for (const auto& [tag, ended] : Wait(all.size())) {
      EXPECT_EQ(ended.outcome, kOk) << "seed " << seed << ", record " << tag;
      EXPECT_TRUE(Same(*all[tag], tag));
    }
    Renew();
    EXPECT_EQ(OldKeys(), 0u);
  }
}

// The rows of the catalogue are those of before, or of after, or there are none.
TEST_F(ColdRenewerTest, ACrashAnywhereLosesNothing) {
  SetLogLevel(LogLevel::kError);
  for (const bool power : {false, true}) {
    bool was_stopped = true;
    for (uint64_t stop = 1; was_stopped; stop += 1 + stop / 8) {
      SCOPED_TRACE(testing::Message() << (power ? "power, " : "kill, ") << stop);
      BeginAnew(300 + stop, 100);
      files_->StopAfter(stop);
      Renew();
      was_stopped = files_->stopped();
      Crash(power);
      if (stop % 3 == 0) {
        store_.reset();
        ForgetCatalogue();
        Open();
      }
      for (const TestRecord* record : All()) ASSERT_EQ(Load(*record).outcome, kOk);
      EXPECT_EQ(store_->Stats().records, 24u);
      Renew();
      EXPECT_EQ(OldKeys(), 0u);
      // What is removed does not come back from the place that it had before.
      store_->Remove(Record(3).identity().key, 9);
      EXPECT_EQ(WaitOne().outcome, kOk);
      store_.reset();
      ForgetCatalogue();
      Open();
      for (const TestRecord* record : All()) {
        const bool is_removed = record == &Record(3);
        ASSERT_EQ(Load(*record).outcome, is_removed ? kAbsent : kOk);
      }
    }
  }
}

TEST_F(ColdRenewerTest, WhatGoesMeanwhileStaysAway) {
  for (uint64_t turns = 0; turns < 60; turns += 7) {
    SCOPED_TRACE(turns);
    BeginAnew(500 + turns, 2000);
    for (uint64_t i = 0; i < turns; ++i) Turn();
    store_->Erase(PublisherOf("anna"), 1, 8);
    EXPECT_EQ(WaitOne().outcome, kOk);
    for (uint64_t i = 0; i < 12; i += 2) {
      store_->Remove(Record(i).identity().key, 9);
      EXPECT_EQ(WaitOne().outcome, kOk);
    }
    PutAll(100, 2, "anna", 1);
    Renew();
    EXPECT_EQ(OldKeys(), 0u);
    for (const bool again : {false, true}) {
      if (again) Reopen();
      for (uint64_t i = 0; i < 12; ++i) {
        EXPECT_EQ(Load(Record(i)).outcome, i % 2 == 0 ? kAbsent : kOk) << i;
        EXPECT_EQ(Load(Record(100 + i, "anna")).outcome, kErased) << i;
      }
      EXPECT_EQ(Load(Record(100, "anna", 1)).outcome, kOk);
      EXPECT_EQ(store_->Stats().records, 8u);
    }
  }
}

// There a segment goes so that the first one can be written, as with any other write.
TEST_F(ColdRenewerTest, AFullStoreGivesUpOneSegment) {
  Open();
  uint64_t put = 0;
  while (store_->Stats().evicted == 0) PutAll(put++, 1);
  const uint64_t before = store_->Stats().records;
  ASSERT_TRUE(store_->RenewKeys());
  Renew();
  EXPECT_EQ(OldKeys(), 0u);
  const uint64_t of_segment = kTestSegmentBytes / Record(0).layout().record_bytes();
  EXPECT_GE(store_->Stats().records, before - 2 * of_segment);
  for (uint64_t i = 0; i < put; ++i) {
    const auto outcome = Load(Record(i)).outcome;
    EXPECT_TRUE(outcome == kOk || outcome == kAbsent);
  }
  EXPECT_EQ(store_->Stats().damaged, 0u);
}

TEST_F(ColdRenewerTest, WhatIsDamagedGoesAndTheKeyToo) {
  SetLogLevel(LogLevel::kError);
  Open();
  Fill();
  const std::string path = "store/segment-000000";
  std::vector<std::byte> bytes = *files_->Contents(path);
  bytes[20'000] ^= std::byte{1};
  const auto file = files_->Open(path, {});
  ASSERT_TRUE(file);
  ASSERT_TRUE(files_->WriteAt(*file, 0, bytes));
  files_->Close(*file);
  ASSERT_TRUE(store_->RenewKeys());
  Renew();
  EXPECT_EQ(OldKeys(), 0u);
  EXPECT_EQ(store_->Stats().damaged, 1u);
  EXPECT_EQ(store_->Stats().renewed, 23u);
}

TEST_F(ColdRenewerTest, AllOfItAtOnceWhileNothingElseUsesIt) {
  Open();
  Fill();
  store_.reset();
  RotateOptions options = {.keys = keys_, .renews_data_keys = true};
  auto report = RotateKeys(*files_, "store", options, clock_);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->renewed, 2u);
  EXPECT_EQ(report->keys_old, 2u);
  options.renews_data_keys = false;
  options.rewrites = true;
  uint64_t most = 0;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_EQ(all, 24u);
    EXPECT_GE(done, most);
    most = done;
    clock_.Advance(1000);
  };
  report = RotateKeys(*files_, "store", options, clock_);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->keys_old, 0u);
  EXPECT_EQ(report->keys, 2u);
  EXPECT_GT(most, 0u);
  Open();
  for (const TestRecord* record : All()) EXPECT_EQ(Load(*record).outcome, kOk);
}

TEST_F(ColdRenewerTest, ADiskThatTakesNothingKeepsTheOldKeys) {
  SetLogLevel(LogLevel::kError);
  Open();
  Fill();
  ASSERT_TRUE(store_->RenewKeys());
  files_->set_rates({.write_error = 1});
  const auto ended = store_->FinishRenewal([&](uint64_t, uint64_t) { clock_.Advance(100'000); });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kIo);
  EXPECT_EQ(OldKeys(), 2u);
  files_->set_rates({});
  for (const TestRecord* record : All()) EXPECT_EQ(Load(*record).outcome, kOk);
  clock_.Advance(600'000'000);
  EXPECT_TRUE(store_->FinishRenewal([&](uint64_t, uint64_t) { clock_.Advance(100'000); }));
  EXPECT_EQ(OldKeys(), 0u);
  for (const TestRecord* record : All()) EXPECT_EQ(Load(*record).outcome, kOk);
}

}  // namespace
}  // namespace quire::tier
