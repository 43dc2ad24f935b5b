#include "serve/session_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/canary.h"
#include "base/log.h"
#include "base/thread.h"

namespace quire::serve {
namespace {

constexpr size_t kBatchJobs = 32;
constexpr uint64_t kEraseChunkBytes = 256 << 10;
constexpr const char* kNewKind = "new";      // being written
constexpr const char* kEndedKind = "ended";  // being removed
constexpr std::string_view kLockFile = ".lock";
constexpr std::string_view kKeysFolder = ".keys";

bool IsLeftover(const std::string& name) {
  return name.starts_with('.') && (name.ends_with(fmt::format(".{}", kNewKind)) ||
                                   name.ends_with(fmt::format(".{}", kEndedKind)));
}

// No session's name has a dot.
std::string HiddenName(const std::string& name, const char* kind) {
  return fmt::format(".{}.{}", name, kind);
}

std::string NameOfHidden(const std::string& hidden) {
  return hidden.substr(1, hidden.rfind('.') - 1);
}

// Those were for opening it, and are not kept in memory for longer.
SessionStoreOptions WithoutKeys(SessionStoreOptions options) {
  options.keys = {};
  return options;
}

std::unexpected<Error> Named(const std::string& path, const Error& error) {
  return Fail(error.code, fmt::format("{}: {}", path, error.message));
}

}  // namespace

/// What is not told before the directory is synced.
struct SessionStore::Batch {
  std::vector<std::move_only_function<void(const Result<void>& synced)>> answers{};
  std::vector<uint64_t> lives{};  // of the callers that wait for these
  bool changed = false;           // names
};

Result<std::unique_ptr<SessionStore>> SessionStore::Open(Files& files,
                                                         const SessionStoreOptions& options) {
  std::unique_ptr<SessionStore> store(new SessionStore(files, options));
  QUIRE_TRY(store->files_.MakeDirectory(options.directory));
  QUIRE_TRY(store->TakeLock());
  QUIRE_TRY(store->OpenKeys(options.keys));
  QUIRE_TRY(store->List());
  return store;
}

SessionStore::SessionStore(Files& files, const SessionStoreOptions& options)
    : files_(files), options_(WithoutKeys(options)) {}

Result<void> SessionStore::TakeLock() {
  QUIRE_ASSIGN(lock_,
               files_.Open(PathOf(std::string(kLockFile)), {.create = true, .locked = true}));
  return {};
}

Result<void> SessionStore::RotateKeys(Files& files, const std::string& directory,
                                      const StoreKeys& keys, const StoreKeys& new_keys,
                                      bool renews_data_keys) {
  if (!keys::ReadKeys(files, fmt::format("{}/{}", directory, kKeysFolder)).any()) return {};
  SessionStore store(files, {.directory = directory});
  QUIRE_TRY(store.TakeLock());
  auto opened = store.OpenKeys(keys);
  // An earlier call may have ended in between.
  const bool again = !opened && !new_keys.empty() &&
                     opened.error().code == ErrorCode::kInvalidArgument &&
                     store.OpenKeys(new_keys).has_value();
  if (!again) QUIRE_TRY(opened);
  return store.seal_->Rotate(again ? StoreKeys() : new_keys, renews_data_keys);
}

// In a folder of their own: a session may be called as a file of keys is.
Result<void> SessionStore::OpenKeys(const StoreKeys& keys) {
  const std::string directory = fmt::format("{}/{}", options_.directory, kKeysFolder);
  if (keys.empty()) {
    if (!keys::ReadKeys(files_, directory).any()) return {};
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: these sessions are encrypted: give the key that they were made "
                            "with (--keys FILE or --keys-command CMD)",
                            options_.directory));
  }
  QUIRE_TRY(files_.MakeDirectory(directory));
  QUIRE_ASSIGN(const auto names, files_.List(options_.directory));
  const bool is_fresh = std::ranges::none_of(names, IsSessionName);
  QUIRE_ASSIGN(auto ring, keys::KeyRing::Open(files_,
                                              {.directory = directory,
                                               .keys_max = options_.sessions_max,
                                               .without = is_fresh ? keys::WithoutKeys::kMake
                                                                   : keys::WithoutKeys::kRefuse},
                                              keys));
  seal_.emplace(std::move(ring));
  return {};
}

