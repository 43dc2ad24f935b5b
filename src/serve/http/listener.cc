#include "serve/http/listener.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <utility>

#include "base/log.h"

namespace quire::serve::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAcceptAgain = std::chrono::milliseconds(50);
constexpr auto kSayAgain = std::chrono::seconds(10);

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

/// A host that has one IPv6 address mostly has all that begin as it does.
std::string AddressOf(const tcp::socket& socket) {
  error_code error;
  asio::ip::address address = socket.remote_endpoint(error).address();
  if (error || address.is_v4()) return address.to_string();
  const asio::ip::address_v6 long_address = address.to_v6();
  if (long_address.is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, long_address).to_string();
  }
  return asio::ip::network_v6(long_address, 64).canonical().to_string();
}

}  // namespace

void LogThrown(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& exception) {
    LogError("http: a connection ended by: {}", exception.what());
  } catch (...) {
    LogError("http: a connection ended by something unknown");
  }
}

Listener::Listener(asio::io_context& io, const ConnectionContext& context, asio::ssl::context* tls,
                   const Limits& limits)
    : io_(io),
      strand_(asio::make_strand(io)),
      context_(context),
      tls_(tls),
      crowd_(limits.connections_max, limits.connections_per_address_max) {}

Result<void> Listener::Open(const std::string& address, const tcp::endpoint& endpoint) {
  error_code error;
  const auto ok = [&](auto&& step) {
    if (!error) step();
  };
  (void)acceptor_.open(endpoint.protocol(), error);
  ok([&] { acceptor_.set_option(tcp::acceptor::reuse_address(true), error); });
  ok([&] { acceptor_.bind(endpoint, error); });
  ok([&] { acceptor_.listen(asio::socket_base::max_listen_connections, error); });
  if (error) {
    return Fail(ErrorCode::kIo, fmt::format("cannot listen at {}: {}", address, error.message()));
  }
  return {};
}

uint16_t Listener::port() const {
  error_code error;
  const auto endpoint = acceptor_.local_endpoint(error);
  return error ? 0 : endpoint.port();
}

void Listener::Start() {
  asio::co_spawn(strand_, Accept(), [](const std::exception_ptr& thrown) {
    if (thrown) LogThrown(thrown);
  });
}

void Listener::Stop(bool cancel) {
  asio::post(strand_, [this, cancel] {
    error_code ignored;
    acceptor_.close(ignored);
    crowd_.CloseAll(cancel);
  });
}

asio::awaitable<void> Listener::Accept() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(asio::make_strand(io_), kAwait);
    if (!acceptor_.is_open()) co_return;
    if (error) {  // out of descriptors, or the client was gone already
      asio::steady_timer pause(strand_, kAcceptAgain);
      co_await pause.async_wait(kAwait);
      continue;
    }
    Begin(std::move(socket));
  }
}

void Listener::Begin(tcp::socket socket) {
  const std::string address = AddressOf(socket);
  const Crowd::Verdict verdict = crowd_.MakeRoom(address);
  if (verdict != Crowd::Verdict::kLetIn) NoteRefusal(verdict, address);
  if (verdict == Crowd::Verdict::kFull || verdict == Crowd::Verdict::kAddressFull) {
    error_code ignored;
    socket.non_blocking(true, ignored);
    // TLS clients could not read it.
    if (tls_ == nullptr) socket.write_some(asio::buffer(TooManyConnections()), ignored);
    return;
  }
  const auto executor = socket.get_executor();
  const std::shared_ptr<Connection> connection =
      tls_ != nullptr ? MakeConnection(TlsStream(std::move(socket), *tls_), context_)
                      : MakeConnection(std::move(socket), context_);
  crowd_.Add(connection, address);
  asio::co_spawn(
      executor, [connection] { return connection->Run(); },
      [this, connection](const std::exception_ptr& thrown) {
        if (thrown) LogThrown(thrown);
        asio::post(strand_, [this, connection] { crowd_.Remove(connection); });
      });
}

void Listener::NoteRefusal(Crowd::Verdict verdict, const std::string& address) {
  TransportCounters& counters = context_.service.transport();
  std::atomic<uint64_t>& counter = verdict == Crowd::Verdict::kFull ? counters.refused_full
                                   : verdict == Crowd::Verdict::kAddressFull
                                       ? counters.refused_address
                                       : counters.replaced;
  ++counter;
  ++unsaid_;
  const auto now = std::chrono::steady_clock::now();
  if (now < say_next_) return;
  LogWarn(
      "http: port {} has as many connections as it may, in all or of one address (--connections, "
      "--connections-per-address): {} were refused or made room since this was said last, the "
      "latest for {}",
      port(), unsaid_, address);
  unsaid_ = 0;
  say_next_ = now + kSayAgain;
}

}  // namespace quire::serve::http
