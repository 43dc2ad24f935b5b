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
                     {"computed_tokens", call.computed_tokens},
                     {"recomputed_tokens", call.recomputed_tokens},
                     {"missed", std::move(missed)}};
  }
  return Dump(json) + "\n";
}

Result<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  if (path.empty()) return std::unique_ptr<AccessLog>(new AccessLog(-1, false));
  if (path == "-") return std::unique_ptr<AccessLog>(new AccessLog(STDERR_FILENO, false));
  const int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
  if (descriptor < 0) {
    return Fail(ErrorCode::kIo, fmt::format("access log {}: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<AccessLog>(new AccessLog(descriptor, true));
}

AccessLog::~AccessLog() {
  if (owned_) close(descriptor_);
}

void AccessLog::Write(const AccessLine& line) {
  if (descriptor_ < 0) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string text = AccessLineJson(
      line,
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
  // A log that nobody reads loses lines and never stops the server: where a pipe takes anything it
  // takes PIPE_BUF bytes, and a line is shorter.
  MutexLock lock(mutex_);
  pollfd ready{.fd = descriptor_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) != 1) return;
  if (write(descriptor_, text.data(), text.size()) < 0) return;
}

}  // namespace quire::serve::http