SessionStore::~SessionStore() {
  if (thread_.joinable()) {
    {
      MutexLock lock(mutex_);
      stops_ = true;
      asked_.NotifyAll();
    }
    thread_.join();
  }
  for (const Replaced& each : replaced_) files_.Close(each.file);
  if (lock_) files_.Close(*lock_);
}

void SessionStore::Start() {
  thread_ = StartThread([this] { Run(); });
}

void SessionStore::Run() {
  while (true) {
    while (Tick()) {
    }
    MutexLock lock(mutex_);
    while (jobs_.empty() && !stops_) asked_.Wait(mutex_);
    if (jobs_.empty()) return;
  }
}

std::string SessionStore::PathOf(const std::string& file) const {
  return fmt::format("{}/{}", options_.directory, file);
}

// A file that does not say which session's it is counts as that of its own name.
std::string SessionStore::FileOf(const std::string& name) const {
  const auto known = known_.find(name);
  if (known != known_.end()) return known->second.file;
  return seal_ ? seal_->FileOf(name) : name;
}

Result<void> SessionStore::List() {
  // Files are synced before they are named; their names may not be, where a process was killed. A
  // caller that is told of a session now may count on it.
  QUIRE_TRY(files_.SyncDirectory(options_.directory));
  QUIRE_ASSIGN(const auto names, files_.List(options_.directory));
  for (const std::string& name : names) {
    if (IsLeftover(name)) {  // of a crash
      leftovers_[name] = {.bytes = 0, .tenant = {}};
      if (auto erased = EraseLeftover(name); !erased) {
        LogWarn("sessions: {}", erased.error().message);
      }
    } else if (IsSessionName(name)) {
      auto head = ReadHead(name);
      if (!head && seal_ && head.error().code == ErrorCode::kNotFound) {
        // An erasure that a crash cut off: the key is gone, and the file goes too.
        known_.erase(name);
        QUIRE_TRY(Erase(PathOf(name)));
        continue;
      }
      const std::string session = head ? head->name : name;
      Judge(session, std::move(head));
    }
  }
  std::ranges::sort(found_, {}, [](const StoredSession& each) { return each.head.name; });
  // One that cannot be read may have any key.
  const bool all_read = std::ranges::all_of(
      known_, [](const auto& known) { return known.second.tenant.has_value(); });
  return seal_ && all_read ? seal_->RetireOthers() : Result<void>();
}

void SessionStore::Judge(const std::string& name, Result<SessionHead> head) {
  StoredSession session;
  if (head) {
    session.head = *std::move(head);
    if (session.head.fingerprint != options_.fingerprint) {
      session.unusable = Error{ErrorCode::kUnsupported,
                               fmt::format("session '{}' was made with another model", name)};
    }
  } else {
    session.unusable = head.error();
  }
  session.head.name = name;
  if (session.unusable) {
    LogWarn("sessions: {}; it is left as it is and cannot go on ({})", session.unusable->message,
            PathOf(FileOf(name)));
  }
  MutexLock lock(mutex_);
  stored_names_[name] = session.unusable;
  found_.push_back(std::move(session));
}

Result<void> SessionStore::ClaimNew(const std::string& name) {
  if (!IsSessionName(name)) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a session's name has 1 to {} of A-Z, a-z, 0-9, '_' and '-'; '{}' has "
                            "not",
                            kSessionNameBytesMax, name.substr(0, kSessionNameBytesMax)));
  }
  MutexLock lock(mutex_);
  if (open_names_.contains(name)) {
    return Fail(ErrorCode::kBusy, fmt::format("session '{}' is open", name));
  }
  if (stored_names_.contains(name)) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("there is a session '{}'", name));
  }
  open_names_.insert(name);
  return {};
}

