// One line of JSON for each request, which explains how it used the cache.
#ifndef QUIRE_SERVE_HTTP_ACCESS_LOG_H_
#define QUIRE_SERVE_HTTP_ACCESS_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "quire/error.h"
#include "serve/http/call.h"

namespace quire::serve::http {

struct AccessLine {
  std::string request_id{};
  std::string traceparent{};  // as the client gave it; empty: it gave none
  std::string remote{};       // address without port
  std::string tenant{};
  std::string method{};
  std::string path{};  // without what follows '?'
  uint32_t status = 0;
  double ms = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  std::optional<CallReport> call{};
};

/// {"time", "request_id", ..., "cache": {"reused_tokens", "computed_tokens", "missed": {reason:
/// tokens}}}. No key, no text of a prompt or an answer.
std::string AccessLineJson(const AccessLine& line, uint64_t unix_us);

/// Threads: any
class AccessLog {
 public:
  /// A file that is appended to; "-": stderr; "": nothing is written.
  ///
  /// Errors: kIo it cannot be opened
  static Result<std::unique_ptr<AccessLog>> Open(const std::string& path);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  /// Opens the file anew by its name: the old one was moved away.
  ///
  /// Errors: as Open; then the old one is written to
  Result<void> Reopen();
  /// False: the line is lost. The first of several that the disk refuses is said in the program's
  /// own log.
  bool Write(const AccessLine& line);

 private:
  explicit AccessLog(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  Mutex mutex_{LockRank::kLeaf};  // one line at a time
  int descriptor_ QUIRE_GUARDED_BY(mutex_) = -1;
  bool torn_ QUIRE_GUARDED_BY(mutex_) = false;     // the last line was written in part
  bool failing_ QUIRE_GUARDED_BY(mutex_) = false;  // as was said
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_ACCESS_LOG_H_
