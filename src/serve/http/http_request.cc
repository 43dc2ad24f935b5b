#include "serve/http/http_request.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "serve/http/session_table.h"

namespace quire::serve::http {

namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool IsAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (Lower(c) >= 'a' && Lower(c) <= 'z');
}

bool HasOnly(std::string_view text, const char* besides) {
  return std::ranges::all_of(text, [&](char each) {
    return IsAlphanumeric(each) || (each != '\0' && std::strchr(besides, each) != nullptr);
  });
}

/// Passed through to logs and answers: nothing that could break a line or a header.
std::string Harmless(std::string_view text) {
  return text.size() <= 128 && HasOnly(text, "-_.:/+=") ? std::string(text) : std::string();
}

bool IsHost(std::string_view text) { return HasOnly(text, "-._~%!$&'()*+,;=:[]"); }

std::unexpected<ApiError> Malformed(std::string message) {
  return Refusal(400, "invalid_request_error", "bad_request", std::move(message));
}

/// All fields of a name.
class Values {
 public:
  Values(std::span<const HeaderField> fields, std::string_view name) {
    for (const HeaderField& field : fields) {
      if (!EqualsIgnoringCase(field.name, name)) continue;
      if (count_++ == 0) first_ = field.value;
    }
  }
  size_t count() const { return count_; }
  std::string_view first() const { return first_; }  // empty: there is none

 private:
  size_t count_ = 0;
  std::string_view first_{};
};

ApiResult<void> CheckFraming(uint32_t version, std::span<const HeaderField> fields) {
  const Values codings(fields, "Transfer-Encoding");
  const Values lengths(fields, "Content-Length");
  if (lengths.count() > 1 ||
      lengths.first().find_first_not_of("0123456789") != std::string_view::npos) {
    return Malformed("the request's Content-Length is not one number");
  }
  if (codings.count() == 0) return {};
  if (version < 11) return Malformed("HTTP/1.0 has no Transfer-Encoding");
  if (lengths.count() > 0) {
    return Malformed("the request has both a Content-Length and a Transfer-Encoding");
  }
  if (codings.count() > 1 || !EqualsIgnoringCase(codings.first(), "chunked")) {
    return Malformed("the only Transfer-Encoding that is read is chunked, once");
  }
  return {};
}

/// Host and path, from the target and the field Host.
ApiResult<void> ReadTarget(const RequestLine& line, std::span<const HeaderField> fields,
                           HttpRequest& request) {
  const Values hosts(fields, "Host");
  if (hosts.count() > 1) return Malformed("the request has more than one Host");
  if (hosts.count() == 0 && line.version >= 11) return Malformed("the request has no Host");
  std::string_view target = line.target;
  std::string_view host = hosts.first();
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!EqualsIgnoringCase(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    host = target.substr(0, end);
    target.remove_prefix(end);
    if (host.empty()) return Malformed("the request's target names no host");
    if (target.empty() || target.front() == '?') target = "/";
    break;
  }
  if (!IsHost(host)) return Malformed("the request's Host is no name of a host");
  if (target.empty() || (target.front() != '/' && target != "*")) {
    return Malformed("the request's target is no path");
  }
  request.host = host;
  request.path = target.substr(0, target.find('?'));
  return {};
}

}  // namespace

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, Lower, Lower);
}

ApiResult<HttpRequest> ReadHead(const RequestLine& line, std::span<const HeaderField> fields) {
  QUIRE_TRY(CheckFraming(line.version, fields));
  const auto first = [&](std::string_view name) {
    return std::string(Values(fields, name).first());
  };
  HttpRequest request{.method = std::string(line.method),
                      .content_type = first("Content-Type"),
                      .authorization = first("Authorization"),
                      .origin = first("Origin"),
                      .fetch_site = first("Sec-Fetch-Site"),
                      .request_id = Harmless(first("X-Request-Id")),
                      .traceparent = Harmless(first("traceparent"))};
  if (request.request_id.empty()) request.request_id = RandomName("req_");
  QUIRE_TRY(ReadTarget(line, fields, request));
  const Values lengths(fields, "Content-Length");
  request.has_body = Values(fields, "Transfer-Encoding").count() > 0 ||
                     lengths.first().find_first_not_of('0') != std::string_view::npos;
  const std::string expected = first("Expect");
  if (expected.empty() || line.version < 11) return request;
  if (!EqualsIgnoringCase(expected, "100-continue")) {
    return Refusal(417, "invalid_request_error", "expectation_failed",
                   "the only Expect that is met is 100-continue");
  }
  request.wants_continue = true;
  return request;
}

bool IsFromAnotherSite(const HttpRequest& request) {
  if (!request.fetch_site.empty()) {
    return !EqualsIgnoringCase(request.fetch_site, "same-origin") &&
           !EqualsIgnoringCase(request.fetch_site, "none");
  }
  if (request.origin.empty()) return false;
  const size_t scheme = request.origin.find("://");
  return scheme == std::string::npos ||
         !EqualsIgnoringCase(std::string_view(request.origin).substr(scheme + 3), request.host);
}

std::string_view BearerOf(std::string_view authorization) {
  const size_t end = authorization.find(' ');
  if (end == std::string_view::npos ||
      !EqualsIgnoringCase(authorization.substr(0, end), "Bearer")) {
    return {};
  }
  const size_t begin = authorization.find_first_not_of(' ', end);
  return begin == std::string_view::npos ? std::string_view() : authorization.substr(begin);
}

std::string HttpDate(std::time_t time) {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(time));
}

}  // namespace quire::serve::http
