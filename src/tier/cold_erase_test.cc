// What was erased is in no file and in no memory of the store: every raw byte is looked at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/log.h"
#include "tier/cold_test_util.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;

/// Files that tell where the memory is that bytes pass through, and keep requests back.
class OpenedFiles : public FaultyFiles {
 public:
  using FaultyFiles::FaultyFiles;
  using Kept = std::vector<IoRequest>;

  void Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      if (keeps && keeps(request)) {
        kept.push_back(request);
      } else {
        FaultyFiles::Submit({&request, 1});
      }
    }
  }
  size_t Complete(std::span<IoCompletion> out, uint64_t wait_us) override {
    if (failed.empty()) return FaultyFiles::Complete(out, wait_us);
    out[0] = {.tag = failed.back().tag, .error = ErrorCode::kIo};
    failed.pop_back();
    return 1;
  }
  std::function<bool(const IoRequest&)> keeps{};
  Kept kept;
  Kept failed;  // nothing of them is done

  Result<void> Remove(const std::string& path) override {
    if (on_remove) on_remove(path);
    return FaultyFiles::Remove(path);
  }
  std::function<void(const std::string&)> on_remove{};

  void RegisterBuffers(std::span<const std::span<std::byte>> given) override {
    buffers.assign(given.begin(), given.end());
  }
  std::vector<std::span<std::byte>> buffers;
};

// Segments of eight records each.
class ColdEraseTest : public ColdTest {
 protected:
  ColdEraseTest() { NewFiles(1); }
  ~ColdEraseTest() override { SetLogLevel(LogLevel::kWarn); }
  void NewFiles(uint64_t seed) {
    store_.reset();
    auto files = std::make_unique<OpenedFiles>(
        FaultyFilesOptions{.seed = seed, .latency_us_max = 100}, clock_);
    opened_ = files.get();
    files_ = std::move(files);
  }

  void Erase(std::string_view domain, uint64_t epoch = 1) {
    store_->Erase(PublisherOf(domain), epoch, 1000);
    std::map<uint64_t, StoreCompletion> ended;
    while (!ended.contains(1000)) ended.merge(Wait(1));
    EXPECT_EQ(ended[1000].outcome, kOk);
  }

  // How many of these records have bytes of theirs in some memory: its tokens, or a stretch of any
  // sector of its K and V.
  uint64_t Found(std::span<const std::byte> bytes, uint64_t first, uint64_t count,
                 std::string_view domain) {
    uint64_t found = 0;
    for (uint64_t i = first; i < first + count; ++i) {
      const TestRecord& record = Record(i, domain);
      std::vector<std::span<const std::byte>> needles = {
          std::as_bytes(std::span(record.identity().tokens))};
      for (const auto section : record.sections()) {
        for (uint64_t at = 0; at + 32 <= section.size(); at += 500) {
          needles.push_back(section.subspan(at, 32));
        }
      }
      const bool any = std::ranges::any_of(needles, [&](std::span<const std::byte> needle) {
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return text.contains(
            std::string_view(reinterpret_cast<const char*>(needle.data()), needle.size()));
      });
      found += any ? 1 : 0;
    }
    return found;
  }
  uint64_t FoundInFiles(uint64_t first, uint64_t count, std::string_view domain) {
    uint64_t found = 0;
    for (const std::string& path : files_->Paths()) {
      found += Found(*files_->Contents(path), first, count, domain);
    }
    return found;
  }

  OpenedFiles* opened_ = nullptr;
};

bool IsOf(IoOwner owner, IoKind kind, const IoRequest& request) {
  return request.kind == kind && request.tag >> 32 == static_cast<uint64_t>(owner);
}

TEST_F(ColdEraseTest, BytesBehindTheTailOfASegmentsNewOwnerGo) {
  options_ = Options(3);
  Open();
  PutAll(0, 24, "a");
  PutAll(100, 2, "b");
  PutAll(200, 3, "c");
  EXPECT_GT(FoundInFiles(0, 24, "a"), 8);
  Erase("a");
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(FoundInFiles(0, 24, "a"), 0);
  store_.reset();
  EXPECT_EQ(FoundInFiles(0, 24, "a"), 0);
  Open();
  for (uint64_t i = 100; i < 102; ++i) EXPECT_EQ(Load(Record(i, "b")).outcome, kOk);
  for (uint64_t i = 200; i < 203; ++i) EXPECT_EQ(Load(Record(i, "c")).outcome, kOk);
  EXPECT_EQ(store_->Stats().damaged, 0);
}

