#include "serve/http/connection.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <ctime>
#include <optional>
#include <utility>

#include "serve/http/head.h"
#include "serve/reports.h"

namespace quire::serve::http {

namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

constexpr size_t kBufferBytesMax = 32 << 10;
constexpr size_t kAheadBytesMax = 4 << 10;  // read of a next request while one is answered
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr size_t kPathBytesLogged = 256;
constexpr size_t kMethodBytesLogged = 16;
constexpr auto kGoodbye = std::chrono::seconds(2);
constexpr auto kProbeAfter = std::chrono::seconds(1);  // most answers need no probe
constexpr auto kLeaseBeat = std::chrono::seconds(5);

ApiError ProtocolError(uint32_t status, std::string code, std::string message) {
  return {.status = status,
          .type = "invalid_request_error",
          .code = std::move(code),
          .message = std::move(message)};
}

template <typename Stream>
class StreamConnection final : public Connection,
                               public std::enable_shared_from_this<StreamConnection<Stream>> {
 public:
  StreamConnection(Stream stream, const ConnectionContext& context)
      : context_(context),
        stream_(std::move(stream)),
        watchdog_(stream_.get_executor()),
        wake_(stream_.get_executor()),
        probe_(stream_.get_executor()) {
    error_code ignored;
    const auto remote = stream_.lowest_layer().remote_endpoint(ignored);
    remote_ = remote.address().to_string();
    stream_.lowest_layer().set_option(asio::ip::tcp::no_delay(true), ignored);
    ++context_.service.transport().connections;
  }
  ~StreamConnection() override { --context_.service.transport().connections; }

  asio::awaitable<void> Run() override {
    if (co_await Handshake()) {
      while (!closing_ && co_await OneRequest()) {
      }
      if (!dropped_) co_await Goodbye();
    }
    ended_ = true;
    watchdog_.cancel();
    probe_.cancel();
    error_code ignored;
    stream_.lowest_layer().close(ignored);  // ends what is read ahead
  }

  void Close(bool cancel) override {
    asio::post(stream_.get_executor(), [self = this->shared_from_this(), cancel] {
      self->closing_ = true;
      if (cancel) self->abort_ = true;
      error_code ignored;
      if (!self->answering_) {
        self->stream_.lowest_layer().cancel(ignored);  // what waits for a next request
      } else if (cancel) {
        self->SetDeadline(kGoodbye);  // of a write to a client that reads nothing
      }
      self->Wake();
    });
  }

  bool MayBeDropped() const override { return !known_ && !answering_; }

  void Drop() override {
    asio::post(stream_.get_executor(), [self = this->shared_from_this()] {
      if (!self->MayBeDropped()) return;
      self->closing_ = self->dropped_ = true;
      error_code ignored;
      self->stream_.lowest_layer().cancel(ignored);
    });
  }

 private:
  static constexpr bool kIsTls = std::is_same_v<Stream, TlsStream>;

  // Everything below is on the strand.

  /// From now on: what is under way then is cancelled.
  void SetDeadline(SteadyClock::duration time) {
    timed_out_ = false;
    watchdog_.expires_after(time);
    watchdog_.async_wait([self = this->shared_from_this()](error_code error) {
      if (error || self->ended_) return;
      self->timed_out_ = true;
      error_code ignored;
      self->stream_.lowest_layer().cancel(ignored);
    });
  }
  void SetDeadline(uint64_t ms) { SetDeadline(std::chrono::milliseconds(ms)); }
  void ClearDeadline() { watchdog_.cancel(); }

  void Wake() {
    woken_ = true;
    wake_.cancel();
  }
  asio::awaitable<void> AwaitWake() {
    while (!woken_) {
      wake_.expires_at(SteadyClock::time_point::max());
      co_await wake_.async_wait(kAwait);
    }
    woken_ = false;
  }

  asio::awaitable<bool> Handshake() {
    if constexpr (kIsTls) {
      SetDeadline(context_.options.handshake_ms);
      const auto [error] = co_await stream_.async_handshake(asio::ssl::stream_base::server, kAwait);
      co_return !error;
    }
    co_return true;
  }

  asio::awaitable<void> Goodbye() {
    if constexpr (kIsTls) {
      if (!client_left_ && !reading_ahead_) {
        SetDeadline(kGoodbye);
        co_await stream_.async_shutdown(kAwait);
      }
    } else {
      error_code ignored;
      stream_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      co_await SwallowRest();
    }
  }

  /// A client that is still sending would lose the answer if the socket were closed at once.
  asio::awaitable<void> SwallowRest() {
    if (client_left_ || reading_ahead_ || !rest_unread_) co_return;
    SetDeadline(kGoodbye);
    std::array<char, 16 << 10> rest;
    for (uint64_t swallowed = 0; swallowed < context_.options.body_bytes_max;) {
      const auto [error, bytes] = co_await stream_.async_read_some(asio::buffer(rest), kAwait);
      if (error) co_return;
      swallowed += bytes;
    }
  }

  /// Waits for the first byte of a request. False: the client left, or idled for too long.
  asio::awaitable<bool> AwaitRequest() {
    SetDeadline(context_.options.idle_ms);
    while (reading_ahead_) co_await AwaitWake();
    if (client_left_) co_return false;
    if (buffer_.size() > 0) co_return true;
    if (closing_ || input_ended_) co_return false;
    const auto [error, bytes] =
        co_await stream_.async_read_some(buffer_.prepare(kAheadBytesMax), kAwait);
    if (error) co_return false;
    buffer_.commit(bytes);
    co_return true;
  }

  /// While a request is answered, one read is under way: it tells that the client left, or brings
  /// the beginning of its next request.
  void ReadAhead() {
    if (reading_ahead_ || client_left_ || input_ended_ || buffer_.size() > 0) return;
    reading_ahead_ = true;
    stream_.async_read_some(buffer_.prepare(kAheadBytesMax),
                            [self = this->shared_from_this()](error_code error, size_t bytes) {
                              self->reading_ahead_ = false;
                              if (error == asio::error::eof) {
                                self->input_ended_ = true;
                              } else if (error) {
                                self->client_left_ = true;
                              }
                              self->buffer_.commit(error ? 0 : bytes);
                              self->Wake();
                            });
  }

  /// A client that sends no more may still read, or be gone: both look the same until something is
  /// sent. One that is gone answers that with a reset.
  void WatchClient() {
    if (watching_) return;
    watching_ = true;
    stream_.lowest_layer().async_wait(asio::ip::tcp::socket::wait_error,
                                      [self = this->shared_from_this()](error_code error) {
                                        if (error) return;
                                        self->client_left_ = true;
                                        self->Wake();
                                      });
    probe_.expires_after(kProbeAfter);
    probe_.async_wait([self = this->shared_from_this()](error_code error) {
      if (error || self->ended_) return;
      self->probe_due_ = true;
      self->Wake();
    });
  }

  /// True: another one may follow.
  asio::awaitable<bool> OneRequest() {
    if (!co_await AwaitRequest()) co_return false;
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(context_.options.header_bytes_max));
    parser.body_limit(context_.options.body_bytes_max);
    line_ = {.remote = remote_};
    rest_unread_ = true;
    begin_ = {};
    SetDeadline(context_.options.header_ms);
    const auto [header_error, header_bytes] =
        co_await beast_http::async_read_header(stream_, buffer_, parser, kAwait);
    if (header_error) co_return co_await RefuseBroken(header_error, parser);
    begin_ = SteadyClock::now();
    NoteMethod(parser);
    auto head = HeadOf(parser);
    if (!head) co_return co_await Refuse(head.error());
    HttpRequest& request = *head;
    request.by_operator_listener = context_.by_operator_listener;
    line_.path = request.path.substr(0, kPathBytesLogged);
    line_.request_id = request.request_id;
    line_.traceparent = request.traceparent;
    Handled handled = context_.service.Begin(request);
    line_.tenant = handled.caller.name;
    if (handled.is_known) known_ = true;
    BodyCharge charge(context_.bodies, handled.caller.tenant);
    if (std::holds_alternative<std::monostate>(handled.outcome)) {
      const auto read = co_await ReadBody(parser, request, charge);
      if (!read) co_return false;
      if (!*read) {
        handled.outcome = ErrorReply(read->error());
      } else {
        rest_unread_ = false;
        begin_ = SteadyClock::now();
      }
    } else {
      rest_unread_ = request.has_body;
    }
    ClearDeadline();
    if (buffer_.size() == 0) buffer_.shrink_to_fit();
    answering_ = true;
    ++context_.busy;
    const bool more = co_await Answer(parser, request, handled, charge);
    --context_.busy;
    answering_ = false;
    co_return more;
  }

