// What the server does with one request, without sockets: the caller, what is asked, what is
// answered.
#ifndef QUIRE_SERVE_HTTP_SERVICE_H_
#define QUIRE_SERVE_HTTP_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "serve/budget_leases.h"
#include "serve/engine.h"
#include "serve/http/call.h"
#include "serve/http/caller.h"
#include "serve/http/http_request.h"
#include "serve/http/metrics.h"
#include "serve/http/prompt_tree.h"
#include "serve/http/routes.h"
#include "serve/http/session_table.h"
#include "text/chat_template.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"

namespace quire::serve::http {

struct ServiceOptions {
  std::string model_name{};
  std::string adapter_directory{};  // below which /v1/load_lora_adapter reads; empty: it does not
  std::string version{};
  std::vector<TokenId> stop_tokens{};      // any of them ends an answer
  uint64_t tokens_max = 0;                 // prompt and answer together
  uint32_t answer_tokens_max = 0;          // of one answer; 0: tokens_max
  uint32_t choices_max = kChoicesDefault;  // prompts of a call times answers to each
  uint64_t call_timeout_us = 600'000'000;
  std::string on_full = "reject";  // of calls that do not say (SetOnFull)
  uint64_t calls_per_tenant_max = 256;
  SessionLimits sessions{};
  // What is computed goes to a remote, so calls may hand it over to other machines.
  bool publishes = false;
  // Without keys: a caller that names it by other than a loopback name is refused, so that pages
  // of other sites cannot (DNS rebinding).
  bool loopback_names_only = true;
  // The engine's cache is one of several processes that compute together: calls that would change
  // this one alone are refused.
  std::string ranks_mode{};  // how they share the work, for reports; empty: there is one process
  uint32_t ranks_count = 1;
};

struct ServiceContext {
  Engine& engine;
  Cache& cache;
  EventHub& hub;
  const model::Tokenizer& tokenizer;
  const std::optional<model::ChatTemplate>& chat;  // none: plain `role: content` lines
  const model::GenerationConfig& generation;       // the defaults of sampling
  const Clock& clock;
  std::function<EngineStats()> engine_stats;
  std::function<std::vector<SequenceEntry>()> engine_sequences;   // waits for the engine
  std::function<std::pair<uint64_t, uint64_t>()> budget_used_of;  // bytes
  std::function<std::string(const std::string&)> strftime_now;    // for templates
  DiskStore* store = nullptr;                                     // of the cache; null: none
  SessionStore* sessions = nullptr;                               // of the engine; null: none
  EventPublisher* events = nullptr;                               // of the cache; null: none
};

struct Reply {
  uint32_t status = 200;
  std::string content_type = "application/json";
  std::string body{};
  std::vector<std::pair<std::string, std::string>> headers{};
};
Reply JsonReply(const OrderedJson& json);
Reply ErrorReply(const ApiError& error);
/// The same, after LogDetail.
Reply ErrorReply(ApiError error, const HttpRequest& request);

/// What became of a request.
struct Handled {
  Caller caller{.tenant = kDefaultTenant, .name = ""};  // no name: it is unknown
  std::string route = "other";                          // one of a few fixed names
  std::string session{};                                // that the call goes on with
  bool is_known = false;                                // the caller may
  // None: the header was in order, and now the body is wanted.
  // A lease lasts as long as the connection.
  std::variant<std::monostate, Reply, std::unique_ptr<Call>, std::unique_ptr<HeldLease>> outcome{};
};

/// Threads:  any
/// Lifetime: what the parts name must outlive it, and it its calls
class Service {
 public:
  /// Enters the tenants of a keys file into cache and engine. Without one, every caller is the
  /// default tenant and sees all.
  ///
  /// Errors: those of Cache::AddTenant
  static Result<std::unique_ptr<Service>> Create(const ServiceContext& context,
                                                 const ServiceOptions& options,
                                                 const std::optional<KeysFile>& keys);

  /// The caller, and what is refused or answered by the header alone. Looks nothing up.
  Handled Begin(const HttpRequest& head);
  /// Answers what Begin left open.
  void Finish(const HttpRequest& request, Handled& handled);
  Handled Handle(const HttpRequest& request);
  /// To be called when a call has ended, before it is destroyed.
  /// Of a call that has ended and publishes: waits until its blocks are durable in the remote, and
  /// tells the call whether they are.
  void Publish(Call& call);
  void NoteEnd(const Handled& handled, const CallReport& report);
  void NoteReply(const Handled& handled, uint32_t status, double seconds);
  TransportCounters& transport() { return transport_; }

  /// From now on new calls are refused and /readyz says no.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }
  /// From time to time: ends sessions that idle, and settles leases that ended.
  void Tidy() {
    sessions_.EndIdle(context_.clock.NowMicros());
    leases_.Settle();
  }

 private:
  Service(const ServiceContext& context, const ServiceOptions& options);

