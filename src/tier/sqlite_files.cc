#include "tier/sqlite_files.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>

#include "base/check.h"

namespace quire::tier {

struct SqliteFiles::State {
  Files* files;
  uint64_t bytes_max;
  std::map<std::string, uint64_t> lengths;  // of the files that were opened
  sqlite3_vfs vfs;

  bool Fits(const std::string& path, uint64_t length) const {
    uint64_t sum = length;
    for (const auto& [other, bytes] : lengths) sum += other == path ? 0 : bytes;
    return sum <= bytes_max;
  }
};

namespace {

using State = SqliteFiles::State;

struct OpenFile {
  sqlite3_file base;  // first, as SQLite wants it
  State* state;
  FileId file;
  std::string* path;
};

OpenFile& FileOf(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }
State& StateOf(sqlite3_vfs* vfs) { return *static_cast<State*>(vfs->pAppData); }

int Close(sqlite3_file* file) {
  OpenFile& open = FileOf(file);
  open.state->files->Close(open.file);
  delete open.path;
  return SQLITE_OK;
}

int Read(sqlite3_file* file, void* out, int count, sqlite3_int64 offset) {
  OpenFile& open = FileOf(file);
  const std::span bytes(static_cast<std::byte*>(out), static_cast<size_t>(count));
  const auto got = open.state->files->ReadAt(open.file, static_cast<uint64_t>(offset), bytes);
  if (!got) return SQLITE_IOERR_READ;
  if (*got == bytes.size()) return SQLITE_OK;
  std::memset(bytes.data() + *got, 0, bytes.size() - *got);
  return SQLITE_IOERR_SHORT_READ;
}

int Write(sqlite3_file* file, const void* in, int count, sqlite3_int64 offset) {
  OpenFile& open = FileOf(file);
  const std::span bytes(static_cast<const std::byte*>(in), static_cast<size_t>(count));
  uint64_t& length = open.state->lengths[*open.path];
  const uint64_t end = static_cast<uint64_t>(offset) + bytes.size();
  if (end > length && !open.state->Fits(*open.path, end)) return SQLITE_FULL;
  const auto written = open.state->files->WriteAt(open.file, static_cast<uint64_t>(offset), bytes);
  if (!written) {
    return written.error().code == ErrorCode::kNoSpace ? SQLITE_FULL : SQLITE_IOERR_WRITE;
  }
  length = std::max(length, end);
  return SQLITE_OK;
}

int Truncate(sqlite3_file* file, sqlite3_int64 bytes) {
  OpenFile& open = FileOf(file);
  if (!open.state->files->Resize(open.file, static_cast<uint64_t>(bytes))) {
    return SQLITE_IOERR_TRUNCATE;
  }
  open.state->lengths[*open.path] = static_cast<uint64_t>(bytes);
  return SQLITE_OK;
}

int Sync(sqlite3_file* file, int /*flags*/) {
  OpenFile& open = FileOf(file);
  return open.state->files->Sync(open.file) ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}

int FileSize(sqlite3_file* file, sqlite3_int64* out) {
  OpenFile& open = FileOf(file);
  const auto length = open.state->files->Length(open.file);
  if (!length) return SQLITE_IOERR_FSTAT;
  *out = static_cast<sqlite3_int64>(*length);
  return SQLITE_OK;
}

// The store's lock file says which process may open the database at all.
int Lock(sqlite3_file* /*file*/, int /*level*/) { return SQLITE_OK; }
int CheckReservedLock(sqlite3_file* /*file*/, int* out) {
  *out = 0;
  return SQLITE_OK;
}
int FileControl(sqlite3_file* /*file*/, int /*op*/, void* /*arg*/) { return SQLITE_NOTFOUND; }
int SectorSize(sqlite3_file* /*file*/) { return 4096; }
int DeviceCharacteristics(sqlite3_file* /*file*/) { return 0; }

constexpr sqlite3_io_methods kMethods = {.iVersion = 1,
                                         .xClose = Close,
                                         .xRead = Read,
                                         .xWrite = Write,
                                         .xTruncate = Truncate,
                                         .xSync = Sync,
                                         .xFileSize = FileSize,
                                         .xLock = Lock,
                                         .xUnlock = Lock,
                                         .xCheckReservedLock = CheckReservedLock,
                                         .xFileControl = FileControl,
                                         .xSectorSize = SectorSize,
                                         .xDeviceCharacteristics = DeviceCharacteristics,
                                         .xShmMap = nullptr,
                                         .xShmLock = nullptr,
                                         .xShmBarrier = nullptr,
                                         .xShmUnmap = nullptr,
                                         .xFetch = nullptr,
                                         .xUnfetch = nullptr};

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  file->pMethods = nullptr;                     // nothing to close on failure
  if (name == nullptr) return SQLITE_CANTOPEN;  // temporary files stay in memory
  State& state = StateOf(vfs);
  const auto opened = state.files->Open(name, {.create = (flags & SQLITE_OPEN_CREATE) != 0});
  if (!opened) return SQLITE_CANTOPEN;
  OpenFile& open = FileOf(file);
  open.state = &state;
  open.file = *opened;
  open.path = new (std::nothrow) std::string(name);
  if (open.path == nullptr) {
    state.files->Close(open.file);
    return SQLITE_NOMEM;
  }
  state.lengths[*open.path] = state.files->Length(open.file).value_or(0);
  open.base.pMethods = &kMethods;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int Delete(sqlite3_vfs* vfs, const char* name, int /*sync_directory*/) {
  State& state = StateOf(vfs);
  const auto removed = state.files->Remove(name);
  if (!removed && removed.error().code == ErrorCode::kNotFound) return SQLITE_IOERR_DELETE_NOENT;
  state.lengths.erase(name);
  return removed ? SQLITE_OK : SQLITE_IOERR_DELETE;
}

int Access(sqlite3_vfs* vfs, const char* name, int /*flags*/, int* out) {
  State& state = StateOf(vfs);
  const auto opened = state.files->Open(name, {.read_only = true});
  *out = opened ? 1 : 0;
  if (opened) state.files->Close(*opened);
  return SQLITE_OK;
}

int FullPathname(sqlite3_vfs* /*vfs*/, const char* name, int bytes, char* out) {
  if (std::strlen(name) >= static_cast<size_t>(bytes)) return SQLITE_CANTOPEN;
  std::strcpy(out, name);
  return SQLITE_OK;
}

}  // namespace

SqliteFiles::SqliteFiles(Files& files, uint64_t bytes_max) : state_(std::make_unique<State>()) {
  static std::atomic<uint64_t> count = 0;
  name_ = fmt::format("quire-{}", count.fetch_add(1));
  sqlite3_vfs* system = sqlite3_vfs_find(nullptr);
  QUIRE_CHECK(system != nullptr);
  *state_ = {.files = &files, .bytes_max = bytes_max, .lengths = {}, .vfs = {}};
  // Time, sleep and randomness are the system's; nothing that is stored depends on them.
  sqlite3_vfs& vfs = state_->vfs;
  vfs = {};
  vfs.iVersion = 1;
  vfs.szOsFile = sizeof(OpenFile);
  vfs.mxPathname = 4096;
  vfs.zName = name_.c_str();
  vfs.pAppData = state_.get();
  vfs.xOpen = Open;
  vfs.xDelete = Delete;
  vfs.xAccess = Access;
  vfs.xFullPathname = FullPathname;
  vfs.xRandomness = system->xRandomness;
  vfs.xSleep = system->xSleep;
  vfs.xCurrentTime = system->xCurrentTime;
  vfs.xGetLastError = system->xGetLastError;
  QUIRE_CHECK(sqlite3_vfs_register(&vfs, 0) == SQLITE_OK);
}

SqliteFiles::~SqliteFiles() { sqlite3_vfs_unregister(&state_->vfs); }

}  // namespace quire::tier
