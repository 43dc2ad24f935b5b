// One set of tests for every queue: io_uring, threads, and the one in memory.
#include "env/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "base/prng.h"
#include "env/faulty_files.h"
#include "env/posix_files.h"

namespace quire {
namespace {

using testing::ElementsAre;

struct AlignedFree {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedFree>;

AlignedBytes MakeAligned(uint64_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(std::aligned_alloc(kDirectIoAlignment, bytes)));
}

struct Subject {
  std::string name;
  std::function<Result<std::unique_ptr<Files>>(ManualClock&)> make;
};

class FilesSuite : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("quire_files_" + std::to_string(::getpid()) + GetParam().name);
    std::filesystem::create_directory(folder_);
    auto made = GetParam().make(clock_);
    if (!made) GTEST_SKIP() << made.error().message;
    files_ = std::move(*made);
  }
  void TearDown() override {
    files_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string Path(std::string_view name) const { return (folder_ / name).string(); }
  FileId MustOpen(std::string_view name, const OpenOptions& options) {
    const auto file = files_->Open(Path(name), options);
    EXPECT_TRUE(file) << file.error().message;
    return file.value_or(FileId{});
  }
  // Waits for all that is in flight.
  std::map<uint64_t, IoCompletion> Finish() {
    std::map<uint64_t, IoCompletion> all;
    std::array<IoCompletion, 3> some;
    while (files_->in_flight() > 0) {
      const size_t count = files_->Complete(some, 1'000'000);
      for (size_t i = 0; i < count; ++i) all[some[i].tag] = some[i];
    }
    return all;
  }

  ManualClock clock_;
  std::filesystem::path folder_;
  std::unique_ptr<Files> files_;
};

TEST_P(FilesSuite, ManyRequestsAtOnceMoveTheRightBytes) {
  constexpr uint64_t kPieces = 200;  // more than any queue takes at once
  constexpr uint64_t kPieceBytes = 8192;
  const FileId file = MustOpen("a", {.create = true, .direct = true});
  const AlignedBytes out = MakeAligned(kPieces * kPieceBytes);
  const AlignedBytes in = MakeAligned(kPieces * kPieceBytes);
  // The last half of the bytes is read into a buffer that is not registered.
  files_->RegisterBuffers(std::array<std::span<std::byte>, 2>{
      {{out.get(), kPieces * kPieceBytes}, {in.get(), kPieces * kPieceBytes / 2}}});
  Prng prng(7);
  for (uint64_t i = 0; i < kPieces * kPieceBytes; ++i) out[i] = std::byte(prng.Next64());

  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    std::vector<IoRequest> requests;
    for (uint64_t i = 0; i < kPieces; ++i) {
      std::byte* data = (kind == IoKind::kWrite ? out : in).get() + i * kPieceBytes;
      requests.push_back({.kind = kind,
                          .file = file,
                          .offset = i * kPieceBytes,
                          .data = data,
                          .bytes = kPieceBytes,
                          .tag = 1000 + i});
    }
    files_->Submit(requests);
    EXPECT_EQ(files_->in_flight(), kPieces);
    const auto done = Finish();
    ASSERT_EQ(done.size(), kPieces);
    for (const auto& [tag, completion] : done) {
      EXPECT_FALSE(completion.error);
      EXPECT_EQ(completion.bytes, kPieceBytes);
    }
  }
  EXPECT_EQ(std::memcmp(in.get(), out.get(), kPieces * kPieceBytes), 0);
  EXPECT_EQ(files_->Length(file).value(), kPieces * kPieceBytes);
}

TEST_P(FilesSuite, ReadsEndWhereTheFileEnds) {
  const FileId file = MustOpen("a", {.create = true});
  const std::vector<std::byte> bytes(5000, std::byte{3});
  ASSERT_TRUE(files_->WriteAt(file, 0, bytes));
  std::vector<std::byte> in(8192);
  const IoRequest read = {
      .kind = IoKind::kRead, .file = file, .offset = 4096, .data = in.data(), .bytes = 8192};
  files_->Submit({&read, 1});
  const auto done = Finish();
  EXPECT_FALSE(done.at(0).error);
  EXPECT_EQ(done.at(0).bytes, 904);
  EXPECT_EQ(files_->ReadAt(file, 4999, in).value(), 1);
  EXPECT_EQ(files_->ReadAt(file, 5000, in).value(), 0);
}

TEST_P(FilesSuite, SyncIsARequestToo) {
  const FileId file = MustOpen("a", {.create = true});
  ASSERT_TRUE(files_->WriteAt(file, 0, std::vector<std::byte>(10)));
  const IoRequest sync = {.kind = IoKind::kSync, .file = file, .tag = 9};
  files_->Submit({&sync, 1});
  EXPECT_FALSE(Finish().at(9).error);
  EXPECT_TRUE(files_->Sync(file));
  EXPECT_TRUE(files_->SyncDirectory(folder_.string()));
}

TEST_P(FilesSuite, CompleteGivesUpAfterItsTime) {
  std::array<IoCompletion, 1> one;
  EXPECT_EQ(files_->Complete(one, 1000), 0);
}

