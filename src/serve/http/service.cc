#include "serve/http/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "base/bits.h"
#include "base/log.h"
#include "serve/http/metrics.h"

namespace quire::serve::http {

namespace {

constexpr size_t kBlockMapCells = 4096;
constexpr uint64_t kEntriesMax = 65'536;  // that one answer looks at

ApiResult<void> Require(const HttpRequest& request, std::string_view method) {
  if (request.method == method) return {};
  return std::unexpected(
      ApiError{.status = 405,
               .type = "invalid_request_error",
               .code = "method_not_allowed",
               .message = fmt::format("{} takes {} only", request.path, method)});
}

Reply JsonReply(const OrderedJson& json) { return {.body = Dump(json)}; }

OrderedJson EngineJson(const EngineStats& stats) {
  return {{"waiting", stats.waiting},
          {"running", stats.running},
          {"chunk_tokens", stats.chunk_tokens},
          {"steps", stats.steps},
          {"step_us", stats.step_us},
          {"prompt_tokens", stats.prompt_tokens},
          {"decode_tokens", stats.decode_tokens},
          {"recomputed_tokens", stats.recomputed_tokens},
          {"prefix_waits", stats.prefix_waits},
          {"preemptions", stats.preemptions},
          {"sessions_released", stats.sessions_released},
          {"session_write_failures", stats.session_write_failures}};
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

Reply ErrorReply(const ApiError& error) {
  Reply reply{.status = error.status, .body = Dump(ErrorJson(error))};
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

Service::Service(const ServiceContext& context, const ServiceOptions& options)
    : context_(context),
      options_(options),
      started_s_(static_cast<uint64_t>(std::time(nullptr))),
      sessions_(context.engine, options.sessions),
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
  for (const std::string& name : keys.domains) {
    QUIRE_ASSIGN(const TenantId id, context_.cache.AddTenant({.name = name, .shared = true}));
    domains.emplace(name, id);
    tenants_.push_back({.id = id, .name = name, .domain = TenantId::None()});
  }
  for (const Tenant& tenant : keys.tenants) {
    QUIRE_ASSIGN(const TenantId id, context_.cache.AddTenant(tenant.cache));
    const std::string& domain = tenant.cache.domain;
    const TenantId domain_id = domain.empty() ? TenantId::None() : domains.at(domain);
    context_.engine.SetTenant({.tenant = id, .weight = tenant.weight, .domain = domain_id});
    tenants_.push_back({.id = id, .name = tenant.cache.name, .domain = domain_id});
    for (const std::string& key : tenant.keys) {
      keys_.Add(key, {.tenant = id, .name = tenant.cache.name, .sees_all = tenant.is_operator});
    }
  }
  return {};
}

ApiResult<Caller> Service::CallerOf(const HttpRequest& request) const {
  const auto refused = [](uint32_t status, std::string code, std::string message) {
    return std::unexpected(ApiError{.status = status,
                                    .type = "authentication_error",
                                    .code = std::move(code),
                                    .message = std::move(message)});
  };
  if (request.by_operator_listener) {
    if (!IsLoopbackHost(request.host)) {
      return refused(403, "forbidden_host", "the operator's listener answers to loopback names");
    }
    return Caller{.name = tenants_.front().name, .sees_all = true};
  }
  if (keys_.empty()) {
    if (options_.loopback_names_only && !IsLoopbackHost(request.host)) {
      return refused(403, "forbidden_host",
                     "without API keys the server answers to loopback names only");
    }
    return Caller{.sees_all = true};
  }
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view header = request.authorization;
  if (!header.starts_with(kBearer)) {
    return refused(401, "missing_api_key", "an API key is needed: Authorization: Bearer KEY");
  }
  if (auto caller = keys_.Find(header.substr(kBearer.size()))) return *std::move(caller);
  return refused(401, "invalid_api_key", "this API key is not known here");
}

Handled Service::Handle(const HttpRequest& request) {
  Handled handled;
  if (auto routed = Route(request, handled); !routed) {
    handled.outcome = ErrorReply(routed.error());
  }
  return handled;
}

ApiResult<void> Service::Route(const HttpRequest& request, Handled& handled) {
  const auto open = [&](std::string route, Reply reply) -> ApiResult<void> {
    handled.route = std::move(route);
    QUIRE_TRY(Require(request, "GET"));
    handled.outcome = std::move(reply);
    return {};
  };
  if (request.path == "/healthz") {
    return open(request.path, {.content_type = "text/plain", .body = "ok\n"});
  }
  if (request.path == "/readyz") {
    return draining_ ? open(request.path,
                            {.status = 503, .content_type = "text/plain", .body = "draining\n"})
                     : open(request.path, {.content_type = "text/plain", .body = "ready\n"});
  }
  if (request.path == "/") {
    // It shows nothing by itself: what it asks for needs a key like any other call.
    return open(request.path, {.content_type = "text/html; charset=utf-8",
                               .body = std::string(Page()),
                               .headers = {{"Content-Security-Policy",
                                            "default-src 'none'; style-src 'unsafe-inline'; "
                                            "script-src 'unsafe-inline'; connect-src 'self'; "
                                            "img-src data:; base-uri 'none'; form-action 'none'; "
                                            "frame-ancestors 'none'"}}});
  }
  QUIRE_ASSIGN(handled.caller, CallerOf(request));
  if (request.method == "POST" && !request.body.empty() &&
      !request.content_type.starts_with("application/json")) {
    return std::unexpected(ApiError{.status = 415,
                                    .type = "invalid_request_error",
                                    .code = "unsupported_media_type",
                                    .message = "the body must be Content-Type: application/json"});
  }
  if (request.path == "/v1/completions" || request.path == "/v1/chat/completions") {
    handled.route = request.path;
    QUIRE_TRY(Require(request, "POST"));
    return StartCall(request,
                     request.path == "/v1/completions" ? Endpoint::kCompletions : Endpoint::kChat,
                     handled);
  }
  QUIRE_ASSIGN(handled.outcome, Answer(request, handled.caller, handled.route));
  return {};
}

ApiResult<Reply> Service::Answer(const HttpRequest& request, const Caller& caller,
                                 std::string& route) {
  const std::string& path = request.path;
  if (path == "/v1/sessions" || path.starts_with("/v1/sessions/")) {
    route = "/v1/sessions";
    return AnswerSessions(request, caller);
  }
  if (path == "/v1/tokenize") {
    route = path;
    QUIRE_TRY(Require(request, "POST"));
    return Tokenize(request);
  }
  const bool one_model = path.starts_with("/v1/models/");
  if (path == "/v1/models" || one_model) {
    route = "/v1/models";
    QUIRE_TRY(Require(request, "GET"));
    if (!one_model) return Models();
    const std::string name = path.substr(std::string_view("/v1/models/").size());
    if (name != options_.model_name) return NotFound("there is no such model");
    return JsonReply(OrderedJson::parse(Models().body)["data"][0]);
  }
  if (path == "/v1/cache") {
    route = path;
    QUIRE_TRY(Require(request, "GET"));
    return CacheJson(caller);
  }
  if (path == "/metrics") {
    route = path;
    QUIRE_TRY(Require(request, "GET"));
    return MetricsText(caller);
  }
  return NotFound(fmt::format("there is nothing at {}", path.substr(0, 128)));
}

Reply Service::Models() const {
  return JsonReply({{"object", "list"},
                    {"data", OrderedJson::array({{{"id", options_.model_name},
                                                  {"object", "model"},
                                                  {"created", started_s_},
                                                  {"owned_by", "quire"},
                                                  {"max_model_len", options_.tokens_max}}})}});
}

ApiResult<Reply> Service::AnswerSessions(const HttpRequest& request, const Caller& caller) {
  const uint64_t now_us = context_.clock.NowMicros();
  constexpr std::string_view kPrefix = "/v1/sessions";
  std::string_view rest = std::string_view(request.path).substr(kPrefix.size());
  if (rest.empty()) {
    if (request.method == "GET") return JsonReply(sessions_.List(caller, now_us));
    QUIRE_TRY(Require(request, "POST"));
    QUIRE_ASSIGN(const SessionCall call, ParseSessionCall(request.body));
    QUIRE_ASSIGN(
        const OrderedJson json,
        sessions_.Open(caller, SamplingOf(call.temperature, call.top_p, call.top_k, call.seed),
                       now_us));
    return JsonReply(json);
  }
  rest.remove_prefix(1);
  constexpr std::string_view kFork = "/fork";
  if (rest.ends_with(kFork)) {
    QUIRE_TRY(Require(request, "POST"));
    rest.remove_suffix(kFork.size());
    QUIRE_ASSIGN(const OrderedJson json, sessions_.Fork(caller, std::string(rest), now_us));
    return JsonReply(json);
  }
  const std::string name(rest);
  if (request.method == "DELETE") {
    QUIRE_TRY(sessions_.End(caller, name));
    return JsonReply({{"id", name}, {"object", "session.deleted"}, {"deleted", true}});
  }
  QUIRE_TRY(Require(request, "GET"));
  QUIRE_ASSIGN(const OrderedJson json, sessions_.Get(caller, name, now_us));
  return JsonReply(json);
}

ApiResult<Reply> Service::Tokenize(const HttpRequest& request) const {
  QUIRE_ASSIGN(const std::string text, ParseTokenizeCall(request.body));
  QUIRE_ASSIGN(const auto tokens, Encode(text, /*add_special=*/true));
  OrderedJson texts = OrderedJson::array();
  for (const TokenId token : tokens) {
    texts.push_back(context_.tokenizer.Decode({&token, 1}, {.skip_special = false}));
  }
  return JsonReply({{"count", tokens.size()}, {"tokens", tokens}, {"texts", std::move(texts)}});
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
  if (caller.sees_all) {
    const auto [used, limit] = context_.budget_used_of();
    const BlockMapCells map = ShrinkBlockMap(context_.cache.BlockMap(), kBlockMapCells);
    json["budget"] = {{"used_bytes", used}, {"limit_bytes", limit}};
    json["cache"] = OrderedJson::parse(ToJson(context_.cache.stats()));
    if (context_.store != nullptr)
      json["store"] = OrderedJson::parse(ToJson(context_.store->stats()));
    json["engine"] = EngineJson(context_.engine_stats());
    json["block_map"] = {
        {"slots", map.slots}, {"slots_per_cell", map.slots_per_cell}, {"cells", map.cells}};
  }
  json["tenants"] = OrderedJson::array();
  for (const TenantStats& stats : TenantsSeenBy(caller)) {
    json["tenants"].push_back(OrderedJson::parse(ToJson(stats)));
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
    std::tie(snapshot.budget_used_bytes, snapshot.budget_bytes) = context_.budget_used_of();
    snapshot.connections = connections_;
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
