// SQLite on the files of env: one door to the disk for everything of a store, so that faults, caps
// and crashes reach the catalogue too.
#ifndef QUIRE_TIER_SQLITE_FILES_H_
#define QUIRE_TIER_SQLITE_FILES_H_

#include <memory>
#include <string>

#include "env/files.h"

namespace quire::tier {

/// A file system of SQLite with a name of its own, for one database that nothing else opens: locks
/// are not its business. SQLite gets "full" for whatever would make the files it wrote here longer
/// than bytes_max in sum.
///
/// Threads: one at a time
class SqliteFiles {
 public:
  SqliteFiles(Files& files, uint64_t bytes_max);
  ~SqliteFiles();
  SqliteFiles(const SqliteFiles&) = delete;
  SqliteFiles& operator=(const SqliteFiles&) = delete;

  const std::string& name() const { return name_; }

  struct State;  // what SQLite's calls find again

 private:
  std::string name_;
  std::unique_ptr<State> state_;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_SQLITE_FILES_H_
