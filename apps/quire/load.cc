#include "apps/quire/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/prng.h"
#include "quire/identity.h"

namespace quire::app {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using SteadyClock = std::chrono::steady_clock;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr uint32_t kTokensPerBlock = 16;
constexpr uint64_t kVocabulary = 256;  // any model has as many
constexpr uint64_t kOutputScale = 16;

struct Planned {
  nlohmann::json body;
  SteadyClock::duration due;  // after the beginning
};

double MsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - begin).count();
}

std::vector<Planned> PlanOf(const Trace& trace, const LoadOptions& options) {
  const size_t count = std::min<uint64_t>(trace.size(), options.requests);
  const uint64_t first_ms = count > 0 ? trace[0].timestamp_ms : 0;
  const double recorded_s =
      count > 1 ? static_cast<double>(trace[count - 1].timestamp_ms - first_ms) / 1e3 : 0;
  const double wanted_s = options.rate > 0 ? static_cast<double>(count) / options.rate : 0;
  const double scale = recorded_s > 0 ? wanted_s / recorded_s : 0;
  std::vector<Planned> plan;
  for (size_t i = 0; i < count; ++i) {
    const TraceRequest& request = trace[i];
    std::vector<TokenId> prompt;
    for (size_t b = 0; b < std::min<uint64_t>(request.block_ids.size(), options.blocks_max); ++b) {
      Prng prng(request.block_ids[b]);
      for (uint32_t t = 0; t < kTokensPerBlock; ++t) {
        prompt.push_back(static_cast<TokenId>(prng.NextBelow(kVocabulary)));
      }
    }
    if (prompt.empty()) continue;
    const uint64_t answer =
        std::clamp<uint64_t>(request.output_tokens / kOutputScale, 1, options.answer_tokens_max);
    const double due_s = static_cast<double>(request.timestamp_ms - first_ms) / 1e3 * scale;
    plan.push_back({.body = {{"prompt", std::move(prompt)},
                             {"max_tokens", answer},
                             {"temperature", 0},
                             {"stream", true},
                             {"stream_options", {{"include_usage", true}}},
                             {"reuse", options.reuse}},
                    .due = std::chrono::duration_cast<SteadyClock::duration>(
                        std::chrono::duration<double>(due_s))});
  }
  return plan;
}

// As the server would find with all the room in the world, had each request ended before the next.
double UnlimitedHits(const Trace& trace, const LoadOptions& options) {
  std::set<uint64_t> seen;
  uint64_t hits = 0;
  uint64_t all = 0;
  for (size_t i = 0; i < std::min<uint64_t>(trace.size(), options.requests); ++i) {
    const auto& ids = trace[i].block_ids;
    const size_t blocks = std::min<uint64_t>(ids.size(), options.blocks_max);
    bool found = true;
    for (size_t b = 0; b < blocks; ++b) {
      const bool known = !seen.insert(ids[b]).second;
      found = found && known && b + 1 < blocks;  // the last token is always computed
      if (found) ++hits;
    }
    all += blocks;
  }
  return all == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(all);
}

struct Target {
  std::string host;
  std::string port;
};

Result<Target> TargetOf(const std::string& url) {
  const auto bad = [&] {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--url: '{}' is not http://HOST:PORT", url));
  };
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return bad();
  std::string rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.pop_back();
  const size_t colon = rest.rfind(':');
  if (rest.find('/') != std::string::npos || colon == std::string::npos || colon == 0) return bad();
  return Target{.host = rest.substr(0, colon), .port = rest.substr(colon + 1)};
}

class Load {
 public:
  Load(Target target, const LoadOptions& options) : target_(std::move(target)), options_(options) {}

  Result<LoadReport> Run(const std::vector<Planned>& plan) {
    boost::system::error_code error;
    endpoints_ = tcp::resolver(io_).resolve(target_.host, target_.port, error);
    if (!error) {
      tcp::socket probe(io_);
      asio::connect(probe, endpoints_, error);
    }
    if (error) {
      return Fail(ErrorCode::kIo, fmt::format("{}: {}", options_.url, error.message()));
    }
    begin_ = SteadyClock::now();
    for (const Planned& planned : plan) {
      asio::co_spawn(io_, One(planned), [this](const std::exception_ptr& thrown) {
        if (thrown) NoteFailure("out of memory");
      });
    }
    io_.run();
    report_.requests = plan.size();
    report_.seconds = MsSince(begin_) / 1e3;
    return std::move(report_);
  }

 private:
  void NoteFailure(const std::string& why) {
    if (report_.failed++ == 0) report_.first_failure = why;
  }

