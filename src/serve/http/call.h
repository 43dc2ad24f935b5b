// One call of the completions API: its requests in the engine, what is told of their events, how
// far they are, and the answer as it comes.
#ifndef QUIRE_SERVE_HTTP_CALL_H_
#define QUIRE_SERVE_HTTP_CALL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "serve/engine.h"
#include "serve/http/answer.h"
#include "serve/http/caller.h"
#include "serve/request.h"

namespace quire::serve::http {

// From the thread that turns the engine to the one that waits for one request's events.

/// Notify is to be the engine's on_event. A listener is called on the engine's thread, with the
/// hub's lock held, so that it is never called again once Unlisten has returned: it hands over to
/// its own thread and returns.
///
/// Threads:  any
/// Lifetime: must outlive the engine
class EventHub {
 public:
  using Listener = std::function<void()>;

  /// Events of before are not told of: look once after this call.
  void Listen(RequestId id, Listener listener) {
    MutexLock lock(mutex_);
    listeners_[id] = std::move(listener);
  }
  void Unlisten(RequestId id) {
    MutexLock lock(mutex_);
    listeners_.erase(id);
  }
  void Notify(RequestId id) {
    MutexLock lock(mutex_);
    if (const auto found = listeners_.find(id); found != listeners_.end()) found->second();
  }

 private:
  Mutex mutex_{LockRank::kLeaf};
  std::map<RequestId, Listener> listeners_ QUIRE_GUARDED_BY(mutex_);
};

// Calls under way: how far each one is, for the page and the operator.

/// Of all answers of a call together.
struct CallProgress {
  Caller caller{};
  std::string id{};
  uint64_t started_us = 0;
  std::atomic<uint64_t> prompt_tokens = 0;
  std::atomic<uint64_t> prompt_done = 0;  // in the cache so far
  std::atomic<uint64_t> generated = 0;
};

/// Threads: any
class LiveCalls {
 public:
  /// Enters a call; null: the tenant has `most` under way.
  std::shared_ptr<CallProgress> Enter(Caller caller, std::string id, uint64_t now_us,
                                      uint64_t most) {
    auto call = std::make_shared<CallProgress>();
    call->caller = std::move(caller);
    call->id = std::move(id);
    call->started_us = now_us;
    MutexLock lock(mutex_);
    const auto of_tenant = std::ranges::count_if(
        calls_, [&](const auto& each) { return each->caller.tenant == call->caller.tenant; });
    if (static_cast<uint64_t>(of_tenant) >= most) return nullptr;
    calls_.push_back(call);
    return call;
  }
  void Leave(const std::shared_ptr<CallProgress>& call) {
    MutexLock lock(mutex_);
    std::erase(calls_, call);
  }
  std::vector<std::shared_ptr<const CallProgress>> All() const {
    MutexLock lock(mutex_);
    return {calls_.begin(), calls_.end()};
  }

 private:
  mutable Mutex mutex_{LockRank::kLeaf};
  std::vector<std::shared_ptr<CallProgress>> calls_ QUIRE_GUARDED_BY(mutex_);  // oldest first
};

/// What a call cost and how it used the cache, for the log and the counters. Tokens of a prompt are
/// counted once for each answer to it, as the engine does.
struct CallReport {
  uint64_t prompt_tokens = 0;
  uint64_t reused_tokens = 0;
  uint64_t loaded_tokens = 0;  // of these, from the store
  uint64_t computed_tokens = 0;
  uint64_t recomputed_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;
  std::map<MissReason, uint64_t> missed_tokens{};
  double ttft_ms = 0;  // of the answer that began last
  double ms_per_token = 0;
  std::string finish{};  // of the first answer; or why the call failed
};

/// Threads:  one at a time, but for the listener, which is called on the engine's thread
/// Lifetime: engine, hub and tokenizer must outlive it; the engine must be turned until it ends
class Call {
 public:
  struct Context {
    Engine& engine;
    EventHub& hub;
    LiveCalls& live;
    const model::Tokenizer& tokenizer;
  };
  struct Head {
    std::string id;       // "cmpl-..."
    std::string model;    // as the server names it
    uint64_t created_s;   // Unix time
    std::string version;  // system_fingerprint
  };

  Call(const Context& context, ApiCall call, Head head, std::shared_ptr<CallProgress> progress);
  /// Cancels what has not ended, and waits until the engine has said so.
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Another answer: submits its request. `counts_prompt`: its prompt is not one that an answer
  /// before it has already.
  ///
  /// Errors: those of Engine::Submit
  ApiResult<void> Submit(Request request, bool counts_prompt);

  /// What the log and the client know the HTTP request by.
  void SetRequestName(std::string name) { request_name_ = std::move(name); }

  /// `wake` is called whenever Pump may find something, from any thread until Unlisten.
  void Listen(const std::function<void()>& wake);
  void Unlisten();

  /// Takes what the engine has said.
  void Pump();
  /// Nothing more is wanted, which becomes its error unless it ends by itself before. The end still
  /// has to come: Pump until ended().
  void Cancel(ApiError why);
  bool ended() const;
  /// Why there is no answer; none as long as there may be one.
  const std::optional<ApiError>& error() const { return error_; }

  bool streams() const { return call_.stream; }
  bool publishes() const { return call_.publishes; }
  /// So many records were not written when it began.
  void NotePublishing(uint64_t lost) { lost_before_ = lost; }
  uint64_t lost_before() const { return lost_before_; }
  /// Its blocks are durable in the remote; or why they may not be. Before the end of the answer.
  void SetPublished(std::string why_not) { why_not_published_ = std::move(why_not); }
  const std::string& id() const { return head_.id; }
  /// Server-sent events of what is new; after the end, with the usage and [DONE]. After an error,
  /// the error.
  std::string TakeStream();
  /// The whole answer, once it has ended without an error.
  std::string Body();
  /// Once it has ended.
  CallReport Report() const;

 private:
  struct Asked {
    RequestId id;
    Answer answer;
    bool counts_prompt;
    bool cancelled = false;
    uint64_t prompt_done = 0;
  };

  void Take(Asked& asked, Event event);
  void CancelOne(Asked& asked);
  OrderedJson HeadJson(bool is_piece) const;
  OrderedJson FirstDifference() const;
  OrderedJson UsageJson() const;
  OrderedJson TransferJson() const;
  OrderedJson PieceJson(size_t index, Asked& asked, const Answer::Piece& piece);

  const Context context_;
  const ApiCall call_;
  const Head head_;
  const std::shared_ptr<CallProgress> progress_;
  std::string request_name_{};
  std::vector<Asked> asked_;
  std::optional<ApiError> error_;
  std::optional<ApiError> cancelled_;
  bool streamed_end_ = false;
  uint64_t lost_before_ = 0;
  std::optional<std::string> why_not_published_{};  // empty: it is
  std::vector<bool> role_said_;                     // of each answer of a chat's stream
};

/// Why a call ends that did not fail, when the server stops.
ApiError ShuttingDown();

/// "data: {...}\n\n"
std::string ServerSentEvent(const OrderedJson& json);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_CALL_H_
