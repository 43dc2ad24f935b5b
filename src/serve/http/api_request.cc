#include "serve/http/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json.h"
#include "serve/http/api_fields.h"
#include "serve/http/api_messages.h"

namespace quire::serve::http {

namespace {

constexpr std::string_view kSource = "request body";

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

ApiResult<std::vector<TokenId>> ReadTokens(const Json& array, const std::string& name) {
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  for (const Json& each : array) {
    if (!each.is_number_unsigned() ||
        each.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<TokenId>::max())) {
      return BadRequest(
          name, fmt::format("'{}' has something among its tokens that is no token id", name));
    }
    tokens.push_back(static_cast<TokenId>(each.get<uint64_t>()));
  }
  return tokens;
}

// A text, tokens, or an array of several texts or of several arrays of tokens.
ApiResult<std::vector<Prompt>> ReadPrompts(const Json& value, uint32_t choices_max) {
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
  if (value.size() > choices_max) {
    return BadRequest("prompt", fmt::format("'prompt' has {} prompts, at most {} are answered",
                                            value.size(), choices_max));
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

// -1 is vLLM's and llama.cpp's word for all of them, 0 the one of Hugging Face.
ApiResult<std::optional<uint32_t>> ReadTopK(Fields& fields) {
  const Json* const value = fields.Find("top_k");
  if (value != nullptr && *value == -1) return 0;
  return fields.Count("top_k", 0, UINT32_MAX);
}

ApiResult<SaidSampling> ReadSampling(Fields& fields) {
  SaidSampling said;
  const auto number = [&](const char* name, double most,
                          std::optional<float>& value) -> ApiResult<void> {
    QUIRE_ASSIGN(const auto read, fields.Number(name, 0, most));
    if (read) value = static_cast<float>(*read);
    return {};
  };
  QUIRE_TRY(number("temperature", 100, said.temperature));
  QUIRE_TRY(number("top_p", 1, said.top_p));
  QUIRE_TRY(number("min_p", 1, said.min_p));
  QUIRE_ASSIGN(said.top_k, ReadTopK(fields));
  if (const Json* const seed = fields.Find("seed")) {
    if (!seed->is_number_integer()) return fields.Bad("seed", "must be a whole number");
    // A negative seed is as good as any other one.
    said.seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                           : static_cast<uint64_t>(seed->get<int64_t>());
  }
  return said;
}

// {"id": bias}.
ApiResult<std::vector<model::LogitBias>> ReadLogitBias(Fields& fields) {
  std::vector<model::LogitBias> biases;
  const Json* const value = fields.Find("logit_bias");
  if (value == nullptr) return biases;
  if (!value->is_object() || value->size() > kLogitBiasesMax) {
    return fields.Bad("logit_bias",
                      fmt::format("must be an object of at most {} tokens", kLogitBiasesMax));
  }
  for (const auto& [name, bias] : value->items()) {
    TokenId token = 0;
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data(), end, token);
    if (error != std::errc() || rest != end) {
      return fields.Bad("logit_bias",
                        fmt::format("has '{}' where a token id is to be", name.substr(0, 32)));
    }
    if (!bias.is_number() || !(bias.get<double>() >= -100 && bias.get<double>() <= 100)) {
      return fields.Bad("logit_bias", fmt::format("must give token {} from -100 to 100", token));
    }
    biases.push_back({.token = token, .bias = bias.get<float>()});
  }
  return biases;
}

ApiResult<void> ReadRules(Fields& fields, ApiCall& call) {
  model::LogitRules& rules = call.rules;
  const auto number = [&](const char* name, double least, double most,
                          float& value) -> ApiResult<void> {
    QUIRE_ASSIGN(const auto said, fields.Number(name, least, most));
    if (said) value = static_cast<float>(*said);
    return {};
  };
  QUIRE_TRY(number("repetition_penalty", 0.01, 100, rules.repetition_penalty));
  QUIRE_TRY(number("presence_penalty", -2, 2, rules.presence_penalty));
  QUIRE_TRY(number("frequency_penalty", -2, 2, rules.frequency_penalty));
  QUIRE_ASSIGN(rules.bias, ReadLogitBias(fields));
  QUIRE_ASSIGN(const auto least, fields.Count("min_tokens", 0, UINT32_MAX));
  rules.tokens_min = least.value_or(0);
  if (call.max_tokens && rules.tokens_min > *call.max_tokens) {
    return fields.Bad("min_tokens", "must not be more than 'max_tokens'");
  }
  QUIRE_ASSIGN(call.ignore_eos, fields.Flag("ignore_eos", false));
  if (const Json* const ids = fields.Find("stop_token_ids")) {
    if (!ids->is_array() || ids->size() > kStopsMax) {
      return fields.Bad("stop_token_ids",
                        fmt::format("must be an array of at most {} token ids", kStopsMax));
    }
    QUIRE_ASSIGN(call.stop_tokens, ReadTokens(*ids, "stop_token_ids"));
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
  if (count.value_or(0) > 0 && !wanted) {
    return fields.Bad("top_logprobs", "needs 'logprobs': true");
  }
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
  QUIRE_TRY(inner.Only("continuous_usage_stats", false));
  return inner.NothingElse();
}

// What describes the caller, or what it wants kept, is passed over, but has its type.
ApiResult<void> PassOver(Fields& fields) {
  for (const char* const name :
       {"user", "service_tier", "safety_identifier", "verbosity", "request_id"}) {
    QUIRE_TRY(fields.Text(name));
  }
  for (const char* const name : {"store", "parallel_tool_calls"}) {
    QUIRE_TRY(fields.Flag(name, false));
  }
  if (const Json* const metadata = fields.Find("metadata"); metadata && !metadata->is_object()) {
    return fields.Bad("metadata", "must be an object");
  }
  return {};
}

// What OpenAI, vLLM and llama.cpp have and this server has not: the value that changes nothing is
// taken, since clients send it unasked; any other is refused.
ApiResult<void> RefuseTheRest(Fields& fields, Endpoint endpoint) {
  const std::pair<const char*, Json> both[] = {
      {"use_beam_search", false},
      {"length_penalty", 1},
      {"early_stopping", false},
      {"skip_special_tokens", true},
      {"spaces_between_special_tokens", true},
      {"include_stop_str_in_output", false},
      {"truncate_prompt_tokens", nullptr},
      {"prompt_logprobs", nullptr},
      {"return_tokens_as_token_ids", false},
      {"return_token_ids", false},
      {"include_reasoning", true},
      {"detokenize", true},
      {"bad_words", Json::array()},
      {"cache_prompt", true},
      {"id_slot", -1},
      {"n_keep", 0},
      {"repeat_penalty", 1},
      {"timings_per_token", false},
      {"typical_p", 1},
      {"mirostat", 0},
      {"dynatemp_range", 0},
      {"xtc_probability", 0},
      {"dry_multiplier", 0},
      {"n_probs", 0},
      {"grammar", ""},
  };
  for (const auto& [name, neutral] : both) QUIRE_TRY(fields.Only(name, neutral));
  QUIRE_TRY(fields.Only("response_format", Json{{"type", "text"}}));
  if (endpoint == Endpoint::kCompletions) {
    QUIRE_TRY(fields.Only("best_of", 1));
    QUIRE_TRY(fields.Only("suffix", ""));
    QUIRE_TRY(fields.Only("add_special_tokens", true));
  } else {
    QUIRE_TRY(fields.Only("echo", false));
    QUIRE_TRY(fields.Only("add_special_tokens", false));
    QUIRE_TRY(fields.Only("add_generation_prompt", true));
    QUIRE_TRY(fields.Only("continue_final_message", false));
    QUIRE_TRY(fields.Only("tools", Json::array()));
    QUIRE_TRY(fields.Only("tool_choice", "none"));
    QUIRE_TRY(fields.Only("functions", Json::array()));
    QUIRE_TRY(fields.Only("function_call", "none"));
    QUIRE_TRY(fields.Only("modalities", Json{"text"}));
    QUIRE_TRY(fields.Only("reasoning_effort", "none"));
  }
  return fields.NothingElse();
}

ApiResult<OrderedJson> ReadTemplateVariables(Fields& fields) {
  const Json* const value = fields.Find("chat_template_kwargs");
  if (value == nullptr) return OrderedJson::object();
  if (!value->is_object()) return fields.Bad("chat_template_kwargs", "must be an object");
  for (const char* const ours : {"messages", "tools", "documents", "add_generation_prompt"}) {
    if (value->contains(ours)) {
      return fields.Bad("chat_template_kwargs", fmt::format("must not have '{}'", ours));
    }
  }
  return OrderedJson(*value);
}

// What is to be read: a prompt, or messages.
ApiResult<void> ReadText(Fields& fields, uint32_t choices_max, ApiCall& call) {
  if (call.endpoint == Endpoint::kChat) {
    QUIRE_ASSIGN(call.messages, ReadMessages(fields.Find("messages"), call.hints));
    QUIRE_ASSIGN(call.template_variables, ReadTemplateVariables(fields));
    return {};
  }
  QUIRE_ASSIGN(auto session, fields.Text("session"));
  call.session = std::move(session).value_or("");
  QUIRE_ASSIGN(call.echo, fields.Flag("echo", false));
  const Json* const prompt = fields.Find("prompt");
  if (prompt != nullptr) {
    QUIRE_ASSIGN(call.prompts, ReadPrompts(*prompt, choices_max));
  } else if (!call.session.empty()) {
    call.prompts.emplace_back(std::vector<TokenId>{});
  } else {
    return fields.Bad("prompt", "is missing");
  }
  return {};
}

ApiResult<void> ReadOnFull(Fields& fields, ApiCall& call) {
  QUIRE_ASSIGN(auto said, fields.Text("on_full"));
  call.on_full = std::move(said).value_or("");
  Request any;
  if (call.on_full.empty() || SetOnFull(call.on_full, any)) return {};
  return fields.Bad("on_full", "must be 'reject', 'halt' or 'spill'");
}

ApiResult<void> ReadKeep(Fields& fields, ApiCall& call) {
  QUIRE_ASSIGN(const auto share, fields.Number("keep", 0, 1));
  if (share && *share == 0) return fields.Bad("keep", "must be above 0");
  call.keep.share = share.value_or(1.0);
  QUIRE_ASSIGN(const auto blocks, fields.Count("keep_blocks", 0, UINT32_MAX));
  call.keep.blocks_max = blocks.value_or(0);
  if (call.keep.blocks_max > 0) call.keep.by = KeepBy::kAccumulated;
  QUIRE_ASSIGN(const auto by, fields.Text("keep_by"));
  if (!by) return {};
  const auto found = KeepByOf(*by);
  if (!found) return fields.Bad("keep_by", "must be 'observed', 'accumulated' or 'recent'");
  call.keep.by = *found;
  return {};
}

// Its place among its tenant's calls, as vLLM has it: lower ones go first.
ApiResult<void> ReadPriority(Fields& fields, ApiCall& call) {
  constexpr int kMost = 50;
  QUIRE_ASSIGN(const auto said, fields.Number("priority", -kMost, kMost));
  const double priority = said.value_or(0);
  if (priority != std::floor(priority)) return fields.Bad("priority", "must be a whole number");
  call.priority = static_cast<uint8_t>(kMost - static_cast<int>(priority));
  QUIRE_ASSIGN(const auto seconds, fields.Number("timeout_s", 0, kTimeoutSecondsMax));
  if (seconds) call.timeout_us = static_cast<uint64_t>(*seconds * 1e6);
  return {};
}

ApiResult<void> ReadCounts(Fields& fields, uint32_t choices_max, ApiCall& call) {
  QUIRE_ASSIGN(const auto choices, fields.Count("n", 1, choices_max));
  call.choices = choices.value_or(1);
  if (call.choices * std::max<size_t>(call.prompts.size(), 1) > choices_max) {
    return fields.Bad("n", fmt::format("asks for more than {} answers in all", choices_max));
  }
  const bool may_only_read = !call.session.empty() || call.echo || call.publishes;
  QUIRE_ASSIGN(call.max_tokens, fields.Count("max_tokens", may_only_read ? 0 : 1, UINT32_MAX));
  if (call.endpoint == Endpoint::kChat) {
    QUIRE_ASSIGN(const auto tokens, fields.Count("max_completion_tokens", 1, UINT32_MAX));
    if (tokens) call.max_tokens = tokens;
  }
  return {};
}

// Prefill here, decode there: {"publish": true}, or as vLLM's proxies say it, which add fields of
// their connectors that mean nothing here.
ApiResult<void> ReadTransfer(Fields& fields, ApiCall& call) {
  if (const Json* const asked = fields.Find("kv_transfer"); asked != nullptr) {
    if (!asked->is_object()) return fields.Bad("kv_transfer", "must be an object");
    Fields inner(*asked, "kv_transfer.");
    QUIRE_ASSIGN(call.publishes, inner.Flag("publish", false));
    QUIRE_TRY(inner.NothingElse());
  }
  const Json* const params = fields.Find("kv_transfer_params");
  if (params == nullptr || params->is_null()) return {};
  if (!params->is_object()) return fields.Bad("kv_transfer_params", "must be an object");
  const auto decode = params->find("do_remote_decode");
  if (decode != params->end() && !decode->is_boolean() && !decode->is_null()) {
    return fields.Bad("kv_transfer_params",
                      "has a 'do_remote_decode' that is neither true nor false");
  }
  call.publishes = call.publishes || (decode != params->end() && *decode == true);
  const auto prefill = params->find("do_remote_prefill");
  call.handed_over = prefill != params->end() && *prefill == true;
  return {};
}

ApiResult<void> CheckSession(const Fields& fields, const ApiCall& call) {
  if (call.session.empty()) return {};
  if (call.prompts.size() != 1 || call.choices != 1) {
    return fields.Bad("session", "takes one prompt and gives one answer");
  }
  if (call.sampling != SaidSampling{}) {
    return fields.Bad("session", "has its own sampling: give it where the session is made");
  }
  if (call.echo) return fields.Bad("echo", "is not supported in a session");
  return {};
}

}  // namespace

ApiResult<ApiCall> ParseCall(Endpoint endpoint, std::string_view body, uint32_t choices_max) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  ApiCall call{.endpoint = endpoint};
  QUIRE_ASSIGN(auto model, fields.Text("model"));
  call.model = std::move(model).value_or("");
  QUIRE_TRY(ReadText(fields, choices_max, call));
  QUIRE_TRY(ReadTransfer(fields, call));
  QUIRE_TRY(ReadCounts(fields, choices_max, call));
  QUIRE_ASSIGN(call.sampling, ReadSampling(fields));
  QUIRE_TRY(ReadRules(fields, call));
  QUIRE_ASSIGN(call.stop, ReadStop(fields));
  QUIRE_TRY(ReadLogprobs(fields, call));
  QUIRE_TRY(ReadStream(fields, call));
  QUIRE_ASSIGN(call.reuse, fields.Flag("reuse", true));
  QUIRE_ASSIGN(call.explain_misses, fields.Flag("explain_misses", false));
  QUIRE_TRY(ReadOnFull(fields, call));
  QUIRE_TRY(ReadKeep(fields, call));
  QUIRE_ASSIGN(const auto error_max, fields.Number("approximate_error_max", 0, 1));
  call.approximate_error_max = static_cast<float>(error_max.value_or(0));
  QUIRE_TRY(ReadPriority(fields, call));
  QUIRE_TRY(ReadHints(fields, call.hints));
  QUIRE_TRY(PassOver(fields));
  QUIRE_TRY(RefuseTheRest(fields, endpoint));
  QUIRE_TRY(CheckSession(fields, call));
  return call;
}

ApiResult<SessionCall> ParseSessionCall(std::string_view body) {
  if (body.empty()) return SessionCall{};
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  SessionCall call;
  QUIRE_ASSIGN(auto model, fields.Text("model"));
  call.model = std::move(model).value_or("");
  QUIRE_ASSIGN(call.sampling, ReadSampling(fields));
  QUIRE_TRY(fields.NothingElse());
  return call;
}

ApiResult<AdapterCall> ParseLoadAdapterCall(std::string_view body) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  QUIRE_ASSIGN(auto name, fields.Text("lora_name"));
  QUIRE_ASSIGN(auto path, fields.Text("lora_path"));
  if (!name) return fields.Bad("lora_name", "is missing");
  if (!path) return fields.Bad("lora_path", "is missing");
  QUIRE_TRY(fields.NothingElse());
  return AdapterCall{.name = *std::move(name), .path = *std::move(path)};
}

