#include "env/faulty_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire {
namespace {

std::unexpected<Error> FailStopped() { return Fail(ErrorCode::kIo, "the machine has stopped"); }

}  // namespace

FaultyFiles::FaultyFiles(const FaultyFilesOptions& options, ManualClock& clock)
    : clock_(clock),
      prng_(options.seed),
      rates_(options.rates),
      latency_us_max_(options.latency_us_max),
      disk_(options.disk_bytes, prng_) {}

DiskImage::File& FaultyFiles::Get(FileId file) {
  QUIRE_CHECK(file.value < files_.size() && files_[file.value].file != nullptr);
  return *files_[file.value].file;
}

bool FaultyFiles::Hits(uint64_t one_in) {
  if (one_in == 0 || !prng_.NextChance(one_in)) return false;
  ++faults_;
  return true;
}

bool FaultyFiles::Step() {
  if (operations_left_ == 0) return false;
  if (operations_left_ != ~uint64_t{0}) --operations_left_;
  return operations_left_ != 0;
}

Result<void> FaultyFiles::Call() {
  if (Hits(rates_.call_error)) return Fail(ErrorCode::kIo, "the call failed");
  return {};
}

std::vector<std::byte>* FaultyFiles::Contents(const std::string& path) {
  const auto file = disk_.Find(path);
  return file == nullptr ? nullptr : &file->contents;
}

std::vector<std::string> FaultyFiles::Paths() const {
  std::vector<std::string> paths;
  for (const auto& [name, file] : disk_.names()) paths.push_back(name);
  return paths;
}

void FaultyFiles::Damage(const std::string& path, uint64_t offset, uint64_t bytes,
                         BadSectors sectors) {
  const auto file = disk_.Find(path);
  QUIRE_CHECK(file != nullptr);
  ++faults_;
  file->bad.push_back(
      {.begin = offset, .end = offset + bytes, .for_good = sectors == BadSectors::kForGood});
}

bool FaultyFiles::IsDamaged(const std::string& path) const {
  const auto file = disk_.Find(path);
  return file != nullptr && !file->bad.empty();
}

void FaultyFiles::Obstruct(const std::string& path) {
  ++faults_;
  auto obstacle = std::make_shared<DiskImage::File>();
  obstacle->is_obstacle = true;
  disk_.SetName(path, std::move(obstacle));
  disk_.SyncNames(path.substr(0, path.rfind('/')));
}

void FaultyFiles::MendDisk() {
  for (const std::string& path : Paths()) {
    const auto file = disk_.Find(path);
    file->bad.clear();
    if (!file->is_obstacle) continue;
    disk_.SetName(path, nullptr);
    disk_.SyncNames(path.substr(0, path.rfind('/')));
  }
}

Result<FileId> FaultyFiles::Open(const std::string& path, const OpenOptions& options) {
  if (stopped()) return FailStopped();
  QUIRE_TRY(Call());
  DiskImage::FilePointer file = disk_.Find(path);
  if (file == nullptr && !options.create) {
    return Fail(ErrorCode::kNotFound, fmt::format("{}: no such file", path));
  }
  if (file != nullptr && options.locked && file->locked) {
    return Fail(ErrorCode::kBusy, fmt::format("{}: another process holds the lock", path));
  }
  if (file != nullptr && file->is_obstacle) {
    return Fail(ErrorCode::kIo, fmt::format("{}: not a regular file", path));
  }
  const bool made = file == nullptr;
  if (made) file = std::make_shared<DiskImage::File>();
  QUIRE_TRY(disk_.Grow(*file, options.bytes_preallocated));
  if (made) {
    if (!Step()) return FailStopped();
    disk_.SetName(path, file);
  }
  file->direct |= options.direct;
  file->locked |= options.locked;
  files_.push_back({.file = std::move(file), .holds_lock = options.locked});
  return FileId{static_cast<uint32_t>(files_.size() - 1)};
}

void FaultyFiles::Close(FileId file) {
  if (dead_) return;
  DiskImage::File& open = Get(file);
  if (files_[file.value].holds_lock) open.locked = false;
  files_[file.value].file = nullptr;
}

Result<std::vector<std::string>> FaultyFiles::List(const std::string& directory) {
  if (stopped()) return FailStopped();
  QUIRE_TRY(Call());
  const std::string begin = directory + "/";
  std::vector<std::string> inside;
  for (const auto& [name, file] : disk_.names()) {
    if (name.starts_with(begin)) inside.push_back(name.substr(begin.size()));
  }
  return inside;
}

Result<void> FaultyFiles::MakeDirectory(const std::string& /*path*/) { return {}; }

Result<void> FaultyFiles::Remove(const std::string& path) {
  if (disk_.Find(path) == nullptr) {
    return Fail(ErrorCode::kNotFound, fmt::format("{}: no such file", path));
  }
  QUIRE_TRY(Call());
  if (disk_.Find(path)->is_obstacle) {
    return Fail(ErrorCode::kIo, fmt::format("{}: not a regular file", path));
  }
  if (!Step()) return FailStopped();
  disk_.SetName(path, nullptr);
  return {};
}

