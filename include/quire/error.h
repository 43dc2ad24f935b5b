// Failures as values: a closed set of codes and a message that names the object and the numbers.
#ifndef QUIRE_ERROR_H_
#define QUIRE_ERROR_H_

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

// Every public header opens the namespace like this: what it declares is exported from the shared
// library, and nothing else is. Names of inner layers are declared outside, before it.
namespace [[gnu::visibility("default")]] quire {

/// The closed set of failures. The numbers are frozen: they cross process and language boundaries.
enum class ErrorCode : uint8_t {
  kInvalidArgument = 1,  // the caller passed something that can never work
  kNotFound = 2,         // the named object does not exist (a cache miss is not an error)
  kNoSpace = 3,          // a hard budget refuses it; nothing was taken
  kBusy = 4,             // held by a lease or another owner; the message names it
  kCorrupt = 5,          // bytes from outside do not have the promised form
  kIo = 6,               // the operating system or a peer failed
  kUnsupported = 7,      // well formed, but not something this build or machine can do
  kCancelled = 8,        // the caller asked to stop
  kDeadline = 9,         // it did not finish in the time given
  kTooLarge = 10,        // a hard budget can never hold it, however much is evicted: do not try
                         // again
};

/// Name of a code as it appears in logs and JSON, for example "no_space".
constexpr std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kNoSpace: return "no_space";
    case ErrorCode::kBusy: return "busy";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kDeadline: return "deadline";
    case ErrorCode::kTooLarge: return "too_large";
  }
  return "unknown";
}

/// One failure. The object that returned it is as it was before the call.
struct Error {
  ErrorCode code;
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;

/// Makes the error side of any Result<T>: `return Fail(ErrorCode::kNoSpace, "...")`.
inline std::unexpected<Error> Fail(ErrorCode code, std::string message) {
  return std::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace quire

// Leaves the enclosing function with the error of a Result-valued expression, if it has one.
#define QUIRE_TRY(expression)                                   \
  do {                                                          \
    if (auto quire_result_ = (expression); !quire_result_) {    \
      return std::unexpected(std::move(quire_result_).error()); \
    }                                                           \
  } while (false)

#define QUIRE_CONCAT_INNER_(a, b) a##b
#define QUIRE_CONCAT_(a, b) QUIRE_CONCAT_INNER_(a, b)

// `QUIRE_ASSIGN(auto x, Make())` declares x from the value or leaves with the error.
#define QUIRE_ASSIGN(declaration, expression) \
  QUIRE_ASSIGN_IMPL_(QUIRE_CONCAT_(quire_assign_, __LINE__), declaration, expression)
#define QUIRE_ASSIGN_IMPL_(temporary, declaration, expression)          \
  auto temporary = (expression);                                        \
  if (!temporary) return std::unexpected(std::move(temporary).error()); \
  declaration = *std::move(temporary)

#endif  // QUIRE_ERROR_H_