// Clients of vLLM send the number that they loaded it under, too.
ApiResult<AdapterCall> ParseUnloadAdapterCall(std::string_view body) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  QUIRE_ASSIGN(auto name, fields.Text("lora_name"));
  if (!name) return fields.Bad("lora_name", "is missing");
  QUIRE_ASSIGN(const auto number, fields.Whole("lora_int_id"));
  (void)number;
  QUIRE_TRY(fields.NothingElse());
  return AdapterCall{.name = *std::move(name)};
}

ApiResult<uint64_t> ParseResizeCall(std::string_view body) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  const Json* const bytes = fields.Find("hot_bytes");
  if (bytes == nullptr || !bytes->is_number_unsigned()) {
    return fields.Bad("hot_bytes", "must be a whole number of bytes");
  }
  QUIRE_TRY(fields.NothingElse());
  return bytes->get<uint64_t>();
}

ApiResult<LeaseCall> ParseLeaseCall(std::string_view body, bool names_owner) {
  constexpr double kWaitSecondsMax = 60;
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  LeaseCall call;
  if (names_owner) {
    QUIRE_ASSIGN(auto owner, fields.Text("owner"));
    if (!owner) return fields.Bad("owner", "is missing: the name of what holds the bytes");
    call.owner = *std::move(owner);
  }
  QUIRE_ASSIGN(const auto bytes, fields.Whole("bytes"));
  if (!bytes) return fields.Bad("bytes", "is missing");
  call.bytes = *bytes;
  QUIRE_ASSIGN(const auto wait_s, fields.Number("wait_s", 0, kWaitSecondsMax));
  call.wait_us = static_cast<uint64_t>(wait_s.value_or(0) * 1e6);
  QUIRE_TRY(fields.NothingElse());
  return call;
}

