// One line of JSON for each request, which explains how it used the cache.
#ifndef QUIRE_SERVE_HTTP_ACCESS_LOG_H_
#define QUIRE_SERVE_HTTP_ACCESS_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

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

  void Write(const AccessLine& line);

 private:
  AccessLog(int descriptor, bool owned) : descriptor_(descriptor), owned_(owned) {}

  const int descriptor_;
  const bool owned_;
  Mutex mutex_{LockRank::kLeaf};  // one line at a time
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_ACCESS_LOG_H_