Result<void> FaultyFiles::Rename(const std::string& from, const std::string& to) {
  const auto file = disk_.Find(from);
  if (file == nullptr) {
    return Fail(ErrorCode::kNotFound, fmt::format("{}: no such file", from));
  }
  QUIRE_TRY(Call());
  if (const auto there = disk_.Find(to); there != nullptr && there->is_obstacle) {
    return Fail(ErrorCode::kIo, fmt::format("{}: not a regular file", to));
  }
  if (!Step()) return FailStopped();
  disk_.SetName(to, file);
  disk_.SetName(from, nullptr);
  return {};
}

Result<void> FaultyFiles::SyncDirectory(const std::string& path) {
  QUIRE_TRY(Call());
  if (!Step()) return FailStopped();
  disk_.SyncNames(path);
  return {};
}

Result<uint64_t> FaultyFiles::Length(FileId file) {
  if (stopped()) return FailStopped();
  QUIRE_TRY(Call());
  return Get(file).contents.size();
}

Result<uint64_t> FaultyFiles::ReadAt(FileId file, uint64_t offset, std::span<std::byte> out) {
  if (stopped()) return FailStopped();
  QUIRE_TRY(Call());
  return Read(Get(file), offset, out);
}

Result<uint64_t> FaultyFiles::Read(const DiskImage::File& file, uint64_t offset,
                                   std::span<std::byte> out) {
  const std::vector<std::byte>& contents = file.contents;
  if (offset >= contents.size()) return 0;
  const uint64_t bytes = std::min<uint64_t>(out.size(), contents.size() - offset);
  if (file.IsBad(offset, bytes, /*writing=*/false)) {
    return Fail(ErrorCode::kIo, fmt::format("bad sectors in {} bytes at {}", bytes, offset));
  }
  std::copy_n(contents.begin() + static_cast<ptrdiff_t>(offset), bytes, out.begin());
  return bytes;
}

Result<void> FaultyFiles::WriteAt(FileId file, uint64_t offset, std::span<const std::byte> bytes) {
  DiskImage::File& open = Get(file);
  QUIRE_TRY(Call());
  if (!Step()) return FailStopped();
  QUIRE_TRY(disk_.Grow(open, offset + bytes.size()));
  return Write(open, offset, bytes);
}

Result<void> FaultyFiles::Write(DiskImage::File& file, uint64_t offset,
                                std::span<const std::byte> bytes) {
  if (file.IsBad(offset, bytes.size(), /*writing=*/true)) {
    return Fail(ErrorCode::kIo, fmt::format("bad sectors in {} bytes at {}", bytes.size(), offset));
  }
  file.Mend(offset, bytes.size());
  DiskImage::Write(file, offset, bytes);
  return {};
}

Result<void> FaultyFiles::Resize(FileId file, uint64_t bytes) {
  DiskImage::File& open = Get(file);
  QUIRE_TRY(Call());
  if (!Step()) return FailStopped();
  return disk_.Resize(open, bytes);
}

Result<void> FaultyFiles::Sync(FileId file) {
  DiskImage::File& open = Get(file);
  if (const auto called = Call(); !called) {
    ForgetUnsynced(open);
    return called;
  }
  if (!Step()) return FailStopped();
  DiskImage::Sync(open);
  return {};
}

void FaultyFiles::Submit(std::span<const IoRequest> requests) {
  if (dead_) return;  // a dead process takes no completions
  for (const IoRequest& request : requests) {
    Pending pending = {.request = request};
    if (request.kind == IoKind::kWrite) {
      pending.bytes.assign(request.data, request.data + request.bytes);
    }
    pending.due_us = clock_.NowMicros() + prng_.NextBelow(latency_us_max_ + 1);
    queue_.push_back(std::move(pending));
  }
}

size_t FaultyFiles::Complete(std::span<IoCompletion> out, uint64_t wait_us) {
  const auto earlier = [](const Pending& a, const Pending& b) { return a.due_us < b.due_us; };
  if (queue_.empty() || out.empty()) return 0;
  const uint64_t first_us = std::ranges::min_element(queue_, earlier)->due_us;
  const uint64_t now_us = clock_.NowMicros();
  if (first_us > now_us) clock_.Advance(std::min(first_us - now_us, wait_us));
  size_t count = 0;
  while (count < out.size() && !queue_.empty()) {
    const auto next = std::ranges::min_element(queue_, earlier);
    if (next->due_us > clock_.NowMicros()) break;
    Pending pending = std::move(*next);
    queue_.erase(next);
    out[count++] = Perform(pending);
  }
  return count;
}