  asio::awaitable<void> One(const Planned& planned) {
    asio::steady_timer timer(io_, begin_ + planned.due);
    co_await timer.async_wait(kAwait);
    beast::tcp_stream stream(io_);
    stream.expires_after(std::chrono::milliseconds(static_cast<int64_t>(options_.timeout_s * 1e3)));
    const auto [connect_error, endpoint] = co_await stream.async_connect(endpoints_, kAwait);
    if (connect_error) co_return NoteFailure(connect_error.message());
    beast::http::request<beast::http::string_body> request(beast::http::verb::post,
                                                           "/v1/completions", 11);
    request.set(beast::http::field::host, target_.host + ":" + target_.port);
    request.set(beast::http::field::content_type, "application/json");
    request.set(beast::http::field::connection, "close");
    if (!options_.key.empty()) {
      request.set(beast::http::field::authorization, "Bearer " + options_.key);
    }
    request.body() = planned.body.dump();
    request.prepare_payload();
    const auto [write_error, written] = co_await beast::http::async_write(stream, request, kAwait);
    if (write_error) co_return NoteFailure(write_error.message());
    co_await ReadAnswer(stream, begin_ + planned.due);
  }

  asio::awaitable<void> ReadAnswer(beast::tcp_stream& stream, SteadyClock::time_point due) {
    beast::flat_buffer buffer;
    beast::http::response_parser<beast::http::buffer_body> parser;
    parser.body_limit(boost::none);
    const auto [header_error, header_bytes] =
        co_await beast::http::async_read_header(stream, buffer, parser, kAwait);
    if (header_error) co_return NoteFailure(header_error.message());
    std::string text;
    Answer answer{.due = due};
    std::vector<char> piece(16 << 10);
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = piece.data();
      body.size = piece.size();
      auto [error, bytes] = co_await beast::http::async_read_some(stream, buffer, parser, kAwait);
      if (error == beast::http::error::need_buffer) error = {};
      if (error) co_return NoteFailure(error.message());
      text.append(piece.data(), piece.size() - body.size);
      if (parser.get().result_int() == 200) Take(text, answer);
    }
    if (parser.get().result_int() != 200) {
      co_return NoteFailure(fmt::format("{}: {}", parser.get().result_int(), text.substr(0, 200)));
    }
    if (!answer.whole) co_return NoteFailure("the stream ended early: " + text.substr(0, 200));
    report_.first_ms.push_back(answer.first_ms);
    report_.next_ms.insert(report_.next_ms.end(), answer.next_ms.begin(), answer.next_ms.end());
    report_.prompt_tokens += answer.prompt_tokens;
    report_.cached_tokens += answer.cached_tokens;
    report_.generated_tokens += answer.generated_tokens;
  }

  struct Answer {
    SteadyClock::time_point due;
    SteadyClock::time_point last{};
    double first_ms = 0;
    std::vector<double> next_ms{};
    uint64_t prompt_tokens = 0;
    uint64_t cached_tokens = 0;
    uint64_t generated_tokens = 0;
    bool whole = false;
  };

  // Whole events of `text`, which they leave.
  static void Take(std::string& text, Answer& answer) {
    size_t end = 0;
    while ((end = text.find("\n\n")) != std::string::npos) {
      const std::string event = text.substr(0, end);
      text.erase(0, end + 2);
      constexpr std::string_view kData = "data: ";
      if (!event.starts_with(kData)) continue;
      const auto json = nlohmann::json::parse(event.substr(kData.size()), nullptr, false);
      if (json.is_discarded()) {  // [DONE]
        answer.whole = answer.prompt_tokens > 0;
        continue;
      }
      if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
        answer.prompt_tokens = usage->value("prompt_tokens", uint64_t{0});
        answer.generated_tokens = usage->value("completion_tokens", uint64_t{0});
        const auto details = usage->find("prompt_tokens_details");
        if (details != usage->end() && details->is_object()) {
          answer.cached_tokens = details->value("cached_tokens", uint64_t{0});
        }
        continue;
      }
      if (answer.last == SteadyClock::time_point{}) {
        answer.first_ms = MsSince(answer.due);
      } else {
        answer.next_ms.push_back(MsSince(answer.last));
      }
      answer.last = SteadyClock::now();
    }
  }

  const Target target_;
  const LoadOptions& options_;
  asio::io_context io_{1};
  tcp::resolver::results_type endpoints_;
  SteadyClock::time_point begin_{};
  LoadReport report_;
};

}  // namespace

Result<LoadReport> RunLoad(const Trace& trace, const LoadOptions& options) {
  QUIRE_ASSIGN(const Target target, TargetOf(options.url));
  const std::vector<Planned> plan = PlanOf(trace, options);
  if (plan.empty()) return Fail(ErrorCode::kInvalidArgument, "the trace names no blocks");
  QUIRE_ASSIGN(LoadReport report, Load(target, options).Run(plan));
  report.unlimited_hits = UnlimitedHits(trace, options);
  return report;
}

}  // namespace quire::app