Result<void> SessionStore::ClaimStored(const std::string& name) {
  MutexLock lock(mutex_);
  if (open_names_.contains(name)) {
    return Fail(ErrorCode::kBusy, fmt::format("session '{}' is open", name));
  }
  const auto stored = stored_names_.find(name);
  if (stored == stored_names_.end()) {
    return Fail(ErrorCode::kNotFound, fmt::format("there is no session '{}'", name));
  }
  if (stored->second) return std::unexpected(*stored->second);
  open_names_.insert(name);
  return {};
}

void SessionStore::GiveBack(const std::string& name) {
  MutexLock lock(mutex_);
  open_names_.erase(name);
}

template <typename What>
void SessionStore::Ask(What what) {
  MutexLock lock(mutex_);
  jobs_.push_back({.what = std::move(what), .life = lives_});
  asked_.NotifyAll();
}

void SessionStore::Write(SessionRecord record, OnSettled settled) {
  record.head.fingerprint = options_.fingerprint;
  Ask(WriteJob{.record = std::move(record), .settled = std::move(settled)});
}

void SessionStore::Remove(std::string name, OnSettled settled) {
  Ask(RemoveJob{.name = std::move(name), .settled = std::move(settled)});
}

void SessionStore::RemoveAllOf(std::string tenant, OnSettled settled) {
  Ask(RemoveAllJob{.tenant = std::move(tenant), .settled = std::move(settled)});
}

void SessionStore::Read(std::string name, OnSessionRead read) {
  Ask(ReadJob{.name = std::move(name), .read = std::move(read)});
}

void SessionStore::Detach() {
  MutexLock lock(mutex_);
  ++lives_;
  while (calling_) called_.Wait(mutex_);
}

bool SessionStore::Tick() {
  std::vector<Job> jobs;
  {
    MutexLock lock(mutex_);
    while (!jobs_.empty() && jobs.size() < kBatchJobs) {
      jobs.push_back(std::move(jobs_.front()));
      jobs_.pop_front();
    }
  }
  if (jobs.empty()) return false;
  Batch batch;
  for (Job& job : jobs) {
    std::visit([&](auto& each) { Do(each, batch); }, job.what);
    batch.lives.push_back(job.life);
  }
  EndBatch(batch);
  return true;
}

void SessionStore::EndBatch(Batch& batch) {
  const Result<void> synced =
      batch.changed ? files_.SyncDirectory(options_.directory) : Result<void>();
  uint64_t life = 0;
  {
    MutexLock lock(mutex_);
    life = lives_;
    calling_ = true;
  }
  for (size_t i = 0; i < batch.answers.size(); ++i) {
    if (batch.lives[i] == life) batch.answers[i](synced);
  }
  {
    MutexLock lock(mutex_);
    calling_ = false;
    called_.NotifyAll();
  }
  // It is not waited for. Not where this batch synced no names: an earlier one may have failed to.
  if (batch.changed && synced) (void)EraseReplaced([](const Replaced&) { return false; });
}

Result<SessionHead> SessionStore::ReadHead(const std::string& file_name) {
  const std::string path = PathOf(file_name);
  known_[file_name] = {.bytes = 0, .tenant = {}, .file = file_name};
  QUIRE_ASSIGN(const FileId file, files_.Open(path, {.read_only = true}));
  std::vector<std::byte> bytes(seal_ ? SessionSeal::SealedBytes(kSessionHeadBytesMax)
                                     : kSessionHeadBytesMax);
  auto length = files_.Length(file);
  const auto got = files_.ReadAt(file, 0, bytes);
  files_.Close(file);
  if (!length) return std::unexpected(length.error());
  if (!got) return std::unexpected(got.error());
  known_[file_name].bytes = *length;
  bytes_ += *length;
  bytes.resize(*got);
  if (seal_) {
    auto opened = seal_->OpenHead(bytes);
    if (!opened) return Named(path, opened.error());
    seal_->Note(bytes);
    bytes = *std::move(opened);
    *length = SessionSeal::PlainBytes(*length);
  }
  auto head = DecodeSessionHead(bytes, *length);
  if (!head) return Named(path, head.error());
  if ((seal_ ? seal_->FileOf(head->name) : head->name) != file_name) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: it is the file of session '{}'", path, head->name));
  }
  auto known = known_.extract(file_name);
  known.key() = head->name;
  known.mapped().tenant = head->tenant;
  known_.insert(std::move(known));
  return head;
}