// Two owners' bytes lie behind the present one's, which goes on writing meanwhile.
TEST_F(ColdEraseTest, ItsOwnerGoesOnWritingMeanwhile) {
  options_ = Options(2);
  Open();
  PutAll(0, 16, "a");
  PutAll(100, 4, "b");
  PutAll(200, 1, "c");
  PutAll(300, 2, "d");
  EXPECT_GT(FoundInFiles(0, 16, "a"), 0);
  store_->Erase(PublisherOf("a"), 1, 1000);
  std::map<uint64_t, StoreOutcome> ended;
  for (uint64_t i = 302, stored = 0; stored < 5;) {
    Put(Record(i, "d"), i);
    for (const auto& [tag, completion] : Wait(1)) ended[tag] = completion.outcome;
    if (!ended.contains(i)) continue;
    ASSERT_THAT(ended[i], testing::AnyOf(kOk, kBusy, kPresent));
    if (ended[i] == kBusy) continue;
    ++stored;
    ++i;
  }
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(FoundInFiles(0, 16, "a"), 0);
  for (uint64_t i = 300; i < 307; ++i) EXPECT_EQ(Load(Record(i, "d")).outcome, kOk) << i;
  Reopen();
  for (uint64_t i = 300; i < 307; ++i) EXPECT_EQ(Load(Record(i, "d")).outcome, kOk) << i;
}

// What it goes on with was not written yet when a flush began: that waits for it.
TEST_F(ColdEraseTest, WhatItsOwnerIsAboutToOverwriteIsAwaited) {
  options_ = Options(3);
  Open();
  PutAll(0, 24, "a");
  PutAll(100, 2, "b");
  ASSERT_GT(FoundInFiles(0, 24, "a"), 8);
  store_->Erase(PublisherOf("a"), 1, 1000);
  store_->Flush(kFlushTag);
  for (uint64_t i = 102; i < 105; ++i) Put(Record(i, "b"), i);
  std::vector<StoreCompletion> done;
  while (std::ranges::find(done, kFlushTag, &StoreCompletion::tag) == done.end()) {
    store_->Tick(done, 1000);
  }
  EXPECT_EQ(FoundInFiles(0, 24, "a"), 0);
}

// Whose bytes lie behind a tail is known as long as the store is open.
TEST_F(ColdEraseTest, AfterARestartTheyGoToo) {
  for (const auto& restart : std::vector<std::function<void()>>{
           [&] { Reopen(); },
           [&] { Crash(/*power=*/false); },
           [&] { Crash(/*power=*/true); },
           [&] {
             store_.reset();
             ASSERT_TRUE(files_->Remove("store/catalogue.db"));
             Open();
           },
       }) {
    NewFiles(2);
    options_ = Options(3);
    Open();
    PutAll(0, 24, "a");
    PutAll(100, 2, "b");
    PutAll(200, 8, "c");
    PutAll(208, 1, "c");
    Flush();
    restart();
    Erase("a");
    EXPECT_EQ(Flush(), kOk);
    EXPECT_EQ(FoundInFiles(0, 24, "a"), 0);
    EXPECT_EQ(Load(Record(100, "b")).outcome, kOk);
  }
}

// Wherever a machine stops: once an erasure is durable its bytes go when the store is open again.
TEST_F(ColdEraseTest, ACrashOnTheWayOnlyPutsItOff) {
  SetLogLevel(LogLevel::kError);
  uint64_t erased = 0;
  for (uint64_t stop = 1; stop < 40; ++stop) {
    SCOPED_TRACE(stop);
    NewFiles(stop);
    options_ = Options(3);
    Open();
    PutAll(0, 24, "a");
    PutAll(100, 2, "b");
    files_->StopAfter(stop);
    store_->Erase(PublisherOf("a"), 1, 1000);
    std::vector<StoreCompletion> done;
    for (int i = 0; i < 100 && !files_->stopped(); ++i) store_->Tick(done, 1000);
    Crash(/*power=*/stop % 2 == 0);
    EXPECT_EQ(Flush(), kOk);
    if (store_->EpochOf(PublisherOf("a")) == 0) continue;
    ++erased;
    EXPECT_EQ(FoundInFiles(0, 24, "a"), 0);
    for (uint64_t i = 100; i < 102; ++i) EXPECT_EQ(Load(Record(i, "b")).outcome, kOk);
  }
  EXPECT_GT(erased, 10);
}

