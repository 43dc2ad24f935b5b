// JSON from outside as values: no exception leaves, and every message names the source and the
// field.
#ifndef QUIRE_BASE_JSON_H_
#define QUIRE_BASE_JSON_H_

#include <quire/error.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

using Json = nlohmann::json;

/// Copying and printing a value recurse into it: deeper texts are refused instead of overflowing
/// the stack.
inline constexpr size_t kJsonDepthMax = 256;

/// Parses one JSON text. `source` (a file's path, "request body") begins the message.
///
/// Errors: kCorrupt with the line, the column and what was expected; kCorrupt nested too deep
[[nodiscard]] Result<Json> ParseJson(std::string_view text, std::string_view source);

/// The member `key` of `object` as a T: bool, uint64_t, uint32_t, int64_t, double or std::string.
/// A whole number is a double too; nothing else is converted and nothing wraps.
///
/// Errors: kCorrupt not an object, no such member, another type, or out of T's range
template <typename T>
[[nodiscard]] Result<T> JsonGet(const Json& object, std::string_view key, std::string_view source);

/// The same; `fallback` when the member is missing or null.
template <typename T>
[[nodiscard]] Result<T> JsonGetOr(const Json& object, std::string_view key, T fallback,
                                  std::string_view source);

/// A name that some object of the text has twice: one value to a JSON parser, but an attack or a
/// damaged file to us. The text must have been parsed before.
std::optional<std::string> FirstDuplicateKey(std::string_view text);

}  // namespace quire

#endif  // QUIRE_BASE_JSON_H_
