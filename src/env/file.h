// Files as checked bytes: every failure is an Error that names the file.
#ifndef QUIRE_ENV_FILE_H_
#define QUIRE_ENV_FILE_H_

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "quire/error.h"

namespace quire {

inline ErrorCode CodeOfErrno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return ErrorCode::kNotFound;
    case ENOSPC:
    case EDQUOT: return ErrorCode::kNoSpace;
    default: return ErrorCode::kIo;
  }
}

/// "PATH: ACTION: what the system says".
inline std::unexpected<Error> FailErrno(int error, std::string_view action, std::string_view path) {
  return Fail(CodeOfErrno(error),
              fmt::format("{}: {}: {}", path, action, std::generic_category().message(error)));
}

/// Reads a whole file, or a pipe to its end.
///
/// Errors:  kNotFound it does not exist; kCorrupt it holds more than bytes_max; kIo
/// Effects: never holds more than bytes_max and 64 KiB, whatever the file says about itself
/// Threads: any
Result<std::string> ReadFile(const std::string& path, uint64_t bytes_max);

/// Passes a file, or a pipe until its end, to `take` in pieces of at most 64 KiB.
///
/// Errors:  kNotFound it does not exist; kCorrupt it holds more than bytes_max; kIo; what `take`
///          returns, which ends the reading
/// Threads: any
Result<void> ReadPieces(const std::string& path, uint64_t bytes_max,
                        const std::function<Result<void>(std::string_view)>& take);

/// Readers of a file that is made.
enum class FileReaders : uint8_t {
  kAll = 1,    // as the process's umask says
  kOwner = 2,  // mode 0600
};

/// Replaces a file so that a reader, or a crash, sees the old contents or the new, never a mixture:
/// a temporary file beside it, synced, then renamed over it. A symbolic link stays: the file that
/// it leads to is replaced, or made. Any other kind of file (a device, a pipe, a descriptor of this
/// process such as /dev/stdout) is written to in place.
///
/// Errors:  kNotFound the directory does not exist; kNoSpace the disk is full; kIo, also what is
///          written to takes no more. Of a regular file: the old one is as it was and no other is
///          left, but when syncing the directory fails at the very end the new contents stand and
///          may not outlive a crash
/// Threads: any; the last of two writers wins
Result<void> WriteFile(const std::string& path, std::string_view bytes,
                       FileReaders readers = FileReaders::kAll);

/// A regular file open for checked reads at any place.
///
/// Reads are copies, not a mapping: a file that shrinks under a mapping kills the process, here it
/// is an Error.
///
/// Threads: any number of concurrent ReadAt
class RandomAccessFile {
 public:
  /// Errors: kNotFound it does not exist; kInvalidArgument it is not a regular file; kIo
  static Result<RandomAccessFile> Open(const std::string& path);

  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&& other) noexcept;
  ~RandomAccessFile();

  const std::string& path() const { return path_; }
  /// Its length when it was opened.
  uint64_t bytes() const { return bytes_; }

  /// Fills `out` from the bytes at `offset`.
  ///
  /// Errors:  kCorrupt the file ends before, naming file, offset and both lengths; kIo. On error
  /// the
  ///          contents of `out` are unspecified
  Result<void> ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  RandomAccessFile(std::string path, int descriptor, uint64_t bytes)
      : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}
  void Close();

  std::string path_;
  int descriptor_ = -1;
  uint64_t bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ENV_FILE_H_
