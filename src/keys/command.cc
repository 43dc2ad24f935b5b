#include "keys/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <span>
#include <system_error>

#include "base/wiped_vector.h"
#include "env/descriptor.h"

namespace quire::keys {
namespace {

uint64_t NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

std::unexpected<Error> Failed(const std::string& command, std::string_view what) {
  return Fail(ErrorCode::kIo, fmt::format("`{}`: {}", command, what));
}

std::string ErrnoText() { return std::generic_category().message(errno); }

// What it writes, until it closes its end. It is the whole process group that is killed when the
// time is over, for the shell may have started others.
Result<std::string> ReadUntil(const std::string& command, int descriptor, uint64_t bytes_max,
                              uint64_t end_us) {
  std::string text;
  text.reserve(bytes_max + 1);  // so that no copy of a key is left behind by growing
  std::array<char, 1024> piece{};
  Result<void> read;
  while (true) {
    const uint64_t now_us = NowUs();
    if (now_us >= end_us) {
      read = Fail(ErrorCode::kDeadline, fmt::format("`{}`: it did not end in time", command));
      break;
    }
    pollfd waits = {.fd = descriptor, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waits, 1, static_cast<int>((end_us - now_us) / 1000 + 1));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t got = ready < 0 ? -1 : ::read(descriptor, piece.data(), piece.size());
    if (got == 0) break;
    if (got < 0) {
      read = Failed(command, ErrnoText());
      break;
    }
    if (text.size() + static_cast<size_t>(got) > bytes_max) {
      read = Failed(command, fmt::format("it writes more than {} bytes", bytes_max));
      break;
    }
    text.append(piece.data(), static_cast<size_t>(got));
  }
  Wipe(std::span<char>(piece));
  if (read) return text;
  Wipe(std::span(text));
  return std::unexpected(read.error());
}

}  // namespace

Result<std::string> RunCommand(const std::string& command, std::string_view input,
                               uint64_t output_bytes_max, uint64_t timeout_us) {
  // Sockets, not pipes: sending to a command that does not read raises no SIGPIPE.
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0) {
    return Failed(command, ErrnoText());
  }
  Descriptor in_here(in[0]);
  Descriptor in_there(in[1]);
  if (::pipe2(out.data(), O_CLOEXEC) != 0) return Failed(command, ErrnoText());
  const Descriptor out_here(out[0]);
  Descriptor out_there(out[1]);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in_there.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out_there.get(), STDOUT_FILENO);
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);  // this thread may have none of the program's signals (base/thread.h)
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  std::array<std::string, 3> words = {"sh", "-c", command};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = 0;
  const int error =
      ::posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return Failed(command, std::generic_category().message(error));
  in_there = Descriptor();
  out_there = Descriptor();
  // One that does not read it says so by what it answers.
  static_cast<void>(::send(in_here.get(), input.data(), input.size(), MSG_NOSIGNAL));
  in_here = Descriptor();

  auto text = ReadUntil(command, out_here.get(), output_bytes_max, NowUs() + timeout_us);
  if (!text) ::kill(-child, SIGKILL);
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  // A host that ignores SIGCHLD leaves no status; what was written is compared all the same.
  const bool good = ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
  if (!text || good) return text;
  Wipe(std::span(*text));
  return Failed(command, WIFEXITED(status)
                             ? fmt::format("it ended with status {}", WEXITSTATUS(status))
                             : std::string("a signal ended it"));
}

}  // namespace quire::keys
