#include "serve/http/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "base/bits.h"
#include "base/log.h"
#include "cache/stats_json.h"
#include "serve/http/metrics.h"
#include "serve/reports.h"

namespace quire::serve::http {

namespace {

constexpr size_t kBlockMapCells = 4096;
constexpr uint64_t kEntriesMax = 65'536;  // that one answer looks at
constexpr std::string_view kJsonType = "application/json";

// Whatever its parameters, such as a charset.
bool IsJson(std::string_view content_type) {
  return EqualsIgnoringCase(content_type.substr(0, content_type.find_first_of("; \t")), kJsonType);
}

}  // namespace

bool IsLoopbackHost(std::string_view host) {
  // The port, but not the end of an IPv6 address without brackets, which no client sends.
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    host = host.substr(0, colon);
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

BlockMapCells ShrinkBlockMap(std::string_view map, uint64_t cells_max) {
  // Lines of: number of the first slot, marks, and where equal rows were folded "x" and how many.
  struct Row {
    std::string_view marks;
    uint64_t count = 1;
  };
  std::vector<Row> rows;
  BlockMapCells shrunk;
  while (!map.empty()) {
    const std::string_view line = map.substr(0, map.find('\n'));
    map.remove_prefix(std::min(map.size(), line.size() + 1));
    const size_t begin = line.find_first_of(".psSw");
    if (begin == std::string_view::npos) continue;
    Row row{.marks = line.substr(begin, line.find(' ', begin) - begin)};
    if (const size_t times = line.rfind('x'); times != std::string_view::npos && times > begin) {
      std::from_chars(line.data() + times + 1, line.data() + line.size(), row.count);
    }
    shrunk.slots += row.marks.size() * row.count;
    rows.push_back(row);
  }
  shrunk.slots_per_cell = std::max<uint64_t>(1, DivUp(shrunk.slots, cells_max));
  static constexpr std::string_view kKinds = "Sspw";
  std::array<uint64_t, kKinds.size()> counts{};
  uint64_t in_cell = 0;
  const auto end_cell = [&] {
    const auto most = std::ranges::max_element(counts);
    shrunk.cells += *most == 0 ? '.' : kKinds[static_cast<size_t>(most - counts.begin())];
    counts.fill(0);
    in_cell = 0;
  };
  for (const Row& row : rows) {
    for (uint64_t i = 0; i < row.count; ++i) {
      for (const char mark : row.marks) {
        if (const size_t kind = kKinds.find(mark); kind != std::string_view::npos) ++counts[kind];
        if (++in_cell == shrunk.slots_per_cell) end_cell();
      }
    }
  }
  if (in_cell > 0) end_cell();
  return shrunk;
}

Reply JsonReply(const OrderedJson& json) { return {.body = Dump(json)}; }

Reply ErrorReply(const ApiError& error) {
  Reply reply{.status = error.status, .body = Dump(ErrorJson(error))};
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

Reply ErrorReply(ApiError error, const HttpRequest& request) {
  LogDetail(error, request.request_id);
  return ErrorReply(error);
}

Service::Service(const ServiceContext& context, const ServiceOptions& options)
    : context_(context),
      options_(options),
      started_s_(static_cast<uint64_t>(std::time(nullptr))),
      sessions_(context.engine, options.sessions),
      leases_(context.engine, context.cache, context.clock),
      tree_(context.cache.options().profile.block_tokens) {}

Result<std::unique_ptr<Service>> Service::Create(const ServiceContext& context,
                                                 const ServiceOptions& options,
                                                 const std::optional<KeysFile>& keys) {
  std::unique_ptr<Service> service(new Service(context, options));
  // Where there are keys, only the operator's listener asks without one.
  service->tenants_.push_back({.id = kDefaultTenant,
                               .name = keys ? std::string(kOperatorName) : Caller{}.name,
                               .domain = TenantId::None()});
  if (keys) QUIRE_TRY(service->AddTenants(*keys));
  if (context.sessions != nullptr) {
    service->sessions_.Restore(*context.sessions, context.cache, context.clock.NowMicros());
  }
  if (!context.chat) {
    LogWarn("{}: no chat template; chats are put to the model as plain 'role: content' lines",
            options.model_name);
  }
  return service;
}

Result<void> Service::AddTenants(const KeysFile& keys) {
  std::map<std::string, TenantId> domains;
  const uint64_t share_bytes = FairShareBytes(keys, context_.cache.options().hot_bytes);
  for (const std::string& name : keys.domains) {
    QUIRE_ASSIGN(
        const TenantId id,
        context_.cache.AddTenant({.name = name, .floor_bytes = share_bytes, .shared = true}));
    domains.emplace(name, id);
    tenants_.push_back({.id = id, .name = name, .domain = TenantId::None()});
  }
  for (const Tenant& tenant : keys.tenants) {
    TenantOptions options = tenant.cache;
    if (tenant.has_fair_share()) {
      options.floor_bytes =
          options.quota_bytes == 0 ? share_bytes : std::min(share_bytes, options.quota_bytes);
    }
    QUIRE_ASSIGN(const TenantId id, context_.cache.AddTenant(options));
    const std::string& domain = tenant.cache.domain;
    const TenantId domain_id = domain.empty() ? TenantId::None() : domains.at(domain);
    context_.engine.SetTenant({.tenant = id, .weight = tenant.weight, .domain = domain_id});
    tenants_.push_back({.id = id, .name = tenant.cache.name, .domain = domain_id});
    for (const std::string& key : tenant.keys) {
      keys_.Add(key, {.tenant = id,
                      .name = tenant.cache.name,
                      .sees_all = tenant.is_operator,
                      .is_operator = tenant.is_operator});
    }
  }
  return {};
}

ApiResult<Caller> Service::CallerOf(const HttpRequest& request) const {
  const auto refused = [](uint32_t status, std::string code, std::string message) {
    return Refusal(status, "authentication_error", std::move(code), std::move(message));
  };
  if (request.by_operator_listener) {
    if (!IsLoopbackHost(request.host)) {
      return refused(403, "forbidden_host", "the operator's listener answers to loopback names");
    }
    return Caller{.name = tenants_.front().name, .sees_all = true, .is_operator = true};
  }
  if (keys_.empty()) {
    if (options_.loopback_names_only && !IsLoopbackHost(request.host)) {
      return refused(403, "forbidden_host",
                     "without API keys the server answers to loopback names only");
    }
    return Caller{.sees_all = true};
  }
  const std::string_view key = BearerOf(request.authorization);
  if (key.empty()) {
    return refused(401, "missing_api_key", "an API key is needed: Authorization: Bearer KEY");
  }
  if (auto caller = keys_.Find(key)) return *std::move(caller);
  return refused(401, "invalid_api_key", "this API key is not known here");
}

Handled Service::Handle(const HttpRequest& request) {
  Handled handled = Begin(request);
  if (std::holds_alternative<std::monostate>(handled.outcome)) Finish(request, handled);
  return handled;
}

Handled Service::Begin(const HttpRequest& head) {
  Handled handled;
  const Route route = RouteOf(head.path);
  if (route.is_open) handled.route = route.name;
  if (auto admitted = Admit(head, route, handled); !admitted) {
    Reply reply = ErrorReply(admitted.error());
    if (reply.status == 405) reply.headers.emplace_back("Allow", route.methods);
    handled.outcome = std::move(reply);
  } else if (route.is_open) {
    handled.outcome = OpenReply(route.way);
  }
  return handled;
}

ApiResult<void> Service::Admit(const HttpRequest& head, const Route& route, Handled& handled) {
  const auto refused = [](uint32_t status, std::string code, std::string message) {
    return Refusal(status, "invalid_request_error", std::move(code), std::move(message));
  };
  if (!route.is_open) {
    QUIRE_ASSIGN(handled.caller, CallerOf(head));
    handled.is_known = true;
    handled.route = route.name;
  }
  if (route.way == Way::kNone) {
    return NotFound(fmt::format("there is nothing at {}", Echo(head.path, 128)));
  }
  if (!Takes(route, head.method)) {
    return refused(405, "method_not_allowed",
                   fmt::format("{} takes {} only", route.name, route.methods));
  }
  if (route.is_open || head.method == "GET" || head.method == "HEAD") return {};
  // With a key the page would have to know it.
  const bool without_key = keys_.empty() || head.by_operator_listener;
  if (without_key && IsFromAnotherSite(head)) {
    return refused(403, "forbidden_origin",
                   "a page of another site asks for it, and without API keys only the server's own "
                   "page may");
  }
  if (head.method == "POST" && head.has_body && !IsJson(head.content_type)) {
    return refused(415, "unsupported_media_type",
                   "the body must be Content-Type: application/json");
  }
  if (draining_ && (route.way == Way::kCompletions || route.way == Way::kChat)) {
    return std::unexpected(ShuttingDown());
  }
  return {};
}

Reply Service::OpenReply(Way way) const {
  if (way == Way::kHealth) return {.content_type = "text/plain", .body = "ok\n"};
  if (way == Way::kReady) {
    return draining_ ? Reply{.status = 503, .content_type = "text/plain", .body = "draining\n"}
                     : Reply{.content_type = "text/plain", .body = "ready\n"};
  }
  // The page shows nothing by itself: what it asks for needs a key like any other call.
  return {.content_type = "text/html; charset=utf-8",
          .body = std::string(Page()),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; "
                       "script-src 'unsafe-inline'; connect-src 'self'; "
                       "img-src data:; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'"}}};
}

void Service::Finish(const HttpRequest& request, Handled& handled) {
  if (auto answered = Answer(request, RouteOf(request.path), handled); !answered) {
    handled.outcome = ErrorReply(std::move(answered).error(), request);
  } else if (auto* const call = std::get_if<std::unique_ptr<Call>>(&handled.outcome)) {
    (*call)->SetRequestName(request.request_id);
  }
}

ApiResult<void> Service::CheckWithRanks(const HttpRequest& request, const Route& route) const {
  const bool only_looks = request.method == "GET" || request.method == "HEAD";
  if (options_.ranks_mode.empty() || only_looks) return {};
  return Refusal(501, "invalid_request_error", "not_with_ranks",
                 fmt::format("{}: not possible with --ranks {}, the other {} would not hear of it; "
                             "serve from one process for that",
                             route.name, options_.ranks_mode, options_.ranks_count - 1));
}

ApiResult<void> Service::Answer(const HttpRequest& request, const Route& route, Handled& handled) {
  const auto reply = [&](ApiResult<Reply> answer) -> ApiResult<void> {
    QUIRE_ASSIGN(handled.outcome, std::move(answer));
    return {};
  };
  switch (route.way) {
    case Way::kCompletions: return StartCall(request, Endpoint::kCompletions, handled);
    case Way::kChat: return StartCall(request, Endpoint::kChat, handled);
    case Way::kTokenize: return reply(Tokenize(request));
    case Way::kDetokenize: return reply(Detokenize(request));
    case Way::kSessions: return reply(Sessions(request, handled.caller));
    case Way::kSession:
    case Way::kFork: return reply(OneSession(request, route, handled.caller));
    case Way::kModels: return reply(JsonReply(ModelsJson()));
    case Way::kModel: return reply(OneModel(route.rest));
    case Way::kCache: return reply(CacheJson(handled.caller));
    case Way::kPrefetch:
      QUIRE_TRY(CheckWithRanks(request, route));
      return reply(Prefetch(request, handled.caller));
    case Way::kErase:
    case Way::kLimits: return reply(Operate(request, route.way, handled.caller));
    case Way::kResize:
    case Way::kDemote:
    case Way::kLoadAdapter:
    case Way::kUnloadAdapter:
    case Way::kLease:
    case Way::kSequences:
      QUIRE_TRY(CheckWithRanks(request, route));
      return reply(Operate(request, route.way, handled.caller));
    case Way::kLeases: QUIRE_TRY(CheckWithRanks(request, route)); return Leases(request, handled);
    case Way::kMetrics: return reply(MetricsText(handled.caller));
    case Way::kNone:
    case Way::kHealth:
    case Way::kReady:
    case Way::kPage: break;  // Begin answers these
  }
  return NotFound("there is nothing here");
}

OrderedJson Service::ModelJson(const ServedAdapter* adapter) const {
  OrderedJson json = {{"id", ModelName(adapter)},
                      {"object", "model"},
                      {"created", started_s_},
                      {"owned_by", "quire"},
                      {"max_model_len", options_.tokens_max}};
  if (adapter != nullptr) json["parent"] = options_.model_name;
  return json;
}

OrderedJson Service::ModelsJson() const {
  OrderedJson models = OrderedJson::array({ModelJson(nullptr)});
  for (const auto& adapter : context_.engine.adapters().All()) {
    models.push_back(ModelJson(adapter.get()));
  }
  return {{"object", "list"}, {"data", std::move(models)}};
}

ApiResult<Reply> Service::OneModel(std::string_view name) const {
  if (name.empty()) return NotFound("there is no such model");
  QUIRE_ASSIGN(const auto adapter, AdapterOf(std::string(name)));
  return JsonReply(ModelJson(adapter.get()));
}

ApiResult<Reply> Service::Sessions(const HttpRequest& request, const Caller& caller) {
  const uint64_t now_us = context_.clock.NowMicros();
  if (request.method != "POST") return JsonReply(sessions_.List(caller, now_us));
  QUIRE_ASSIGN(const SessionCall call, ParseSessionCall(request.body));
  QUIRE_ASSIGN(const auto adapter, AdapterOf(call.model));
  QUIRE_ASSIGN(const OrderedJson json,
               sessions_.Open(caller, SamplingOf(call.sampling),
                              adapter == nullptr ? std::string() : adapter->name, now_us));
  return JsonReply(json);
}

ApiResult<Reply> Service::OneSession(const HttpRequest& request, const Route& route,
                                     const Caller& caller) {
  const uint64_t now_us = context_.clock.NowMicros();
  const std::string name(route.rest);
  if (route.way == Way::kFork) {
    QUIRE_ASSIGN(const OrderedJson json, sessions_.Fork(caller, name, now_us));
    return JsonReply(json);
  }
  if (request.method == "DELETE") {
    QUIRE_TRY(sessions_.End(caller, name));
    return JsonReply({{"id", name}, {"object", "session.deleted"}, {"deleted", true}});
  }
  QUIRE_ASSIGN(const OrderedJson json, sessions_.Get(caller, name, now_us));
  return JsonReply(json);
}

ApiResult<Reply> Service::Tokenize(const HttpRequest& request) const {
  std::vector<TokenId> tokens;
  if (const auto json = OrderedJson::parse(request.body, nullptr, /*allow_exceptions=*/false);
      json.is_object() && (json.contains("prompt") || json.contains("messages"))) {
    QUIRE_ASSIGN(NamedPrompts named, PromptsOf(request.body));
    if (named.prompts.size() != 1) return BadRequest("prompt", "must be one prompt");
    tokens = std::move(named.prompts[0]);
  } else {
    QUIRE_ASSIGN(const std::string text, ParseTextCall(request.body, "text"));
    QUIRE_ASSIGN(tokens, Encode(text, "text", {}));
  }
  OrderedJson texts = OrderedJson::array();
  for (const TokenId token : tokens) {
    texts.push_back(context_.tokenizer.Decode({&token, 1}, {.skip_special = false}));
  }
  return JsonReply({{"count", tokens.size()}, {"tokens", tokens}, {"texts", std::move(texts)}});
}

// A hint: that there is no room, or no store, is no error.
ApiResult<Reply> Service::Prefetch(const HttpRequest& request, const Caller& caller) const {
  QUIRE_ASSIGN(const NamedPrompts named, PromptsOf(request.body));
  uint64_t prompt_tokens = 0;
  uint64_t loading_tokens = 0;
  for (const std::vector<TokenId>& prompt : named.prompts) {
    prompt_tokens += prompt.size();
    const auto loading =
        context_.cache.Prefetch({.tenant = caller.tenant,
                                 .identity = &IdentityOf(named),
                                 .tokens = prompt,
                                 .approximate_error_max = named.approximate_error_max});
    if (loading) {
      loading_tokens += *loading;
    } else if (loading.error().code != ErrorCode::kNoSpace) {
      return BadRequest("prompt", loading.error().message);
    }
  }
  return JsonReply({{"object", "cache.prefetch"},
                    {"prompt_tokens", prompt_tokens},
                    {"loading_tokens", loading_tokens}});
}

ApiResult<Reply> Service::Detokenize(const HttpRequest& request) const {
  QUIRE_ASSIGN(const auto tokens, ParseDetokenizeCall(request.body));
  for (const TokenId token : tokens) {
    if (static_cast<uint32_t>(token) >= context_.tokenizer.id_end()) {
      return BadRequest("tokens", fmt::format("there is no token {}", token));
    }
  }
  return JsonReply({{"count", tokens.size()},
                    {"text", context_.tokenizer.Decode(tokens, {.skip_special = false})}});
}

std::vector<TenantStats> Service::TenantsSeenBy(const Caller& caller) const {
  TenantId domain = TenantId::None();
  for (const KnownTenant& tenant : tenants_) {
    if (tenant.id == caller.tenant) domain = tenant.domain;
  }
  std::vector<TenantStats> seen;
  for (const KnownTenant& tenant : tenants_) {
    if (!caller.sees_all && tenant.id != caller.tenant && tenant.id != domain) continue;
    auto stats = context_.cache.tenant_stats(tenant.id);
    if (!stats) continue;
    stats->name = tenant.name;
    seen.push_back(*std::move(stats));
  }
  return seen;
}

OrderedJson Service::TreeJson(const Caller& caller) const {
  OrderedJson tree =
      tree_.Json(caller.sees_all ? std::nullopt : std::optional<TenantId>(caller.tenant));
  for (OrderedJson& node : tree) {
    node["tenant"] = NameOf(TenantId(node["tenant"].get<uint32_t>()));
  }
  return tree;
}

std::string Service::NameOf(TenantId tenant) const {
  const auto known = std::ranges::find(tenants_, tenant, &KnownTenant::id);
  return known == tenants_.end() ? std::string() : known->name;
}

OrderedJson Service::IndexJsonFor(const Caller& caller) const {
  const auto entries = context_.cache.Entries(
      {.tenant = caller.sees_all ? TenantId::None() : caller.tenant, .entries_max = kEntriesMax});
  if (!entries) return nullptr;  // a tenant that is gone
  return IndexJson(*entries, {.block_tokens = context_.cache.options().profile.block_tokens,
                              .name_of = [this](TenantId tenant) { return NameOf(tenant); }});
}

OrderedJson Service::CallsJson(const Caller& caller) const {
  const uint64_t now_us = context_.clock.NowMicros();
  OrderedJson calls = OrderedJson::array();
  for (const auto& call : live_.All()) {
    if (!caller.sees_all && call->caller.tenant != caller.tenant) continue;
    calls.push_back({{"id", call->id},
                     {"tenant", call->caller.name},
                     {"age_ms", (now_us - std::min(now_us, call->started_us)) / 1000},
                     {"prompt_tokens", call->prompt_tokens.load()},
                     {"prompt_done", call->prompt_done.load()},
                     {"generated_tokens", call->generated.load()}});
  }
  return calls;
}

Reply Service::CacheJson(const Caller& caller) const {
  const CacheOptions& cache = context_.cache.options();
  OrderedJson json = {{"object", "cache"},
                      {"scope", caller.sees_all ? "all" : "tenant"},
                      {"block_tokens", cache.profile.block_tokens},
                      {"block_bytes", context_.cache.block_bytes()},
                      {"draining", draining_.load()}};
  if (!options_.ranks_mode.empty()) {
    json["ranks"] = {{"mode", options_.ranks_mode}, {"count", options_.ranks_count}, {"rank", 0}};
  }
  if (caller.sees_all) {
    const auto [used, limit] = context_.budget_used_of();
    const BlockMapCells map = ShrinkBlockMap(context_.cache.BlockMap(), kBlockMapCells);
    json["budget"] = {{"used_bytes", used}, {"limit_bytes", limit}};
    json["leases"] = JsonOf(leases_.All());
    json["cache"] = JsonOf(context_.cache.stats());
    if (context_.store != nullptr) json["store"] = JsonOf(context_.store->stats());
    json["engine"] = JsonOf(context_.engine_stats(), context_.clock.NowMicros());
    json["block_map"] = {
        {"slots", map.slots}, {"slots_per_cell", map.slots_per_cell}, {"cells", map.cells}};
    json["free_slots"] = JsonOf(context_.cache.FreeSlots());
  }
  json["tenants"] = OrderedJson::array();
  for (const TenantStats& stats : TenantsSeenBy(caller)) {
    json["tenants"].push_back(JsonOf(stats));
  }
  json["index"] = IndexJsonFor(caller);
  json["tree"] = TreeJson(caller);
  json["calls"] = CallsJson(caller);
  return JsonReply(json);
}

Reply Service::MetricsText(const Caller& caller) const {
  MetricsSnapshot snapshot{.version = options_.version,
                           .has_store = context_.store != nullptr,
                           .tenants = TenantsSeenBy(caller)};
  std::optional<std::string> only;
  if (caller.sees_all) {
    snapshot.cache = context_.cache.stats();
    if (context_.store != nullptr) snapshot.store = context_.store->stats();
    snapshot.engine = context_.engine_stats();
    if (context_.events != nullptr) snapshot.events = context_.events->stats();
    std::tie(snapshot.budget_used_bytes, snapshot.budget_bytes) = context_.budget_used_of();
    for (const BudgetLease& lease : leases_.All()) snapshot.budget_leased_bytes += lease.bytes;
    snapshot.transport = &transport_;
    snapshot.process = ReadProcessStats();
    snapshot.sessions = sessions_.count();
  } else {
    only = caller.name;
  }
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = metrics_.Text(snapshot, only)};
}

void Service::NoteEnd(const Handled& handled, const CallReport& report) {
  metrics_.CountCall(handled.caller.name, report);
  if (!handled.session.empty()) {
    // A call that ends with an error leaves its session as it was.
    const auto& call = std::get<std::unique_ptr<Call>>(handled.outcome);
    const uint64_t tokens = call->error() ? 0 : report.prompt_tokens + report.generated_tokens;
    sessions_.NoteTokens(handled.session, tokens, context_.clock.NowMicros());
  }
}

void Service::NoteReply(const Handled& handled, uint32_t status, double seconds) {
  metrics_.CountRequest(handled.caller.name, handled.route, status, seconds);
}

}  // namespace quire::serve::http
