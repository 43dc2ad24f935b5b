#include "apps/quire/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

extern char** environ;

namespace quire::app {
namespace {

std::unexpected<Error> Failed(std::string_view what, int error) {
  return Fail(ErrorCode::kIo, fmt::format("{}: {}", what, std::generic_category().message(error)));
}

std::string ReadAll(int descriptor) {
  std::string text;
  std::array<char, 4096> piece{};
  while (true) {
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(piece.data(), static_cast<size_t>(got));
  }
}

}  // namespace

Result<nlohmann::json> RunChild(const std::vector<std::string>& arguments) {
  std::string program = "/proc/self/exe";
  std::vector<std::string> words = {"quire"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Failed("pipe", errno);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int error =
      ::posix_spawn(&child, program.c_str(), &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  const std::string text = error == 0 ? ReadAll(ends[0]) : std::string();
  ::close(ends[0]);
  if (error != 0) return Failed("starting " + program, error);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  auto object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && object.is_object()) return object;
  return Fail(ErrorCode::kIo, fmt::format("quire {}: ended with status {}", arguments.front(),
                                          WIFEXITED(status) ? WEXITSTATUS(status) : -1));
}

Result<TemporaryDirectory> TemporaryDirectory::Make() {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "quire-XXXXXX").string();
  if (error) return Failed("the directory for temporary files", error.value());
  if (::mkdtemp(path.data()) == nullptr) return Failed(path, errno);
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::TemporaryDirectory(TemporaryDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace quire::app
