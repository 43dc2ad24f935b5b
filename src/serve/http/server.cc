#include "serve/http/server.h"

#include <fmt/format.h>
#include <malloc.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread.h"
#include "serve/http/connection.h"
#include "serve/http/listener.h"

namespace quire::serve::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kDrainLook = std::chrono::milliseconds(20);
constexpr auto kLookEvery = std::chrono::seconds(2);
constexpr uint64_t kTidyLooks = 5;
constexpr uint64_t kTrimAfterBytes = 8 << 20;

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

// TLS 1.2 with a key exchange that a later holder of the certificate's key cannot undo.
constexpr const char* kTls12Ciphers = "ECDHE+AESGCM:ECDHE+CHACHA20";

class ServerImpl final : public Server {
 public:
  ServerImpl(Service& service, AccessLog& log, const ServerOptions& options)
      : service_(service),
        log_(log),
        options_(options),
        bodies_(service.transport().body_bytes, options.bodies_bytes_max),
        workers_(options.worker_threads),
        strand_(asio::make_strand(io_)) {}

  Result<void> Listen() {
    if (options_.tls_cert.empty() != options_.tls_key.empty()) {
      return Fail(ErrorCode::kInvalidArgument, "TLS needs a certificate and its key, both");
    }
    if (!options_.tls_cert.empty()) QUIRE_TRY(LoadTls());
    QUIRE_ASSIGN(const tcp::endpoint endpoint, EndpointOf(options_.listen));
    const uint64_t most = options_.connections_max;
    const uint64_t per_address = options_.connections_per_address_max != 0
                                     ? options_.connections_per_address_max
                                     : std::max<uint64_t>(1, most / 2);
    listener_.emplace(
        io_, Context(/*by_operator=*/false), tls_ ? &*tls_ : nullptr,
        Listener::Limits{.connections_max = most, .connections_per_address_max = per_address});
    QUIRE_TRY(listener_->Open(options_.listen, endpoint));
    // From here on a caller may know the port: a signal before Run waits for it.
    signals_.emplace(strand_, SIGTERM, SIGINT);
    hangups_.emplace(strand_, SIGHUP);
    if (options_.operator_listen.empty()) return {};
    QUIRE_ASSIGN(const tcp::endpoint operators, EndpointOf(options_.operator_listen));
    if (!operators.address().is_loopback()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the operator's listener asks for no key, so it must be on a "
                              "loopback address, not {}",
                              options_.operator_listen));
    }
    const uint64_t operators_most = options_.operator_connections_max;
    operator_listener_.emplace(operator_io_, Context(/*by_operator=*/true), /*tls=*/nullptr,
                               Listener::Limits{.connections_max = operators_most,
                                                .connections_per_address_max = operators_most});
    return operator_listener_->Open(options_.operator_listen, operators);
  }

  uint16_t port() const override { return listener_->port(); }
  uint16_t operator_port() const override {
    return operator_listener_ ? operator_listener_->port() : 0;
  }

  void Run() override {
    AwaitSignal();
    AwaitHangup();
    listener_->Start();
    if (operator_listener_) operator_listener_->Start();
    Spawn(TidyNowAndThen());
    std::vector<std::thread> others;
    for (uint32_t i = 1; i < options_.io_threads; ++i) {
      others.push_back(StartThread([this] { io_.run(); }));
    }
    // A thread of their own: what is done for others keeps operators waiting no longer than the
    // system does.
    if (operator_listener_) others.push_back(StartThread([this] { operator_io_.run(); }));
    io_.run();
    for (std::thread& other : others) other.join();
  }

  void Stop() override {
    asio::post(strand_, [this] { StopOnStrand(); });
  }

 private:
  ConnectionContext Context(bool by_operator) {
    return {.service = service_,
            .log = log_,
            .options = options_,
            .bodies = bodies_,
            .busy = busy_,
            .workers = workers_.get_executor(),
            .by_operator_listener = by_operator};
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
    if (SSL_CTX_set_cipher_list(tls_->native_handle(), kTls12Ciphers) != 1) {
      return Fail(ErrorCode::kUnsupported, "this OpenSSL has no ECDHE with AES-GCM or ChaCha20");
    }
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

  void AwaitSignal() {
    signals_->async_wait([this](error_code error, int) {
      if (error) return;
      AwaitSignal();  // first: where nothing is under way, stopping ends this wait
      StopOnStrand();
    });
  }

  void AwaitHangup() {
    hangups_->async_wait([this](error_code error, int) {
      if (error) return;
      if (auto reopened = log_.Reopen(); !reopened) {
        LogError("{}; lines go on to the file that was open", reopened.error().message);
      }
      AwaitHangup();
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
    stopped_ = true;
    const bool cancel = busy_ > 0;
    listener_->Stop(cancel);
    if (operator_listener_) operator_listener_->Stop(cancel);
    tidy_.cancel();
    // A second signal has nothing more to hurry.
    error_code ignored;
    signals_->cancel(ignored);
    hangups_->cancel(ignored);
  }

  asio::awaitable<void> TidyNowAndThen() {
    uint64_t trimmed_at = 0;
    for (uint64_t i = 0; !stopped_; ++i) {
      tidy_.expires_after(kLookEvery);
      co_await tidy_.async_wait(kAwait);
      if (i % kTidyLooks == 0) service_.Tidy();
      // What bodies took and what came of reading them goes back to the system: the allocator keeps
      // it otherwise.
      const TransportCounters& transport = service_.transport();
      const bool more_comes = transport.body_bytes > 0;
      const uint64_t read = transport.body_bytes_read;
      if (read - trimmed_at < kTrimAfterBytes) continue;
      if (!more_comes) trimmed_at = read;
      asio::post(workers_, [] { malloc_trim(0); });
    }
  }

  Service& service_;
  AccessLog& log_;
  const ServerOptions options_;
  BodyBudget bodies_;
  asio::io_context io_;
  asio::io_context operator_io_;
  asio::thread_pool workers_;
  asio::strand<asio::io_context::executor_type> strand_;
  std::optional<asio::ssl::context> tls_;
  std::atomic<uint64_t> busy_ = 0;
  std::optional<Listener> listener_;
  std::optional<Listener> operator_listener_;
  std::optional<asio::signal_set> signals_;
  std::optional<asio::signal_set> hangups_;
  asio::steady_timer tidy_{strand_};
  bool stopped_ = false;
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