// Of the first commit of a segment's new owner a part is written, then the machine stops. No record
// says whose that is, and a header of the former owner may lie around it.
TEST_F(ColdEraseTest, WhatFirstWritesLeaveInARecycledSegmentGoes) {
  SetLogLevel(LogLevel::kError);
  uint64_t left = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    for (const bool keeps_catalogue : {false, true}) {
      SCOPED_TRACE(testing::Message() << seed << keeps_catalogue);
      NewFiles(seed);
      options_ = Options(3);
      options_.staging_bytes = 128 << 10;  // what is older counts as whole
      Open();
      PutAll(0, 24, "a");
      Flush();
      if (seed % 2 == 0) files_->set_rates({.write_error = 2});
      for (uint64_t i = 100; i < 104; ++i) Put(Record(i, "b"), i);
      store_->Flush(kFlushTag);
      std::vector<StoreCompletion> done;
      for (uint64_t i = 0; i < seed % 20; ++i) store_->Tick(done, 20);
      files_->LosePower();
      store_.reset();
      files_->Restart();
      files_->set_rates({});
      if (!keeps_catalogue) {
        ASSERT_TRUE(files_->Remove("store/catalogue.db"));
      }
      Open();
      left += FoundInFiles(100, 4, "b") > 0 ? 1 : 0;
      EXPECT_EQ(store_->UsageOf(PublisherOf("")), PublisherUsage{}) << "it stored nothing";
      Erase("b");
      EXPECT_EQ(Flush(), kOk);
      EXPECT_EQ(FoundInFiles(100, 4, "b"), 0);
    }
  }
  EXPECT_GT(left, 20);
}

// A segment whose new owner wrote nothing but its front has no owner after a restart. While its
// former owner's bytes are overwritten a power cut takes the front first, which hid them.
TEST_F(ColdEraseTest, WhatOnlyAFrontHidesIsErasedForGood) {
  SetLogLevel(LogLevel::kError);
  options_ = Options(3);
  Open();
  PutAll(0, 8, "a");
  PutAll(100, 8, "b");
  PutAll(200, 8, "c");
  opened_->keeps = [](const IoRequest& request) {
    return IsOf(IoOwner::kWriter, IoKind::kWrite, request) && request.offset > 0;
  };
  Put(Record(300, "d"));
  store_->Flush(kFlushTag);
  std::vector<StoreCompletion> done;
  for (int i = 0; i < 1000 && opened_->kept.empty(); ++i) store_->Tick(done, 1000);
  ASSERT_EQ(opened_->kept.size(), 1);
  opened_->keeps = {};
  opened_->kept.clear();
  Crash(/*power=*/true);
  ASSERT_EQ(store_->UsageOf(PublisherOf("a")), PublisherUsage{});
  ASSERT_GT(FoundInFiles(0, 8, "a"), 0);
  Erase("a");
  files_->LosePower();
  store_.reset();
  files_->Restart();
  for (const std::string& path : files_->Paths()) {
    if (path.find("segment") == std::string::npos || Found(*files_->Contents(path), 0, 8, "a") == 0)
      continue;
    std::fill_n(files_->Contents(path)->begin(), kRecordAlignment, std::byte{0});
  }
  Open();
  EXPECT_EQ(store_->EpochOf(PublisherOf("a")), 1);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_FALSE(Has(Record(i, "a"))) << i;
}

// The same while it is overwritten: the front, which says whose the segment is, goes last.
TEST_F(ColdEraseTest, WhatAFailedWriteLeavesGoesAlsoWhenOverwritingIsCutOff) {
  options_ = Options(2);
  options_.staging_bytes = 128 << 10;  // what is older counts as whole
  Open();
  PutAll(0, 16, "a");
  const auto is_front = [](const IoRequest& request) {
    return request.kind == IoKind::kWrite && request.offset < (64 << 10) &&
           request.bytes > kRecordAlignment;
  };
  opened_->keeps = is_front;
  Put(Record(100, "b"), 100);
  Put(Record(101, "b"), 101);
  store_->Flush(kFlushTag);
  std::vector<StoreCompletion> done;
  while (opened_->kept.empty()) store_->Tick(done, 1000);
  store_->Erase(PublisherOf("b"), 1, 1000);
  // Of what fails two pages are written, inside of a record of "a".
  std::vector<std::byte>& segment = *files_->Contents("store/segment-000000");
  const IoRequest write = opened_->kept[0];
  std::copy_n(write.data + 24576 - write.offset, 8192, segment.begin() + 24576);
  ASSERT_EQ(FoundInFiles(100, 2, "b"), 1);
  opened_->failed = std::exchange(opened_->kept, {});
  for (int i = 0; i < 1000 && opened_->kept.empty(); ++i) store_->Tick(done, 1000);
  // And of the zeros one sector.
  ASSERT_EQ(opened_->kept.size(), 1);
  std::fill_n(segment.begin() + static_cast<ptrdiff_t>(opened_->kept[0].offset), 512, std::byte{0});
  files_->KillProcess();
  store_.reset();
  opened_->keeps = nullptr;
  files_->Restart();
  ASSERT_TRUE(files_->Remove("store/catalogue.db"));
  Open();
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(FoundInFiles(100, 2, "b"), 0);
}