  /// None: the connection has ended, with an answer where one was possible. An error: no room.
  asio::awaitable<std::optional<ApiResult<void>>> ReadBody(Parser& parser, HttpRequest& request,
                                                           BodyCharge& charge) {
    TransportCounters& transport = context_.service.transport();
    const auto no_room = [&]() -> ApiResult<void> {
      ++transport.bodies_refused;
      return Refusal(503, "server_error", "too_many_bodies",
                     "the server reads as many bodies, of this tenant or in all, as it has room "
                     "for; try again");
    };
    const auto length = parser.content_length();
    if (length && !charge.GrowTo(*length)) co_return no_room();
    if (request.wants_continue && buffer_.size() == 0) co_await Write(asio::buffer(kContinue));
    SetDeadline(context_.options.body_ms);
    while (!parser.is_done()) {
      const auto [error, bytes] =
          co_await beast_http::async_read_some(stream_, buffer_, parser, kAwait);
      if (error) {
        co_await RefuseBroken(error, parser);
        co_return std::nullopt;
      }
      transport.body_bytes_read += bytes;
      if (!length && !charge.GrowTo(parser.get().body().size())) co_return no_room();
    }
    request.body = std::move(parser.get().body());
    line_.bytes_in = request.body.size();
    co_return ApiResult<void>();
  }

