#include "env/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace quire {
namespace {

using testing::TempDir;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = TempDir() + "quire_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  std::string directory_;
};

std::string Read(const RandomAccessFile& file, uint64_t offset, size_t bytes) {
  std::string text(bytes, '?');
  const auto read = file.ReadAt(offset, std::as_writable_bytes(std::span(text)));
  return read ? text : read.error().message;
}

TEST_F(FileTest, WrittenBytesAreReadBack) {
  std::string bytes;
  for (int i = 0; i < 300'000; ++i) bytes.push_back(static_cast<char>(i * 7));
  ASSERT_TRUE(WriteFile(Path("a"), bytes));
  EXPECT_EQ(ReadFile(Path("a"), bytes.size()).value(), bytes);
  ASSERT_TRUE(WriteFile(Path("a"), ""));
  EXPECT_EQ(ReadFile(Path("a"), 0).value(), "");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"}) << "a temporary file was left";
}

TEST_F(FileTest, ReadFileStopsAtItsLimit) {
  ASSERT_TRUE(WriteFile(Path("a"), "12345"));
  EXPECT_EQ(ReadFile(Path("a"), std::numeric_limits<uint64_t>::max()).value(), "12345");
  const auto refused = ReadFile(Path("a"), 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(refused.error().message, Path("a") + ": more than the 4 bytes allowed");
  EXPECT_EQ(ReadFile("/dev/zero", 1'000'000).error().code, ErrorCode::kCorrupt)
      << "endless, and stat says 0 bytes";
}

TEST_F(FileTest, ReadFileNamesWhatIsMissing) {
  const auto missing = ReadFile(Path("none"), 10);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(Path("none")), std::string::npos);
  EXPECT_EQ(ReadFile(directory_, 10).error().code, ErrorCode::kIo);
}

TEST_F(FileTest, AFailedWriteLeavesTheOldFileAlone) {
  EXPECT_EQ(WriteFile(Path("none/a"), "x").error().code, ErrorCode::kNotFound);
  // The rename at the end fails: the target is a directory.
  ASSERT_EQ(mkdir(Path("taken").c_str(), 0777), 0);
  EXPECT_FALSE(WriteFile(Path("taken"), "x"));
  EXPECT_EQ(Names(), std::vector<std::string>{"taken"}) << "a temporary file was left";
}

// The limit on file sizes fails the write in the middle, as a full disk would.
TEST_F(FileTest, PiecesAreTheFileAndATakerMayStop) {
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) bytes.push_back(static_cast<char>(i * 7));
  ASSERT_TRUE(WriteFile(Path("a"), bytes));
  std::string read;
  int pieces = 0;
  ASSERT_TRUE(ReadPieces(Path("a"), bytes.size(), [&](std::string_view piece) -> Result<void> {
    EXPECT_LE(piece.size(), size_t{1} << 16);
    read += piece;
    ++pieces;
    return {};
  }));
  EXPECT_EQ(read, bytes);
  EXPECT_GT(pieces, 3);
  const auto stopped = ReadPieces(Path("a"), bytes.size(), [](std::string_view) -> Result<void> {
    return Fail(ErrorCode::kCancelled, "enough");
  });
  EXPECT_EQ(stopped.error().message, "enough");
}

TEST_F(FileTest, ALinkStaysAndLeadsToTheNewContents) {
  ASSERT_EQ(mkdir(Path("sub").c_str(), 0777), 0);
  ASSERT_TRUE(WriteFile(Path("sub/file"), "old"));
  ASSERT_EQ(symlink("sub/file", Path("relative").c_str()), 0);
  ASSERT_EQ(symlink(Path("relative").c_str(), Path("absolute").c_str()), 0);
  ASSERT_EQ(symlink("sub/none", Path("dangling").c_str()), 0);
  ASSERT_EQ(symlink("loop", Path("loop").c_str()), 0);
  ASSERT_TRUE(WriteFile(Path("relative"), "one"));
  EXPECT_EQ(ReadFile(Path("sub/file"), 10).value(), "one");
  ASSERT_TRUE(WriteFile(Path("absolute"), "two"));
  EXPECT_EQ(ReadFile(Path("sub/file"), 10).value(), "two");
  ASSERT_TRUE(WriteFile(Path("dangling"), "new"));
  EXPECT_EQ(ReadFile(Path("sub/none"), 10).value(), "new");
  EXPECT_EQ(WriteFile(Path("loop"), "x").error().code, ErrorCode::kIo);
  for (const char* const name : {"relative", "absolute", "dangling", "loop"}) {
    EXPECT_TRUE(std::filesystem::is_symlink(Path(name))) << name;
  }
  EXPECT_EQ(Names().size(), 5u) << "a temporary file was left";
}

