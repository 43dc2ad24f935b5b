// One address that is listened at: which connections are let in, and which make room when there is
// none.
#ifndef QUIRE_SERVE_HTTP_LISTENER_H_
#define QUIRE_SERVE_HTTP_LISTENER_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <string>

#include "quire/error.h"
#include "serve/http/connection.h"
#include "serve/http/crowd.h"

namespace quire::serve::http {

/// Threads:  any, but for Open, which comes first
/// Lifetime: what it is given must outlive it; `io` must be turned until it has no more work
class Listener {
 public:
  struct Limits {
    uint64_t connections_max;
    uint64_t connections_per_address_max;
  };
  /// `tls` null: it speaks plain HTTP.
  Listener(boost::asio::io_context& io, const ConnectionContext& context,
           boost::asio::ssl::context* tls, const Limits& limits);

  /// Errors: kIo the address is taken, or not of this machine
  Result<void> Open(const std::string& address, const boost::asio::ip::tcp::endpoint& endpoint);
  /// 0: it is not open.
  uint16_t port() const;

  void Start();
  /// Lets no connection in any more; connections end once they have answered, or at once with
  /// `cancel`.
  void Stop(bool cancel);

 private:
  boost::asio::awaitable<void> Accept();
  void Begin(boost::asio::ip::tcp::socket socket);
  void NoteRefusal(Crowd::Verdict verdict, const std::string& address);

  boost::asio::io_context& io_;
  boost::asio::strand<boost::asio::io_context::executor_type> strand_;
  const ConnectionContext context_;
  boost::asio::ssl::context* const tls_;
  boost::asio::ip::tcp::acceptor acceptor_{strand_};
  // On the strand.
  Crowd crowd_;
  uint64_t unsaid_ = 0;  // refusals since one was logged
  std::chrono::steady_clock::time_point say_next_{};
};

/// Logs what ended a coroutine that should not throw.
void LogThrown(const std::exception_ptr& thrown);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_LISTENER_H_