Result<std::vector<std::byte>> SessionStore::ReadAll(const std::string& path) {
  QUIRE_ASSIGN(const FileId file, files_.Open(path, {.read_only = true}));
  std::vector<std::byte> bytes;
  const auto read = [&]() -> Result<void> {
    QUIRE_ASSIGN(const uint64_t length, files_.Length(file));
    if (length > options_.bytes_max) {
      return Fail(ErrorCode::kCorrupt, fmt::format("{}: {} bytes", path, length));
    }
    bytes.resize(length);
    QUIRE_ASSIGN(const uint64_t got, files_.ReadAt(file, 0, bytes));
    bytes.resize(got);
    return {};
  }();
  files_.Close(file);
  if (!read) return std::unexpected(read.error());
  return bytes;
}

Result<SessionRecord> SessionStore::ReadRecord(const std::string& name) {
  const std::string path = PathOf(FileOf(name));
  QUIRE_ASSIGN(auto bytes, ReadAll(path));
  if (seal_) {
    auto opened = seal_->Open(bytes);
    if (!opened) return Named(path, opened.error());
    bytes = *std::move(opened);
  }
  auto record = DecodeSession(bytes);
  if (!record) return Named(path, record.error());
  if (record->head.name != name || record->head.fingerprint != options_.fingerprint) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: it is another session's file", path));
  }
  return record;
}

Result<void> SessionStore::Overwrite(FileId file) {
  if (Planted(Canary::kKeepText)) return {};
  QUIRE_ASSIGN(const uint64_t length, files_.Length(file));
  const std::vector<std::byte> zeros(std::min(length, kEraseChunkBytes));
  for (uint64_t offset = 0; offset < length; offset += zeros.size()) {
    const auto written = files_.WriteAt(
        file, offset, std::span(zeros).first(std::min<uint64_t>(zeros.size(), length - offset)));
    // Where the disk has no room for zeros it has none of the text: files are written from the
    // front on.
    if (!written && written.error().code == ErrorCode::kNoSpace) break;
    QUIRE_TRY(written);
  }
  return files_.Sync(file);
}

Result<void> SessionStore::Erase(const std::string& path) {
  QUIRE_ASSIGN(const FileId file, files_.Open(path, {}));
  const auto overwritten = Overwrite(file);
  files_.Close(file);
  QUIRE_TRY(overwritten);
  return files_.Remove(path);
}

// What is to go of a file that no session has any more. It stays among the leftovers until that is
// done.
Result<void> SessionStore::EraseLeftover(const std::string& hidden) {
  const auto left = leftovers_.find(hidden);
  if (left == leftovers_.end()) return {};
  const std::string name = NameOfHidden(hidden);
  const std::string path = PathOf(hidden);
  const auto erased = [&]() -> Result<void> {
    // First its session's name, for good: a crash that comes after leaves no session without text.
    QUIRE_TRY(files_.SyncDirectory(options_.directory));
    if (left->second.tenant) return Erase(path);
    // A crash within a rename may leave both names to one file: then the session still needs it.
    const auto session = ReadAll(PathOf(name));
    if (!session && session.error().code == ErrorCode::kNotFound) return Erase(path);
    if (!session) return std::unexpected(session.error());
    QUIRE_ASSIGN(const auto leftover, ReadAll(path));
    return *session == leftover ? files_.Remove(path) : Erase(path);
  }();
  if (!erased && erased.error().code != ErrorCode::kNotFound) {
    return Fail(erased.error().code, fmt::format("session '{}': {} may have its text yet: {}", name,
                                                 path, erased.error().message));
  }
  bytes_ -= left->second.bytes;
  leftovers_.erase(left);
  return {};
}