  void NoteMethod(const Parser& parser) {
    line_.method = std::string(parser.get().method_string()).substr(0, kMethodBytesLogged);
  }

  /// Answers what could not be read as a request; the connection ends.
  asio::awaitable<bool> RefuseBroken(error_code error, const Parser& parser) {
    if (error == beast_http::error::end_of_stream || (closing_ && !timed_out_)) co_return false;
    ApiError refusal = ProtocolError(400, "bad_request", "this is no HTTP request");
    if (timed_out_) {
      refusal = ProtocolError(408, "request_timeout", "the request did not come in time");
    } else if (error == beast_http::error::body_limit) {
      refusal = ProtocolError(
          413, "request_too_large",
          fmt::format("the body has more than {} bytes", context_.options.body_bytes_max));
    } else if (error == beast_http::error::header_limit) {
      refusal = ProtocolError(
          431, "header_too_large",
          fmt::format("the header has more than {} bytes", context_.options.header_bytes_max));
    } else if (error.category() !=
               beast_http::make_error_code(beast_http::error::bad_method).category()) {
      co_return false;  // the connection broke
    }
    NoteMethod(parser);
    co_return co_await Refuse(refusal);
  }

  asio::awaitable<bool> Refuse(const ApiError& refusal) {
    if (begin_ == SteadyClock::time_point{}) begin_ = SteadyClock::now();
    if (line_.request_id.empty()) line_.request_id = RandomName("req_");
    Handled handled;
    Reply reply = ErrorReply(refusal);
    co_await WriteReply(reply, /*version=*/11, /*keep_alive=*/false, /*has_body=*/true);
    NoteReply(handled);
    co_return false;
  }

  asio::awaitable<bool> Answer(const Parser& parser, HttpRequest& request, Handled& handled,
                               BodyCharge& charge) {
    const auto& message = parser.get();
    const unsigned version = message.version();
    const bool has_body = message.method() != beast_http::verb::head;
    // What is left of a refused body would be taken for a request.
    const bool keep_alive =
        message.keep_alive() && !rest_unread_ && !input_ended_ && !context_.service.draining();
    if (std::holds_alternative<std::monostate>(handled.outcome)) {
      co_await Finish(request, handled);
      request.body = {};
      charge.Release();
    }
    bool more = keep_alive;
    if (auto* const call = std::get_if<std::unique_ptr<Call>>(&handled.outcome)) {
      more = co_await ServeCall(handled, **call, version, keep_alive) && keep_alive;
    } else if (auto* const lease = std::get_if<std::unique_ptr<HeldLease>>(&handled.outcome)) {
      co_await ServeLease(**lease, version);
      lease->reset();
      more = false;
    } else {
      more = co_await WriteReply(std::get<Reply>(handled.outcome), version, keep_alive, has_body) &&
             keep_alive;
    }
    NoteReply(handled);
    co_return more;
  }

