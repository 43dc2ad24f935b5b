#include "tier/catalogue.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstring>
#include <utility>

#include "base/hash.h"
#include "tier/sqlite_files.h"

namespace quire::tier {
namespace {

// A row's blob is its digest, this, the roots, and the entries. One of another form than this is
// damaged, and its segment is read instead.
struct StoredRow {
  PublisherId publisher;
  uint64_t erase_epoch;
  uint64_t generation;
  uint64_t tail;
  uint32_t segment;
  uint32_t sealed;  // 0 no, 1 yes, 2 and clean
  uint32_t count;   // of the entries
  uint32_t root_count;
};
static_assert(sizeof(StoredRow) == 56);

struct StoredRoot {
  Digest key;
  uint32_t block_tokens;
};
static_assert(sizeof(StoredRoot) == 36);

struct StoredEntry {
  KeyPrefix key;
  uint32_t page;
  uint32_t pages;
  uint32_t used;
};
static_assert(sizeof(StoredEntry) == 28);

using RowDigest = Blake2b<16>::Digest;

RowDigest DigestOf(std::span<const std::byte> bytes) {
  Blake2b<16> hash;
  hash.Update(bytes);
  return hash.Finish();
}

template <typename T>
void Append(std::vector<std::byte>& bytes, const T& value) {
  const auto more = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), more.begin(), more.end());
}

std::vector<std::byte> EncodeRow(const CatalogueRow& row) {
  std::vector<std::byte> body;
  body.reserve(sizeof(StoredRow) + row.roots.size() * sizeof(StoredRoot) +
               row.entries.size() * sizeof(StoredEntry));
  Append(body, StoredRow{.publisher = row.publisher,
                         .erase_epoch = row.erase_epoch,
                         .generation = row.generation,
                         .tail = row.tail,
                         .segment = row.segment,
                         .sealed = (row.sealed ? 1u : 0u) + (row.clean ? 1u : 0u),
                         .count = static_cast<uint32_t>(row.entries.size()),
                         .root_count = static_cast<uint32_t>(row.roots.size())});
  for (const RecordRoot& root : row.roots) Append(body, StoredRoot{root.key, root.block_tokens});
  for (const ColdEntry& entry : row.entries) {
    Append(body, StoredEntry{entry.key, entry.page, entry.pages, entry.used});
  }
  std::vector<std::byte> bytes;
  bytes.reserve(sizeof(RowDigest) + body.size());
  Append(bytes, DigestOf(body));
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

std::optional<CatalogueRow> DecodeRow(uint64_t segment, std::span<const std::byte> bytes) {
  RowDigest digest;
  StoredRow row;
  if (bytes.size() < sizeof(digest) + sizeof(row)) return std::nullopt;
  std::memcpy(&digest, bytes.data(), sizeof(digest));
  bytes = bytes.subspan(sizeof(digest));
  if (digest != DigestOf(bytes)) return std::nullopt;
  std::memcpy(&row, bytes.data(), sizeof(row));
  bytes = bytes.subspan(sizeof(row));
  const uint64_t root_bytes = uint64_t{row.root_count} * sizeof(StoredRoot);
  const uint64_t entry_bytes = uint64_t{row.count} * sizeof(StoredEntry);
  if (row.segment != segment || bytes.size() != root_bytes + entry_bytes) return std::nullopt;
  CatalogueRow decoded = {.segment = row.segment,
                          .publisher = row.publisher,
                          .erase_epoch = row.erase_epoch,
                          .generation = row.generation,
                          .tail = row.tail,
                          .sealed = row.sealed != 0,
                          .clean = row.sealed == 2};
  for (uint64_t i = 0; i < row.root_count; ++i) {
    StoredRoot root;
    std::memcpy(&root, bytes.data() + i * sizeof(root), sizeof(root));
    decoded.roots.push_back({.key = root.key, .block_tokens = root.block_tokens});
  }
  bytes = bytes.subspan(root_bytes);
  for (uint64_t i = 0; i < row.count; ++i) {
    StoredEntry entry;
    std::memcpy(&entry, bytes.data() + i * sizeof(entry), sizeof(entry));
    decoded.entries.push_back({.key = entry.key,
                               .segment = row.segment,
                               .page = entry.page,
                               .pages = entry.pages,
                               .used = entry.used});
  }
  return decoded;
}

std::string PathIn(const std::string& directory) {
  return fmt::format("{}/{}", directory, kCatalogueName);
}

}  // namespace

struct Catalogue::Database {
  Database(Files& door, const Options& options) : files(door, options.bytes_max) {}
  ~Database() {
    for (sqlite3_stmt* statement : {put, drop}) sqlite3_finalize(statement);
    sqlite3_close(handle);
  }

