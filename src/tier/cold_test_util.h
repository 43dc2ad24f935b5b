// A cold store on a machine in memory, cranked by hand.
#ifndef QUIRE_TIER_COLD_TEST_UTIL_H_
#define QUIRE_TIER_COLD_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "env/clock.h"
#include "env/faulty_files.h"
#include "tier/cold.h"
#include "tier/test_records.h"

namespace quire::tier {

inline constexpr uint64_t kTestSegmentBytes = 128 << 10;

/// `Opened`: ColdStore, or SealedStore with keys_.
template <typename Opened>
class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, 1, nullptr);
    options_ = Options(8);
  }
  ~StoreTest() override { store_.reset(); }

  static ColdOptions Options(uint32_t segments) {
    constexpr uint64_t kCatalogueBytes = 128 << 10;
    return {.directory = "store",
            .bytes_cap =
                kCatalogueBytes + EpochBytesMax() + kLockBytesMax + segments * kTestSegmentBytes,
            .segment_bytes = kTestSegmentBytes,
            .catalogue_bytes_max = kCatalogueBytes,
            .staging_bytes = 1 << 20,
            .chunk_bytes = 64 << 10,
            .scrub_bytes_per_s = 0};
  }

  Opened& Open() {
    auto opened = Opened::Open(options_, *files_, clock_, keys_);
    EXPECT_TRUE(opened) << opened.error().message;
    store_ = std::move(*opened);
    return *store_;
  }
  /// As after a process that ended well or was killed, or after a power cut.
  Opened& Reopen() {
    store_.reset();
    return Open();
  }
  Opened& Crash(bool power) {
    if (power) {
      files_->LosePower();
    } else {
      files_->KillProcess();
    }
    store_.reset();
    files_->Restart();
    return Open();
  }

  /// Ticks until something ended for every tag, at most `us` of the clock.
  std::map<uint64_t, StoreCompletion> Wait(size_t count, uint64_t us = 10'000'000) {
    std::map<uint64_t, StoreCompletion> ended;
    std::vector<StoreCompletion> done;
    const uint64_t end_us = clock_.NowMicros() + us;
    while (ended.size() < count && clock_.NowMicros() < end_us) {
      done.clear();
      store_->Tick(done, 1000);
      if (done.empty()) clock_.Advance(1000);
      for (const StoreCompletion& completion : done) ended[completion.tag] = completion;
    }
    EXPECT_EQ(ended.size(), count);
    return ended;
  }
  StoreCompletion WaitOne() {
    const auto ended = Wait(1);
    return ended.empty() ? StoreCompletion{} : ended.begin()->second;
  }
  StoreOutcome Flush() {
    store_->Flush(kFlushTag);
    std::map<uint64_t, StoreCompletion> ended;
    while (!ended.contains(kFlushTag)) ended = Wait(1);
    return ended[kFlushTag].outcome;
  }

  const TestRecord& Record(uint64_t number, std::string_view domain = {}, uint64_t epoch = 0) {
    const std::string name =
        std::to_string(number) + "/" + std::string(domain) + "/" + std::to_string(epoch);
    auto found = records_.find(name);
    if (found == records_.end()) {
      found = records_.emplace(name, TestRecord(number, layout_, domain, epoch)).first;
    }
    return found->second;
  }
  void Put(const TestRecord& record, uint64_t tag = 1, std::span<const uint32_t> crcs = {}) {
    const PutRequest request = {.identity = record.identity(),
                                .layout = &record.layout(),
                                .sections = record.sections(),
                                .crcs = crcs,
                                .tag = tag};
    store_->Put({&request, 1});
  }
  /// Puts records with these numbers and waits for all of them.
  void PutAll(uint64_t first, uint64_t count, std::string_view domain = {}, uint64_t epoch = 0) {
    for (uint64_t i = first; i < first + count; ++i) {
      Put(Record(i, domain, epoch), i);
      for (const auto& [tag, ended] : Wait(1)) {
        EXPECT_EQ(ended.outcome, StoreOutcome::kOk) << StoreOutcomeName(ended.outcome);
      }
    }
  }
  bool Has(const TestRecord& record) const {
    Presence presence = Presence::kUnknown;
    store_->Find({&record.identity().key, 1}, {&presence, 1});
    return presence == Presence::kPresent;
  }
  /// Starts a load of all sections; what it reads is in loaded_[tag].
  void Get(const TestRecord& record, uint64_t tag = 1, uint64_t deadline_us = 0, uint32_t first = 0,
           uint32_t count = 0) {
    Loaded& loaded = loaded_[tag];
    loaded = {};
    if (count == 0) count = static_cast<uint32_t>(record.sections().size()) - first;
    for (uint32_t i = first; i < first + count; ++i) {
      loaded.sections.emplace_back(record.sections()[i].size());
    }
    for (auto& section : loaded.sections) loaded.out.push_back(section);
    loaded.crcs.resize(count);
    const LoadRequest request = {.identity = record.identity(),
                                 .layout = &record.layout(),
                                 .section_first = first,
                                 .section_count = count,
                                 .out = loaded.out,
                                 .crcs = loaded.crcs,
                                 .tag = tag};
    store_->Get({&request, 1}, deadline_us);
  }
  /// Loads all of a record; kOk only with the right bytes.
  StoreCompletion Load(const TestRecord& record) {
    Get(record, 77);
    const StoreCompletion ended = WaitOne();
    EXPECT_EQ(ended.tag, 77);
    if (ended.outcome == StoreOutcome::kOk) {
      EXPECT_TRUE(Same(record, 77));
    }
    return ended;
  }
  bool Same(const TestRecord& record, uint64_t tag, uint32_t first = 0) {
    const Loaded& loaded = loaded_[tag];
    for (size_t i = 0; i < loaded.sections.size(); ++i) {
      if (!std::ranges::equal(loaded.sections[i], record.sections()[first + i])) return false;
      if (loaded.crcs[i] != Crc32c(loaded.sections[i])) return false;
    }
    return true;
  }
  uint64_t DiskBytes() const { return files_->bytes_used(); }

  static constexpr uint64_t kFlushTag = 1 << 30;
  struct Loaded {
    std::vector<std::vector<std::byte>> sections{};
    std::vector<std::span<std::byte>> out{};
    std::vector<uint32_t> crcs{};
  };

  ManualClock clock_;
  std::unique_ptr<FaultyFiles> files_ =
      std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 5, .latency_us_max = 100}, clock_);
  const RecordLayout layout_ = TestLayout(16, 2, 3000);  // 4096 + 12288 bytes
  std::map<std::string, TestRecord> records_;
  std::map<uint64_t, Loaded> loaded_;
  ColdOptions options_;
  StoreKeys keys_;
  std::unique_ptr<Opened> store_;
};

using ColdTest = StoreTest<ColdStore>;

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_TEST_UTIL_H_