IoCompletion FaultyFiles::Perform(Pending& pending) {
  const IoRequest& request = pending.request;
  const bool alive = request.kind == IoKind::kRead ? !stopped() : Step();
  if (!alive) return {.tag = request.tag, .error = ErrorCode::kIo};
  switch (request.kind) {
    case IoKind::kRead: return PerformRead(request);
    case IoKind::kWrite: return PerformWrite(pending);
    case IoKind::kSync: return PerformSync(request);
  }
  return {.tag = request.tag, .error = ErrorCode::kIo};
}

IoCompletion FaultyFiles::PerformRead(const IoRequest& request) {
  IoCompletion done = {.tag = request.tag};
  if (Hits(rates_.read_error)) {
    done.error = ErrorCode::kIo;
    return done;
  }
  const std::span<std::byte> out(request.data, request.bytes);
  const auto got = Read(Get(request.file), request.offset, out);
  if (!got) {
    done.error = got.error().code;
    return done;
  }
  done.bytes = *got;
  if (done.bytes > 0 && Hits(rates_.short_read)) done.bytes = prng_.NextBelow(done.bytes);
  if (done.bytes > 0 && Hits(rates_.flip_on_read)) FlipBit(out.first(done.bytes));
  return done;
}

IoCompletion FaultyFiles::PerformWrite(const Pending& pending) {
  const IoRequest& request = pending.request;
  DiskImage::File& file = Get(request.file);
  IoCompletion done = {.tag = request.tag, .bytes = request.bytes};
  if (!disk_.Grow(file, request.offset + request.bytes)) {
    return {.tag = request.tag, .error = ErrorCode::kNoSpace};
  }
  uint64_t offset = request.offset;
  std::vector<std::byte> bytes = pending.bytes;
  if (Hits(rates_.flip_at_rest)) FlipBit(file.contents);
  const bool fails = Hits(rates_.write_error);
  if (fails || Hits(rates_.torn_write)) {
    // The part of a torn write that remains is a change like any other.
    const std::vector<std::byte> after = disk_.Torn(file, offset, bytes);
    std::copy_n(after.begin() + static_cast<ptrdiff_t>(offset), bytes.size(), bytes.begin());
    if (fails) done = {.tag = request.tag, .error = ErrorCode::kIo};
  } else if (Hits(rates_.short_write)) {
    done.bytes = prng_.NextBelow(request.bytes);
    bytes.resize(done.bytes);
  } else if (Hits(rates_.lost_write)) {
    return done;
  } else if (Hits(rates_.misdirected_write)) {
    const uint64_t places = (file.contents.size() - request.bytes) / kDirectIoAlignment + 1;
    offset = prng_.NextBelow(places) * kDirectIoAlignment;
  }
  if (!Write(file, offset, bytes)) done = {.tag = request.tag, .error = ErrorCode::kIo};
  return done;
}

IoCompletion FaultyFiles::PerformSync(const IoRequest& request) {
  DiskImage::File& file = Get(request.file);
  if (!Hits(rates_.sync_error)) {
    DiskImage::Sync(file);
    return {.tag = request.tag};
  }
  ForgetUnsynced(file);
  return {.tag = request.tag, .error = ErrorCode::kIo};
}

// The disk keeps bytes that were written past the page cache. The system forgets cached bytes that
// it could not write: some of them are lost though readers still see them.
void FaultyFiles::ForgetUnsynced(DiskImage::File& file) {
  if (file.direct) return;
  std::erase_if(file.unsynced, [&](const DiskImage::Change&) { return prng_.NextChance(2); });
}

void FaultyFiles::FlipBit(std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  bytes[prng_.NextBelow(bytes.size())] ^= std::byte{1} << prng_.NextBelow(8);
}

// Each write that was in flight happened whole, in part or not at all.
void FaultyFiles::DropInFlight() {
  for (const Pending& pending : queue_) {
    const IoRequest& request = pending.request;
    if (request.kind != IoKind::kWrite || prng_.NextChance(3)) continue;
    DiskImage::File& file = Get(request.file);
    if (!disk_.Grow(file, request.offset + pending.bytes.size())) continue;
    if (prng_.NextChance(2)) {
      const std::vector<std::byte> after = disk_.Torn(file, request.offset, pending.bytes);
      DiskImage::Write(file, request.offset,
                       std::span(after).subspan(request.offset, pending.bytes.size()));
    } else {
      DiskImage::Write(file, request.offset, pending.bytes);
    }
  }
  queue_.clear();
}

void FaultyFiles::Restart() {
  for (OpenFile& file : files_) {
    if (file.file != nullptr) file.file->locked = false;
  }
  files_.clear();
  dead_ = false;
  operations_left_ = ~uint64_t{0};
}

void FaultyFiles::KillProcess() {
  ++faults_;
  DropInFlight();
  dead_ = true;
  operations_left_ = 0;
}

void FaultyFiles::LosePower() {
  KillProcess();
  disk_.LosePower();
}

}  // namespace quire
