// One pipeline to one server of Redis: commands out in order, replies back in the same order.
#ifndef QUIRE_REMOTE_REDIS_LINK_H_
#define QUIRE_REMOTE_REDIS_LINK_H_

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "remote/objects.h"
#include "remote/resp.h"
#include "remote/socket.h"

namespace quire::remote {

/// A command on its way.
struct RedisCommand {
  enum Kind : uint8_t {
    kObject,    // of a request
    kLogIn,     // its answer matters where it is an error
    kAsking,    // of no account
    kSlots,     // what tells a cluster from a server
    kReplicas,  // whether a swap has reached another server
  };
  Kind kind = kObject;
  ObjectRequest request{};  // kObject, kReplicas; its bytes follow `text`
  std::string text{};       // as it is sent
  uint32_t redirects = 0;
  uint64_t sent_us = 0;
};

/// Threads: one
class RedisLink {
 public:
  /// Begins to connect, and logs in where there is a password. An answer may take `request_us`, or
  /// as long as usual where that is less.
  void Open(const HostAndPort& to, const TlsContext* tls, const std::string& user,
            const std::string& password, uint64_t request_us, uint64_t now_us);
  bool is_open() const { return socket_.state() != Socket::State::kFailed; }
  bool is_idle() const { return in_flight_.empty(); }
  int descriptor() const { return socket_.descriptor(); }
  short events() const;
  bool has_pending() const { return socket_.has_pending(); }

  /// In order. Reads wait here while many bytes are on their way: a server makes all the answers
  /// that it is asked for at once, in new memory.
  void Send(RedisCommand command, uint64_t now_us);
  /// Moves bytes both ways, as far as they go.
  void Turn(uint64_t now_us);
  /// The next reply and what it is to. False: there is none yet.
  bool Next(RedisCommand& command, RespValue& reply, uint64_t now_us);
  /// Why it is of no use any more; empty: it is.
  std::string Failure(uint64_t now_us) const;
  /// Closes, and returns what has no reply.
  std::deque<RedisCommand> Close();

 private:
  struct Piece {
    std::string text{};
    std::span<const std::byte> body{};  // of a command in flight
    size_t ends = 0;                    // commands that are sent when `text` is
  };

  bool MaySend(const RedisCommand& command) const;
  void SendNow(RedisCommand command, uint64_t now_us);
  void Flush(uint64_t now_us);
  void Receive(uint64_t now_us);

  Socket socket_;
  RespReader reader_;
  std::deque<RedisCommand> waiting_;
  std::deque<RedisCommand> in_flight_;
  uint64_t reading_bytes_ = 0;  // that these may have as answers
  std::deque<Piece> outgoing_;
  size_t sent_ = 0;    // of the first piece
  size_t unsent_ = 0;  // commands in flight that are not sent whole
  uint64_t request_us_ = 0;
  uint64_t opened_us_ = 0;
  uint64_t progress_us_ = 0;
  std::string broken_{};
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_REDIS_LINK_H_
