// Runs requests on one model and one cache: admission, chunked prefill, batched decode.
#ifndef QUIRE_SERVE_ENGINE_H_
#define QUIRE_SERVE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "env/clock.h"
#include "model/model.h"
#include "model/sampling.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "serve/keep.h"

namespace quire::serve {

/// Why a request stopped.
enum class Finish : uint8_t {
  kLength = 1,     // max_tokens generated
  kStop = 2,       // a stop token
  kNoSpace = 3,    // on_full is kHalt and the cache is full; what was generated stands
  kCancelled = 4,  // on_progress or on_token said stop
  kFailed = 5,     // see Response::error
};
std::string_view FinishName(Finish finish);

struct Request {
  std::vector<TokenId> prompt{};
  uint32_t max_tokens = 16;
  std::vector<TokenId> stop_tokens{};
  model::SamplingOptions sampling{};
  OnFull on_full = OnFull::kReject;
  bool reuse = true;
  KeepOptions keep{};  // with a share below 1 it neither shares nor publishes anything

  /// A new token; false cancels. May be empty.
  std::function<bool(TokenId)> on_token{};
  /// Prompt tokens in the cache so far, of how many; false cancels. May be empty.
  std::function<bool(uint64_t done, uint64_t total)> on_progress{};
  /// Logits after the token at `position`, for every position computed here; [vocab]. May be empty:
  /// then only the logits that are sampled from are computed.
  std::function<void(uint64_t position, std::span<const float> logits)> on_logits{};
};

struct Response {
  Finish finish = Finish::kFailed;
  Error error{};                  // kFailed only; kCorrupt: the model gives logits not finite
  std::vector<TokenId> tokens{};  // generated, a stop token included
  uint64_t prompt_tokens = 0;
  uint64_t reused_tokens = 0;    // found in the cache
  uint64_t computed_tokens = 0;  // prompt tokens computed; prompt_tokens unless cancelled or reused
  uint64_t dropped_tokens = 0;   // of the prompt, by `keep`
  MissReason miss_reason = MissReason::kNeverSeen;
  SequenceStats sequence{};                 // as it ended
  uint64_t kv_bytes = 0;                    // blocks it held at the end, shared ones included
  double ttft_ms = 0;                       // to its first token, from the call of Run
  double ms_per_token = 0;                  // between later tokens
  std::array<uint8_t, 16> logits_digest{};  // BLAKE2b-128 of the logits of every generated token
};

struct EngineOptions {
  uint32_t chunk_tokens = 512;  // most prompt tokens per step, over all requests; at least 1
};

/// Threads:  one Run at a time; work is spread over the executor
/// Lifetime: everything given to Create must outlive it
class Engine {
 public:
  struct Parts {
    model::Model& model;
    Cache& cache;
    AttentionBackend& attention;
    Executor& executor;
    const Clock& clock;
  };

  /// Errors: kInvalidArgument names the option
  static Result<std::unique_ptr<Engine>> Create(const Parts& parts, const Identity& identity,
                                                const EngineOptions& options);

  /// Runs the requests together until all have finished; answers in the order of the requests. One
  /// request's failure does not touch the others: where a step fails, it is taken again with fewer
  /// requests, down to one, and only those fail that cannot be computed alone. Later requests start
  /// when earlier ones have their prompt in the cache, so that equal prefixes are found. What finds
  /// no room waits for those that run, is tried again when one of them has given something back,
  /// and is counted by the cache once, when it starts.
  std::vector<Response> Run(std::span<const Request> requests);

 private:
  class Task;

  Engine(const Parts& parts, const Identity& identity, const EngineOptions& options);
  Result<void> Check(const Request& request) const;
  /// False: it must wait for room.
  bool Admit(Task& task, bool others_running);
  void Step(std::span<Task* const> tasks);
  void Compute(std::span<Task* const> tasks);
  Result<void> Forward(std::span<Task* const> tasks, std::vector<Task*>& left);
  Result<void> StepModel(std::span<const model::StepItem> items);

  const Parts parts_;
  const Identity identity_;
  const EngineOptions options_;
  std::vector<float> logits_;  // scratch of one step
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ENGINE_H_
