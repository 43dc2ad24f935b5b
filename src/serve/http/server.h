// The sockets of the HTTP server: connections, limits of time and size, TLS, the way out.
#ifndef QUIRE_SERVE_HTTP_SERVER_H_
#define QUIRE_SERVE_HTTP_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "quire/error.h"
#include "serve/http/access_log.h"
#include "serve/http/service.h"

namespace quire::serve::http {

struct ServerOptions {
  std::string listen = "127.0.0.1:8080";  // HOST:PORT, [IPv6]:PORT; port 0: any free one
  std::string operator_listen{};          // another one, whose callers see all without a key
  std::string tls_cert{};                 // PEM files; both or none. The operator's has no TLS
  std::string tls_key{};
  uint32_t io_threads = 2;
  uint32_t worker_threads = 2;               // that read prompts and look things up
  uint32_t connections_max = 512;            // of `listen`
  uint32_t connections_per_address_max = 0;  // of these; 0: half of them
  uint32_t operator_connections_max = 64;    // of `operator_listen`
  uint64_t body_bytes_max = 4 << 20;
  uint64_t bodies_bytes_max = 64 << 20;  // of all bodies that are being read, together
  uint64_t header_bytes_max = 16 << 10;
  uint64_t handshake_ms = 10'000;  // TLS
  uint64_t header_ms = 10'000;     // from the first byte of a request to the end of its header
  uint64_t body_ms = 30'000;       // for all of its body
  uint64_t idle_ms = 60'000;       // between two requests
  uint64_t write_ms = 30'000;      // for one piece of an answer; a reader that takes none is left
  uint64_t drain_ms = 30'000;      // after the first signal, for calls under way
};

/// HOST and PORT of an address. Errors: kInvalidArgument
struct HostAndPort {
  std::string host;
  uint16_t port;
};
Result<HostAndPort> ParseAddress(const std::string& address);

/// Lifetime: service and log must outlive it
class Server {
 public:
  /// Listens already.
  ///
  /// Errors: kInvalidArgument an address or a certificate cannot be used, or the operator's
  ///         listener is on no loopback address; kIo the address is taken
  static Result<std::unique_ptr<Server>> Create(Service& service, AccessLog& log,
                                                const ServerOptions& options);
  virtual ~Server() = default;

  /// Where it listens: of `listen`, then of `operator_listen` (0: there is none).
  virtual uint16_t port() const = 0;
  virtual uint16_t operator_port() const = 0;

  /// Answers until it has been told to stop and everything under way has ended. On SIGTERM and
  /// SIGINT it stops by itself, also where one came since Create.
  virtual void Run() = 0;
  /// The first call lets calls under way end, for drain_ms at most, and refuses new ones. The
  /// second cancels them.
  ///
  /// Threads: any
  virtual void Stop() = 0;
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_SERVER_H_