// The owner of a segment was to overwrite what an earlier one left, and fails, while what lies
// behind that is overwritten.
TEST_F(ColdEraseTest, WhatAWriteThatFailsMeanwhileLeavesGoesToo) {
  options_ = Options(2);
  Open();
  PutAll(0, 8, "a");
  PutAll(100, 8, "c");
  PutAll(200, 2, "b");
  ASSERT_GT(FoundInFiles(0, 8, "a"), 0);
  opened_->keeps = [](const IoRequest& request) {
    return IsOf(IoOwner::kWriter, IoKind::kWrite, request);
  };
  Put(Record(202, "b"), 202);
  store_->Flush(kFlushTag);
  std::vector<StoreCompletion> done;
  store_->Tick(done, 1000);
  ASSERT_EQ(opened_->kept.size(), 1);
  OpenedFiles::Kept writes = std::exchange(opened_->kept, {});
  // The sync of what was overwritten.
  opened_->keeps = [](const IoRequest& request) {
    return IsOf(IoOwner::kEraser, IoKind::kSync, request) &&
           static_cast<uint32_t>(request.tag) != EpochSaver::kIoNumber;
  };
  store_->Erase(PublisherOf("a"), 1, 1000);
  for (int i = 0; i < 1000 && opened_->kept.empty(); ++i) store_->Tick(done, 1000);
  ASSERT_EQ(opened_->kept.size(), 1);
  opened_->keeps = nullptr;
  opened_->failed = writes;
  for (int i = 0; i < 10; ++i) store_->Tick(done, 1000);
  opened_->FaultyFiles::Submit(opened_->kept);
  while (done.size() < 3) store_->Tick(done, 1000);
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(FoundInFiles(0, 8, "a"), 0);
  EXPECT_EQ(Load(Record(201, "b")).outcome, kOk);
}

// Overwriting costs nothing where it is not needed.
// The epochs of many tenants take a segment's room: one that is free but waits to be overwritten.
TEST_F(ColdEraseTest, ASegmentThatGoesMeanwhileIsOverwrittenBefore) {
  SetLogLevel(LogLevel::kError);
  options_ = Options(3);
  Open();
  PutAll(0, 24, "a");
  store_.reset();
  ASSERT_TRUE(files_->Remove("store/catalogue.db"));
  const std::string path = "store/segment-000001";
  std::ranges::fill(*files_->Contents(path), std::byte{0xA5});
  // Whose that was, nothing says: so every tenant may have had something.
  (*files_->Contents("store/segment-000000"))[0] ^= std::byte{1};
  Open();
  bool was_overwritten = false;
  opened_->on_remove = [&](const std::string& removed) {
    if (removed != path) return;
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    was_overwritten = std::ranges::all_of(*files_->Contents(path), is_zero);
  };
  for (uint64_t i = 0; i <= kEpochPublishersReserved; ++i) {
    store_->Erase(PublisherOf(std::to_string(i)), 1, i);
  }
  Wait(kEpochPublishersReserved + 1);
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(files_->Contents(path), nullptr);
  EXPECT_TRUE(was_overwritten);
  EXPECT_EQ(store_->Stats().bytes_erased, 0);
  opened_->on_remove = {};  // the store removes more when it closes
}

TEST_F(ColdEraseTest, OthersTailsAreLeftAlone) {
  options_ = Options(4);
  Open();
  PutAll(0, 32, "a");
  PutAll(100, 2, "b");
  PutAll(200, 1, "c");
  Erase("c");
  Flush();
  const uint64_t written = store_->Stats().bytes_written;
  Erase("nobody");
  EXPECT_EQ(Flush(), kOk);
  EXPECT_LT(store_->Stats().bytes_written - written, 10'000);
  EXPECT_GT(FoundInFiles(0, 32, "a"), 16);
}

TEST_F(ColdEraseTest, NothingOfItIsLeftInStaging) {
  options_.reads_max = 1;
  Open();
  PutAll(0, 8, "a");
  PutAll(100, 2, "b");
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(Load(Record(i, "a")).outcome, kOk);
  uint64_t found = 0;
  for (const auto buffer : opened_->buffers) found += Found(buffer, 0, 8, "a");
  EXPECT_GT(found, 0);
  // One load is under way, and others wait for their turn.
  for (uint64_t i = 0; i < 8; ++i) Get(Record(i, "a"), 70 + i);
  store_->Erase(PublisherOf("a"), 1, 1000);
  EXPECT_EQ(Wait(9).at(1000).outcome, kOk);
  EXPECT_EQ(Flush(), kOk);
  for (const auto buffer : opened_->buffers) EXPECT_EQ(Found(buffer, 0, 8, "a"), 0);
  EXPECT_EQ(Load(Record(100, "b")).outcome, kOk);
}

}  // namespace
}  // namespace quire::tier