  std::unexpected<Error> FailSqlite(std::string_view action, int code) const {
    const int primary = code & 0xff;
    const ErrorCode error = primary == SQLITE_FULL ? ErrorCode::kNoSpace
                            : primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB
                                ? ErrorCode::kCorrupt
                                : ErrorCode::kIo;
    return Fail(error, fmt::format("catalogue: {}: {}", action, sqlite3_errstr(code)));
  }
  Result<void> Execute(const char* sql) {
    const int code = sqlite3_exec(handle, sql, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) return FailSqlite(sql, code);
    return {};
  }
  Result<void> Prepare(const char* sql, sqlite3_stmt** statement) {
    const int code = sqlite3_prepare_v2(handle, sql, -1, statement, nullptr);
    if (code != SQLITE_OK) return FailSqlite("prepare", code);
    return {};
  }
  /// Whether a question has the answer 1.
  Result<bool> ReadsOne(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    QUIRE_TRY(Prepare(sql, &statement));
    const int code = sqlite3_step(statement);
    const bool is_one = code == SQLITE_ROW && sqlite3_column_int64(statement, 0) == 1;
    sqlite3_finalize(statement);
    if (code != SQLITE_ROW) return FailSqlite(sql, code);
    return is_one;
  }
  Result<void> Run(sqlite3_stmt* statement) {
    const int code = sqlite3_step(statement);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    if (code != SQLITE_DONE) return FailSqlite("write", code);
    return {};
  }

  SqliteFiles files;
  sqlite3* handle = nullptr;
  sqlite3_stmt* put = nullptr;
  sqlite3_stmt* drop = nullptr;
};

Catalogue::Catalogue(std::unique_ptr<Database> database) : database_(std::move(database)) {}
Catalogue::~Catalogue() = default;

Result<std::unique_ptr<Catalogue>> Catalogue::Open(Files& files, const Options& options) {
  auto database = std::make_unique<Database>(files, options);
  const int code = sqlite3_open_v2(PathIn(options.directory).c_str(), &database->handle,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                                   database->files.name().c_str());
  if (code != SQLITE_OK) return database->FailSqlite("open", code);
  // One process has it: no shared memory. Nothing is synced, because nothing rests on it; a process
  // that is killed leaves it whole through the write-ahead log all the same.
  for (const char* sql :
       {"PRAGMA mmap_size=0", "PRAGMA locking_mode=EXCLUSIVE", "PRAGMA temp_store=MEMORY",
        "PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF", "PRAGMA secure_delete=ON",
        "PRAGMA wal_autocheckpoint=16",
        "CREATE TABLE IF NOT EXISTS segments(number INTEGER PRIMARY KEY, row BLOB)"}) {
    QUIRE_TRY(database->Execute(sql));
  }
  QUIRE_TRY(database->Prepare("REPLACE INTO segments VALUES(?1, ?2)", &database->put));
  QUIRE_TRY(database->Prepare("DELETE FROM segments WHERE number = ?1", &database->drop));
  std::unique_ptr<Catalogue> catalogue(new Catalogue(std::move(database)));
  QUIRE_ASSIGN(catalogue->is_whole_, catalogue->database_->ReadsOne("PRAGMA user_version"));
  return catalogue;
}

void Catalogue::Remove(Files& files, const std::string& directory) {
  for (const std::string_view end : {"", "-wal", "-journal", "-shm"}) {
    // What is not there need not go; what does not go is found damaged again.
    static_cast<void>(files.Remove(fmt::format("{}{}", PathIn(directory), end)));
  }
}

Result<std::vector<CatalogueRow>> Catalogue::Read(uint64_t& damaged) {
  damaged = 0;
  sqlite3_stmt* statement = nullptr;
  QUIRE_TRY(database_->Prepare("SELECT number, row FROM segments ORDER BY number", &statement));
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> owner(statement, sqlite3_finalize);
  std::vector<CatalogueRow> rows;
  int code = SQLITE_OK;
  while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
    const auto number = static_cast<uint64_t>(sqlite3_column_int64(statement, 0));
    const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement, 1));
    const auto bytes = static_cast<size_t>(sqlite3_column_bytes(statement, 1));
    auto row =
        DecodeRow(number, data == nullptr ? std::span<const std::byte>() : std::span(data, bytes));
    if (row) {
      rows.push_back(std::move(*row));
    } else {
      ++damaged;
    }
  }
  if (code != SQLITE_DONE) return database_->FailSqlite("read", code);
  return rows;
}

Result<void> Catalogue::Begin() { return database_->Execute("BEGIN"); }

Result<void> Catalogue::Commit() {
  if (!is_whole_) QUIRE_TRY(database_->Execute("PRAGMA user_version=1"));
  QUIRE_TRY(database_->Execute("COMMIT"));
  is_whole_ = true;
  return {};
}

Result<void> Catalogue::Put(const CatalogueRow& row) {
  const std::vector<std::byte> bytes = EncodeRow(row);
  sqlite3_bind_int64(database_->put, 1, row.segment);
  sqlite3_bind_blob64(database_->put, 2, bytes.data(), bytes.size(), SQLITE_STATIC);
  return database_->Run(database_->put);
}

Result<void> Catalogue::Drop(uint32_t segment) {
  sqlite3_bind_int64(database_->drop, 1, segment);
  return database_->Run(database_->drop);
}

// Dropped rows are zeros in the database; the log still has them until it is cut off.
Result<void> Catalogue::Purge() { return database_->Execute("PRAGMA wal_checkpoint(TRUNCATE)"); }

}  // namespace quire::tier
