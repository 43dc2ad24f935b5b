// What a client hears when its call fails: OpenAI's error form.
#ifndef QUIRE_SERVE_HTTP_API_ERROR_H_
#define QUIRE_SERVE_HTTP_API_ERROR_H_

#include <cstdint>
#include <expected>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "quire/error.h"

namespace quire::serve::http {

/// Members in the order in which they were added, as OpenAI's own answers have them.
using OrderedJson = nlohmann::ordered_json;

struct ApiError {
  uint32_t status = 500;  // of HTTP
  std::string type{};     // "invalid_request_error" and the like
  std::string code{};     // for programs; empty: null
  std::string param{};    // the field at fault; empty: null
  std::string message{};  // for people
  std::string detail{};   // for the log alone: it may name what is no client's business
};

template <typename T>
using ApiResult = std::expected<T, ApiError>;

/// Text as JSON; what is not UTF-8 in it becomes U+FFFD.
std::string Dump(const OrderedJson& json);

/// Most of what a request says that an error says again.
inline constexpr size_t kEchoBytesMax = 200;
/// The beginning of a text, at most so long.
std::string Echo(std::string_view text, size_t bytes_max = kEchoBytesMax);

/// Logs what a client must not hear under its request's name, which the message then gives it.
void LogDetail(ApiError& error, std::string_view request_id);

/// {"error": {"message", "type", "param", "code"}}
OrderedJson ErrorJson(const ApiError& error);

std::unexpected<ApiError> Refusal(uint32_t status, std::string type, std::string code,
                                  std::string message, std::string param = {});
/// 400: a field of the request cannot be honoured.
std::unexpected<ApiError> BadRequest(std::string param, std::string message);
std::unexpected<ApiError> NotFound(std::string message);
/// 429: more of something than the caller may have at once; try again later.
std::unexpected<ApiError> TooMany(std::string message);

/// A failure of the engine or the cache, as a client should understand it: what can never work is
/// 400, what may work later 429, 503 or 504, and the rest 500. Messages that tell of other tenants'
/// work or of the machine are its `detail`.
ApiError FromError(const Error& error);
/// A failure of files: 507 where there is no room for them, else 500.
ApiError FromFileError(const Error& error);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_API_ERROR_H_