TEST_P(FilesSuite, WritingToAFileOpenForReadingFails) {
  if (files_->queue_name() == "memory") GTEST_SKIP() << "has no such errors";
  files_->Close(MustOpen("a", {.create = true}));
  const FileId file = MustOpen("a", {.read_only = true});
  std::byte byte{};
  const IoRequest write = {.kind = IoKind::kWrite, .file = file, .data = &byte, .bytes = 1};
  files_->Submit({&write, 1});
  EXPECT_EQ(Finish().at(0).error, ErrorCode::kIo);
  EXPECT_EQ(files_->WriteAt(file, 0, {&byte, 1}).error().code, ErrorCode::kIo);
}

TEST_P(FilesSuite, NamesAreMadeMovedAndRemoved) {
  EXPECT_EQ(files_->Open(Path("a"), {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(files_->Remove(Path("a")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(files_->Rename(Path("a"), Path("b")).error().code, ErrorCode::kNotFound);
  files_->Close(MustOpen("b", {.create = true}));
  files_->Close(MustOpen("a", {.create = true}));
  EXPECT_THAT(files_->List(folder_.string()).value(), ElementsAre("a", "b"));
  ASSERT_TRUE(files_->Rename(Path("a"), Path("c")));
  ASSERT_TRUE(files_->Remove(Path("b")));
  EXPECT_THAT(files_->List(folder_.string()).value(), ElementsAre("c"));
  EXPECT_TRUE(files_->MakeDirectory(folder_.string()));
}

TEST_P(FilesSuite, OneHolderOfALock) {
  const FileId first = MustOpen("lock", {.create = true, .locked = true});
  EXPECT_EQ(files_->Open(Path("lock"), {.locked = true}).error().code, ErrorCode::kBusy);
  files_->Close(MustOpen("lock", {.read_only = true}));  // looking is allowed
  files_->Close(first);
  files_->Close(MustOpen("lock", {.locked = true}));
}

TEST_P(FilesSuite, PreallocatedBytesReadAsZeroAndKeepOldOnes) {
  const std::vector<std::byte> bytes(100, std::byte{5});
  FileId file = MustOpen("a", {.create = true, .bytes_preallocated = 1 << 16});
  EXPECT_EQ(files_->Length(file).value(), 1 << 16);
  std::vector<std::byte> in(100, std::byte{1});
  ASSERT_EQ(files_->ReadAt(file, 300, in).value(), 100);
  EXPECT_EQ(in, std::vector<std::byte>(100));
  ASSERT_TRUE(files_->WriteAt(file, 300, bytes));
  files_->Close(file);
  file = MustOpen("a", {.bytes_preallocated = 1 << 17});
  ASSERT_EQ(files_->ReadAt(file, 300, in).value(), 100);
  EXPECT_EQ(in, bytes);
  ASSERT_TRUE(files_->Resize(file, 50));
  EXPECT_EQ(files_->Length(file).value(), 50);
}

// Opening a pipe waits for its other end, unless the caller asks not to wait.
TEST_P(FilesSuite, AFileThatIsNotRegularIsRefused) {
  if (files_->queue_name() == "memory") return;  // it has no other kinds of file
  ASSERT_TRUE(files_->MakeDirectory(Path("directory")));
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink(Path("loop"), Path("loop"));
  for (const char* name : {"directory", "pipe", "loop"}) {
    for (const bool read_only : {true, false}) {
      const auto file = files_->Open(Path(name), {.create = !read_only, .read_only = read_only});
      ASSERT_FALSE(file) << name;
      EXPECT_EQ(file.error().code, ErrorCode::kIo) << file.error().message;
    }
  }
  EXPECT_THAT(files_->List(folder_.string()).value(), ElementsAre("directory", "loop", "pipe"));
}

INSTANTIATE_TEST_SUITE_P(
    Queues, FilesSuite,
    testing::Values(Subject{"uring", [](ManualClock&) { return MakeUringFiles(16); }},
                    Subject{"threads", [](ManualClock&) { return MakeThreadFiles(4); }},
                    Subject{"memory",
                            [](ManualClock& clock) -> Result<std::unique_ptr<Files>> {
                              return std::make_unique<FaultyFiles>(
                                  FaultyFilesOptions{.seed = 3, .latency_us_max = 50}, clock);
                            }}),
    [](const auto& name) { return name.param.name; });

TEST(Files, ThreadsStandInWhenAskedFor) {
  const auto files = MakeFiles({.threads_only = true});
  ASSERT_TRUE(files);
  EXPECT_EQ((*files)->queue_name(), "threads");
}

TEST(Files, ARefusedRingIsAnError) {
  // A ring needs a descriptor: with none left it is refused, as it is in a locked-down container.
  // UBSan needs one too when it checks a type for the first time, so one ring is made before.
  (void)MakeUringFiles(4);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const rlimit none = {.rlim_cur = static_cast<rlim_t>(next), .rlim_max = limit.rlim_max};
  ::close(next);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto refused = MakeUringFiles(4);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace quire
