// The bodies of /v1/completions and /v1/chat/completions, checked field by field.
#ifndef QUIRE_SERVE_HTTP_API_REQUEST_H_
#define QUIRE_SERVE_HTTP_API_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/logit_rules.h"
#include "quire/identity.h"
#include "serve/http/api_error.h"
#include "serve/http/api_hints.h"
#include "serve/keep.h"

namespace quire::serve::http {

enum class Endpoint : uint8_t { kCompletions = 1, kChat = 2 };

/// Text, or the tokens themselves.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

/// How tokens are to be drawn, as far as it was said.
struct SaidSampling {
  std::optional<float> temperature{};
  std::optional<float> top_p{};
  std::optional<uint32_t> top_k{};
  std::optional<float> min_p{};
  std::optional<uint64_t> seed{};

  bool operator==(const SaidSampling&) const = default;
};

/// One call as its body says. What is absent was not said.
struct ApiCall {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model{};                                     // empty: not named
  std::vector<Prompt> prompts{};                           // of kCompletions; at least one
  OrderedJson messages = OrderedJson::array();             // of kChat, not empty: see ReadMessages
  OrderedJson template_variables = OrderedJson::object();  // of kChat, for its template
  std::string session{};                                   // of kCompletions: goes on with it
  uint32_t choices = 1;                                    // answers to each prompt
  std::optional<uint32_t> max_tokens{};
  SaidSampling sampling{};
  model::LogitRules rules{};
  std::vector<std::string> stop{};
  std::vector<TokenId> stop_tokens{};  // besides the model's
  bool ignore_eos = false;             // the model's stop tokens end nothing
  std::optional<uint32_t> logprobs{};  // how many likeliest tokens besides the chosen one
  bool stream = false;
  bool include_usage = false;        // as the last piece of a stream
  bool reuse = true;                 // false: computes all of the prompt
  std::string on_full{};             // a name for SetOnFull; empty: the server's default
  KeepOptions keep{};                // what of the prompt it goes on with
  float approximate_error_max = 0;   // Request::approximate_error_max
  uint8_t priority = 50;             // Request::priority: the other way round than the field
  uint64_t timeout_us = UINT64_MAX;  // the server's own timeout holds too
  bool echo = false;                 // of kCompletions: the answer begins with the prompt
  std::vector<CallHint> hints{};
  bool publishes = false;                // answers when another machine can go on with its blocks
  bool handed_over = false;              // goes on with what another machine has published for it
  bool explain_misses = false;           // says where the prompt differs from what is cached
  std::vector<uint64_t> message_ends{};  // then, of kChat: tokens up to the end of each message
};

inline constexpr uint32_t kChoicesDefault = 128;  // prompts times choices
// More is refused, whatever the server allows.
inline constexpr double kTimeoutSecondsMax = 1e6;
inline constexpr uint32_t kStopsMax = 16;
inline constexpr uint32_t kStopBytesMax = 1024;
inline constexpr uint32_t kLogprobsMax = 20;
inline constexpr uint32_t kLogitBiasesMax = 1024;

/// Reads a body that may ask for `choices_max` answers. Fields that would change the answer and
/// that this server cannot honour are refused, unknown fields too; those that only
/// describe the caller are passed over.
///
/// Errors:  400 names the field
/// Threads: any
ApiResult<ApiCall> ParseCall(Endpoint endpoint, std::string_view body,
                             uint32_t choices_max = kChoicesDefault);

/// What a new session is made with.
struct SessionCall {
  std::string model{};
  SaidSampling sampling{};
};
/// Errors: as ParseCall; an empty body is the defaults
ApiResult<SessionCall> ParseSessionCall(std::string_view body);

/// An adapter to load, or with its name alone to unload, in the words of vLLM.
struct AdapterCall {
  std::string name{};  // "lora_name"
  std::string path{};  // "lora_path"
};
/// Errors: as ParseCall
ApiResult<AdapterCall> ParseLoadAdapterCall(std::string_view body);
ApiResult<AdapterCall> ParseUnloadAdapterCall(std::string_view body);

/// The bytes of {"hot_bytes": ...}. Errors: as ParseCall
ApiResult<uint64_t> ParseResizeCall(std::string_view body);

/// Bytes of the budget for something outside the engine.
struct LeaseCall {
  std::string owner{};  // of a new lease
  uint64_t bytes = 0;
  uint64_t wait_us = 0;  // how long requests that run are asked to give way
};
/// `names_owner`: a new lease.
ApiResult<LeaseCall> ParseLeaseCall(std::string_view body, bool names_owner);

/// A tenant's part of the budget; 0: no quota, no floor.
struct LimitsCall {
  std::string tenant{};
  uint64_t quota_bytes = 0;
  uint64_t floor_bytes = 0;
};
/// Errors: as ParseCall
ApiResult<LimitsCall> ParseLimitsCall(std::string_view body);

/// What is to leave memory: one of the engine's requests or sessions, or else a prompt.
struct DemoteCall {
  std::optional<uint64_t> request{};
  std::optional<uint64_t> session{};
  std::string tenant{};  // of the prompt; empty: the caller's
  std::string prompt{};  // the other fields, as a body of ParseCall
};
/// Errors: as ParseCall
ApiResult<DemoteCall> ParseDemoteCall(std::string_view body);

/// The text of {FIELD: ...}, for example {"text": ...}. Errors: as ParseCall
ApiResult<std::string> ParseTextCall(std::string_view body, const std::string& field);
/// The tokens of {"tokens": [...]}. Errors: as ParseCall
ApiResult<std::vector<TokenId>> ParseDetokenizeCall(std::string_view body);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_API_REQUEST_H_
