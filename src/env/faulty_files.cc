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
      disk_bytes_(options.disk_bytes) {}

FaultyFiles::Node& FaultyFiles::Get(FileId file) {
  QUIRE_CHECK(file.value < files_.size() && files_[file.value].node != nullptr);
  return *files_[file.value].node;
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

uint64_t FaultyFiles::bytes_used() const {
  uint64_t bytes = 0;
  for (const auto& [name, node] : names_) bytes += node->contents.size();
  return bytes;
}

std::vector<std::byte>* FaultyFiles::Contents(const std::string& path) {
  const auto found = names_.find(path);
  return found == names_.end() ? nullptr : &found->second->contents;
}

std::vector<std::string> FaultyFiles::Paths() const {
  std::vector<std::string> paths;
  for (const auto& [name, node] : names_) paths.push_back(name);
  return paths;
}

void FaultyFiles::ChangeName(const std::string& name, NodePointer node) {
  if (node != nullptr) {
    names_[name] = node;
  } else {
    names_.erase(name);
  }
  unsynced_names_.push_back({.name = name, .node = std::move(node)});
}

Result<void> FaultyFiles::Grow(Node& node, uint64_t bytes) {
  if (bytes <= node.contents.size()) return {};
  const uint64_t more = bytes - node.contents.size();
  const uint64_t used = bytes_used();
  if (used > disk_bytes_ || more > disk_bytes_ - used) {
    return Fail(ErrorCode::kNoSpace, fmt::format("the disk has no room for {} bytes", more));
  }
  node.contents.resize(bytes);
  node.unsynced.push_back({.offset = bytes, .bytes = {}, .resizes = true});
  return {};
}

Result<FileId> FaultyFiles::Open(const std::string& path, const OpenOptions& options) {
  if (stopped()) return FailStopped();
  const auto found = names_.find(path);
  NodePointer node = found == names_.end() ? nullptr : found->second;
  if (node == nullptr && !options.create) {
    return Fail(ErrorCode::kNotFound, fmt::format("{}: no such file", path));
  }
  if (node != nullptr && options.locked && node->locked) {
    return Fail(ErrorCode::kBusy, fmt::format("{}: another process holds the lock", path));
  }
  const bool made = node == nullptr;
  if (made) node = std::make_shared<Node>();
  QUIRE_TRY(Grow(*node, options.bytes_preallocated));
  if (made) {
    if (!Step()) return FailStopped();
    ChangeName(path, node);
  }
  node->direct |= options.direct;
  node->locked |= options.locked;
  files_.push_back({.node = std::move(node), .holds_lock = options.locked});
  return FileId{static_cast<uint32_t>(files_.size() - 1)};
}

void FaultyFiles::Close(FileId file) {
  if (dead_) return;
  Node& node = Get(file);
  if (files_[file.value].holds_lock) node.locked = false;
  files_[file.value].node = nullptr;
}

Result<std::vector<std::string>> FaultyFiles::List(const std::string& directory) {
  if (stopped()) return FailStopped();
  const std::string begin = directory + "/";
  std::vector<std::string> inside;
  for (const auto& [name, node] : names_) {
    if (name.starts_with(begin)) inside.push_back(name.substr(begin.size()));
  }
  return inside;
}

Result<void> FaultyFiles::MakeDirectory(const std::string& /*path*/) { return {}; }

Result<void> FaultyFiles::Remove(const std::string& path) {
  if (!names_.contains(path)) {
    return Fail(ErrorCode::kNotFound, fmt::format("{}: no such file", path));
  }
  if (!Step()) return FailStopped();
  ChangeName(path, nullptr);
  return {};
}

Result<void> FaultyFiles::Rename(const std::string& from, const std::string& to) {
  const auto found = names_.find(from);
  if (found == names_.end()) {
    return Fail(ErrorCode::kNotFound, fmt::format("{}: no such file", from));
  }
  if (!Step()) return FailStopped();
  ChangeName(to, found->second);
  ChangeName(from, nullptr);
  return {};
}

Result<void> FaultyFiles::SyncDirectory(const std::string& path) {
  if (!Step()) return FailStopped();
  std::erase_if(unsynced_names_, [&](const NameChange& change) {
    if (!change.name.starts_with(path + "/")) return false;
    if (change.node != nullptr) {
      durable_names_[change.name] = change.node;
    } else {
      durable_names_.erase(change.name);
    }
    return true;
  });
  return {};
}

Result<uint64_t> FaultyFiles::Length(FileId file) {
  if (stopped()) return FailStopped();
  return Get(file).contents.size();
}

Result<uint64_t> FaultyFiles::ReadAt(FileId file, uint64_t offset, std::span<std::byte> out) {
  if (stopped()) return FailStopped();
  const std::vector<std::byte>& contents = Get(file).contents;
  if (offset >= contents.size()) return 0;
  const uint64_t bytes = std::min<uint64_t>(out.size(), contents.size() - offset);
  std::copy_n(contents.begin() + static_cast<ptrdiff_t>(offset), bytes, out.begin());
  return bytes;
}

void FaultyFiles::Apply(std::vector<std::byte>& contents, const Change& change) {
  if (change.resizes) {
    contents.resize(change.offset);
    return;
  }
  contents.resize(std::max<uint64_t>(contents.size(), change.offset + change.bytes.size()));
  std::ranges::copy(change.bytes, contents.begin() + static_cast<ptrdiff_t>(change.offset));
}

void FaultyFiles::Write(Node& node, uint64_t offset, std::span<const std::byte> bytes) {
  Change change = {.offset = offset, .bytes = {bytes.begin(), bytes.end()}};
  Apply(node.contents, change);
  node.unsynced.push_back(std::move(change));
}

Result<void> FaultyFiles::WriteAt(FileId file, uint64_t offset, std::span<const std::byte> bytes) {
  Node& node = Get(file);
  if (!Step()) return FailStopped();
  QUIRE_TRY(Grow(node, offset + bytes.size()));
  Write(node, offset, bytes);
  return {};
}

Result<void> FaultyFiles::Resize(FileId file, uint64_t bytes) {
  Node& node = Get(file);
  if (!Step()) return FailStopped();
  QUIRE_TRY(Grow(node, bytes));
  node.contents.resize(bytes);
  node.unsynced.push_back({.offset = bytes, .bytes = {}, .resizes = true});
  return {};
}

void FaultyFiles::SyncNode(Node& node) {
  for (const Change& change : node.unsynced) Apply(node.durable, change);
  node.unsynced.clear();
}

Result<void> FaultyFiles::Sync(FileId file) {
  Node& node = Get(file);
  if (!Step()) return FailStopped();
  SyncNode(node);
  return {};
}

void FaultyFiles::Submit(std::span<const IoRequest> requests) {
  if (dead_) return;  // nobody will ask
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
  done.bytes = ReadAt(request.file, request.offset, out).value_or(0);
  if (done.bytes > 0 && Hits(rates_.short_read)) done.bytes = prng_.NextBelow(done.bytes);
  if (done.bytes > 0 && Hits(rates_.flip_on_read)) FlipBit(out.first(done.bytes));
  return done;
}

IoCompletion FaultyFiles::PerformWrite(const Pending& pending) {
  const IoRequest& request = pending.request;
  Node& node = Get(request.file);
  IoCompletion done = {.tag = request.tag, .bytes = request.bytes};
  if (!Grow(node, request.offset + request.bytes)) {
    return {.tag = request.tag, .error = ErrorCode::kNoSpace};
  }
  Change change = {.offset = request.offset, .bytes = pending.bytes};
  if (Hits(rates_.flip_at_rest)) FlipBit(node.contents);
  const bool fails = Hits(rates_.write_error);
  if (fails || Hits(rates_.torn_write)) {
    // What stays of a torn write is a change like any other.
    std::vector<std::byte> after = node.contents;
    WriteTorn(after, change);
    const auto begin = after.begin() + static_cast<ptrdiff_t>(change.offset);
    std::copy_n(begin, change.bytes.size(), change.bytes.begin());
    if (fails) done = {.tag = request.tag, .error = ErrorCode::kIo};
  } else if (Hits(rates_.short_write)) {
    done.bytes = prng_.NextBelow(request.bytes);
    change.bytes.resize(done.bytes);
  } else if (Hits(rates_.lost_write)) {
    return done;
  } else if (Hits(rates_.misdirected_write)) {
    const uint64_t places = (node.contents.size() - request.bytes) / kDirectIoAlignment + 1;
    change.offset = prng_.NextBelow(places) * kDirectIoAlignment;
  }
  Write(node, change.offset, change.bytes);
  return done;
}

IoCompletion FaultyFiles::PerformSync(const IoRequest& request) {
  Node& node = Get(request.file);
  if (!Hits(rates_.sync_error)) {
    SyncNode(node);
    return {.tag = request.tag};
  }
  // The disk still has what was written past the page cache. Of what was in it the system forgets
  // what it could not write: some of it is lost though readers still see it.
  if (node.direct) return {.tag = request.tag, .error = ErrorCode::kIo};
  std::erase_if(node.unsynced, [&](const Change&) { return prng_.NextChance(2); });
  return {.tag = request.tag, .error = ErrorCode::kIo};
}

void FaultyFiles::FlipBit(std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  bytes[prng_.NextBelow(bytes.size())] ^= std::byte{1} << prng_.NextBelow(8);
}

void FaultyFiles::WriteTorn(std::vector<std::byte>& contents, const Change& change) {
  const uint64_t end = change.offset + change.bytes.size();
  contents.resize(std::max<uint64_t>(contents.size(), end));
  for (uint64_t done = 0; done < change.bytes.size(); done += kSectorBytes) {
    if (prng_.NextChance(2)) continue;
    const uint64_t bytes = std::min<uint64_t>(kSectorBytes, change.bytes.size() - done);
    std::copy_n(change.bytes.begin() + static_cast<ptrdiff_t>(done), bytes,
                contents.begin() + static_cast<ptrdiff_t>(change.offset + done));
  }
}

// Each write that was in flight happened whole, in part or not at all.
void FaultyFiles::DropInFlight() {
  for (const Pending& pending : queue_) {
    if (pending.request.kind != IoKind::kWrite || prng_.NextChance(3)) continue;
    Node& node = Get(pending.request.file);
    if (!Grow(node, pending.request.offset + pending.bytes.size())) continue;
    std::vector<std::byte> after = node.contents;
    const Change change = {.offset = pending.request.offset, .bytes = pending.bytes};
    if (prng_.NextChance(2)) {
      WriteTorn(after, change);
    } else {
      Apply(after, change);
    }
    Write(node, change.offset, std::span(after).subspan(change.offset, change.bytes.size()));
  }
  queue_.clear();
}

void FaultyFiles::Restart() {
  for (OpenFile& file : files_) {
    if (file.node != nullptr) file.node->locked = false;
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
  const uint64_t kept = prng_.NextBelow(unsynced_names_.size() + 1);
  for (uint64_t i = 0; i < kept; ++i) {
    const NameChange& change = unsynced_names_[i];
    if (change.node != nullptr) {
      durable_names_[change.name] = change.node;
    } else {
      durable_names_.erase(change.name);
    }
  }
  unsynced_names_.clear();
  names_ = durable_names_;
  for (auto& [name, node] : names_) {
    for (const Change& change : node->unsynced) {
      if (prng_.NextChance(3)) continue;
      if (!change.resizes && prng_.NextChance(2)) {
        WriteTorn(node->durable, change);
      } else {
        Apply(node->durable, change);
      }
    }
    node->unsynced.clear();
    node->contents = node->durable;
  }
}

}  // namespace quire
