#include "serve/http/api_request.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/json.h"

namespace quire::serve::http {

namespace {

constexpr std::string_view kSource = "request body";

/// Reads the members of one object by name, and knows at the end which nobody asked for.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  /// Null: it is absent or null.
  const Json* Find(const std::string& name) {
    known_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  ApiResult<std::optional<std::string>> Text(const std::string& name) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) return Bad(name, "must be a string");
    return value->get<std::string>();
  }

  ApiResult<bool> Flag(const std::string& name, bool fallback) {
    const Json* const value = Find(name);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return Bad(name, "must be true or false");
    return value->get<bool>();
  }

  ApiResult<std::optional<double>> Number(const std::string& name, double least, double most) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) return Bad(name, "must be a number");
    const double number = value->get<double>();
    if (!(number >= least && number <= most)) {
      return Bad(name, fmt::format("must be from {} to {}", least, most));
    }
    return number;
  }

  ApiResult<std::optional<uint32_t>> Count(const std::string& name, uint64_t least, uint64_t most) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    // Negative numbers are whole, but not unsigned.
    if (!value->is_number_unsigned() || value->get<uint64_t>() < least ||
        value->get<uint64_t>() > most) {
      return Bad(name, fmt::format("must be a whole number from {} to {}", least, most));
    }
    return static_cast<uint32_t>(value->get<uint64_t>());
  }

  /// A field that is passed over.
  void Ignore(const std::string& name) { known_.insert(name); }

  /// A field whose only value that changes nothing is `neutral`, besides null.
  ApiResult<void> Only(const std::string& name, const Json& neutral) {
    const Json* const value = Find(name);
    if (value == nullptr || *value == neutral) return {};
    // 0 and 0.0 are equal here, [] and {} count as nothing.
    if (value->is_structured() && value->empty()) return {};
    return Bad(name, fmt::format("is not supported; only {} is", neutral.dump()));
  }

  ApiResult<void> NothingElse() const {
    for (const auto& [name, value] : object_.items()) {
      if (!known_.contains(name)) {
        return Bad(name.substr(0, 64), "is not a field of this call");
      }
    }
    return {};
  }

  std::unexpected<ApiError> Bad(const std::string& name, const std::string& what) const {
    return BadRequest(prefix_ + name, fmt::format("'{}{}' {}", prefix_, name, what));
  }

 private:
  const Json& object_;
  const std::string prefix_;
  std::set<std::string> known_;
};

// The parser's own message names its parts and repeats the body; where it stopped is enough.
std::string WhatIsNoJson(const std::string& message) {
  const size_t begin = message.find("at line ");
  if (begin != std::string::npos) {
    return fmt::format("the request body is no JSON {}",
                       message.substr(begin, message.find(':', begin) - begin));
  }
  if (message.find("json.exception") == std::string::npos) return message;
  return "the request body has a number that is too large to read";
}

ApiResult<Json> ParseObject(std::string_view body) {
  auto json = ParseJson(body, kSource);
  if (!json) return BadRequest("", WhatIsNoJson(json.error().message));
  if (!json->is_object()) return BadRequest("", "the request body must be a JSON object");
  return *std::move(json);
}

ApiResult<std::vector<TokenId>> ReadTokens(const Json& array, const std::string& field) {
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  for (const Json& each : array) {
    if (!each.is_number_unsigned() ||
        each.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<TokenId>::max())) {
      return BadRequest(
          field, fmt::format("'{}' has something among its tokens that is no token id", field));
    }
    tokens.push_back(static_cast<TokenId>(each.get<uint64_t>()));
  }
  return tokens;
}

// A text, tokens, or an array of several texts or of several arrays of tokens.
ApiResult<std::vector<Prompt>> ReadPrompts(const Json& value) {
  if (value.is_string()) return std::vector<Prompt>{value.get<std::string>()};
  const auto bad = [] {
    return BadRequest("prompt",
                      "'prompt' must be a string, an array of token ids, or an array of those");
  };
  if (!value.is_array() || value.empty()) return bad();
  std::vector<Prompt> prompts;
  if (value.front().is_number()) {
    QUIRE_ASSIGN(auto tokens, ReadTokens(value, "prompt"));
    prompts.emplace_back(std::move(tokens));
    return prompts;
  }
  if (value.size() > kChoicesMax) {
    return BadRequest("prompt", fmt::format("'prompt' has {} prompts, at most {} are answered",
                                            value.size(), kChoicesMax));
  }
  for (const Json& each : value) {
    if (each.is_string()) {
      prompts.emplace_back(each.get<std::string>());
    } else if (each.is_array() && !each.empty()) {
      QUIRE_ASSIGN(auto tokens, ReadTokens(each, "prompt"));
      prompts.emplace_back(std::move(tokens));
    } else {
      return bad();
    }
  }
  return prompts;
}