TEST_F(FileTest, AFileThatIsNotRegularIsWrittenThrough) {
  // By links: what replaces a device instead spoils no machine.
  ASSERT_EQ(symlink("/dev/null", Path("null").c_str()), 0);
  ASSERT_EQ(symlink("/dev/full", Path("full").c_str()), 0);
  EXPECT_TRUE(WriteFile(Path("null"), "x"));
  EXPECT_EQ(WriteFile(Path("full"), "x").error().code, ErrorCode::kNoSpace);
  for (const char* const name : {"null", "full"}) {
    EXPECT_TRUE(std::filesystem::is_symlink(Path(name)));
    EXPECT_TRUE(std::filesystem::is_character_file(Path(name)));
  }

  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0666), 0);
  std::string got;
  std::thread reader([&] { got = ReadFile(Path("pipe"), 1 << 20).value(); });
  const std::string text(200'000, 'x');  // more than a pipe holds
  EXPECT_TRUE(WriteFile(Path("pipe"), text));
  reader.join();
  EXPECT_EQ(got, text);
  EXPECT_TRUE(std::filesystem::is_fifo(Path("pipe")));
}

TEST_F(FileTest, ADescriptorOfTheProcessIsWrittenToAtItsPosition) {
  const int file = open(Path("a").c_str(), O_RDWR | O_CREAT, 0666);
  ASSERT_GE(file, 0);
  ASSERT_EQ(write(file, "one ", 4), 4);
  for (const char* const folder : {"/dev/fd/", "/proc/self/fd/"}) {
    EXPECT_TRUE(WriteFile(folder + std::to_string(file), "two "));
  }
  ASSERT_EQ(symlink(("/dev/fd/" + std::to_string(file)).c_str(), Path("link").c_str()), 0);
  EXPECT_TRUE(WriteFile(Path("link"), "three"));
  close(file);
  EXPECT_EQ(ReadFile(Path("a"), 100).value(), "one two two three");
  EXPECT_EQ(WriteFile("/dev/fd/" + std::to_string(file), "x").error().code, ErrorCode::kIo);
}

TEST_F(FileTest, AWriteThatFailsHalfWayLeavesTheOldFileAlone) {
  ASSERT_TRUE(WriteFile(Path("a"), "old"));
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 4096;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written = WriteFile(Path("a"), std::string(10'000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);

  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_EQ(ReadFile(Path("a"), 100).value(), "old");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"}) << "a temporary file was left";
}

TEST_F(FileTest, ReadAtFillsFromAnyOffset) {
  ASSERT_TRUE(WriteFile(Path("a"), "0123456789"));
  const RandomAccessFile file = RandomAccessFile::Open(Path("a")).value();
  EXPECT_EQ(file.bytes(), 10u);
  EXPECT_EQ(file.path(), Path("a"));
  EXPECT_EQ(Read(file, 0, 10), "0123456789");
  EXPECT_EQ(Read(file, 9, 1), "9");
  EXPECT_EQ(Read(file, 10, 0), "");
}

TEST_F(FileTest, ReadAtPastTheEndIsCorrupt) {
  ASSERT_TRUE(WriteFile(Path("a"), "0123456789"));
  const RandomAccessFile file = RandomAccessFile::Open(Path("a")).value();
  EXPECT_EQ(Read(file, 8, 3), Path("a") + ": 3 bytes wanted at offset 8, the file ends at 10");
  const uint64_t max = std::numeric_limits<uint64_t>::max();
  std::byte byte;
  for (const uint64_t offset : {uint64_t{10}, uint64_t{11}, max / 2, max / 2 + 1, max}) {
    const auto read = file.ReadAt(offset, std::span(&byte, 1));
    ASSERT_FALSE(read) << offset;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt) << offset;
  }
}

TEST_F(FileTest, AFileTruncatedWhileOpenIsCorrupt) {
  ASSERT_TRUE(WriteFile(Path("a"), "0123456789"));
  const RandomAccessFile file = RandomAccessFile::Open(Path("a")).value();
  ASSERT_EQ(truncate(Path("a").c_str(), 4), 0);
  EXPECT_EQ(file.bytes(), 10u);
  EXPECT_EQ(Read(file, 0, 4), "0123");
  EXPECT_EQ(Read(file, 2, 5), Path("a") + ": 5 bytes wanted at offset 2, the file ends at 4");
  std::byte byte;
  EXPECT_EQ(file.ReadAt(9, std::span(&byte, 1)).error().code, ErrorCode::kCorrupt);
}

TEST_F(FileTest, OnlyRegularFilesAreOpenedForRandomAccess) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0666), 0);
  for (const std::string& path : {directory_, Path("pipe"), std::string("/dev/zero")}) {
    const auto refused = RandomAccessFile::Open(path);
    ASSERT_FALSE(refused) << path;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << path;
    EXPECT_EQ(refused.error().message, path + ": not a regular file");
  }
  EXPECT_EQ(RandomAccessFile::Open(Path("none")).error().code, ErrorCode::kNotFound);
}

TEST_F(FileTest, AMovedFileReadsOn) {
  ASSERT_TRUE(WriteFile(Path("a"), "abc"));
  ASSERT_TRUE(WriteFile(Path("b"), "xyz"));
  RandomAccessFile first = RandomAccessFile::Open(Path("a")).value();
  RandomAccessFile second = RandomAccessFile::Open(Path("b")).value();
  second = std::move(first);
  EXPECT_EQ(Read(second, 0, 3), "abc");
  const RandomAccessFile third = std::move(second);
  EXPECT_EQ(Read(third, 1, 2), "bc");
}

}  // namespace
}  // namespace quire