ApiResult<LimitsCall> ParseLimitsCall(std::string_view body) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  LimitsCall call;
  QUIRE_ASSIGN(auto tenant, fields.Text("tenant"));
  if (!tenant) return fields.Bad("tenant", "is missing");
  call.tenant = *std::move(tenant);
  QUIRE_ASSIGN(const auto quota, fields.Whole("quota_bytes"));
  QUIRE_ASSIGN(const auto floor, fields.Whole("floor_bytes"));
  call.quota_bytes = quota.value_or(0);
  call.floor_bytes = floor.value_or(0);
  QUIRE_TRY(fields.NothingElse());
  return call;
}

ApiResult<DemoteCall> ParseDemoteCall(std::string_view body) {
  QUIRE_ASSIGN(Json json, ParseObject(body));
  DemoteCall call;
  Fields fields(json);
  QUIRE_ASSIGN(call.request, fields.Whole("request"));
  QUIRE_ASSIGN(call.session, fields.Whole("session"));
  if (call.request || call.session) {
    if (call.request && call.session) return fields.Bad("session", "is beside 'request': say one");
    QUIRE_TRY(fields.NothingElse());
    return call;
  }
  QUIRE_ASSIGN(auto tenant, fields.Text("tenant"));
  call.tenant = std::move(tenant).value_or("");
  for (const char* const read : {"request", "session", "tenant"}) json.erase(read);
  call.prompt = json.dump();
  return call;
}

ApiResult<std::string> ParseTextCall(std::string_view body, const std::string& field) {
  QUIRE_ASSIGN(const Json json, ParseObject(body));
  Fields fields(json);
  QUIRE_ASSIGN(auto text, fields.Text(field));
  if (!text) return fields.Bad(field, "is missing");
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
