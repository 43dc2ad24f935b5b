// Broken invariants: a message with file and line on stderr, then abort. These are bugs; what the
// caller or the world can cause is a Result instead.
#ifndef QUIRE_BASE_CHECK_H_
#define QUIRE_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace quire {

/// Prints `file:line: check failed: condition: message` on stderr and aborts.
[[noreturn, gnu::cold, gnu::noinline]] inline void CheckFailed(const char* file, int line,
                                                               const char* condition,
                                                               std::string_view message) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%.*s\n", file, line, condition,
               message.empty() ? "" : ": ", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace quire

/// Always on. Use where the cost is not inside a kernel's loop.
#define QUIRE_CHECK(condition) QUIRE_CHECK_MSG(condition, "")

/// The message is evaluated only on failure, so it may build a string.
#define QUIRE_CHECK_MSG(condition, message)                            \
  do {                                                                 \
    if (!(condition)) [[unlikely]] {                                   \
      ::quire::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                  \
  } while (false)

/// On in the dev, asan, tsan and fuzz presets; elsewhere compiled, never evaluated.
#if defined(QUIRE_DEBUG_CHECKS)
#define QUIRE_DCHECK(condition) QUIRE_CHECK(condition)
#else
#define QUIRE_DCHECK(condition)              \
  do {                                       \
    if (false) static_cast<void>(condition); \
  } while (false)
#endif

#endif  // QUIRE_BASE_CHECK_H_
