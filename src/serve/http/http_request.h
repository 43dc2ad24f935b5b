// One request as its header has it, checked where RFC 9112 leaves no choice: whatever another
// server on the way could understand differently is refused.
#ifndef QUIRE_SERVE_HTTP_HTTP_REQUEST_H_
#define QUIRE_SERVE_HTTP_HTTP_REQUEST_H_

#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <string_view>

#include "serve/http/api_error.h"

namespace quire::serve::http {

struct HttpRequest {
  std::string method{};
  std::string path{};  // without what follows '?'
  std::string host{};
  std::string content_type{};
  std::string authorization{};
  std::string origin{};
  std::string fetch_site{};   // Sec-Fetch-Site: what a browser says of the page that asks
  std::string request_id{};   // the client's, where it breaks no log; else a random one
  std::string traceparent{};  // the same; else empty
  bool wants_continue = false;
  bool has_body = false;  // as the header says
  std::string body{};
  bool by_operator_listener = false;
};

struct RequestLine {
  std::string_view method;
  std::string_view target;
  uint32_t version;  // 10 or 11
};

struct HeaderField {
  std::string_view name;
  std::string_view value;
};

/// All but the body and the listener. A target that names a server (http://HOST/PATH) counts before
/// the field Host.
///
/// Errors: 400 where a body ends, or which host is meant, can be understood in two ways; 417. No
///         other request can follow on the connection
ApiResult<HttpRequest> ReadHead(const RequestLine& line, std::span<const HeaderField> fields);

/// A POST or DELETE that a page of another site made a browser send. Calls of programs are not.
bool IsFromAnotherSite(const HttpRequest& request);

/// The credentials of "Bearer CREDENTIALS", the scheme in any case; empty: it has another form.
std::string_view BearerOf(std::string_view authorization);

bool EqualsIgnoringCase(std::string_view a, std::string_view b);

/// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string HttpDate(std::time_t time);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_HTTP_REQUEST_H_
