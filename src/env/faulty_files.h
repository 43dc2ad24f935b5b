// Files in memory that a test cranks by hand: time is a manual clock, chance comes from one seed,
// and every way in which disks and machines fail can be asked for.
#ifndef QUIRE_ENV_FAULTY_FILES_H_
#define QUIRE_ENV_FAULTY_FILES_H_

#include <string>
#include <vector>

#include "base/prng.h"
#include "env/clock.h"
#include "env/disk_image.h"
#include "env/files.h"

namespace quire {

/// How often requests of the queue, and plain calls, fail: one in so many; 0 never.
struct FaultRates {
  // What the system reports.
  uint64_t read_error = 0;
  uint64_t write_error = 0;  // a part of the bytes may have been written
  uint64_t sync_error = 0;   // the bytes to be synced are not durable
  uint64_t short_read = 0;
  uint64_t short_write = 0;
  uint64_t call_error = 0;  // of a plain call of any kind; nothing was done
  // What no call reports.
  uint64_t torn_write = 0;         // some sectors keep what they held
  uint64_t lost_write = 0;         // nothing is written
  uint64_t misdirected_write = 0;  // the bytes land elsewhere in the file
  uint64_t flip_on_read = 0;       // one bit of what is read
  uint64_t flip_at_rest = 0;       // one bit of the file that a write goes to, anywhere
};

struct FaultyFilesOptions {
  uint64_t seed = 1;
  uint64_t disk_bytes = ~uint64_t{0};
  uint64_t latency_us_max = 0;  // of a request; each takes a random part of it
  FaultRates rates{};
};

/// What a disk does about sectors that it cannot read any more.
enum class BadSectors : uint8_t {
  kUntilWritten,  // a write maps them to others: the old bytes are lost, and they work again
  kForGood,       // it has none left: writing to them fails as well
};

class FaultyFiles : public Files {
 public:
  /// The clock must outlive the object; waiting moves it.
  FaultyFiles(const FaultyFilesOptions& options, ManualClock& clock);

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
  void Submit(std::span<const IoRequest> requests) override;
  size_t Complete(std::span<IoCompletion> out, uint64_t wait_us) override;
  uint64_t in_flight() const override { return queue_.size(); }
  void RegisterBuffers(std::span<const std::span<std::byte>> buffers) override {
    buffers_.assign(buffers.begin(), buffers.end());
  }
  std::string_view queue_name() const override { return "memory"; }

  // What a test does to the machine.

  /// Power is lost: synced bytes stay, of the others an arbitrary part, torn at sectors. Nothing is
  /// in flight, and calls on this object fail until Restart.
  void LosePower();
  /// The process is killed: written bytes stay, of requests in flight an arbitrary part. As above
  /// until Restart.
  void KillProcess();
  /// The machine runs again; no file is open and no lock is held.
  void Restart();
  /// After `operations` more calls that change something, every call fails, as if the machine had
  /// stopped there.
  void StopAfter(uint64_t operations) { operations_left_ = operations; }
  bool stopped() const { return operations_left_ == 0; }
  void set_rates(const FaultRates& rates) { rates_ = rates; }
  /// Of requests from now on.
  void set_latency_us_max(uint64_t latency_us_max) { latency_us_max_ = latency_us_max; }
  /// Sectors of a file go bad: whatever reads one of these bytes fails from now on, also after
  /// crashes and under another name. Needs the file.
  void Damage(const std::string& path, uint64_t offset, uint64_t bytes, BadSectors sectors);
  /// Whether sectors of a file are bad.
  bool IsDamaged(const std::string& path) const;
  /// The name belongs from now on to a directory, a loop of links, or a file of another user: it
  /// can be listed and renamed, but not opened, removed or replaced.
  void Obstruct(const std::string& path);
  /// The disk is replaced: no sector is bad and no name is obstructed.
  void MendDisk();
  void set_disk_bytes(uint64_t bytes) { disk_.set_bytes_max(bytes); }

  /// Faults of all kinds that happened so far.
  uint64_t faults() const { return faults_; }
  /// Bytes of all files.
  uint64_t bytes_used() const { return disk_.bytes_used(); }
  /// The contents of a file, to look at or to damage; null when there is none.
  std::vector<std::byte>* Contents(const std::string& path);
  /// The file that has a name now, whatever becomes of the name; null when there is none.
  DiskImage::FilePointer Find(const std::string& path) const { return disk_.Find(path); }
  /// Paths of all files, in ascending order.
  std::vector<std::string> Paths() const;
  /// The memory that bytes pass through, as registered last.
  std::span<const std::span<std::byte>> buffers() const { return buffers_; }

 private:
  struct OpenFile {
    DiskImage::FilePointer file{};  // null: closed
    bool holds_lock = false;
  };
  struct Pending {
    IoRequest request{};
    std::vector<std::byte> bytes{};  // of a write
    uint64_t due_us = 0;
  };

  DiskImage::File& Get(FileId file);
  bool Hits(uint64_t one_in);
  // Counts an operation that changes something. False when the machine has stopped.
  bool Step();
  // Fails at the rate of call_error.
  Result<void> Call();
  Result<uint64_t> Read(const DiskImage::File& file, uint64_t offset, std::span<std::byte> out);
  Result<void> Write(DiskImage::File& file, uint64_t offset, std::span<const std::byte> bytes);
  // Handles a sync that fails.
  void ForgetUnsynced(DiskImage::File& file);
  void FlipBit(std::span<std::byte> bytes);
  IoCompletion Perform(Pending& pending);
  IoCompletion PerformRead(const IoRequest& request);
  IoCompletion PerformWrite(const Pending& pending);
  IoCompletion PerformSync(const IoRequest& request);
  void DropInFlight();

  ManualClock& clock_;
  Prng prng_;
  FaultRates rates_;
  uint64_t latency_us_max_;
  uint64_t operations_left_ = ~uint64_t{0};
  bool dead_ = false;  // between a crash and Restart
  uint64_t faults_ = 0;
  DiskImage disk_;
  std::vector<OpenFile> files_;
  std::vector<Pending> queue_;
  std::vector<std::span<std::byte>> buffers_;
};

}  // namespace quire

#endif  // QUIRE_ENV_FAULTY_FILES_H_