ApiResult<std::string> ReadContent(const Json& value, const std::string& where) {
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
  }
  return text;
}

ApiResult<OrderedJson> ReadMessages(const Json* value) {
  if (value == nullptr || !value->is_array() || value->empty()) {
    return BadRequest("messages", "'messages' must be an array of at least one message");
  }
  if (value->size() > kMessagesMax) {
    return BadRequest("messages", fmt::format("'messages' has {} messages, at most {} are read",
                                              value->size(), kMessagesMax));
  }
  OrderedJson messages = OrderedJson::array();
  for (const Json& each : *value) {
    const std::string where = fmt::format("messages[{}]", messages.size());
    if (!each.is_object()) return BadRequest(where, fmt::format("'{}' must be an object", where));
    Fields fields(each, where + ".");
    QUIRE_ASSIGN(const auto role, fields.Text("role"));
    if (!role || role->empty() || role->size() > 64) {
      return fields.Bad("role", "must be a string of 1 to 64 bytes");
    }
    const Json* const content = fields.Find("content");
    QUIRE_ASSIGN(auto text,
                 ReadContent(content == nullptr ? Json() : *content, where + ".content"));
    OrderedJson message = {{"role", *role}, {"content", std::move(text)}};
    QUIRE_ASSIGN(const auto name, fields.Text("name"));
    if (name) message["name"] = *name;
    QUIRE_TRY(fields.Only("tool_calls", Json::array()));
    for (const char* const ignored : {"refusal", "annotations", "audio", "function_call"}) {
      QUIRE_TRY(fields.Only(ignored, nullptr));
    }
    QUIRE_TRY(fields.NothingElse());
    messages.push_back(std::move(message));
  }
  return messages;
}

ApiResult<std::vector<std::string>> ReadStop(Fields& fields) {
  std::vector<std::string> stops;
  const Json* const value = fields.Find("stop");
  if (value == nullptr) return stops;
  const auto add = [&](const Json& each) {
    if (!each.is_string()) return false;
    stops.push_back(each.get<std::string>());
    return !stops.back().empty() && stops.back().size() <= kStopBytesMax;
  };
  const std::string what = fmt::format("must be a string or up to {} strings, of 1 to {} bytes",
                                       kStopsMax, kStopBytesMax);
  if (value->is_array()) {
    if (value->size() > kStopsMax) return fields.Bad("stop", what);
    for (const Json& each : *value) {
      if (!add(each)) return fields.Bad("stop", what);
    }
  } else if (!add(*value)) {
    return fields.Bad("stop", what);
  }
  return stops;
}

template <typename Call>
ApiResult<void> ReadSampling(Fields& fields, Call& call) {
  QUIRE_ASSIGN(const auto temperature, fields.Number("temperature", 0, 100));
  if (temperature) call.temperature = static_cast<float>(*temperature);
  QUIRE_ASSIGN(const auto top_p, fields.Number("top_p", 0, 1));
  if (top_p) call.top_p = static_cast<float>(*top_p);
  QUIRE_ASSIGN(call.top_k, fields.Count("top_k", 0, UINT32_MAX));
  if (const Json* const seed = fields.Find("seed")) {
    if (!seed->is_number_integer()) return fields.Bad("seed", "must be a whole number");
    // A negative seed is as good as any other one.
    call.seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                           : static_cast<uint64_t>(seed->get<int64_t>());
  }
  return {};
}

ApiResult<void> ReadLogprobs(Fields& fields, ApiCall& call) {
  if (call.endpoint == Endpoint::kCompletions) {
    QUIRE_ASSIGN(call.logprobs, fields.Count("logprobs", 0, kLogprobsMax));
    return {};
  }
  QUIRE_ASSIGN(const bool wanted, fields.Flag("logprobs", false));
  QUIRE_ASSIGN(const auto count, fields.Count("top_logprobs", 0, kLogprobsMax));
  if (count && !wanted) return fields.Bad("top_logprobs", "needs 'logprobs': true");
  if (wanted) call.logprobs = count.value_or(0);
  return {};
}