// The texts that were replaced, once the names that they had are others' for good: a crash might
// bring them back. The error is of one for which `matters`; what fails is tried again.
template <typename Matters>
Result<void> SessionStore::EraseReplaced(const Matters& matters) {
  Result<void> erased;
  std::erase_if(replaced_, [&](const Replaced& each) {
    const auto overwritten = Overwrite(each.file);
    if (overwritten) {
      files_.Close(each.file);
    } else if (matters(each)) {
      erased = Fail(overwritten.error().code,
                    fmt::format("session '{}': an earlier text may be on the disk yet: {}",
                                each.session, overwritten.error().message));
    }
    return overwritten.has_value();
  });
  return erased;
}

Result<void> SessionStore::WriteNew(const std::string& hidden, std::span<const std::byte> bytes) {
  const std::string path = PathOf(hidden);
  QUIRE_ASSIGN(const FileId file, files_.Open(path, {.create = true}));
  auto written = files_.Resize(file, bytes.size());
  if (written) written = files_.WriteAt(file, 0, bytes);
  if (written) written = files_.Sync(file);
  files_.Close(file);
  return written;
}

// The directory is synced with the batch.
Result<void> SessionStore::WriteFileOf(const SessionRecord& record, Batch& batch) {
  const std::string& name = record.head.name;
  const std::string file = FileOf(name);
  std::vector<std::byte> bytes = EncodeSession(record);
  if (seal_) {
    QUIRE_ASSIGN(bytes, seal_->Seal(record.head.tenant, bytes));
  }
  const auto before = known_.find(name);
  const bool is_new = before == known_.end();
  if (is_new && known_.size() >= options_.sessions_max) {
    return Fail(ErrorCode::kNoSpace, fmt::format("{} has {} sessions, as many as it may",
                                                 options_.directory, options_.sessions_max));
  }
  const uint64_t bytes_after = bytes_ - (is_new ? 0 : before->second.bytes) + bytes.size();
  if (bytes_after > options_.bytes_max) {
    return Fail(ErrorCode::kNoSpace,
                fmt::format("session '{}' needs {} bytes; {} has {} of {}", name, bytes.size(),
                            options_.directory, bytes_, options_.bytes_max));
  }
  const std::string hidden = HiddenName(file, kNewKind);
  QUIRE_TRY(EraseLeftover(hidden));
  auto written = WriteNew(hidden, bytes);
  std::optional<FileId> old;
  if (written && !is_new) {
    // A file that cannot be opened cannot be overwritten when it has no name any more.
    const auto opened = files_.Open(PathOf(file), {});
    if (opened) old = *opened;
    if (!opened && opened.error().code != ErrorCode::kNotFound) {
      written = std::unexpected(opened.error());
    }
  }
  if (written) {
    written = files_.Rename(PathOf(hidden), PathOf(file));
  }
  if (!written) {
    if (old) files_.Close(*old);
    leftovers_[hidden] = {.bytes = 0, .tenant = record.head.tenant};
    (void)EraseLeftover(hidden);
    return written;
  }
  if (old) {
    replaced_.push_back({.file = *old, .session = name, .tenant = before->second.tenant});
  }
  batch.changed = true;
  bytes_ = bytes_after;
  known_[name] = {.bytes = bytes.size(), .tenant = record.head.tenant, .file = file};
  MutexLock lock(mutex_);
  stored_names_[name] = std::nullopt;
  return {};
}

