#include "env/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <optional>
#include <utility>

#include "env/descriptor.h"

namespace quire {
namespace {

// Removes a file on every way out but one.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  void Keep() { path_.clear(); }

 private:
  std::string path_;
};

// The name must be new in the directory: two processes, or two threads, may write the same file.
std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> count = 0;
  return fmt::format("{}.{}.{}.tmp", path, ::getpid(), count.fetch_add(1));
}

Result<void> WriteAll(int descriptor, std::string_view bytes, std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FailErrno(errno, "write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

// The descriptor of this process that a path names. It is open, and no other path may lead to its
// file.
std::optional<int> NamedDescriptor(std::string_view path) {
  for (const std::string_view folder : {"/proc/self/fd/", "/dev/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const std::string_view digits = path.substr(folder.size());
    int number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc() && end == digits.data() + digits.size() && number >= 0) return number;
  }
  return std::nullopt;
}

// Where the last name of a path leads; the file there need not exist.
Result<std::string> FollowLinks(std::string path) {
  constexpr int kLinksMax = 40;  // as the kernel
  for (int links = 0; links < kLinksMax; ++links) {
    if (NamedDescriptor(path)) return path;
    std::string link(PATH_MAX, '\0');
    const ssize_t bytes = ::readlink(path.c_str(), link.data(), link.size());
    if (bytes < 0) return path;  // no link; opening it will say what else it is
    link.resize(static_cast<size_t>(bytes));
    const size_t slash = path.rfind('/');
    path = link.starts_with('/') || slash == std::string::npos ? link
                                                               : path.substr(0, slash + 1) + link;
  }
  return FailErrno(ELOOP, "open", path);
}

// Writes to a device or a pipe: it is neither created, emptied nor synced.
Result<void> WriteThrough(const std::string& path, std::string_view bytes) {
  const Descriptor descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (descriptor.get() < 0) return FailErrno(errno, "open", path);
  return WriteAll(descriptor.get(), bytes, path);
}

// Without this a crash may forget the rename.
Result<void> SyncDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Descriptor descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) return FailErrno(errno, "open", directory);
  if (::fsync(descriptor.get()) != 0) return FailErrno(errno, "sync", directory);
  return {};
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, uint64_t bytes_max) {
  std::string text;
  QUIRE_TRY(ReadPieces(path, bytes_max, [&text](std::string_view piece) -> Result<void> {
    text += piece;
    return {};
  }));
  return text;
}

Result<void> ReadPieces(const std::string& path, uint64_t bytes_max,
                        const std::function<Result<void>(std::string_view)>& take) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (descriptor.get() < 0) return FailErrno(errno, "open", path);

  // Reads until the end: the length that stat reports may be wrong (0 in /proc).
  constexpr size_t kPieceBytes = 1 << 16;
  std::string piece(kPieceBytes, '\0');
  for (uint64_t bytes_left = bytes_max; true;) {
    const ssize_t got = ::read(descriptor.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailErrno(errno, "read", path);
    if (got == 0) return {};
    if (static_cast<uint64_t>(got) > bytes_left) {
      return Fail(ErrorCode::kCorrupt,
                  fmt::format("{}: more than the {} bytes allowed", path, bytes_max));
    }
    bytes_left -= static_cast<uint64_t>(got);
    QUIRE_TRY(take(std::string_view(piece.data(), static_cast<size_t>(got))));
  }
}

Result<void> WriteFile(const std::string& path, std::string_view bytes, FileReaders readers) {
  QUIRE_ASSIGN(const std::string target, FollowLinks(path));
  if (const auto number = NamedDescriptor(target)) return WriteAll(*number, bytes, path);
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return WriteThrough(path, bytes);
  }
  const std::string name = TemporaryName(target);
  const mode_t mode = readers == FileReaders::kOwner ? 0600 : 0666;
  const Descriptor descriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (descriptor.get() < 0) return FailErrno(errno, "create", name);
  TemporaryFile temporary(name);
  QUIRE_TRY(WriteAll(descriptor.get(), bytes, name));
  if (::fsync(descriptor.get()) != 0) return FailErrno(errno, "sync", name);
  if (::rename(name.c_str(), target.c_str()) != 0) return FailErrno(errno, "rename to", target);
  temporary.Keep();
  return SyncDirectoryOf(target);
}

Result<RandomAccessFile> RandomAccessFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; regular files do not care.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (descriptor.get() < 0) return FailErrno(errno, "open", path);
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0) return FailErrno(errno, "stat", path);
  if (!S_ISREG(status.st_mode)) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}: not a regular file", path));
  }
  return RandomAccessFile(path, descriptor.Take(), static_cast<uint64_t>(status.st_size));
}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(std::exchange(other.bytes_, 0)) {}

RandomAccessFile& RandomAccessFile::operator=(RandomAccessFile&& other) noexcept {
  if (this != &other) {
    Close();
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

RandomAccessFile::~RandomAccessFile() { Close(); }

void RandomAccessFile::Close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Result<void> RandomAccessFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  const auto too_short = [&](uint64_t file_bytes) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: {} bytes wanted at offset {}, the file ends at {}", path_,
                            out.size(), offset, file_bytes));
  };
  // Checked before any read, so that a wild offset never reaches the signed off_t of the system.
  if (offset > bytes_ || out.size() > bytes_ - offset) return too_short(bytes_);

  uint64_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailErrno(errno, fmt::format("read at offset {}", offset + done), path_);
    if (got == 0) return too_short(offset + done);  // it was truncated since it was opened
    done += static_cast<uint64_t>(got);
  }
  return {};
}

}  // namespace quire
