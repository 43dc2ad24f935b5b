#include "serve/http/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <exception>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "serve/http/connection.h"

namespace quire::serve::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr auto kDrainLook = std::chrono::milliseconds(20);
constexpr auto kTidyEvery = std::chrono::seconds(10);
constexpr auto kAcceptAgain = std::chrono::milliseconds(50);

std::string TooManyConnections() {
  const Reply reply = ErrorReply({.status = 503,
                                  .type = "server_error",
                                  .code = "too_many_connections",
                                  .message = "the server has as many connections as it may"});
  return fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      reply.body.size(), reply.body);
}

Result<tcp::endpoint> EndpointOf(const std::string& address) {
  QUIRE_ASSIGN(const HostAndPort parsed, ParseAddress(address));
  error_code error;
  const std::string host = parsed.host == "localhost" ? "127.0.0.1" : parsed.host;
  const auto ip = asio::ip::make_address(host, error);
  if (error) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is no address to listen at: write the IP address of an "
                            "interface, such as 127.0.0.1:8080 or 0.0.0.0:8080",
                            address));
  }
  return tcp::endpoint(ip, parsed.port);
}

class ServerImpl final : public Server {
 public:
  ServerImpl(Service& service, AccessLog& log, const ServerOptions& options)
      : service_(service),
        log_(log),
        options_(options),
        workers_(options.worker_threads),
        strand_(asio::make_strand(io_)) {}