Result<void> SessionStore::RemoveFileOf(const std::string& name) {
  if (!replaced_.empty()) QUIRE_TRY(files_.SyncDirectory(options_.directory));
  QUIRE_TRY(EraseReplaced([&](const Replaced& each) { return each.session == name; }));
  const std::string file = FileOf(name);
  for (const char* const kind : {kNewKind, kEndedKind}) {
    QUIRE_TRY(EraseLeftover(HiddenName(file, kind)));
  }
  const auto known = known_.find(name);
  if (known == known_.end()) return {};
  const std::string hidden = HiddenName(file, kEndedKind);
  if (auto renamed = files_.Rename(PathOf(file), PathOf(hidden));
      !renamed && renamed.error().code != ErrorCode::kNotFound) {
    return Named(fmt::format("session '{}'", name), renamed.error());
  }
  leftovers_[hidden] = {.bytes = known->second.bytes, .tenant = known->second.tenant.value_or("")};
  known_.erase(known);
  {
    MutexLock lock(mutex_);
    stored_names_.erase(name);
  }
  return EraseLeftover(hidden);
}

// All that can be removed, what earlier calls left too. The error names one that could not.
Result<void> SessionStore::RemoveFilesOf(const std::string& tenant) {
  const auto may_be_theirs = [&](const auto& each) {
    return each.tenant.value_or(tenant) == tenant;
  };
  // The key first: what is left of their texts anywhere cannot be opened from then on.
  const Result<void> forgotten = seal_ ? seal_->Forget(tenant) : Result<void>();
  if (!replaced_.empty()) QUIRE_TRY(files_.SyncDirectory(options_.directory));
  Result<void> removed = EraseReplaced(may_be_theirs);
  if (!forgotten) removed = forgotten;
  const auto note = [&](Result<void> each) {
    if (!each) removed = std::move(each);
  };
  std::vector<std::string> names;
  for (const auto& [hidden, file] : leftovers_) {
    if (may_be_theirs(file)) names.push_back(hidden);
  }
  for (const std::string& hidden : names) note(EraseLeftover(hidden));
  names.clear();
  for (const auto& [name, file] : known_) {
    if (file.tenant == tenant) names.push_back(name);
    if (file.tenant) continue;
    note(Fail(ErrorCode::kCorrupt,
              fmt::format("session '{}': its file does not say whose it is, so it is left: end it "
                          "by its name",
                          name)));
  }
  for (const std::string& name : names) note(RemoveFileOf(name));
  return removed;
}

void SessionStore::Do(WriteJob& job, Batch& batch) {
  job.record.head.used_unix_us = UnixMicros();
  Result<void> written = WriteFileOf(job.record, batch);
  batch.answers.push_back([this, written = std::move(written),
                           settled = std::move(job.settled)](const Result<void>& synced) mutable {
    const Result<void>& outcome = written ? synced : written;
    if (!outcome && !warned_) {
      LogWarn("sessions: {}; sessions go on in memory, and are written again with their next turn",
              outcome.error().message);
    }
    warned_ = !outcome;
    settled(outcome);
  });
}

void SessionStore::Do(RemoveJob& job, Batch& batch) {
  Result<void> removed = RemoveFileOf(job.name);
  if (!removed) LogWarn("sessions: '{}' was ended: {}", job.name, removed.error().message);
  batch.changed = true;
  GiveBack(job.name);
  batch.answers.push_back([removed = std::move(removed),
                           settled = std::move(job.settled)](const Result<void>& synced) mutable {
    settled(removed ? synced : removed);
  });
}

void SessionStore::Do(RemoveAllJob& job, Batch& batch) {
  Result<void> removed = RemoveFilesOf(job.tenant);
  batch.changed = true;
  batch.answers.push_back([removed = std::move(removed),
                           settled = std::move(job.settled)](const Result<void>& synced) mutable {
    settled(removed ? synced : removed);
  });
}

void SessionStore::Do(ReadJob& job, Batch& batch) {
  batch.answers.push_back([record = ReadRecord(job.name), read = std::move(job.read)](
                              const Result<void>&) mutable { read(std::move(record)); });
}

}  // namespace quire::serve
