// What the operating system says in errno, as an Error that names the file.
#ifndef QUIRE_ENV_ERRNO_ERROR_H_
#define QUIRE_ENV_ERRNO_ERROR_H_

#include <fmt/format.h>

#include <cerrno>
#include <string_view>
#include <system_error>

#include "quire/error.h"

namespace quire {

inline ErrorCode CodeOfErrno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return ErrorCode::kNotFound;
    case ENOSPC:
    case EDQUOT: return ErrorCode::kNoSpace;
    default: return ErrorCode::kIo;
  }
}

/// "PATH: ACTION: what the system says".
inline std::unexpected<Error> FailErrno(int error, std::string_view action, std::string_view path) {
  return Fail(CodeOfErrno(error),
              fmt::format("{}: {}: {}", path, action, std::generic_category().message(error)));
}

}  // namespace quire

#endif  // QUIRE_ENV_ERRNO_ERROR_H_
