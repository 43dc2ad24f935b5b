// What a caller asks of the engine, and what it hears.
#ifndef QUIRE_SERVE_REQUEST_H_
#define QUIRE_SERVE_REQUEST_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/logit_rules.h"
#include "model/sampling.h"
#include "quire/cache.h"
#include "serve/keep.h"

namespace quire::serve {

/// One request of one engine: never used again.
using RequestId = Id<struct RequestTag, uint64_t>;
/// One session of one engine: never used again.
using SessionId = Id<struct SessionTag, uint64_t>;

/// Why a request stopped.
enum class Finish : uint8_t {
  kLength = 1,     // max_tokens generated
  kStop = 2,       // a stop token
  kNoSpace = 3,    // on_full is kHalt or kFewer and there is no room; what was generated stands
  kCancelled = 4,  // Cancel was called
  kFailed = 5,     // see Response::error
};
std::string_view FinishName(Finish finish);

/// A caller expects to ask for this again: it is kept a while, within the tenant's share.
struct RetainHint {
  uint64_t tokens = UINT64_MAX;  // of the text, from its start; UINT64_MAX: with the answer
  uint64_t ttl_us = 0;           // from the answer's end on
};

/// What became of a hint.
enum class Retained : uint8_t {
  kAccepted = 1,
  kClipped = 2,  // less of it, or for less long
  kIgnored = 3,
};
std::string_view RetainedName(Retained what);

struct RetainOutcome {
  Retained what = Retained::kIgnored;
  uint64_t tokens = 0;  // that are kept: whole blocks
  uint64_t ttl_us = 0;
  std::string why{};  // of what is not accepted
};

struct Request {
  std::vector<TokenId> prompt{};
  uint32_t max_tokens = 16;
  std::vector<TokenId> stop_tokens{};
  model::SamplingOptions sampling{};
  model::LogitRules rules{};  // in a session all text before the answer counts as the prompt
  // With kNoEvict it fails at once where there is no free room, and takes none from others.
  OnFull on_full = OnFull::kReject;
  // With kReject: where it would be preempted, wait for room or be refused for want of it, it
  // streams from the store (EngineOptions::resident_tokens), until there is room for it again.
  bool spills = false;
  bool reuse = true;
  // All whole blocks of its prompt were published for it elsewhere: only their end is to be
  // computed.
  bool handed_over = false;
  float approximate_error_max = 0.0f;  // as AcquireRequest
  KeepOptions keep{};  // with a share below 1 it neither shares nor publishes anything
  TenantId tenant = kDefaultTenant;
  // Of Engine::adapters; empty: the base model. In a session empty: it has its own.
  std::string adapter{};
  // Among requests of one tenant, higher ones start first and may preempt lower ones. Between
  // tenants it means nothing.
  uint8_t priority = 50;
  uint64_t deadline_us = 0;  // by the engine's clock; past it the request fails; 0: none
  // The session it continues: `prompt` is what is fed to it (may be empty), `sampling` and `tenant`
  // are the session's. With max_tokens 0 the tokens are read and nothing is generated. What was fed
  // and said stays in the session, however the request ends.
  SessionId session{};
  bool all_logits = false;  // Logits events for every position that is computed
  // NewToken events say how likely the token was, and these many likeliest ones; none: neither.
  std::optional<uint32_t> logprobs{};
  // PromptTokens events say the same of the prompt, with as many likeliest ones as `logprobs` has.
  // All of the prompt is computed then, whatever the cache has of it. Not in a session.
  bool prompt_logprobs = false;
  // Whether the response has `logits_digest`: with a large vocabulary most of what the host does
  // for a token.
  bool digests_logits = true;
  std::vector<RetainHint> retain{};

  /// Others may use what it computes.
  bool publishes() const { return keep.keeps_all(); }
  bool reuses() const { return reuse && keep.keeps_all() && !prompt_logprobs; }
};

/// Says by a name what becomes of a request where memory has no room: "reject", "halt" or "spill"
/// (on_full and spills). False: it is none of these, and the request stays as it was.
bool SetOnFull(std::string_view name, Request& request);

struct Response {
  Finish finish = Finish::kFailed;
  Error error{};                  // kFailed only; kCorrupt: the model gives logits not finite
  std::vector<TokenId> tokens{};  // generated, a stop token included
  uint64_t prompt_tokens = 0;     // of a session: all its text before this answer
  // Found in the cache when it started first, or held by the session; and what came of the prompt
  // after that without being computed for it.
  uint64_t reused_tokens = 0;
  uint64_t loaded_tokens = 0;    // of these, read from the store
  uint64_t computed_tokens = 0;  // prompt tokens computed; prompt_tokens unless cancelled or reused
  uint64_t recomputed_tokens = 0;  // of all tokens, after it was preempted
  uint32_t preemptions = 0;
  uint64_t dropped_tokens = 0;                      // of the prompt, by `keep`
  std::vector<RetainOutcome> retained{};            // of Request::retain, in order; none: it failed
  MissReason miss_reason = MissReason::kNeverSeen;  // of the first token that was not found
  std::optional<uint64_t> differs_at{};             // Plan::differs_at when it was looked at first
  std::vector<MissRun> missing{};  // all prompt tokens not found when it started first, in order
  SequenceStats sequence{};        // as it ended
  uint64_t kv_bytes = 0;           // blocks it held at the end, shared ones included
  double ttft_ms = 0;              // to its first token, from the call of Submit
  double ms_per_token = 0;         // between later tokens
  // BLAKE2b-128 of the logits of every generated token; zeros: not asked for.
  std::array<uint8_t, 16> logits_digest{};
};

/// Prompt tokens in the cache so far, of how many.
struct Progress {
  uint64_t done = 0;
  uint64_t total = 0;
};

/// A token and the natural logarithm of its probability by the model, before any temperature.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

/// A generated token.
struct NewToken {
  TokenId token = 0;
  // Where Request::logprobs asks for them.
  float logprob = 0;
  std::vector<TokenLogprob> likeliest{};  // most likely first; of equal ones the smallest id
};

/// Tokens of the prompt, in order; each once, but for the first one, before which nothing is.
struct PromptTokens {
  std::vector<NewToken> tokens{};
};

/// Logits after the tokens at first_position and the following ones; each position once.
struct Logits {
  uint64_t first_position = 0;
  std::vector<float> rows{};  // [positions, vocab]
};

/// What a request says, in order; the Response is the last.
using Event = std::variant<Progress, NewToken, PromptTokens, Logits, Response>;

}  // namespace quire::serve

#endif  // QUIRE_SERVE_REQUEST_H_
