#include "serve/http/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace quire::serve::http {

namespace {

// What goes before and behind an echo is shorter.
constexpr size_t kMessageBytesMax = kEchoBytesMax + 200;

}  // namespace

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string Echo(std::string_view text, size_t bytes_max) {
  return text.size() <= bytes_max ? std::string(text)
                                  : std::string(text.substr(0, bytes_max)) + "...";
}

void LogDetail(ApiError& error, std::string_view request_id) {
  if (error.detail.empty()) return;
  if (error.status >= 500) {
    LogError("http: {}: {}", request_id, error.detail);
    error.message += fmt::format("; the server's log says more of {}", request_id);
  } else {
    LogInfo("http: {}: {}", request_id, error.detail);
  }
  error.detail.clear();
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

std::unexpected<ApiError> Refusal(uint32_t status, std::string type, std::string code,
                                  std::string message, std::string param) {
  return std::unexpected(ApiError{.status = status,
                                  .type = std::move(type),
                                  .code = std::move(code),
                                  .param = std::move(param),
                                  .message = std::move(message)});
}

std::unexpected<ApiError> BadRequest(std::string param, std::string message) {
  return Refusal(400, "invalid_request_error", "", Echo(message, kMessageBytesMax), Echo(param));
}

std::unexpected<ApiError> NotFound(std::string message) {
  return Refusal(404, "invalid_request_error", "not_found", std::move(message));
}

std::unexpected<ApiError> TooMany(std::string message) {
  return Refusal(429, "rate_limit_error", "too_many_requests", std::move(message));
}

ApiError FromError(const Error& error) {
  const auto as = [&](uint32_t status, std::string type, std::string code) {
    return ApiError{.status = status,
                    .type = std::move(type),
                    .code = std::move(code),
                    .message = error.message};
  };
  const auto hidden = [&](ApiError shown, std::string message) {
    shown.detail = std::exchange(shown.message, std::move(message));
    return shown;
  };
  switch (error.code) {
    case ErrorCode::kInvalidArgument: return as(400, "invalid_request_error", "");
    case ErrorCode::kUnsupported: return as(400, "invalid_request_error", "unsupported");
    case ErrorCode::kTooLarge: return as(400, "invalid_request_error", "context_length_exceeded");
    case ErrorCode::kNotFound:
      return hidden(as(404, "invalid_request_error", "not_found"), "it is not there any more");
    case ErrorCode::kBusy:
      return hidden(as(409, "conflict_error", "busy"),
                    "the session has a call that has not finished");
    case ErrorCode::kNoSpace:
      return hidden(as(429, "rate_limit_error", "no_space"),
                    "there is no room for it now, in all or in the tenant's quota");
    case ErrorCode::kCancelled: return as(503, "server_error", "cancelled");
    case ErrorCode::kDeadline:
      return hidden(as(504, "timeout_error", "deadline"),
                    "the call took longer than it may (timeout_s, or the server's --call-timeout)");
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo: break;
  }
  return hidden(as(500, "server_error", std::string(ErrorCodeName(error.code))),
                "the server cannot read, write or compute what it needs for this");
}

ApiError FromFileError(const Error& error) {
  if (error.code == ErrorCode::kCancelled) return FromError(error);
  const bool full = error.code == ErrorCode::kNoSpace;
  return {.status = full ? 507u : 500u,
          .type = "server_error",
          .code = full ? "storage_full" : "io",
          .message = full ? "the server has no room to store it"
                          : "the server cannot read or write what it stores",
          .detail = error.message};
}

}  // namespace quire::serve::http