ApiResult<void> ReadStream(Fields& fields, ApiCall& call) {
  QUIRE_ASSIGN(call.stream, fields.Flag("stream", false));
  const Json* const options = fields.Find("stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) return fields.Bad("stream_options", "must be an object");
  if (!call.stream) return fields.Bad("stream_options", "needs 'stream': true");
  Fields inner(*options, "stream_options.");
  QUIRE_ASSIGN(call.include_usage, inner.Flag("include_usage", false));
  inner.Ignore("include_obfuscation");
  return inner.NothingElse();
}

// What OpenAI has and this server has not: refused where it would change the answer.
ApiResult<void> RefuseTheRest(Fields& fields, Endpoint endpoint) {
  for (const char* const name : {"user", "metadata", "store", "service_tier", "safety_identifier",
                                 "prompt_cache_key", "parallel_tool_calls", "verbosity"}) {
    fields.Ignore(name);
  }
  QUIRE_TRY(fields.Only("frequency_penalty", 0));
  QUIRE_TRY(fields.Only("presence_penalty", 0));
  QUIRE_TRY(fields.Only("logit_bias", Json::object()));
  if (endpoint == Endpoint::kCompletions) {
    QUIRE_TRY(fields.Only("best_of", 1));
    QUIRE_TRY(fields.Only("suffix", ""));
    QUIRE_TRY(fields.Only("echo", false));
  } else {
    QUIRE_TRY(fields.Only("tools", Json::array()));
    QUIRE_TRY(fields.Only("tool_choice", "none"));
    QUIRE_TRY(fields.Only("functions", Json::array()));
    QUIRE_TRY(fields.Only("function_call", "none"));
    QUIRE_TRY(fields.Only("response_format", Json{{"type", "text"}}));
    QUIRE_TRY(fields.Only("modalities", Json{"text"}));
    QUIRE_TRY(fields.Only("reasoning_effort", "none"));
  }
  return fields.NothingElse();
}

}  // namespace

ApiResult<ApiCall> ParseCall(Endpoint endpoint, std::string_view body) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  ApiCall call{.endpoint = endpoint};
  QUIRE_ASSIGN(auto model, fields.Text("model"));
  call.model = std::move(model).value_or("");
  uint64_t tokens_least = 1;
  if (endpoint == Endpoint::kCompletions) {
    QUIRE_ASSIGN(auto session, fields.Text("session"));
    call.session = std::move(session).value_or("");
    if (!call.session.empty()) tokens_least = 0;  // reads only
    const Json* const prompt = fields.Find("prompt");
    if (prompt != nullptr) {
      QUIRE_ASSIGN(call.prompts, ReadPrompts(*prompt));
    } else if (!call.session.empty()) {
      call.prompts.emplace_back(std::vector<TokenId>{});
    } else {
      return fields.Bad("prompt", "is missing");
    }
  } else {
    QUIRE_ASSIGN(call.messages, ReadMessages(fields.Find("messages")));
  }
  QUIRE_ASSIGN(const auto choices, fields.Count("n", 1, kChoicesMax));
  call.choices = choices.value_or(1);
  if (call.choices * std::max<size_t>(call.prompts.size(), 1) > kChoicesMax) {
    return fields.Bad("n", fmt::format("asks for more than {} answers in all", kChoicesMax));
  }
  QUIRE_ASSIGN(call.max_tokens, fields.Count("max_tokens", tokens_least, UINT32_MAX));
  if (endpoint == Endpoint::kChat) {
    QUIRE_ASSIGN(const auto tokens, fields.Count("max_completion_tokens", 1, UINT32_MAX));
    if (tokens) call.max_tokens = tokens;
  }
  QUIRE_TRY(ReadSampling(fields, call));
  QUIRE_ASSIGN(call.stop, ReadStop(fields));
  QUIRE_TRY(ReadLogprobs(fields, call));
  QUIRE_TRY(ReadStream(fields, call));
  QUIRE_ASSIGN(call.reuse, fields.Flag("reuse", true));
  QUIRE_TRY(RefuseTheRest(fields, endpoint));
  if (call.session.empty()) return call;
  if (call.prompts.size() != 1 || call.choices != 1) {
    return fields.Bad("session", "takes one prompt and gives one answer");
  }
  if (call.temperature || call.top_p || call.top_k || call.seed) {
    return fields.Bad("session", "has its own sampling: give it where the session is made");
  }
  return call;
}

ApiResult<SessionCall> ParseSessionCall(std::string_view body) {
  SessionCall call;
  if (body.empty()) return call;
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  QUIRE_TRY(ReadSampling(fields, call));
  QUIRE_TRY(fields.NothingElse());
  return call;
}

ApiResult<std::string> ParseTokenizeCall(std::string_view body) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  QUIRE_ASSIGN(auto text, fields.Text("text"));
  if (!text) return fields.Bad("text", "is missing");
  QUIRE_TRY(fields.NothingElse());
  return *std::move(text);
}

ApiResult<std::vector<TokenId>> ParseDetokenizeCall(std::string_view body) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  const Json* const tokens = fields.Find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    return fields.Bad("tokens", "must be an array of token ids");
  }
  QUIRE_TRY(fields.NothingElse());
  return ReadTokens(*tokens, "tokens");
}

}  // namespace quire::serve::http
