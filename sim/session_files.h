// The Files of sessions on the simulated disk: plain calls fail now and then, as FaultyFiles fails
// requests of its queue.
#ifndef QUIRE_SIM_SESSION_FILES_H_
#define QUIRE_SIM_SESSION_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "env/faulty_files.h"

namespace quire::sim {

/// Fails one call of `set_rate` as an I/O error that did nothing. Files of two kinds of owners on
/// one disk: what FaultyFiles loses in a crash, it loses here too.
class SessionFiles final : public Files {
 public:
  static constexpr const char* kDirectory = "sessions";

  SessionFiles(FaultyFiles& files, uint64_t seed) : files_(files), prng_(seed) {}

  void set_rate(uint64_t one_in) { one_in_ = one_in; }
  /// The bytes on the disk: files with their names, and those that lost their names since the
  /// machine began.
  std::vector<std::pair<std::string, std::span<const std::byte>>> Everything() const {
    std::vector<std::pair<std::string, std::span<const std::byte>>> all;
    for (const std::string& path : paths()) all.emplace_back(path, files_.Find(path)->contents);
    for (const DiskImage::FilePointer& file : unnamed_) {
      all.emplace_back("a file without a name", file->contents);
    }
    return all;
  }
  std::vector<std::string> paths() const {
    std::vector<std::string> paths = files_.Paths();
    std::erase_if(paths, [](const std::string& path) {
      return !path.starts_with(std::string(kDirectory) + "/") || path.ends_with(".lock");
    });
    return paths;
  }
  /// Some sectors of a session's file cannot be read.
  bool IsWorn(const std::string& session) const {
    const auto file = files_.Find(std::string(kDirectory) + "/" + session);
    return file != nullptr && !file->bad.empty();
  }
  /// The machine begins again: blocks without a name may hold bytes of any file.
  void Restart() { unnamed_.clear(); }
  /// Calls that failed for any reason but a file that does not exist.
  uint64_t failures() const { return failures_; }

  Result<FileId> Open(const std::string& path, const OpenOptions& options) override {
    return Do<FileId>([&] { return files_.Open(path, options); });
  }
  void Close(FileId file) override { files_.Close(file); }
  Result<std::vector<std::string>> List(const std::string& directory) override {
    return Do<std::vector<std::string>>([&] { return files_.List(directory); });
  }
  Result<void> MakeDirectory(const std::string& path) override {
    return Do<void>([&] { return files_.MakeDirectory(path); });
  }
  Result<void> Remove(const std::string& path) override {
    const DiskImage::FilePointer file = files_.Find(path);
    Result<void> removed = Do<void>([&] { return files_.Remove(path); });
    if (removed) unnamed_.push_back(file);
    return removed;
  }
  Result<void> Rename(const std::string& from, const std::string& to) override {
    const DiskImage::FilePointer replaced = files_.Find(to);
    Result<void> renamed = Do<void>([&] { return files_.Rename(from, to); });
    if (renamed && replaced != nullptr) unnamed_.push_back(replaced);
    return renamed;
  }
  Result<void> SyncDirectory(const std::string& path) override {
    return Do<void>([&] { return files_.SyncDirectory(path); });
  }
  Result<uint64_t> Length(FileId file) override {
    return Do<uint64_t>([&] { return files_.Length(file); });
  }
  Result<uint64_t> ReadAt(FileId file, uint64_t offset, std::span<std::byte> out) override {
    return Do<uint64_t>([&] { return files_.ReadAt(file, offset, out); });
  }
  Result<void> WriteAt(FileId file, uint64_t offset, std::span<const std::byte> bytes) override {
    return Do<void>([&] { return files_.WriteAt(file, offset, bytes); });
  }
  Result<void> Resize(FileId file, uint64_t bytes) override {
    return Do<void>([&] { return files_.Resize(file, bytes); });
  }
  Result<void> Sync(FileId file) override {
    return Do<void>([&] { return files_.Sync(file); });
  }
  // Sessions do not use the queue, which is the store's.
  void Submit(std::span<const IoRequest> requests) override { files_.Submit(requests); }
  size_t Complete(std::span<IoCompletion> out, uint64_t wait_us) override {
    return files_.Complete(out, wait_us);
  }
  uint64_t in_flight() const override { return files_.in_flight(); }
  std::string_view queue_name() const override { return files_.queue_name(); }

 private:
  template <typename T, typename Call>
  Result<T> Do(const Call& call) {
    if (one_in_ > 0 && prng_.NextChance(one_in_)) {
      ++failures_;
      return Fail(ErrorCode::kIo, "the disk failed");
    }
    Result<T> result = call();
    if (!result && result.error().code != ErrorCode::kNotFound) ++failures_;
    return result;
  }

  FaultyFiles& files_;
  Prng prng_;
  uint64_t one_in_ = 0;
  uint64_t failures_ = 0;
  std::vector<DiskImage::FilePointer> unnamed_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_SESSION_FILES_H_
