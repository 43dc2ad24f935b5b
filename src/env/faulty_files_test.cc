// Each fault happens, does what its name says, and depends on the seed.
#include "env/faulty_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

constexpr uint64_t kBytes = 16384;

std::vector<std::byte> Filled(int value, uint64_t bytes = kBytes) {
  return std::vector<std::byte>(bytes, std::byte(value));
}

class FaultyFilesTest : public testing::Test {
 protected:
  std::unique_ptr<FaultyFiles> Make(uint64_t seed, const FaultRates& rates = {}) {
    return std::make_unique<FaultyFiles>(
        FaultyFilesOptions{.seed = seed, .latency_us_max = 10, .rates = rates}, clock_);
  }
  static FileId Open(FaultyFiles& files) {
    return files.Open("d/a", {.create = true, .bytes_preallocated = 4 * kBytes}).value();
  }
  static IoCompletion Do(FaultyFiles& files, const IoRequest& request) {
    files.Submit({&request, 1});
    IoCompletion done;
    while (files.Complete({&done, 1}, 1000) == 0) {
    }
    return done;
  }
  static IoCompletion Write(FaultyFiles& files, FileId file, std::vector<std::byte> bytes) {
    return Do(files, {.kind = IoKind::kWrite,
                      .file = file,
                      .offset = kBytes,
                      .data = bytes.data(),
                      .bytes = bytes.size()});
  }
  ManualClock clock_;
};

TEST_F(FaultyFilesTest, SyncedBytesOutliveAPowerCutAndOthersOnlyInParts) {
  int kept = 0, lost = 0, torn = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto files = Make(seed);
    const FileId file = Open(*files);
    Write(*files, file, Filled(1));
    ASSERT_TRUE(files->Sync(file));
    ASSERT_TRUE(files->SyncDirectory("d"));
    Write(*files, file, Filled(2));
    files->LosePower();
    const auto* contents = files->Contents("d/a");
    ASSERT_NE(contents, nullptr);
    uint64_t ones = 0;
    for (uint64_t i = 0; i < kBytes; ++i) {
      const std::byte byte = (*contents)[kBytes + i];
      ASSERT_TRUE(byte == std::byte{1} || byte == std::byte{2});
      ones += byte == std::byte{1} ? 1 : 0;
    }
    ASSERT_EQ(ones % 512, 0);
    (ones == 0 ? kept : ones == kBytes ? lost : torn) += 1;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(lost, 0);
  EXPECT_GT(torn, 0);
}

TEST_F(FaultyFilesTest, AKilledProcessKeepsWhatItWroteUnsynced) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto files = Make(seed);
    Write(*files, Open(*files), Filled(1));
    files->KillProcess();
    ASSERT_NE(files->Contents("d/a"), nullptr);
    EXPECT_EQ((*files->Contents("d/a"))[2 * kBytes - 1], std::byte{1});
  }
}

TEST_F(FaultyFilesTest, NamesThatWereNotSyncedMayBeForgottenInOrder) {
  int forgotten = 0, first_only = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto files = Make(seed);
    files->Close(files->Open("d/a", {.create = true}).value());
    files->Close(files->Open("d/b", {.create = true}).value());
    files->LosePower();
    const bool a = files->Contents("d/a") != nullptr, b = files->Contents("d/b") != nullptr;
    EXPECT_TRUE(a || !b);
    forgotten += a ? 0 : 1;
    first_only += a && !b ? 1 : 0;
  }
  EXPECT_GT(forgotten, 0);
  EXPECT_GT(first_only, 0);
}

TEST_F(FaultyFilesTest, ReportedFaultsAreReported) {
  auto files = Make(1, {.write_error = 1});
  EXPECT_EQ(Write(*files, Open(*files), Filled(1)).error, ErrorCode::kIo);
  files = Make(1, {.short_write = 1});
  EXPECT_LT(Write(*files, Open(*files), Filled(1)).bytes, kBytes);
  files = Make(1, {.sync_error = 1});
  EXPECT_EQ(Do(*files, {.kind = IoKind::kSync, .file = Open(*files)}).error, ErrorCode::kIo);
  std::vector<std::byte> in(kBytes);
  const auto read = [&](const FaultRates& rates) {
    files = Make(1, rates);
    return Do(*files, {.file = Open(*files), .data = in.data(), .bytes = kBytes});
  };
  EXPECT_EQ(read({.read_error = 1}).error, ErrorCode::kIo);
  EXPECT_LT(read({.short_read = 1}).bytes, kBytes);
  EXPECT_EQ(files->faults(), 1);
}

