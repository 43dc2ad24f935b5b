// Sockets of ZeroMQ: frames out and in, without exceptions.
#ifndef QUIRE_EVENTS_ZMQ_SOCKET_H_
#define QUIRE_EVENTS_ZMQ_SOCKET_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "events/libzmq.h"
#include "quire/error.h"

namespace quire::events {

/// What sockets of one process share. Its end waits for what the sockets still have to send.
///
/// Lifetime: must outlive its sockets
class ZmqContext {
 public:
  /// Errors: kUnsupported libzmq is missing; kIo
  static Result<std::unique_ptr<ZmqContext>> Create();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  const Libzmq& zmq() const { return zmq_; }
  void* get() const { return context_; }

 private:
  ZmqContext(const Libzmq& zmq, void* context) : zmq_(zmq), context_(context) {}

  const Libzmq& zmq_;
  void* context_;
};

/// One socket.
///
/// Threads: one at a time
class ZmqSocket {
 public:
  /// Of type ZMQ_PUB, ZMQ_ROUTER and so on. At its end, what was sent has `linger_ms` to leave.
  ///
  /// Errors: kIo
  static Result<ZmqSocket> Open(ZmqContext& context, int type, int linger_ms);
  ZmqSocket(ZmqSocket&& from) noexcept;
  ~ZmqSocket();

  /// Errors: kInvalidArgument
  Result<void> Set(int option, int value);
  Result<void> Set(int option, std::string_view value);
  /// Errors: kInvalidArgument no such address or protocol; kIo it is in use, or not of this machine
  Result<void> Bind(const std::string& endpoint);
  Result<void> Connect(const std::string& endpoint);

  /// Sends all frames as one message, or none. False: there is no room for it, or the peer has
  /// gone.
  bool Send(std::initializer_list<std::string_view> frames);
  /// The next message, if one comes in time. Frames are cut to 256 bytes.
  std::optional<std::vector<std::string>> Receive(int timeout_ms);

 private:
  ZmqSocket(const Libzmq& zmq, void* socket) : zmq_(&zmq), socket_(socket) {}
  std::unexpected<Error> Refused(std::string_view what, const std::string& endpoint) const;

  const Libzmq* zmq_;
  void* socket_;  // null: moved from
};

}  // namespace quire::events

#endif  // QUIRE_EVENTS_ZMQ_SOCKET_H_
