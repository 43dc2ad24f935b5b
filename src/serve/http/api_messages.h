// The messages of a chat, checked member by member.
#ifndef QUIRE_SERVE_HTTP_API_MESSAGES_H_
#define QUIRE_SERVE_HTTP_API_MESSAGES_H_

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "serve/http/api_error.h"
#include "serve/http/api_hints.h"

namespace quire::serve::http {

inline constexpr uint32_t kMessagesMax = 4096;
inline constexpr uint32_t kToolCallsMax = 128;  // of one message

/// Messages as a chat template reads them: `role`, `content` (text, empty where there is none) and,
/// where they are said, `name`, `reasoning_content`, `tool_call_id` and `tool_calls`, whose
/// arguments are a value where their text is an object of JSON.
///
/// Adds the cache_control of their parts to `hints`.
///
/// Errors: 400 names the member
ApiResult<OrderedJson> ReadMessages(const Json* value, std::vector<CallHint>& hints);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_API_MESSAGES_H_
