#include "serve/http/access_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/log.h"

namespace quire::serve::http {

namespace {

double Rounded(double ms) { return std::round(ms * 1000) / 1000; }

}  // namespace

std::string AccessLineJson(const AccessLine& line, uint64_t unix_us) {
  const auto seconds = static_cast<std::time_t>(unix_us / 1'000'000);
  OrderedJson json = {{"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(seconds),
                                           unix_us % 1'000'000)},
                      {"request_id", line.request_id},
                      {"remote", line.remote},
                      {"tenant", line.tenant},
                      {"method", line.method},
                      {"path", line.path},
                      {"status", line.status},
                      {"ms", Rounded(line.ms)},
                      {"bytes_in", line.bytes_in},
                      {"bytes_out", line.bytes_out}};
  if (!line.traceparent.empty()) json["traceparent"] = line.traceparent;
  if (line.call) {
    const CallReport& call = *line.call;
    OrderedJson missed = OrderedJson::object();
    for (const auto& [reason, tokens] : call.missed_tokens) {
      missed[std::string(MissReasonName(reason))] = tokens;
    }
    json["finish"] = call.finish;
    json["prompt_tokens"] = call.prompt_tokens;
    json["generated_tokens"] = call.generated_tokens;
    json["ttft_ms"] = Rounded(call.ttft_ms);
    json["ms_per_token"] = Rounded(call.ms_per_token);
    json["preemptions"] = call.preemptions;
    json["cache"] = {{"reused_tokens", call.reused_tokens},
                     {"loaded_tokens", call.loaded_tokens},
                     {"computed_tokens", call.computed_tokens},
                     {"recomputed_tokens", call.recomputed_tokens},
                     {"missed", std::move(missed)}};
  }
  return Dump(json) + "\n";
}

Result<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  std::unique_ptr<AccessLog> log(new AccessLog(path));
  QUIRE_TRY(log->Reopen());
  return log;
}

Result<void> AccessLog::Reopen() {
  if (path_.empty()) return {};
  const int descriptor = path_ == "-"
                             ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)
                             : open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
  if (descriptor < 0) {
    return Fail(ErrorCode::kIo, fmt::format("access log {}: {}", path_, std::strerror(errno)));
  }
  MutexLock lock(mutex_);
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = descriptor;
  torn_ = false;
  return {};
}

AccessLog::~AccessLog() {
  MutexLock lock(mutex_);
  if (descriptor_ >= 0) close(descriptor_);
}

bool AccessLog::Write(const AccessLine& line) {
  if (path_.empty()) return true;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string text = AccessLineJson(
      line,
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
  // A log that is not read loses lines and never stops the server: where a pipe takes anything it
  // takes PIPE_BUF bytes, and a line is shorter.
  MutexLock lock(mutex_);
  pollfd ready{.fd = descriptor_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) != 1) return false;
  if (torn_) text.insert(text.begin(), '\n');
  const ssize_t written = write(descriptor_, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0) torn_ = text[static_cast<size_t>(written) - 1] != '\n';
  const bool whole = written == static_cast<ssize_t>(text.size());
  if (!whole && !failing_) {
    LogError("access log {}: {}: lines are lost until it takes them again", path_,
             std::strerror(error));
  }
  failing_ = !whole;
  return whole;
}

}  // namespace quire::serve::http
