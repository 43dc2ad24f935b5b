// Packets between processes of one machine, over a socket with a name in the file system.
#ifndef QUIRE_ENV_UNIX_SOCKET_H_
#define QUIRE_ENV_UNIX_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "env/descriptor.h"
#include "quire/error.h"

namespace quire {

/// A connection. Packets arrive whole and in order, or not at all.
///
/// Threads: one at a time
class UnixSocket {
 public:
  struct Peer {
    pid_t pid = 0;
    uid_t uid = 0;
  };
  struct Packet {
    size_t bytes = 0;         // 0: the peer has gone
    Descriptor descriptor{};  // that came with it
  };

  /// Errors: kNotFound no such socket, or no process listens at it; kInvalidArgument a path that no
  ///         socket can have; kIo, also without the permission
  static Result<UnixSocket> Connect(const std::string& path);
  explicit UnixSocket(Descriptor socket) : socket_(std::move(socket)) {}

  /// Sends a packet, and a descriptor with it. False: there is no room for it now.
  /// Errors: kIo the peer has gone
  Result<bool> Send(std::span<const std::byte> packet, int descriptor = -1);
  /// The next packet; nothing: there is none yet.
  /// Errors: kCorrupt it is longer than `into`; kIo
  Result<std::optional<Packet>> Receive(std::span<std::byte> into);
  /// Waits until there is something to receive. False: not in time.
  bool AwaitPacket(uint64_t timeout_us) const;

  /// The process at the other end, as the system says.
  Peer peer() const;
  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
};

/// A socket that waits for connections. Its name goes with it.
class UnixListener {
 public:
  struct Access {
    uint32_t mode = 0600;          // of the name
    std::optional<gid_t> group{};  // of the name; nothing: the process's
  };

  /// A name that is left of a process that died is replaced.
  /// Errors: kInvalidArgument a path that no socket can have, or of something else; kBusy a process
  ///         listens there; kNotFound no such directory; kIo
  static Result<std::unique_ptr<UnixListener>> Listen(const std::string& path,
                                                      const Access& access);
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  /// Nothing: no process has connected.
  std::optional<UnixSocket> Accept();
  int descriptor() const { return socket_.get(); }

 private:
  UnixListener(Descriptor socket, std::string path, uint64_t inode)
      : socket_(std::move(socket)), path_(std::move(path)), inode_(inode) {}

  Descriptor socket_;
  const std::string path_;
  const uint64_t inode_;  // of the name: another listener may have replaced it
};

}  // namespace quire

#endif  // QUIRE_ENV_UNIX_SOCKET_H_
