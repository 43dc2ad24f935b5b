#include "events/zmq_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace quire::events {

Result<std::unique_ptr<ZmqContext>> ZmqContext::Create() {
  QUIRE_ASSIGN(const Libzmq* const zmq, LoadLibzmq());
  void* const context = zmq->ctx_new();
  if (context == nullptr) {
    return Fail(ErrorCode::kIo,
                fmt::format("events: a context of libzmq: {}", zmq->strerror(zmq->last_errno())));
  }
  return std::unique_ptr<ZmqContext>(new ZmqContext(*zmq, context));
}

ZmqContext::~ZmqContext() {
  while (zmq_.ctx_term(context_) != 0 && zmq_.last_errno() == EINTR) {
  }
}

Result<ZmqSocket> ZmqSocket::Open(ZmqContext& context, int type, int linger_ms) {
  const Libzmq& zmq = context.zmq();
  void* const socket = zmq.socket(context.get(), type);
  if (socket == nullptr) {
    return Fail(ErrorCode::kIo,
                fmt::format("events: a socket of libzmq: {}", zmq.strerror(zmq.last_errno())));
  }
  ZmqSocket made(zmq, socket);
  QUIRE_TRY(made.Set(ZMQ_LINGER, linger_ms));
  return made;
}

ZmqSocket::ZmqSocket(ZmqSocket&& from) noexcept
    : zmq_(from.zmq_), socket_(std::exchange(from.socket_, nullptr)) {}

ZmqSocket::~ZmqSocket() {
  if (socket_ != nullptr) zmq_->close(socket_);
}

std::unexpected<Error> ZmqSocket::Refused(std::string_view what,
                                          const std::string& endpoint) const {
  const int error = zmq_->last_errno();
  const bool unknown = error == EINVAL || error == EPROTONOSUPPORT || error == ENOCOMPATPROTO;
  return Fail(
      unknown ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
      fmt::format("events: {} '{}': {}{}", what, endpoint, zmq_->strerror(error),
                  unknown ? "; an endpoint is like tcp://*:5557 or ipc:///run/quire.events" : ""));
}

Result<void> ZmqSocket::Set(int option, int value) {
  if (zmq_->setsockopt(socket_, option, &value, sizeof value) == 0) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("events: option {} of a socket cannot be {}: {}", option, value,
                          zmq_->strerror(zmq_->last_errno())));
}

Result<void> ZmqSocket::Set(int option, std::string_view value) {
  if (zmq_->setsockopt(socket_, option, value.data(), value.size()) == 0) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("events: option {} of a socket cannot be '{}': {}", option, value,
                          zmq_->strerror(zmq_->last_errno())));
}

Result<void> ZmqSocket::Bind(const std::string& endpoint) {
  if (zmq_->bind(socket_, endpoint.c_str()) == 0) return {};
  return Refused("binding", endpoint);
}

Result<void> ZmqSocket::Connect(const std::string& endpoint) {
  if (zmq_->connect(socket_, endpoint.c_str()) == 0) return {};
  return Refused("connecting", endpoint);
}

// Once the first frame is taken, so are the others.
bool ZmqSocket::Send(std::initializer_list<std::string_view> frames) {
  size_t left = frames.size();
  for (const std::string_view frame : frames) {
    const int flags = --left > 0 ? ZMQ_SNDMORE : 0;
    int sent = 0;
    do {
      sent = zmq_->send(socket_, frame.data(), frame.size(), flags);
    } while (sent < 0 && zmq_->last_errno() == EINTR);
    if (sent < 0) return false;
  }
  return true;
}

std::optional<std::vector<std::string>> ZmqSocket::Receive(int timeout_ms) {
  zmq_pollitem_t item{.socket = socket_, .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
  if (zmq_->poll(&item, 1, timeout_ms) <= 0) return std::nullopt;
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    std::array<char, 256> bytes{};
    const int got = zmq_->recv(socket_, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
    if (got < 0) return std::nullopt;
    frames.emplace_back(bytes.data(), std::min<size_t>(static_cast<size_t>(got), bytes.size()));
    size_t size = sizeof more;
    if (zmq_->getsockopt(socket_, ZMQ_RCVMORE, &more, &size) != 0) return std::nullopt;
  }
  return frames;
}

}  // namespace quire::events
