#include "apps/quire/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "apps/quire/command.h"
#include "base/bits.h"
#include "env/file.h"

namespace quire::app {
namespace {

// A line that tells what was thrown, and the exit code it means.
int ReportThrown() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    PrintError("quire: no_space: the system has no memory left\n");
    return kResource;
  } catch (const std::length_error& error) {
    PrintError(fmt::format("quire: no_space: more than memory can hold: {}\n", error.what()));
    return kResource;
  } catch (const std::system_error& error) {
    const std::error_code& code = error.code();
    if (std::ferror(stdout) != 0) {
      PrintError(fmt::format("quire: io: stdout: {}\n", code.message()));
      return kFailedCheck;
    }
    const bool resource = code == std::errc::not_enough_memory ||
                          code == std::errc::resource_unavailable_try_again ||
                          code == std::errc::no_space_on_device;
    PrintError(fmt::format("quire: {}: {}\n", resource ? "no_space" : "io", error.what()));
    return resource ? kResource : kFailedCheck;
  } catch (const std::exception& error) {
    PrintError(fmt::format("quire: an error that nobody expected: {}\n", error.what()));
    return kFailedCheck;
  } catch (...) {
    PrintError("quire: something that nobody expected was thrown\n");
    return kFailedCheck;
  }
}

}  // namespace

void PrepareProcess() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow any more is a write that fails
  std::set_terminate([] {
    if (std::current_exception() == nullptr) std::abort();
    std::_Exit(ReportThrown());
  });
  // Opening takes the lowest free number. What is only read refuses to be written, and the other
  // way round, as a closed stream does.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

int RunToExit(const std::function<int()>& program) {
  try {
    const int exit = program();
    if (exit == kOk) FlushOutput();
    return exit;
  } catch (...) {
    return ReportThrown();
  }
}

void PrintError(std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

void FlushOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  // Without a number an earlier write failed, and what said so has not come this far.
  const int error = errno != 0 ? errno : EIO;
  throw std::system_error(error, std::generic_category(), "stdout");
}

Result<void> WriteNpy(const std::string& path, std::span<const float> values, uint64_t rows,
                      uint64_t columns) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic (6), version (2) and length (2) come first; the data begins at a multiple of 64.
  constexpr size_t kPreamble = 10;
  header.resize(RoundUp(kPreamble + header.size() + 1, 64) - kPreamble - 1, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return WriteFile(path, file);
}

}  // namespace quire::app
