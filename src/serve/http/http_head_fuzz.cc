// Headers of requests: whatever the bytes, a refusal, or a request that is understood in one way.
#include <boost/asio/buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "serve/http/head.h"

namespace {

using quire::serve::http::HttpRequest;

bool IsOneWord(std::string_view text) {
  for (const char each : text) {
    if (each <= ' ' || each == '\x7f') return false;
  }
  return true;
}

void CheckAccepted(const quire::serve::http::Parser& parser, const HttpRequest& request) {
  // Where the body ends must be what the parser reads, and every other server on the way.
  const auto length = parser.content_length();
  QUIRE_CHECK(!(parser.chunked() && length));
  QUIRE_CHECK(request.has_body == (parser.chunked() || length.value_or(0) > 0));
  // What goes into logs and answers breaks no line of them.
  QUIRE_CHECK(IsOneWord(request.request_id) && !request.request_id.empty());
  QUIRE_CHECK(IsOneWord(request.traceparent) && IsOneWord(request.host));
  QUIRE_CHECK(request.path == "*" || request.path.starts_with('/'));
  QUIRE_CHECK(request.path.find('?') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::serve::http::Parser parser;
  parser.header_limit(16 << 10);
  boost::system::error_code error;
  parser.put(boost::asio::buffer(data, size), error);
  if (!parser.is_header_done()) return 0;
  const auto request = quire::serve::http::HeadOf(parser);
  if (!request) {
    QUIRE_CHECK(request.error().status == 400 || request.error().status == 417);
    return 0;
  }
  CheckAccepted(parser, *request);
  (void)IsFromAnotherSite(*request);
  (void)quire::serve::http::BearerOf(request->authorization);
  return 0;
}
