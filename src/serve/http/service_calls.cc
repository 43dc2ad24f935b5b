// Service: from the body of a completions call to requests in the engine.
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <ctime>

#include "serve/http/service.h"
#include "serve/spill.h"

namespace quire::serve::http {

namespace {

constexpr uint32_t kCompletionTokensDefault = 16;  // OpenAI's

uint64_t RandomSeed() {
  uint64_t seed = 0;
  randombytes_buf(&seed, sizeof seed);
  return seed;
}

std::unexpected<ApiError> TooLong(std::string param, std::string message) {
  return Refusal(400, "invalid_request_error", "context_length_exceeded", std::move(message),
                 std::move(param));
}

}  // namespace

ApiResult<void> Service::StartCall(const HttpRequest& request, Endpoint endpoint,
                                   Handled& handled) {
  if (draining_) return std::unexpected(ShuttingDown());
  QUIRE_ASSIGN(ApiCall call, ParseCall(endpoint, request.body, options_.choices_max));
  if (call.publishes && !options_.ranks_mode.empty()) {
    return BadRequest("kv_transfer",
                      fmt::format("not possible with --ranks {}: rank 0 does not know what the "
                                  "others have written; serve from one process for that",
                                  options_.ranks_mode));
  }
  if (call.publishes && !options_.publishes) {
    return BadRequest(
        "kv_transfer",
        "this server writes what it computes to no remote: start it with --remote, and with "
        "--remote-writes all where it has --store too");
  }
  if (call.session.empty()) {
    QUIRE_ASSIGN(const auto adapter, AdapterOf(call.model));
    call.model = ModelName(adapter.get());
    QUIRE_ASSIGN(handled.outcome, Start(std::move(call), handled.caller, SessionId::None(),
                                        /*add_special=*/true));
    return {};
  }
  const std::string name = call.session;
  const uint64_t now_us = context_.clock.NowMicros();
  QUIRE_ASSIGN(const SessionTable::Used used, sessions_.Use(handled.caller, name, now_us));
  auto started = StartTurn(std::move(call), handled.caller, used);
  if (!started) {
    sessions_.NoteTokens(name, 0, now_us);
    return std::unexpected(std::move(started).error());
  }
  handled.session = name;
  handled.outcome = *std::move(started);
  return {};
}

// A session has one model. A call of it may name that one, or none.
ApiResult<std::unique_ptr<Call>> Service::StartTurn(ApiCall call, const Caller& caller,
                                                    const SessionTable::Used& used) {
  const std::string own = used.adapter.empty() ? options_.model_name : used.adapter;
  if (!call.model.empty()) QUIRE_TRY(AdapterOf(call.model));
  if (!call.model.empty() && call.model != own) {
    return BadRequest("model", fmt::format("the session is one of '{}'", own));
  }
  QUIRE_TRY(AdapterOf(own));  // it may have been unloaded
  call.model = own;
  return Start(std::move(call), caller, used.id, /*add_special=*/used.tokens == 0);
}

ApiResult<std::shared_ptr<const ServedAdapter>> Service::AdapterOf(const std::string& model) const {
  if (model.empty() || model == options_.model_name) return nullptr;
  if (auto adapter = context_.engine.adapters().Find(model)) return *std::move(adapter);
  return Refusal(404, "invalid_request_error", "model_not_found",
                 fmt::format("there is no model '{}'; this server has '{}' and what else GET "
                             "/v1/models lists",
                             model.substr(0, 64), options_.model_name),
                 "model");
}

const std::string& Service::ModelName(const ServedAdapter* adapter) const {
  return adapter == nullptr ? options_.model_name : adapter->name;
}

ApiResult<std::unique_ptr<Call>> Service::Start(ApiCall call, const Caller& caller,
                                                SessionId session, bool add_special) {
  QUIRE_ASSIGN(const auto prompts, PromptsOf(call, add_special));
  const uint64_t now_us = context_.clock.NowMicros();
  const std::string adapter = call.model == options_.model_name ? std::string() : call.model;
  std::vector<Request> requests;
  std::vector<TokenId> stop_tokens = call.stop_tokens;
  if (!call.ignore_eos) {
    stop_tokens.insert(stop_tokens.end(), options_.stop_tokens.begin(), options_.stop_tokens.end());
  }
  model::SamplingOptions sampling = SamplingOf(call.sampling);
  for (const std::vector<TokenId>& prompt : prompts) {
    if (prompt.empty() && session.is_none()) {
      return BadRequest(call.endpoint == Endpoint::kChat ? "messages" : "prompt",
                        "the prompt has no tokens");
    }
    QUIRE_ASSIGN(const uint32_t tokens, AnswerTokens(call, caller, prompt.size()));
    for (uint32_t i = 0; i < call.choices; ++i) {
      requests.push_back(
          {.prompt = prompt,
           .max_tokens = tokens,
           .stop_tokens = stop_tokens,
           .sampling = sampling,
           .rules = call.rules,
           .reuse = call.reuse,
           .handed_over = call.handed_over,
           .approximate_error_max = call.approximate_error_max,
           .keep = call.keep,
           .tenant = caller.tenant,
           .adapter = session.is_none() ? adapter : std::string(),
           .priority = call.priority,
           .deadline_us = now_us + std::min(call.timeout_us, options_.call_timeout_us),
           .logprobs = call.logprobs,
           .prompt_logprobs = call.echo && call.logprobs,
           .digests_logits = false});
      // What keeps a part of its prompt cannot spill: the server's own choice is not for it.
      const bool is_private = call.on_full.empty() && !call.keep.keeps_all();
      if (!is_private) {
        SetOnFull(call.on_full.empty() ? options_.on_full : call.on_full, requests.back());
      }
      if (!session.is_none()) requests.back().session = session;
      ++sampling.seed;  // another answer is another draw
    }
    if (call.reuse) tree_.Add(caller.tenant, prompt, adapter);
  }
  AddHints(call, requests);
  if (call.explain_misses) AddMessageEnds(call, requests.front().prompt);
  const bool chat = call.endpoint == Endpoint::kChat;
  Call::Head head{.id = RandomName(chat ? "chatcmpl-" : "cmpl-"),
                  .model = call.model,
                  .created_s = static_cast<uint64_t>(std::time(nullptr)),
                  .version = "quire-" + options_.version};
  auto progress = live_.Enter(caller, head.id, now_us, options_.calls_per_tenant_max);
  if (progress == nullptr) {
    return TooMany(fmt::format("the tenant has {} calls under way, as many as it may",
                               options_.calls_per_tenant_max));
  }
  const uint32_t choices = call.choices;
  const bool publishes = call.publishes;
  auto started = std::make_unique<Call>(Call::Context{.engine = context_.engine,
                                                      .hub = context_.hub,
                                                      .live = live_,
                                                      .tokenizer = context_.tokenizer},
                                        std::move(call), std::move(head), std::move(progress));
  if (publishes) started->NotePublishing(RecordsNotWritten());
  for (size_t i = 0; i < requests.size(); ++i) {
    QUIRE_TRY(started->Submit(std::move(requests[i]), /*counts_prompt=*/i % choices == 0));
  }
  return started;
}

uint64_t Service::RecordsNotWritten() const {
  const std::optional<RemoteStats> remote = context_.store->stats().remote;
  return remote ? remote->writes_failed + remote->writes_skipped : 0;
}

// A record that the remote did not take is counted, of this call or another: then this call does
// not promise its own.
void Service::Publish(Call& call) {
  const auto flushed = context_.store->Flush();
  const uint64_t lost = RecordsNotWritten() - call.lost_before();
  if (!flushed) return call.SetPublished(flushed.error().message);
  call.SetPublished(lost == 0 ? std::string()
                              : fmt::format("the remote did not take {} records meanwhile", lost));
}

// One answer's request keeps for all of them.
void Service::AddHints(ApiCall& call, std::vector<Request>& requests) const {
  Request& first = requests.front();
  for (CallHint& hint : call.hints) {
    if (hint.ttl_us == 0) continue;
    uint64_t tokens = UINT64_MAX;
    if (hint.message) {
      const auto before = TokensBefore(call, *hint.message, hint.content_bytes, first.prompt);
      if (!before) {
        hint.ttl_us = 0;
        hint.why = "the chat template does not say where the part ends";
        continue;
      }
      tokens = *before;
    }
    first.retain.push_back({.tokens = tokens, .ttl_us = hint.ttl_us});
  }
}

// Each costs a prompt as long as all before it, so not of a very long chat.
void Service::AddMessageEnds(ApiCall& call, std::span<const TokenId> prompt) const {
  constexpr size_t kMessagesMost = 256;
  if (call.messages.size() > kMessagesMost) return;
  for (size_t i = 0; i < call.messages.size(); ++i) {
    const auto end = TokensBefore(call, i, std::string::npos, prompt);
    call.message_ends.push_back(end.value_or(i == 0 ? 0 : call.message_ends.back()));
  }
}

// What the prompt has in common with the text that ends with the first `content_bytes` of a
// message. None: the template refuses that.
std::optional<uint64_t> Service::TokensBefore(const ApiCall& call, size_t message,
                                              size_t content_bytes,
                                              std::span<const TokenId> prompt) const {
  ApiCall cut{.endpoint = call.endpoint, .template_variables = call.template_variables};
  for (size_t i = 0; i <= message; ++i) cut.messages.push_back(call.messages[i]);
  auto& content = cut.messages.back()["content"];
  content = content.get<std::string>().substr(0, content_bytes);
  const auto tokens = ChatPrompt(cut);
  if (!tokens) return std::nullopt;
  const auto differ = std::ranges::mismatch(prompt, *tokens);
  return static_cast<uint64_t>(differ.in1 - prompt.begin());
}

ApiResult<std::vector<std::vector<TokenId>>> Service::PromptsOf(const ApiCall& call,
                                                                bool add_special) const {
  std::vector<std::vector<TokenId>> prompts;
  if (call.endpoint == Endpoint::kChat) {
    QUIRE_ASSIGN(auto prompt, ChatPrompt(call));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  for (const Prompt& each : call.prompts) {
    if (const auto* const tokens = std::get_if<std::vector<TokenId>>(&each)) {
      prompts.push_back(*tokens);
      continue;
    }
    QUIRE_ASSIGN(auto prompt,
                 Encode(std::get<std::string>(each), "prompt",
                        {.add_special = add_special, .tokens_max = options_.tokens_max}));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Of a call that computes nothing.
ApiResult<Service::NamedPrompts> Service::PromptsOf(std::string_view body) const {
  const auto json = OrderedJson::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool is_chat = json.is_object() && json.contains("messages");
  const Endpoint endpoint = is_chat ? Endpoint::kChat : Endpoint::kCompletions;
  QUIRE_ASSIGN(const ApiCall call, ParseCall(endpoint, body, options_.choices_max));
  NamedPrompts named;
  named.approximate_error_max = call.approximate_error_max;
  QUIRE_ASSIGN(named.adapter, AdapterOf(call.model));
  QUIRE_ASSIGN(named.prompts, PromptsOf(call, /*add_special=*/true));
  return named;
}

const Identity& Service::IdentityOf(const NamedPrompts& named) const {
  return named.adapter == nullptr ? context_.engine.identity() : named.adapter->identity;
}

ApiResult<std::vector<TokenId>> Service::Encode(std::string_view text, const std::string& param,
                                                const model::EncodeOptions& options) const {
  auto tokens = context_.tokenizer.Encode(text, options);
  if (tokens) return *std::move(tokens);
  if (tokens.error().code != ErrorCode::kTooLarge) {
    return BadRequest(param, tokens.error().message);  // what it cannot take it will never take
  }
  return TooLong(param, fmt::format("the prompt has more than {} tokens, which is most that it and "
                                    "its answer may have",
                                    options.tokens_max));
}

ApiResult<std::vector<TokenId>> Service::ChatPrompt(const ApiCall& call) const {
  if (context_.chat) {
    const auto text = context_.chat->Render({.messages = call.messages,
                                             .variables = call.template_variables,
                                             .strftime_now = context_.strftime_now});
    if (!text) return BadRequest("messages", text.error().message);
    return Encode(*text, "messages", {.add_special = false, .tokens_max = options_.tokens_max});
  }
  if (!call.template_variables.empty()) {
    return BadRequest("chat_template_kwargs", "the model has no chat template to give them to");
  }
  std::string text;
  for (const OrderedJson& message : call.messages) {
    text += fmt::format("{}: {}\n", message["role"].get<std::string>(),
                        message["content"].get<std::string>());
  }
  return Encode(text + "assistant:", "messages", {.tokens_max = options_.tokens_max});
}

// A text that the cache holds whole, within the caller's quota, with what belongs to a sequence.
uint64_t Service::TokensThatFit(const Caller& caller) const {
  constexpr uint64_t kBlocksBesides = 4;
  const CacheOptions& options = context_.cache.options();
  uint64_t tokens = TokensThatMayFit(context_.cache);
  if (tokens == UINT64_MAX) return tokens;
  const auto tenant = context_.cache.tenant_stats(caller.tenant);
  if (tenant && tenant->quota_bytes != 0) {
    const double share =
        static_cast<double>(tenant->quota_bytes) / static_cast<double>(options.hot_bytes);
    tokens = static_cast<uint64_t>(static_cast<double>(tokens) * std::min(share, 1.0));
  }
  const uint64_t besides = kBlocksBesides * options.profile.block_tokens;
  return tokens - std::min(tokens, besides);
}

ApiResult<uint32_t> Service::AnswerTokens(const ApiCall& call, const Caller& caller,
                                          uint64_t prompt_tokens) const {
  const uint64_t most =
      options_.answer_tokens_max != 0 ? options_.answer_tokens_max : options_.tokens_max;
  if (call.max_tokens && *call.max_tokens > most) {
    return BadRequest("max_tokens", fmt::format("{} tokens are asked for, at most {} are given",
                                                *call.max_tokens, most));
  }
  const uint64_t asked = prompt_tokens + call.max_tokens.value_or(1);
  if (asked > options_.tokens_max) {
    return TooLong(call.endpoint == Endpoint::kChat ? "messages" : "prompt",
                   fmt::format("prompt and answer have {} tokens ({} and {}), at most {} are "
                               "possible",
                               asked, prompt_tokens, asked - prompt_tokens, options_.tokens_max));
  }
  if (call.max_tokens) return *call.max_tokens;
  // A chat that does not say goes on to the end of the context, or of what the cache can hold.
  uint64_t fallback = kCompletionTokensDefault;
  if (call.endpoint == Endpoint::kChat) {
    const uint64_t fits = TokensThatFit(caller);
    fallback = std::max<uint64_t>(fits - std::min(fits, prompt_tokens), 1);
  }
  return static_cast<uint32_t>(std::min({fallback, most, options_.tokens_max - prompt_tokens}));
}

// What a call does not say is what the model's makers say; without a word from them greedy.
model::SamplingOptions Service::SamplingOf(const SaidSampling& said) const {
  const model::GenerationConfig& makers = context_.generation;
  const bool sample = makers.do_sample;
  return {.temperature = said.temperature.value_or(sample ? makers.temperature : 0.0f),
          .seed = said.seed ? *said.seed : RandomSeed(),
          .top_k = said.top_k.value_or(sample ? makers.top_k : 0),
          .top_p = said.top_p.value_or(sample ? makers.top_p : 1.0f),
          .min_p = said.min_p.value_or(0.0f)};
}

}  // namespace quire::serve::http
