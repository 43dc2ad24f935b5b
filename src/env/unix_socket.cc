#include "env/unix_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "env/file.h"

namespace quire {
namespace {

constexpr int kBacklog = 64;
constexpr timeval kConnectTime = {.tv_sec = 5, .tv_usec = 0};  // while the backlog is full

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  // One byte is for the NUL, and an empty name would be no file.
  if (path.empty() || path.size() >= sizeof(address.sun_path) ||
      path.find('\0') != std::string::npos) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: the path of a socket has 1 to {} bytes", path,
                            sizeof(address.sun_path) - 1));
  }
  std::ranges::copy(path, address.sun_path);
  return address;
}

const sockaddr* Generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

/// Whether a name that is there may be replaced: no process listens at it.
Result<void> CheckLeft(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return FailErrno(errno, "stat", path);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return Fail(ErrorCode::kInvalidArgument, path + ": there is something that is no socket");
  }
  if (UnixSocket::Connect(path)) {
    return Fail(ErrorCode::kBusy, path + ": another process listens there");
  }
  return {};
}

}  // namespace

Result<UnixSocket> UnixSocket::Connect(const std::string& path) {
  QUIRE_ASSIGN(const sockaddr_un address, AddressOf(path));
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return FailErrno(errno, "socket", path);
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectTime, sizeof(kConnectTime));
  if (::connect(socket.get(), Generic(address), sizeof(address)) != 0) {
    if (errno == ECONNREFUSED) {
      return Fail(ErrorCode::kNotFound, path + ": no process listens at this socket");
    }
    return FailErrno(errno, "connect", path);
  }
  return UnixSocket(std::move(socket));
}

Result<bool> UnixSocket::Send(std::span<const std::byte> packet, int descriptor) {
  iovec bytes_of = {.iov_base = const_cast<std::byte*>(packet.data()), .iov_len = packet.size()};
  msghdr message = {};
  message.msg_iov = &bytes_of;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const with = CMSG_FIRSTHDR(&message);
    with->cmsg_level = SOL_SOCKET;
    with->cmsg_type = SCM_RIGHTS;
    with->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(with), &descriptor, sizeof(int));
  }
  while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return FailErrno(errno, "send", "socket");
  }
  return true;
}

Result<std::optional<UnixSocket::Packet>> UnixSocket::Receive(std::span<std::byte> into) {
  iovec bytes_of = {.iov_base = into.data(), .iov_len = into.size()};
  msghdr message = {};
  message.msg_iov = &bytes_of;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // one; the system closes what is more
  ssize_t bytes = 0;
  while ((bytes = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    if (errno == ECONNRESET) return Packet{};  // it died with packets unread
    if (errno != EINTR) return FailErrno(errno, "receive", "socket");
  }
  Packet packet = {.bytes = static_cast<size_t>(bytes)};
  const cmsghdr* const with = CMSG_FIRSTHDR(&message);
  if (with != nullptr && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(with), sizeof(int));
    packet.descriptor = Descriptor(descriptor);
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("socket: a packet of more than {} bytes", into.size()));
  }
  return packet;
}

bool UnixSocket::AwaitPacket(uint64_t timeout_us) const {
  pollfd waiting = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, static_cast<int>(timeout_us / 1000)) == 1;
}

UnixSocket::Peer UnixSocket::peer() const {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return {};
  return {.pid = credentials.pid, .uid = credentials.uid};
}

// The name appears with its mode and its group: it is made beside, and renamed.
Result<std::unique_ptr<UnixListener>> UnixListener::Listen(const std::string& path,
                                                           const Access& access) {
  const std::string made = path + ".new";
  QUIRE_TRY(AddressOf(path));
  QUIRE_ASSIGN(const sockaddr_un address, AddressOf(made));
  QUIRE_TRY(CheckLeft(path));
  QUIRE_TRY(CheckLeft(made));
  (void)::unlink(made.c_str());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return FailErrno(errno, "socket", path);
  (void)::fchmod(socket.get(), 0600);  // what bind makes has this mode at most
  if (::bind(socket.get(), Generic(address), sizeof(address)) != 0) {
    return FailErrno(errno, "bind", path);
  }
  const auto fail = [&](const char* action) {
    const int error = errno;
    (void)::unlink(made.c_str());
    return FailErrno(error, action, path);
  };
  if (access.group && ::chown(made.c_str(), static_cast<uid_t>(-1), *access.group) != 0) {
    return fail("chown");
  }
  if (::chmod(made.c_str(), access.mode) != 0) return fail("chmod");
  if (::listen(socket.get(), kBacklog) != 0) return fail("listen");
  struct stat status{};
  if (::stat(made.c_str(), &status) != 0) return fail("stat");
  if (::rename(made.c_str(), path.c_str()) != 0) return fail("rename");
  return std::unique_ptr<UnixListener>(new UnixListener(std::move(socket), path, status.st_ino));
}

UnixListener::~UnixListener() {
  struct stat status{};
  if (::lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_) ::unlink(path_.c_str());
}

std::optional<UnixSocket> UnixListener::Accept() {
  Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.get() < 0) return std::nullopt;
  return UnixSocket(std::move(socket));
}

}  // namespace quire
