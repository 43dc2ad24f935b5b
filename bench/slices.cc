#include "bench/slices.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <iostream>
#include <limits>
#include <utility>
#include <variant>

#include "bench/instructions.h"
#include "bench/pairs.h"

namespace quire::bench {
namespace {

constexpr std::string_view kGreeting = "quire-slices 1 ";

/// The word of `text` before the first `separator`, which is taken away with it.
std::string_view TakeUntil(std::string_view& text, char separator) {
  const size_t at = text.find(separator);
  const std::string_view word = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return word;
}

template <typename Number>
Result<Number> Parse(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return Fail(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is not a number", text));
}

Result<void> Say(const std::string& line) {
  if (std::cout << line << std::endl) return {};
  return Fail(ErrorCode::kIo, "stdout is closed");
}

/// One line: what is prepared, or why not.
std::string Describe(const Result<Subject>& subject) {
  if (!subject) return "error " + subject.error().message;
  const auto direction = [](bool less_is_better) { return less_is_better ? "less" : "more"; };
  if (const auto* exact = std::get_if<Exact>(&*subject)) {
    return fmt::format("exact {} {} {}", exact->value, direction(exact->less_is_better),
                       exact->unit);
  }
  const Timed& timed = std::get<Timed>(*subject);
  return fmt::format("timed {} {} {} {}\t{}", timed.places, direction(timed.less_is_better),
                     timed.amount, timed.unit, timed.slice);
}

/// What the worker has prepared.
class Desk {
 public:
  explicit Desk(const std::vector<Case>& cases) : cases_(cases) {}

  /// The answer to one line of the director.
  Result<std::string> Answer(std::string_view line) {
    const std::string_view verb = TakeUntil(line, ' ');
    if (verb == "case") return Prepare(line);
    const Timed* timed = subject_ ? std::get_if<Timed>(&*subject_) : nullptr;
    if (timed != nullptr && (verb == "work" || verb == "count")) {
      QUIRE_ASSIGN(const uint32_t place, Parse<uint32_t>(line));
      if (place >= timed->places) {
        return Fail(ErrorCode::kInvalidArgument, fmt::format("no place {}", place));
      }
      if (verb == "work") return fmt::format("seconds {}", timed->work(place));
      StartCounting();
      timed->work(place);
      StopCounting();
      return "counted";
    }
    return Fail(ErrorCode::kInvalidArgument, fmt::format("cannot {} now", verb));
  }

 private:
  std::string Prepare(std::string_view name) {
    subject_ = Fail(ErrorCode::kNotFound, fmt::format("no case {}", name));  // frees the last
    for (const Case& each : cases_) {
      if (each.name == name) subject_ = each.prepare();
    }
    return Describe(subject_);
  }

  const std::vector<Case>& cases_;
  Result<Subject> subject_ = Fail(ErrorCode::kNotFound, "no case yet");
};

}  // namespace

Result<void> ServeSlices(const std::vector<Case>& cases, std::string_view target) {
  QUIRE_TRY(Say(fmt::format("{}{} {}", kGreeting, target, cases.size())));
  for (const Case& each : cases) QUIRE_TRY(Say(each.name));
  Desk desk(cases);
  std::string line;
  while (std::getline(std::cin, line)) {
    QUIRE_ASSIGN(const std::string answer, desk.Answer(line));
    QUIRE_TRY(Say(answer));
  }
  return {};
}

Worker::Worker(std::string name, int pid, int socket)
    : name_(std::move(name)), pid_(pid), socket_(socket) {}

Worker::~Worker() {
  close(socket_);  // so it reads no more, and ends
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

Result<std::unique_ptr<Worker>> Worker::Start(const std::vector<std::string>& command) {
  int ends[2];
  // One socket for both directions: writing to a worker that has ended is an error, not a signal.
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Fail(ErrorCode::kIo, fmt::format("socketpair: {}", std::strerror(errno)));
  }
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return Fail(ErrorCode::kIo,
                fmt::format("cannot start {}: {}", command[0], std::strerror(error)));
  }
  auto worker = std::unique_ptr<Worker>(new Worker(command[0], pid, ends[0]));
  QUIRE_TRY(worker->ReadGreeting());
  return worker;
}

Result<void> Worker::ReadGreeting() {
  const Result<std::string> line = ReadLine();
  if (!line || !line->starts_with(kGreeting)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{} does not run slices on demand: it is older than `quire bench "
                            "--against`, of another version of it, or not quire",
                            name_));
  }
  std::string_view rest = std::string_view(*line).substr(kGreeting.size());
  target_ = TakeUntil(rest, ' ');
  QUIRE_ASSIGN(const uint32_t count, Parse<uint32_t>(rest));
  for (uint32_t i = 0; i < count; ++i) {
    QUIRE_ASSIGN(std::string name, ReadLine());
    cases_.push_back(std::move(name));
  }
  return {};
}

Result<Worker::Prepared> Worker::Prepare(const std::string& name) {
  QUIRE_ASSIGN(const std::string answer, Ask("case " + name));
  std::string_view rest = answer;
  const std::string_view kind = TakeUntil(rest, ' ');
  if (kind == "error") {
    return Fail(ErrorCode::kUnsupported, fmt::format("{}: {}: {}", name_, name, rest));
  }
  Prepared prepared;
  prepared.timed = kind == "timed";
  if (prepared.timed) {
    QUIRE_ASSIGN(prepared.places, Parse<uint32_t>(TakeUntil(rest, ' ')));
    prepared.less_is_better = TakeUntil(rest, ' ') == "less";
    QUIRE_ASSIGN(prepared.figure, Parse<double>(TakeUntil(rest, ' ')));
    prepared.unit = TakeUntil(rest, '\t');
    prepared.slice = rest;
    return prepared;
  }
  QUIRE_ASSIGN(prepared.figure, Parse<double>(TakeUntil(rest, ' ')));
  prepared.less_is_better = TakeUntil(rest, ' ') == "less";
  prepared.unit = rest;
  return prepared;
}

Result<double> Worker::Work(uint32_t place) {
  QUIRE_ASSIGN(const std::string answer, Ask(fmt::format("work {}", place)));
  std::string_view rest = answer;
  TakeUntil(rest, ' ');
  return Parse<double>(rest);
}

Result<void> Worker::Count(uint32_t place) {
  QUIRE_TRY(Ask(fmt::format("count {}", place)));
  return {};
}

Result<std::string> Worker::Ask(const std::string& line) {
  const std::string sent = line + "\n";
  for (size_t at = 0; at < sent.size();) {
    const ssize_t bytes = send(socket_, sent.data() + at, sent.size() - at, MSG_NOSIGNAL);
    if (bytes < 0 && errno != EINTR) return Fail(ErrorCode::kIo, fmt::format("{} ended", name_));
    if (bytes > 0) at += static_cast<size_t>(bytes);
  }
  return ReadLine();
}

Result<std::string> Worker::ReadLine() {
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Fail(ErrorCode::kIo, fmt::format("{} ended", name_));
    unread_.append(bytes, static_cast<size_t>(count));
  }
}

}  // namespace quire::bench
