#include "serve/http/api_messages.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "serve/http/api_fields.h"

namespace quire::serve::http {

namespace {

ApiResult<std::string> ReadContent(const Json& value, const std::string& where,
                                   std::vector<CallHint>& hints) {
  if (value.is_null()) return std::string();
  if (value.is_string()) return value.get<std::string>();
  const auto bad = [&](std::string_view what) {
    return BadRequest(where, fmt::format("'{}' {}", where, what));
  };
  if (!value.is_array()) return bad("must be a string or an array of text parts");
  std::string text;
  for (const Json& element : value) {
    if (!element.is_object()) return bad("has a part that is no object");
    Fields fields(element, where + ".");
    QUIRE_ASSIGN(const auto type, fields.Text("type"));
    if (type != "text") return bad("has a part that is not text: this model reads text only");
    QUIRE_ASSIGN(const auto piece, fields.Text("text"));
    if (!piece) return bad("has a text part without 'text'");
    text += *piece;
    if (const Json* const control = fields.Find("cache_control")) {
      QUIRE_ASSIGN(auto hint, ReadCacheControl(*control, where + ".cache_control"));
      hint.content_bytes = text.size();
      hints.push_back(std::move(hint));
    }
  }
  return text;
}

// Clients send arguments as text; templates print them, or look into them, as a value. Members stay
// in the order in which the client has them. What is no object stays text.
OrderedJson ArgumentsOf(const std::string& text) {
  const auto checked = ParseJson(text, "arguments");
  return checked && checked->is_object() ? OrderedJson::parse(text) : OrderedJson(text);
}

ApiResult<OrderedJson> ReadToolCall(const Json& value, const std::string& where) {
  if (!value.is_object()) return BadRequest(where, fmt::format("'{}' must be an object", where));
  Fields fields(value, where + ".");
  OrderedJson call = OrderedJson::object();
  QUIRE_ASSIGN(const auto id, fields.Text("id"));
  if (id) call["id"] = *id;
  QUIRE_ASSIGN(const auto type, fields.Text("type"));
  if (type.value_or("function") != "function") return fields.Bad("type", "must be 'function'");
  call["type"] = "function";
  fields.Ignore("index");  // of a piece of a stream
  const Json* const function = fields.Find("function");
  if (function == nullptr || !function->is_object()) {
    return fields.Bad("function", "must be an object");
  }
  QUIRE_TRY(fields.NothingElse());
  Fields inner(*function, where + ".function.");
  QUIRE_ASSIGN(const auto name, inner.Text("name"));
  if (!name) return inner.Bad("name", "is missing");
  const Json* const arguments = inner.Find("arguments");
  QUIRE_TRY(inner.NothingElse());
  OrderedJson read = OrderedJson::object();
  if (arguments != nullptr && arguments->is_string()) {
    read = ArgumentsOf(arguments->get_ref<const std::string&>());
  } else if (arguments != nullptr && arguments->is_object()) {
    read = OrderedJson(*arguments);
  } else if (arguments != nullptr) {
    return inner.Bad("arguments", "must be a string or an object");
  }
  call["function"] = {{"name", *name}, {"arguments", std::move(read)}};
  return call;
}

ApiResult<OrderedJson> ReadToolCalls(Fields& fields, const std::string& where) {
  OrderedJson calls = OrderedJson::array();
  const Json* const value = fields.Find("tool_calls");
  if (value == nullptr) return calls;
  if (!value->is_array() || value->size() > kToolCallsMax) {
    return fields.Bad("tool_calls", fmt::format("must be an array of at most {}", kToolCallsMax));
  }
  for (const Json& each : *value) {
    QUIRE_ASSIGN(auto call,
                 ReadToolCall(each, fmt::format("{}.tool_calls[{}]", where, calls.size())));
    calls.push_back(std::move(call));
  }
  return calls;
}

ApiResult<OrderedJson> ReadMessage(const Json& value, const std::string& where,
                                   std::vector<CallHint>& hints) {
  if (!value.is_object()) return BadRequest(where, fmt::format("'{}' must be an object", where));
  Fields fields(value, where + ".");
  QUIRE_ASSIGN(const auto role, fields.Text("role"));
  if (!role || role->empty() || role->size() > 64) {
    return fields.Bad("role", "must be a string of 1 to 64 bytes");
  }
  const Json* const content = fields.Find("content");
  QUIRE_ASSIGN(auto text,
               ReadContent(content == nullptr ? Json() : *content, where + ".content", hints));
  OrderedJson message = {{"role", *role}, {"content", std::move(text)}};
  for (const char* const name : {"name", "reasoning_content", "tool_call_id"}) {
    QUIRE_ASSIGN(auto said, fields.Text(name));
    if (said) message[name] = *std::move(said);
  }
  QUIRE_ASSIGN(auto calls, ReadToolCalls(fields, where));
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  for (const char* const ignored : {"refusal", "annotations", "audio", "function_call"}) {
    QUIRE_TRY(fields.Only(ignored, nullptr));
  }
  QUIRE_TRY(fields.NothingElse());
  return message;
}

}  // namespace

ApiResult<OrderedJson> ReadMessages(const Json* value, std::vector<CallHint>& hints) {
  if (value == nullptr || !value->is_array() || value->empty()) {
    return BadRequest("messages", "'messages' must be an array of at least one message");
  }
  if (value->size() > kMessagesMax) {
    return BadRequest("messages", fmt::format("'messages' has {} messages, at most {} are read",
                                              value->size(), kMessagesMax));
  }
  OrderedJson messages = OrderedJson::array();
  for (const Json& each : *value) {
    const size_t before = hints.size();
    QUIRE_ASSIGN(auto message,
                 ReadMessage(each, fmt::format("messages[{}]", messages.size()), hints));
    for (size_t i = before; i < hints.size(); ++i) hints[i].message = messages.size();
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace quire::serve::http