  asio::awaitable<void> Finish(const HttpRequest& request, Handled& handled) {
    // A caller that watches the server does not wait for those that compute.
    if (!request.path.starts_with("/v1/")) {
      context_.service.Finish(request, handled);
      co_return;
    }
    co_await asio::co_spawn(
        context_.workers,
        [](Service& service, const HttpRequest& asked, Handled& answer) -> asio::awaitable<void> {
          service.Finish(asked, answer);
          co_return;
        }(context_.service, request, handled),
        asio::use_awaitable);
  }

  asio::awaitable<void> Publish(Call& call) {
    co_await asio::co_spawn(
        context_.workers,
        [](Service& service, Call& published) -> asio::awaitable<void> {
          service.Publish(published);
          co_return;
        }(context_.service, call),
        asio::use_awaitable);
  }

  /// Sees a call to its end, whatever becomes of the client. False: the client has no whole answer.
  asio::awaitable<bool> ServeCall(Handled& handled, Call& call, unsigned version, bool keep_alive) {
    call.Listen([self = this->shared_from_this()] {
      if (self->wake_posted_.exchange(true)) return;
      asio::post(self->stream_.get_executor(), [self] {
        self->wake_posted_ = false;
        self->Wake();
      });
    });
    bool header_sent = false;
    bool reachable = true;
    ReadAhead();
    while (true) {
      call.Pump();
      if (call.ended()) break;
      if (input_ended_) {
        WatchClient();
        keep_alive = false;
      }
      // An interim answer, which every client of HTTP/1.1 reads over.
      if (std::exchange(probe_due_, false) && !header_sent && version >= 11) {
        reachable = co_await Write(asio::buffer(kContinue));
      }
      if (client_left_) reachable = false;
      if (!reachable) {
        call.Cancel({.status = 499, .type = "client_closed_request", .message = "it left"});
      } else if (abort_) {
        call.Cancel(ShuttingDown());
      } else if (call.streams() && !call.error()) {
        const std::string text = call.TakeStream();
        if (!text.empty()) {
          if (!header_sent) reachable = co_await WriteStreamHeader(version, keep_alive);
          header_sent = true;
          reachable = reachable && co_await WritePiece(text, version);
          continue;
        }
      }
      co_await AwaitWake();
    }
    call.Unlisten();
    if (call.publishes() && reachable && !call.error()) co_await Publish(call);
    const CallReport report = call.Report();
    context_.service.NoteEnd(handled, report);
    line_.call = report;
    if (!reachable) {
      line_.status = 499;
      co_return false;
    }
    keep_alive = keep_alive && !input_ended_;
    if (!header_sent && (call.error() || !call.streams())) {
      Reply reply = call.error() ? ErrorReply(*call.error()) : Reply{.body = call.Body()};
      co_return co_await WriteReply(reply, version, keep_alive, /*has_body=*/true) && keep_alive;
    }
    if (!header_sent) reachable = co_await WriteStreamHeader(version, keep_alive);
    const std::string text = call.TakeStream();
    if (!text.empty()) reachable = reachable && co_await WritePiece(text, version);
    if (version >= 11) {
      reachable = reachable && co_await Write(asio::buffer(std::string_view("0\r\n\r\n")));
    }
    co_return reachable&& version >= 11;
  }

  /// Holds a lease until its holder leaves, the server stops or the operator ends it.
  asio::awaitable<void> ServeLease(const HeldLease& lease, unsigned version) {
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    const auto listening =
        lease.leases().Listen(lease.id(), [self = this->shared_from_this(), ended] {
          *ended = true;
          asio::post(self->stream_.get_executor(), [self] { self->Wake(); });
        });
    ReadAhead();
    bool reachable = listening && co_await WriteStreamHeader(version, /*keep_alive=*/false);
    for (const BudgetLease& each : lease.leases().All()) {
      if (each.id != lease.id() || !reachable) continue;
      reachable = co_await WritePiece(ServerSentEvent(JsonOf(each)), version);
    }
    while (reachable && !*ended && !client_left_ && !input_ended_ && !closing_) {
      probe_.expires_after(kLeaseBeat);
      probe_.async_wait([self = this->shared_from_this()](error_code error) {
        if (error || self->ended_) return;
        self->probe_due_ = true;
        self->Wake();
      });
      co_await AwaitWake();
      // A comment, which tells of a holder that is gone without a word.
      if (std::exchange(probe_due_, false)) reachable = co_await WritePiece(": \n\n", version);
    }
    probe_.cancel();
    if (reachable && version >= 11) co_await Write(asio::buffer(std::string_view("0\r\n\r\n")));
  }

