// What callers expect to ask again, as the field writes it: OpenAI's prompt_cache_key and
// prompt_cache_retention, Anthropic's cache_control, the kv_hints of Dynamo and SGLang.
#ifndef QUIRE_SERVE_HTTP_API_HINTS_H_
#define QUIRE_SERVE_HTTP_API_HINTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/http/api_error.h"
#include "serve/http/api_fields.h"
#include "serve/request.h"

namespace quire::serve::http {

/// One hint of a call.
struct CallHint {
  std::string name{};   // the member that says it, for the answer
  uint64_t ttl_us = 0;  // 0: nothing follows from it
  std::string why{};    // then: why
  // Of a part of a message: the text up to its end. None: all of the prompt, with the answer.
  std::optional<size_t> message{};
  size_t content_bytes = 0;  // of that message
};

inline constexpr size_t kHintsMax = 16;  // of one call

/// {"type": "ephemeral", "ttl": "5m"}: a ttl of another length, or none for five minutes.
///
/// Errors: 400 names the member
ApiResult<CallHint> ReadCacheControl(const Json& value, const std::string& name);

/// The members of a call's body that are hints. Those this server does nothing for are hints too,
/// with the reason.
///
/// Errors: 400 names the member
ApiResult<void> ReadHints(Fields& fields, std::vector<CallHint>& hints);

/// What became of them: [{"hint", "status": "accepted", "clipped" or "ignored", "tokens", "ttl_s",
/// "reason"}].
///
/// Shape: outcomes, one for each hint with a ttl, in order; or none where the request failed
OrderedJson HintsJson(const std::vector<CallHint>& hints,
                      const std::vector<RetainOutcome>& outcomes);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_API_HINTS_H_