TEST_F(FaultyFilesTest, BadSectorsStayBadForEveryKindOfCall) {
  const auto files = Make(1);
  const FileId file = Open(*files);
  Write(*files, file, Filled(1));
  ASSERT_TRUE(files->Sync(file));
  ASSERT_TRUE(files->SyncDirectory("d"));
  files->Damage("d/a", kBytes + 4096, 4096, BadSectors::kUntilWritten);
  std::vector<std::byte> in(kBytes);
  const auto read = [&](FileId from, uint64_t offset, uint64_t bytes) {
    const auto plain = files->ReadAt(from, offset, std::span(in).first(bytes));
    const auto queued =
        Do(*files, {.file = from, .offset = offset, .data = in.data(), .bytes = bytes});
    EXPECT_EQ(plain.has_value(), !queued.error);
    return plain.has_value();
  };
  EXPECT_TRUE(read(file, 0, 4096));
  EXPECT_FALSE(read(file, kBytes, kBytes));
  files->LosePower();
  files->Restart();
  ASSERT_TRUE(files->Rename("d/a", "d/b"));
  const FileId again = files->Open("d/b", {}).value();
  EXPECT_FALSE(read(again, kBytes + 8191, 1));
  EXPECT_TRUE(read(again, kBytes + 8192, 4096));
  // A write of the first half mends that half.
  ASSERT_TRUE(files->WriteAt(again, kBytes + 4096, Filled(2, 2048)));
  EXPECT_TRUE(read(again, kBytes, 4096 + 2048));
  EXPECT_FALSE(read(again, kBytes, 4096 + 2049));
  EXPECT_FALSE(Write(*files, again, Filled(2)).error);
  EXPECT_TRUE(read(again, kBytes, kBytes));

  files->Damage("d/b", kBytes, 4096, BadSectors::kForGood);
  EXPECT_EQ(Write(*files, again, Filled(3)).error, ErrorCode::kIo);
  EXPECT_FALSE(files->WriteAt(again, kBytes + 4095, Filled(3, 1)));
  EXPECT_TRUE(files->WriteAt(again, kBytes + 4096, Filled(3, 1)));
  EXPECT_FALSE(read(again, kBytes, 1));
  files->MendDisk();
  EXPECT_TRUE(read(again, kBytes, 1));
}

TEST_F(FaultyFilesTest, AnObstructedNameCanOnlyBeListedAndRenamed) {
  const auto files = Make(1);
  Open(*files);
  files->Obstruct("d/a");
  files->Obstruct("d/b");
  files->LosePower();
  files->Restart();
  EXPECT_THAT(files->List("d").value(), testing::ElementsAre("a", "b"));
  EXPECT_EQ(files->Open("d/a", {.create = true}).error().code, ErrorCode::kIo);
  EXPECT_EQ(files->Open("d/b", {.read_only = true}).error().code, ErrorCode::kIo);
  EXPECT_EQ(files->Remove("d/a").error().code, ErrorCode::kIo);
  EXPECT_FALSE(files->Rename("d/a", "d/b"));
  EXPECT_TRUE(files->Rename("d/a", "d/c"));
  EXPECT_TRUE(files->Open("d/a", {.create = true}));
  files->MendDisk();
  EXPECT_TRUE(files->Open("d/b", {.create = true}));
}

