// One connection: requests one after another, each answered as a whole or as a stream.
#ifndef QUIRE_SERVE_HTTP_CONNECTION_H_
#define QUIRE_SERVE_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>

#include "serve/http/bodies.h"
#include "serve/http/server.h"

namespace quire::serve::http {

/// How the server's coroutines wait: an error is a value.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

/// What connections share. Lifetime: that of the server.
struct ConnectionContext {
  Service& service;
  AccessLog& log;
  const ServerOptions& options;
  BodyBudget& bodies;
  std::atomic<uint64_t>& busy;  // requests that are being answered
  // Where requests are read and looked at: a long prompt or a costly template keeps no socket
  // waiting.
  boost::asio::any_io_executor workers;
  bool by_operator_listener;
};

class Connection {
 public:
  virtual ~Connection() = default;

  /// Until the connection ends. Must be spawned on the socket's executor, a strand.
  virtual boost::asio::awaitable<void> Run() = 0;
  /// No more requests; the one that is being answered goes on, unless `cancel`.
  ///
  /// Threads: any
  virtual void Close(bool cancel) = 0;
  /// It has shown no key so far, and nothing is being answered.
  ///
  /// Threads: any
  virtual bool MayBeDropped() const = 0;
  /// Ends at once, as long as it may be dropped.
  ///
  /// Threads: any
  virtual void Drop() = 0;
};

using PlainStream = boost::asio::ip::tcp::socket;
using TlsStream = boost::asio::ssl::stream<boost::asio::ip::tcp::socket>;

std::shared_ptr<Connection> MakeConnection(PlainStream stream, const ConnectionContext& context);
std::shared_ptr<Connection> MakeConnection(TlsStream stream, const ConnectionContext& context);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_CONNECTION_H_
