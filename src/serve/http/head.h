// The header of a request from the parser's hands into ReadHead's.
#ifndef QUIRE_SERVE_HTTP_HEAD_H_
#define QUIRE_SERVE_HTTP_HEAD_H_

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <vector>

#include "serve/http/http_request.h"

namespace quire::serve::http {

using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

/// Errors: as ReadHead
inline ApiResult<HttpRequest> HeadOf(const Parser& parser) {
  const auto& message = parser.get();
  std::vector<HeaderField> fields;
  for (const auto& field : message) {
    fields.push_back({.name = field.name_string(), .value = field.value()});
  }
  return ReadHead(
      {.method = message.method_string(), .target = message.target(), .version = message.version()},
      fields);
}

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_HEAD_H_