  Result<void> Listen() {
    if (options_.tls_cert.empty() != options_.tls_key.empty()) {
      return Fail(ErrorCode::kInvalidArgument, "TLS needs a certificate and its key, both");
    }
    if (!options_.tls_cert.empty()) QUIRE_TRY(LoadTls());
    QUIRE_TRY(Open(options_.listen, acceptor_));
    if (options_.operator_listen.empty()) return {};
    QUIRE_ASSIGN(const tcp::endpoint endpoint, EndpointOf(options_.operator_listen));
    if (!endpoint.address().is_loopback()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the operator's listener asks for no key, so it must be on a "
                              "loopback address, not {}",
                              options_.operator_listen));
    }
    return Open(options_.operator_listen, operator_acceptor_);
  }

  uint16_t port() const override { return PortOf(acceptor_); }
  uint16_t operator_port() const override { return PortOf(operator_acceptor_); }

  void Run() override {
    signals_.emplace(strand_, SIGTERM, SIGINT);
    AwaitSignal();
    Spawn(Accept(acceptor_, /*by_operator=*/false));
    if (operator_acceptor_.is_open()) Spawn(Accept(operator_acceptor_, /*by_operator=*/true));
    Spawn(TidyNowAndThen());
    std::vector<std::thread> others;
    for (uint32_t i = 1; i < options_.io_threads; ++i) {
      others.emplace_back([this] { io_.run(); });
    }
    io_.run();
    for (std::thread& other : others) other.join();
  }

  void Stop() override {
    asio::post(strand_, [this] { StopOnStrand(); });
  }

 private:
  static uint16_t PortOf(const tcp::acceptor& acceptor) {
    error_code error;
    const auto endpoint = acceptor.local_endpoint(error);
    return error ? 0 : endpoint.port();
  }

  Result<void> Open(const std::string& address, tcp::acceptor& acceptor) {
    QUIRE_ASSIGN(const tcp::endpoint endpoint, EndpointOf(address));
    error_code error;
    const auto ok = [&](auto&& step) {
      if (!error) step();
    };
    (void)acceptor.open(endpoint.protocol(), error);
    ok([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), error); });
    ok([&] { acceptor.bind(endpoint, error); });
    ok([&] { acceptor.listen(asio::socket_base::max_listen_connections, error); });
    if (error) {
      return Fail(ErrorCode::kIo, fmt::format("cannot listen at {}: {}", address, error.message()));
    }
    return {};
  }

  Result<void> LoadTls() {
    tls_.emplace(asio::ssl::context::tls_server);
    error_code error;
    tls_->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                          asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                          asio::ssl::context::no_tlsv1_1,
                      error);
    const auto bad = [&](const std::string& file) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: not usable for TLS: {}", file, error.message()));
    };
    tls_->use_certificate_chain_file(options_.tls_cert, error);
    if (error) return bad(options_.tls_cert);
    tls_->use_private_key_file(options_.tls_key, asio::ssl::context::pem, error);
    if (error) return bad(options_.tls_key);
    return {};
  }

  // On the strand from here on.

  void Spawn(asio::awaitable<void> work) {
    asio::co_spawn(strand_, std::move(work), [](const std::exception_ptr& thrown) {
      if (thrown) LogThrown(thrown);
    });
  }

  static void LogThrown(const std::exception_ptr& thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& exception) {
      LogError("http: a connection ended by: {}", exception.what());
    } catch (...) {
      LogError("http: a connection ended by something unknown");
    }
  }

  void AwaitSignal() {
    signals_->async_wait([this](error_code error, int) {
      if (error) return;
      AwaitSignal();  // first: where nothing is under way, stopping ends this wait
      StopOnStrand();
    });
  }

  asio::awaitable<void> Accept(tcp::acceptor& acceptor, bool by_operator) {
    while (acceptor.is_open()) {
      auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(io_), kAwait);
      if (!acceptor.is_open()) co_return;
      if (error) {  // out of descriptors, or the client was gone already
        asio::steady_timer pause(strand_, kAcceptAgain);
        co_await pause.async_wait(kAwait);
        continue;
      }
      Begin(std::move(socket), by_operator);
    }
  }

  void Begin(tcp::socket socket, bool by_operator) {
    if (connections_.size() >= options_.connections_max) {
      error_code ignored;
      socket.non_blocking(true, ignored);
      // TLS clients could not read it.
      if (!tls_ || by_operator) socket.write_some(asio::buffer(TooManyConnections()), ignored);
      return;
    }
    const ConnectionContext context{.service = service_,
                                    .log = log_,
                                    .options = options_,
                                    .busy = busy_,
                                    .workers = workers_.get_executor(),
                                    .by_operator_listener = by_operator};
    const auto executor = socket.get_executor();
    const std::shared_ptr<Connection> connection =
        tls_ && !by_operator ? MakeConnection(TlsStream(std::move(socket), *tls_), context)
                             : MakeConnection(std::move(socket), context);
    connections_.push_back(connection);
    asio::co_spawn(
        executor, [connection] { return connection->Run(); },
        [this, connection](const std::exception_ptr& thrown) {
          if (thrown) LogThrown(thrown);
          asio::post(strand_, [this, connection] { connections_.remove(connection); });
        });
  }

  void StopOnStrand() {
    if (service_.draining()) {
      drain_until_ = std::chrono::steady_clock::now();  // asked twice: no patience left
      return;
    }
    LogInfo("http: stopping; {} requests are under way", busy_.load());
    service_.Drain();
    drain_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.drain_ms);
    Spawn(Drain());
  }

  // Health, metrics and the like are answered until the last call has ended.
  asio::awaitable<void> Drain() {
    asio::steady_timer timer(strand_);
    while (busy_ > 0 && std::chrono::steady_clock::now() < drain_until_) {
      timer.expires_after(kDrainLook);
      co_await timer.async_wait(kAwait);
    }
    error_code ignored;
    acceptor_.close(ignored);
    operator_acceptor_.close(ignored);
    tidy_.cancel();
    for (const auto& connection : connections_) connection->Close(/*cancel=*/busy_ > 0);
    // A second signal has nothing more to hurry.
    signals_->cancel(ignored);
  }

  asio::awaitable<void> TidyNowAndThen() {
    while (acceptor_.is_open()) {
      tidy_.expires_after(kTidyEvery);
      co_await tidy_.async_wait(kAwait);
      service_.Tidy();
    }
  }

  Service& service_;
  AccessLog& log_;
  const ServerOptions options_;
  asio::io_context io_;
  asio::thread_pool workers_;
  asio::strand<asio::io_context::executor_type> strand_;
  std::optional<asio::ssl::context> tls_;
  tcp::acceptor acceptor_{strand_};
  tcp::acceptor operator_acceptor_{strand_};
  std::optional<asio::signal_set> signals_;
  asio::steady_timer tidy_{strand_};
  std::list<std::shared_ptr<Connection>> connections_;
  std::atomic<uint64_t> busy_ = 0;
  std::chrono::steady_clock::time_point drain_until_{};
};

}  // namespace

Result<HostAndPort> ParseAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  const auto bad = [&] {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is not HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080", address));
  };
  if (colon == std::string::npos || colon == 0) return bad();
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const char* const end = address.data() + address.size();
  uint16_t port = 0;
  const auto [rest, error] = std::from_chars(address.data() + colon + 1, end, port);
  if (error != std::errc() || rest != end || host.empty()) return bad();
  return HostAndPort{.host = std::move(host), .port = port};
}

Result<std::unique_ptr<Server>> Server::Create(Service& service, AccessLog& log,
                                               const ServerOptions& options) {
  auto server = std::make_unique<ServerImpl>(service, log, options);
  QUIRE_TRY(server->Listen());
  return server;
}

}  // namespace quire::serve::http
