// What both queues of this machine's files share: names, descriptors, plain reads and writes.
#ifndef QUIRE_ENV_POSIX_FILES_H_
#define QUIRE_ENV_POSIX_FILES_H_

#include <string>
#include <vector>

#include "env/files.h"

namespace quire {

class PosixFiles : public Files {
 public:
  ~PosixFiles() override;

  Result<FileId> Open(const std::string& path, const OpenOptions& options) override;
  void Close(FileId file) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Result<void> MakeDirectory(const std::string& path) override;
  Result<void> Remove(const std::string& path) override;
  Result<void> Rename(const std::string& from, const std::string& to) override;
  Result<void> SyncDirectory(const std::string& path) override;
  Result<uint64_t> Length(FileId file) override;
  Result<uint64_t> ReadAt(FileId file, uint64_t offset, std::span<std::byte> out) override;
  Result<void> WriteAt(FileId file, uint64_t offset, std::span<const std::byte> bytes) override;
  Result<void> Resize(FileId file, uint64_t bytes) override;
  Result<void> Sync(FileId file) override;

 protected:
  int DescriptorOf(FileId file) const;

 private:
  struct OpenFile {
    std::string path;
    int descriptor = -1;  // -1: closed, its number may be given to another file
    bool locked = false;  // until it is closed
  };
  const OpenFile& Get(FileId file) const;

  std::vector<OpenFile> files_;
};

/// The queue of a kernel with io_uring.
/// Errors: kUnsupported the kernel refuses io_uring
Result<std::unique_ptr<Files>> MakeUringFiles(uint32_t depth);
/// The queue of threads that each make one plain call at a time.
/// Errors: kIo no thread could be started
Result<std::unique_ptr<Files>> MakeThreadFiles(uint32_t depth);

}  // namespace quire

#endif  // QUIRE_ENV_POSIX_FILES_H_
