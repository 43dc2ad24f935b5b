// A connection that never waits, with TLS or without.
#ifndef QUIRE_REMOTE_SOCKET_H_
#define QUIRE_REMOTE_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "quire/error.h"
#include "remote/address.h"

struct ssl_ctx_st;
struct ssl_st;

namespace quire::remote {

/// What TLS connections have in common: whose certificates are believed.
///
/// Threads: any, once it is made
class TlsContext {
 public:
  /// `ca_file` empty: the system's. Errors: kNotFound, kIo it cannot be read
  static Result<std::unique_ptr<TlsContext>> Create(const std::string& ca_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

/// Threads: one
class Socket {
 public:
  enum class State : uint8_t { kConnecting = 1, kOpen = 2, kFailed = 3 };

  Socket() = default;
  ~Socket() { Close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  /// Begins to connect; Step goes on. `tls` null: none. It must outlive the connection.
  /// Cost: waits for the name service where the host is a name
  void Connect(const HostAndPort& to, const TlsContext* tls);
  void Close();

  State state() const { return state_; }
  const std::string& failure() const { return failure_; }
  int descriptor() const { return descriptor_; }
  /// Whether it waits to be able to write, besides what its user has to write.
  bool wants_write() const { return wants_write_; }
  /// Bytes were received and are not read yet, so polling would wait in vain.
  bool has_pending() const;

  /// Goes on with connecting.
  void Step();
  /// Bytes that were taken; 0: none just now, or it has failed.
  size_t Read(std::span<std::byte> into);
  size_t Write(std::span<const std::byte> from);

 private:
  void Fail(std::string why);
  bool Retry(int result);

  int descriptor_ = -1;
  ssl_st* tls_ = nullptr;
  State state_ = State::kFailed;
  bool connected_ = false;
  bool wants_write_ = false;
  std::string failure_{};
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_SOCKET_H_