  template <typename Message>
  void SetFields(Message& message) {
    message.set(beast_http::field::server, "quire");
    message.set("X-Content-Type-Options", "nosniff");
    message.set(beast_http::field::cache_control, "no-store");
    message.set(beast_http::field::date, HttpDate(std::time(nullptr)));
    message.set("x-request-id", line_.request_id);
    if (!line_.traceparent.empty()) message.set("traceparent", line_.traceparent);
  }

  asio::awaitable<bool> WriteReply(Reply& reply, unsigned version, bool keep_alive, bool has_body) {
    line_.status = reply.status;
    beast_http::response<beast_http::string_body> message(
        static_cast<beast_http::status>(reply.status), version);
    SetFields(message);
    for (const auto& [name, value] : reply.headers) message.set(name, value);
    message.set(beast_http::field::content_type, reply.content_type);
    message.keep_alive(keep_alive);
    message.content_length(reply.body.size());
    if (has_body) message.body() = std::move(reply.body);
    SetDeadline(context_.options.write_ms);
    const auto [error, bytes] = co_await beast_http::async_write(stream_, message, kAwait);
    line_.bytes_out += bytes;
    ClearDeadline();
    co_return !error;
  }

  asio::awaitable<bool> WriteStreamHeader(unsigned version, bool keep_alive) {
    line_.status = 200;
    beast_http::response<beast_http::empty_body> message(beast_http::status::ok, version);
    SetFields(message);
    message.set(beast_http::field::content_type, "text/event-stream; charset=utf-8");
    message.set("X-Accel-Buffering", "no");  // a proxy before us passes the pieces on at once
    message.keep_alive(keep_alive && version >= 11);
    if (version >= 11) message.chunked(true);
    beast_http::response_serializer<beast_http::empty_body> serializer(message);
    SetDeadline(context_.options.write_ms);
    const auto [error, bytes] =
        co_await beast_http::async_write_header(stream_, serializer, kAwait);
    line_.bytes_out += bytes;
    ClearDeadline();
    co_return !error;
  }

  asio::awaitable<bool> WritePiece(const std::string& text, unsigned version) {
    if (version < 11) co_return co_await Write(asio::buffer(text));
    const std::string chunk = fmt::format("{:x}\r\n{}\r\n", text.size(), text);
    co_return co_await Write(asio::buffer(chunk));
  }

  asio::awaitable<bool> Write(asio::const_buffer bytes) {
    SetDeadline(context_.options.write_ms);
    const auto [error, written] = co_await asio::async_write(stream_, bytes, kAwait);
    line_.bytes_out += written;
    ClearDeadline();
    co_return !error;
  }

  void NoteReply(const Handled& handled) {
    const auto time = SteadyClock::now() - begin_;
    line_.ms = std::chrono::duration<double, std::milli>(time).count();
    context_.service.NoteReply(handled, line_.status, line_.ms / 1e3);
    if (!context_.log.Write(line_)) ++context_.service.transport().log_lines_lost;
  }

  const ConnectionContext context_;
  Stream stream_;
  asio::steady_timer watchdog_;
  asio::steady_timer wake_;
  asio::steady_timer probe_;
  boost::beast::flat_buffer buffer_{kBufferBytesMax};
  std::string remote_;
  bool timed_out_ = false;
  bool woken_ = false;
  std::atomic<bool> wake_posted_ = false;
  bool reading_ahead_ = false;
  bool client_left_ = false;
  bool input_ended_ = false;  // the client sends no more, and may read
  bool watching_ = false;     // whether it does
  bool probe_due_ = false;
  bool rest_unread_ = false;  // of a request that was refused
  std::atomic<bool> known_ = false;
  std::atomic<bool> answering_ = false;
  bool closing_ = false;
  bool dropped_ = false;
  bool abort_ = false;  // ... and what is being answered is cancelled
  bool ended_ = false;
  AccessLine line_;
  SteadyClock::time_point begin_{};
};

}  // namespace

std::shared_ptr<Connection> MakeConnection(PlainStream stream, const ConnectionContext& context) {
  return std::make_shared<StreamConnection<PlainStream>>(std::move(stream), context);
}

std::shared_ptr<Connection> MakeConnection(TlsStream stream, const ConnectionContext& context) {
  return std::make_shared<StreamConnection<TlsStream>>(std::move(stream), context);
}

}  // namespace quire::serve::http