TEST_F(FaultyFilesTest, PlainCallsFailAndDoNothing) {
  const auto files = Make(1);
  const FileId file = Open(*files);
  files->set_rates({.call_error = 1});
  std::vector<std::byte> in(16);
  EXPECT_EQ(files->Open("d/b", {.create = true}).error().code, ErrorCode::kIo);
  EXPECT_FALSE(files->List("d"));
  EXPECT_FALSE(files->Length(file));
  EXPECT_FALSE(files->ReadAt(file, 0, in));
  EXPECT_FALSE(files->WriteAt(file, 0, Filled(1)));
  EXPECT_FALSE(files->Resize(file, 1));
  EXPECT_FALSE(files->Sync(file));
  EXPECT_FALSE(files->SyncDirectory("d"));
  EXPECT_FALSE(files->Remove("d/a"));
  EXPECT_FALSE(files->Rename("d/a", "d/b"));
  // The queue has rates of its own.
  EXPECT_FALSE(Write(*files, file, Filled(1)).error);
  files->set_rates({});
  EXPECT_EQ(files->Length(file).value(), 4 * kBytes);
  EXPECT_EQ(files->Paths(), std::vector<std::string>{"d/a"});
  EXPECT_EQ((*files->Contents("d/a"))[0], std::byte{});
}

TEST_F(FaultyFilesTest, SilentFaultsAreSilent) {
  const auto contents_after = [&](const FaultRates& rates) {
    const auto files = Make(5, rates);
    const IoCompletion done = Write(*files, Open(*files), Filled(1));
    EXPECT_FALSE(done.error);
    EXPECT_EQ(done.bytes, kBytes);
    return *files->Contents("d/a");
  };
  const auto ones = [](const std::vector<std::byte>& bytes) {
    return static_cast<uint64_t>(std::ranges::count(bytes, std::byte{1}));
  };
  EXPECT_EQ(ones(contents_after({})), kBytes);
  EXPECT_EQ(ones(contents_after({.lost_write = 1})), 0);
  const uint64_t torn = ones(contents_after({.torn_write = 1}));
  EXPECT_GT(torn, 0);
  EXPECT_LT(torn, kBytes);
  const auto misdirected = contents_after({.misdirected_write = 1});
  EXPECT_EQ(ones(misdirected), kBytes);
  EXPECT_NE(misdirected, contents_after({}));
  const auto flipped = contents_after({.flip_at_rest = 1});
  EXPECT_NE(flipped, contents_after({}));
  std::vector<std::byte> in(kBytes);
  const auto files = Make(1, {.flip_on_read = 1});
  Do(*files, {.file = Open(*files), .data = in.data(), .bytes = kBytes});
  EXPECT_NE(in, Filled(0));
}

TEST_F(FaultyFilesTest, AFullDiskSaysSo) {
  const auto files = Make(1);
  files->set_disk_bytes(6 * kBytes);
  const FileId file = Open(*files);
  EXPECT_EQ(files->Open("d/b", {.create = true, .bytes_preallocated = 3 * kBytes}).error().code,
            ErrorCode::kNoSpace);
  EXPECT_EQ(files->Contents("d/b"), nullptr);
  EXPECT_FALSE(Write(*files, file, Filled(1, 3 * kBytes)).error);
  EXPECT_EQ(Write(*files, file, Filled(1, 6 * kBytes)).error, ErrorCode::kNoSpace);
}

TEST_F(FaultyFilesTest, AStoppedMachineTakesNothingMore) {
  const auto files = Make(1);
  const FileId file = Open(*files);
  files->StopAfter(2);
  EXPECT_FALSE(Write(*files, file, Filled(1)).error);
  EXPECT_TRUE(Write(*files, file, Filled(2)).error);
  EXPECT_FALSE(files->Sync(file));
  EXPECT_FALSE(files->Open("d/a", {}));
  files->KillProcess();
  EXPECT_FALSE(files->Open("d/a", {}));
  files->Restart();
  EXPECT_TRUE(files->Open("d/a", {}));
}

TEST_F(FaultyFilesTest, OneSeedGivesOneRun) {
  const auto run = [&](uint64_t seed) {
    const auto files = Make(seed, {.torn_write = 2, .misdirected_write = 2});
    const FileId file = Open(*files);
    EXPECT_TRUE(files->SyncDirectory("d"));
    for (int i = 1; i < 20; ++i) Write(*files, file, Filled(i));
    files->LosePower();
    const auto* contents = files->Contents("d/a");
    return contents == nullptr ? std::vector<std::byte>() : *contents;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

}  // namespace
}  // namespace quire
