// TOML files from people, read field by field: every complaint names the file and the line.
#ifndef QUIRE_SERVE_HTTP_TOML_FILE_H_
#define QUIRE_SERVE_HTTP_TOML_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::serve::http {

/// A member of a table as its text: what a flag of the same name would be given.
struct TomlSetting {
  std::string name;
  std::vector<std::string> values;  // several of an array
  std::string where;                // FILE:LINE
};

/// One table. Reading a field marks it as known; NothingElse refuses those that were not read.
///
/// Errors: of all that read: kCorrupt the field has another type or is out of range
class TomlTable {
 public:
  struct Node;

  TomlTable(std::shared_ptr<const Node> root, const void* table, std::string path);

  Result<std::optional<std::string>> Text(const std::string& field);
  Result<std::vector<std::string>> Texts(const std::string& field);
  Result<uint64_t> Count(const std::string& field, uint64_t fallback, uint64_t most);
  /// A whole number of bytes, or a text such as "512MiB" or "4GB".
  Result<uint64_t> Bytes(const std::string& field, uint64_t fallback);
  Result<double> Number(const std::string& field, double fallback, double least, double most);
  Result<bool> Flag(const std::string& field, bool fallback);
  /// An array of tables; none when it is absent.
  Result<std::vector<TomlTable>> Tables(const std::string& field);
  Result<void> NothingElse() const;

  /// All members; each a string, a number, a boolean, or an array of these.
  Result<std::vector<TomlSetting>> Settings() const;

  /// kCorrupt: "FILE:LINE: 'field' what".
  std::unexpected<Error> Bad(const std::string& field, const std::string& what) const;

 private:
  std::shared_ptr<const Node> root_;  // owns what table_ is part of
  const void* table_;
  std::string path_;
  std::set<std::string> known_;
};

/// Errors: kCorrupt with file, line and column
Result<TomlTable> ParseToml(std::string_view text, const std::string& path);

/// "4000000000", "4GB" (10^9), "4GiB" (2^30).
std::optional<uint64_t> BytesOf(std::string_view text);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_TOML_FILE_H_
