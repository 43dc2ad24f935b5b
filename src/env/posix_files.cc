#include "env/posix_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "env/file.h"

namespace quire {
namespace {

void WarnOnce(std::once_flag& flag, std::string_view message) {
  std::call_once(flag, [&] { LogWarn("{}", message); });
}

// O_DIRECT is refused by some file systems at open.
int OpenDescriptor(const std::string& path, int flags, bool direct) {
  constexpr mode_t kOwnerOnly = 0600;  // cached prompts are the owner's alone
  if (!direct) return ::open(path.c_str(), flags, kOwnerOnly);
  const int descriptor = ::open(path.c_str(), flags | O_DIRECT, kOwnerOnly);
  if (descriptor >= 0 || errno != EINVAL) return descriptor;
  static std::once_flag warned;
  WarnOnce(warned,
           fmt::format("{}: no O_DIRECT on this file system: the page cache is used", path));
  return ::open(path.c_str(), flags, kOwnerOnly);
}

// A directory, a pipe or a device is refused.
int CheckRegular(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return S_ISDIR(status.st_mode) ? EISDIR : ESPIPE;
  // io_uring would answer "try again" where it is to wait.
  const int flags = ::fcntl(descriptor, F_GETFL);
  return ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) == 0 ? 0 : errno;
}

// Checks the length first: a file that is long enough keeps its bytes.
int Preallocate(int descriptor, uint64_t bytes) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return errno;
  if (static_cast<uint64_t>(status.st_size) >= bytes) return 0;
  int error = 0;
  do {
    error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  // A file that could not be preallocated whole takes no space.
  if (error != 0 && ::ftruncate(descriptor, status.st_size) != 0) return error;
  return error;
}

// A forked child has the lock too, as long as it lives: closing the file here would not end it.
void UnlockAndClose(int descriptor, bool locked) {
  if (locked) ::flock(descriptor, LOCK_UN);
  ::close(descriptor);
}

}  // namespace

PosixFiles::~PosixFiles() {
  for (const OpenFile& file : files_) {
    if (file.descriptor >= 0) UnlockAndClose(file.descriptor, file.locked);
  }
}

Result<FileId> PosixFiles::Open(const std::string& path, const OpenOptions& options) {
  bool made = false;
  // Opening a pipe would wait for a process at its other end.
  const int flags = (options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  int descriptor = OpenDescriptor(path, flags, options.direct);
  if (descriptor < 0 && errno == ENOENT && options.create) {
    descriptor = OpenDescriptor(path, flags | O_CREAT, options.direct);
    made = true;
  }
  if (descriptor < 0) return FailErrno(errno, "open", path);
  const auto fail = [&](int error, std::string_view action) {
    ::close(descriptor);
    if (made) ::unlink(path.c_str());
    return FailErrno(error, action, path);
  };
  if (const int error = CheckRegular(descriptor); error != 0) return fail(error, "open");
  if (options.locked && ::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(descriptor);
    if (error != EWOULDBLOCK) return FailErrno(error, "lock", path);
    return Fail(ErrorCode::kBusy, fmt::format("{}: another process holds the lock", path));
  }
  if (options.bytes_preallocated > 0) {
    const int error = Preallocate(descriptor, options.bytes_preallocated);
    if (error != 0) {
      return fail(error, fmt::format("preallocate {} bytes", options.bytes_preallocated));
    }
  }
  const auto free = std::ranges::find(files_, -1, &OpenFile::descriptor);
  const auto number = static_cast<uint32_t>(free - files_.begin());
  if (free == files_.end()) files_.emplace_back();
  files_[number] = {.path = path, .descriptor = descriptor, .locked = options.locked};
  return FileId{number};
}

const PosixFiles::OpenFile& PosixFiles::Get(FileId file) const {
  QUIRE_CHECK(file.value < files_.size() && files_[file.value].descriptor >= 0);
  return files_[file.value];
}

int PosixFiles::DescriptorOf(FileId file) const { return Get(file).descriptor; }

void PosixFiles::Close(FileId file) {
  UnlockAndClose(Get(file).descriptor, Get(file).locked);
  files_[file.value].descriptor = -1;
}

Result<std::vector<std::string>> PosixFiles::List(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return FailErrno(error.value(), "list", directory);
  std::ranges::sort(names);
  return names;
}

Result<void> PosixFiles::MakeDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return FailErrno(errno, "make directory", path);
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return FailErrno(errno, "stat", path);
  if (!S_ISDIR(status.st_mode)) return FailErrno(ENOTDIR, "make directory", path);
  return {};
}

Result<void> PosixFiles::Remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return FailErrno(errno, "remove", path);
  return {};
}

Result<void> PosixFiles::Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return FailErrno(errno, fmt::format("rename to {}", to), from);
  }
  return {};
}

Result<void> PosixFiles::SyncDirectory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FailErrno(errno, "open", path);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0) return FailErrno(error, "sync", path);
  return {};
}

Result<uint64_t> PosixFiles::Length(FileId file) {
  struct stat status = {};
  if (::fstat(DescriptorOf(file), &status) != 0) return FailErrno(errno, "stat", Get(file).path);
  return static_cast<uint64_t>(status.st_size);
}

Result<uint64_t> PosixFiles::ReadAt(FileId file, uint64_t offset, std::span<std::byte> out) {
  uint64_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(DescriptorOf(file), out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailErrno(errno, "read", Get(file).path);
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

Result<void> PosixFiles::WriteAt(FileId file, uint64_t offset, std::span<const std::byte> bytes) {
  uint64_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(DescriptorOf(file), bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FailErrno(errno, "write", Get(file).path);
    done += static_cast<uint64_t>(put);
  }
  return {};
}

Result<void> PosixFiles::Resize(FileId file, uint64_t bytes) {
  if (::ftruncate(DescriptorOf(file), static_cast<off_t>(bytes)) != 0) {
    return FailErrno(errno, "resize", Get(file).path);
  }
  return {};
}

Result<void> PosixFiles::Sync(FileId file) {
  if (::fdatasync(DescriptorOf(file)) != 0) return FailErrno(errno, "sync", Get(file).path);
  return {};
}

Result<std::unique_ptr<Files>> MakeFiles(const FilesOptions& options) {
  if (options.threads_only) return MakeThreadFiles(options.depth);
  auto files = MakeUringFiles(options.depth);
  if (files) return files;
  static std::once_flag warned;
  WarnOnce(warned, fmt::format("{}: files go through threads, which costs more CPU time",
                               files.error().message));
  return MakeThreadFiles(options.depth);
}

}  // namespace quire
