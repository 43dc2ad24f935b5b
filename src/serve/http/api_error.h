// What a client hears when its call fails: OpenAI's error form.
#ifndef QUIRE_SERVE_HTTP_API_ERROR_H_
#define QUIRE_SERVE_HTTP_API_ERROR_H_

#include <cstdint>
#include <expected>
#include <nlohmann/json.hpp>
#include <string>

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
};

template <typename T>
using ApiResult = std::expected<T, ApiError>;

/// Text as JSON; what is not UTF-8 in it becomes U+FFFD.
std::string Dump(const OrderedJson& json);

/// {"error": {"message", "type", "param", "code"}}
OrderedJson ErrorJson(const ApiError& error);

/// 400: a field of the request cannot be honoured.
std::unexpected<ApiError> BadRequest(std::string param, std::string message);
std::unexpected<ApiError> NotFound(std::string message);
/// 429: more of something than the caller may have at once; try again later.
std::unexpected<ApiError> TooMany(std::string message);

/// A failure of the engine or the cache, as a client should understand it: what can never work is
/// 400, what may work later 429, 503 or 504, and the rest 500.
ApiError FromError(const Error& error);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_API_ERROR_H_