  Result<void> AddTenants(const KeysFile& keys);
  ApiResult<Caller> CallerOf(const HttpRequest& request) const;
  ApiResult<void> Admit(const HttpRequest& head, const Route& route, Handled& handled);
  // Of calls that change this rank alone.
  ApiResult<void> CheckWithRanks(const HttpRequest& request, const Route& route) const;
  ApiResult<void> Answer(const HttpRequest& request, const Route& route, Handled& handled);
  Reply OpenReply(Way way) const;
  ApiResult<Reply> Sessions(const HttpRequest& request, const Caller& caller);
  ApiResult<Reply> OneSession(const HttpRequest& request, const Route& route, const Caller& caller);
  ApiResult<Reply> Tokenize(const HttpRequest& request) const;
  ApiResult<Reply> Detokenize(const HttpRequest& request) const;
  ApiResult<Reply> Prefetch(const HttpRequest& request, const Caller& caller) const;
  ApiResult<Reply> OneModel(std::string_view name) const;
  OrderedJson ModelJson(const ServedAdapter* adapter) const;
  OrderedJson ModelsJson() const;
  Reply CacheJson(const Caller& caller) const;
  Reply MetricsText(const Caller& caller) const;
  std::vector<TenantStats> TenantsSeenBy(const Caller& caller) const;
  std::string NameOf(TenantId tenant) const;
  OrderedJson IndexJsonFor(const Caller& caller) const;
  OrderedJson TreeJson(const Caller& caller) const;
  OrderedJson CallsJson(const Caller& caller) const;

  // service_operator.cc
  ApiResult<void> CheckOperator(const Caller& caller) const;
  ApiResult<Reply> Operate(const HttpRequest& request, Way way, const Caller& caller);
  ApiResult<Reply> Resize(const HttpRequest& request);
  ApiResult<void> Leases(const HttpRequest& request, Handled& handled);
  ApiResult<Reply> OneLease(const HttpRequest& request);
  template <typename Ask>
  auto AskCache(Ask ask) -> decltype(ask());
  ApiResult<Reply> Erase(const HttpRequest& request);
  ApiResult<Reply> SetLimits(const HttpRequest& request);
  ApiResult<Reply> Demote(const HttpRequest& request);
  ApiResult<Reply> DemoteHolder(const DemoteCall& call);

  ApiResult<Reply> LoadAdapter(const HttpRequest& request);
  ApiResult<Reply> UnloadAdapter(const HttpRequest& request);
  ApiResult<std::string> AdapterPath(const std::string& said) const;
  uint64_t RecordsNotWritten() const;

  // service_calls.cc
  // What a call names as its model; null: the base model.
  ApiResult<std::shared_ptr<const ServedAdapter>> AdapterOf(const std::string& model) const;
  const std::string& ModelName(const ServedAdapter* adapter) const;
  ApiResult<void> StartCall(const HttpRequest& request, Endpoint endpoint, Handled& handled);
  ApiResult<std::unique_ptr<Call>> StartTurn(ApiCall call, const Caller& caller,
                                             const SessionTable::Used& used);
  ApiResult<std::unique_ptr<Call>> Start(ApiCall call, const Caller& caller, SessionId session,
                                         bool add_special);
  void AddHints(ApiCall& call, std::vector<Request>& requests) const;
  void AddMessageEnds(ApiCall& call, std::span<const TokenId> prompt) const;
  std::optional<uint64_t> TokensBefore(const ApiCall& call, size_t message, size_t content_bytes,
                                       std::span<const TokenId> prompt) const;
  ApiResult<std::vector<std::vector<TokenId>>> PromptsOf(const ApiCall& call,
                                                         bool add_special) const;
  struct NamedPrompts {
    std::vector<std::vector<TokenId>> prompts;
    std::shared_ptr<const ServedAdapter> adapter;  // null: the base model
    float approximate_error_max = 0;
  };
  ApiResult<NamedPrompts> PromptsOf(std::string_view body) const;
  const Identity& IdentityOf(const NamedPrompts& named) const;
  ApiResult<std::vector<TokenId>> Encode(std::string_view text, const std::string& param,
                                         const model::EncodeOptions& options) const;
  ApiResult<std::vector<TokenId>> ChatPrompt(const ApiCall& call) const;
  ApiResult<uint32_t> AnswerTokens(const ApiCall& call, const Caller& caller,
                                   uint64_t prompt_tokens) const;
  uint64_t TokensThatFit(const Caller& caller) const;
  model::SamplingOptions SamplingOf(const SaidSampling& said) const;

  const ServiceContext context_;
  const ServiceOptions options_;
  const uint64_t started_s_;  // Unix time
  KeyTable keys_;
  struct KnownTenant {
    TenantId id;
    std::string name;
    TenantId domain;  // none: private
  };
  std::vector<KnownTenant> tenants_;  // domains too
  SessionTable sessions_;
  LiveCalls live_;
  BudgetLeases leases_;
  PromptTree tree_;
  Metrics metrics_;
  TransportCounters transport_;
  std::atomic<bool> draining_ = false;
};

/// "localhost", "127.0.0.1:8080", "[::1]" and the like.
bool IsLoopbackHost(std::string_view host);

/// What Cache::BlockMap shows, in at most `cells_max` characters: each stands for as many slots and
/// shows what most of those in use are.
struct BlockMapCells {
  uint64_t slots = 0;
  uint64_t slots_per_cell = 1;
  std::string cells{};
};
BlockMapCells ShrinkBlockMap(std::string_view map, uint64_t cells_max);

/// The page for people, one HTML file.
std::string_view Page();

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_SERVICE_H_
