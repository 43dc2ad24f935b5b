// Where C meets C++: codes and messages out, checked arguments in, and nothing thrown across.
#ifndef QUIRE_EMBED_BOUNDARY_H_
#define QUIRE_EMBED_BOUNDARY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "quire/error.h"
#include "quire/quire.h"

namespace quire::embed {

/// Writes code and message, cut to what fits, and gives the code back.
quire_code Report(quire_error* error, quire_code code, std::string_view message) noexcept;

/// Runs the body of one C function, a callable that returns Result<void>. What it returns or
/// throws becomes a code and a message.
template <typename Body>
quire_code Boundary(quire_error* error, Body&& body) noexcept {
  try {
    const Result<void> result = body();
    if (result) return Report(error, QUIRE_OK, "");
    return Report(error, static_cast<quire_code>(result.error().code), result.error().message);
  } catch (const std::bad_alloc&) {
    return Report(error, QUIRE_NO_MEMORY, "out of memory");
  } catch (const std::exception& exception) {
    return Report(error, QUIRE_INTERNAL, exception.what());
  } catch (...) {
    return Report(error, QUIRE_INTERNAL, "unknown exception");
  }
}

/// Errors: kInvalidArgument "`name` is NULL"
Result<void> NotNull(const void* pointer, std::string_view name);

/// Errors: kInvalidArgument an array of `count` elements at NULL, or of more than `count_max`
Result<void> CheckArray(const void* array, uint64_t count, uint64_t count_max,
                        std::string_view name);

/// A C constant as the enum of the same numbers; 0 becomes `fallback`. Numbers that no enum of
/// eight bits holds fail here, unknown ones where the enum is read.
/// Errors: kInvalidArgument
template <typename Enum>
Result<Enum> ToEnum(int32_t number, std::string_view name, Enum fallback = Enum{}) {
  static_assert(std::is_same_v<std::underlying_type_t<Enum>, uint8_t>);
  if (number == 0 && fallback != Enum{}) return fallback;
  if (number <= 0 || number > UINT8_MAX) {
    return Fail(ErrorCode::kInvalidArgument, std::string(name) + " is " + std::to_string(number));
  }
  return static_cast<Enum>(number);
}

/// How long a struct is, here and at first.
struct StructBytes {
  size_t known = 0;
  size_t first = 0;
};

/// Checks the `size` field of a caller's struct of type T against this library's T.
/// Errors: kInvalidArgument NULL, or shorter than the first version; kUnsupported a longer one with
///         fields set that this library does not know
Result<void> CheckStruct(const void* caller, StructBytes bytes, std::string_view name);

/// The caller's struct as this library knows it; what an older caller does not have is zero.
/// `first_bytes`: where the fields begin that the first version had not.
template <typename T>
Result<T> ReadStruct(const T* caller, std::string_view name, size_t first_bytes = sizeof(T)) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, size) == 0);
  QUIRE_TRY(CheckStruct(caller, {.known = sizeof(T), .first = first_bytes}, name));
  T known{};
  std::memcpy(&known, caller, std::min(caller->size, sizeof(T)));
  return known;
}

/// The same for structs that may be NULL: all defaults.
template <typename T>
Result<T> ReadOptions(const T* caller, std::string_view name) {
  if (caller == nullptr) return T{};
  return ReadStruct(caller, name);
}

/// Checks a struct that is to be filled: only its `size` is read.
/// Errors: kInvalidArgument NULL, or shorter than the first version
template <typename T>
Result<void> CheckOutput(const T* caller, std::string_view name) {
  QUIRE_TRY(NotNull(caller, name));
  if (caller->size >= sizeof(T)) return {};
  return Fail(ErrorCode::kInvalidArgument, std::string(name) + "->size is " +
                                               std::to_string(caller->size) + ", not " +
                                               std::to_string(sizeof(T)));
}

/// Fills a struct that CheckOutput has seen: zeros where this library knows nothing.
template <typename T>
void WriteStruct(T* caller, T known) {
  const size_t caller_bytes = caller->size;
  std::memset(static_cast<void*>(caller), 0, caller_bytes);
  known.size = caller_bytes;
  std::memcpy(caller, &known, sizeof(T));
}

/// Copies a text with its NUL to the caller's, whose length is told in any case; text_bytes 0 only
/// asks for that.
/// Errors: kInvalidArgument text_bytes is neither 0 nor enough, or a pointer is NULL
Result<void> WriteText(const std::string& from, char* text, size_t text_bytes, size_t* length);

/// A C text, or the empty one for NULL.
inline std::string Text(const char* text) { return text == nullptr ? "" : text; }

}  // namespace quire::embed

#endif  // QUIRE_EMBED_BOUNDARY_H_
