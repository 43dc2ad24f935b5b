#include "serve/http/api_error.h"

#include <utility>

namespace quire::serve::http {

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson ErrorJson(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

std::unexpected<ApiError> BadRequest(std::string param, std::string message) {
  return std::unexpected(ApiError{.status = 400,
                                  .type = "invalid_request_error",
                                  .param = std::move(param),
                                  .message = std::move(message)});
}

std::unexpected<ApiError> NotFound(std::string message) {
  return std::unexpected(ApiError{.status = 404,
                                  .type = "invalid_request_error",
                                  .code = "not_found",
                                  .message = std::move(message)});
}

std::unexpected<ApiError> TooMany(std::string message) {
  return std::unexpected(ApiError{.status = 429,
                                  .type = "rate_limit_error",
                                  .code = "too_many_requests",
                                  .message = std::move(message)});
}

ApiError FromError(const Error& error) {
  const auto as = [&](uint32_t status, std::string type, std::string code) {
    return ApiError{.status = status,
                    .type = std::move(type),
                    .code = std::move(code),
                    .message = error.message};
  };
  switch (error.code) {
    case ErrorCode::kInvalidArgument: return as(400, "invalid_request_error", "");
    case ErrorCode::kUnsupported: return as(400, "invalid_request_error", "unsupported");
    case ErrorCode::kTooLarge: return as(400, "invalid_request_error", "context_length_exceeded");
    case ErrorCode::kNotFound: return as(404, "invalid_request_error", "not_found");
    case ErrorCode::kBusy: return as(409, "conflict_error", "busy");
    case ErrorCode::kNoSpace: return as(429, "rate_limit_error", "no_space");
    case ErrorCode::kCancelled: return as(503, "server_error", "cancelled");
    case ErrorCode::kDeadline: return as(504, "timeout_error", "deadline");
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo: break;
  }
  return as(500, "server_error", std::string(ErrorCodeName(error.code)));
}

}  // namespace quire::serve::http
