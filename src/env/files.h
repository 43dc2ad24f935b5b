// Files by submission and completion: the interface through which the stores reach a disk. Bulk
// bytes go through a queue and no call waits for them; names and small metadata are plain calls.
#ifndef QUIRE_ENV_FILES_H_
#define QUIRE_ENV_FILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire {

/// Offsets, lengths and addresses of requests to a file that was opened with `direct` are multiples
/// of this.
inline constexpr uint64_t kDirectIoAlignment = 4096;

/// An open file of one Files object.
struct FileId {
  uint32_t value = 0;
  bool operator==(const FileId&) const = default;
};

enum class IoKind : uint8_t {
  kRead,
  kWrite,
  kSync,  // the bytes of all writes that completed before it was submitted outlive a power cut
};

struct IoRequest {
  IoKind kind = IoKind::kRead;
  FileId file{};
  uint64_t offset = 0;
  std::byte* data = nullptr;  // [bytes]; the caller's until the request completes; unused by kSync
  uint64_t bytes = 0;
  uint64_t tag = 0;  // comes back with the completion
};

/// The end of one request. A read or write without an error that moved fewer bytes than it was
/// asked to met the end of the file (reads) or stopped early (writes).
struct IoCompletion {
  uint64_t tag = 0;
  std::optional<ErrorCode> error{};  // kNoSpace, kIo
  uint64_t bytes = 0;
};

struct OpenOptions {
  bool create = false;              // made when it does not exist
  bool read_only = false;           //
  bool direct = false;              // past the page cache, where the file system can
  bool locked = false;              // one holder at a time, of all processes; until it is closed
  uint64_t bytes_preallocated = 0;  // the file has at least this length, and the disk the room
};

/// Files of one machine.
///
/// Threads: one object belongs to one thread at a time
class Files {
 public:
  virtual ~Files() = default;

  // Names. These calls wait for the file system; none moves bulk bytes.

  /// Errors: kNotFound no such file (or directory of it); kBusy `locked` and another holds it;
  ///         kNoSpace the disk has no room to preallocate: nothing was made; kIo, also what is no
  ///         regular file
  virtual Result<FileId> Open(const std::string& path, const OpenOptions& options) = 0;
  /// Closes a file, its lock too. No request of it may be in flight.
  virtual void Close(FileId file) = 0;
  /// Names in a directory, in ascending order, without "." and "..".
  /// Errors: kNotFound, kIo
  virtual Result<std::vector<std::string>> List(const std::string& directory) = 0;
  /// Makes one directory; that it exists is no error.
  virtual Result<void> MakeDirectory(const std::string& path) = 0;
  /// Errors: kNotFound, kIo
  virtual Result<void> Remove(const std::string& path) = 0;
  /// Errors: kNotFound, kIo
  virtual Result<void> Rename(const std::string& from, const std::string& to) = 0;
  /// Until this returns, a power cut may undo creating, removing or renaming files in a directory.
  virtual Result<void> SyncDirectory(const std::string& path) = 0;

  // Plain reads and writes, for metadata of a few kilobytes.

  virtual Result<uint64_t> Length(FileId file) = 0;
  /// The bytes read; fewer than asked for at the end of the file.
  virtual Result<uint64_t> ReadAt(FileId file, uint64_t offset, std::span<std::byte> out) = 0;
  /// Writes all or fails.
  virtual Result<void> WriteAt(FileId file, uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Result<void> Resize(FileId file, uint64_t bytes) = 0;
  virtual Result<void> Sync(FileId file) = 0;

  // The queue.

  /// Puts requests into the queue. Never waits and never fails: an error arrives as a completion.
  /// Requests run in any order, and at the same time.
  virtual void Submit(std::span<const IoRequest> requests) = 0;
  /// Takes up to out.size() completions, waiting up to `wait_us` for the first one. The number
  /// taken.
  virtual size_t Complete(std::span<IoCompletion> out, uint64_t wait_us) = 0;
  /// Requests submitted whose completions were not taken yet.
  virtual uint64_t in_flight() const = 0;

  /// Says that much I/O will use these buffers, so that the kernel may keep them mapped; at most
  /// once per object. If the kernel refuses, I/O works as before.
  virtual void RegisterBuffers(std::span<const std::span<std::byte>> /*buffers*/) {}

  /// How the queue works: "io_uring", "threads", "memory".
  virtual std::string_view queue_name() const = 0;
};

struct FilesOptions {
  uint32_t depth = 64;        // requests the kernel works on at the same time
  bool threads_only = false;  // do not try io_uring
};

/// The files of this machine: through io_uring, or through threads with one warning where the
/// kernel refuses it.
///
/// Errors: kIo no threads either
Result<std::unique_ptr<Files>> MakeFiles(const FilesOptions& options = {});

}  // namespace quire

#endif  // QUIRE_ENV_FILES_H_
