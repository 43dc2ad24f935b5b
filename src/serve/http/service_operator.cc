// What only the operator may ask: another budget, leases of it, a tenant's erasure, which call
// holds what, that some of it leaves memory, and which adapters there are.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <future>
#include <new>
#include <system_error>
#include <utility>

#include "serve/driver.h"
#include "serve/http/api_error.h"
#include "serve/http/api_request.h"
#include "serve/http/service.h"
#include "serve/reports.h"

namespace quire::serve::http {

namespace {

// The operator may hear all of it.
ApiError FromCacheError(const Error& error) {
  ApiError shown = FromError(error);
  const bool may_work_later = error.code == ErrorCode::kBusy || error.code == ErrorCode::kNoSpace;
  if (may_work_later) shown = {.status = 409, .type = "conflict_error", .code = "busy"};
  if (error.code == ErrorCode::kTooLarge) shown.code = "too_large";
  shown.message = error.message;
  return shown;
}

// What is wrong with an adapter, or with where it is said to be.
ApiError FromAdapterError(const Error& error) {
  const bool is_full = error.code == ErrorCode::kNoSpace || error.code == ErrorCode::kTooLarge;
  ApiError shown{.status = 400, .type = "invalid_request_error", .message = error.message};
  if (error.code == ErrorCode::kNotFound) shown.status = 404;
  if (error.code == ErrorCode::kBusy || is_full) shown.status = 409;
  shown.code = ErrorCodeName(error.code);
  return shown;
}

bool IsBelow(const std::filesystem::path& path, const std::filesystem::path& directory) {
  const auto differ = std::ranges::mismatch(directory, path);
  return differ.in1 == directory.end();
}

}  // namespace

ApiResult<void> Service::CheckOperator(const Caller& caller) const {
  if (caller.is_operator) return {};
  return Refusal(403, "permission_error", "operator_only",
                 "this is for the operator: ask at --operator-listen, or with a key of a tenant "
                 "that has `operator = true` in the keys file");
}

ApiResult<Reply> Service::Operate(const HttpRequest& request, Way way, const Caller& caller) {
  QUIRE_TRY(CheckOperator(caller));
  switch (way) {
    case Way::kResize: return Resize(request);
    case Way::kDemote: return Demote(request);
    case Way::kLimits: return SetLimits(request);
    case Way::kLease: return OneLease(request);
    case Way::kSequences:
      return JsonReply({{"object", "list"},
                        {"data", JsonOf(context_.engine_sequences(),
                                        [this](TenantId tenant) { return NameOf(tenant); })}});
    case Way::kLoadAdapter: return LoadAdapter(request);
    case Way::kUnloadAdapter: return UnloadAdapter(request);
    default: return Erase(request);
  }
}

ApiResult<Reply> Service::Resize(const HttpRequest& request) {
  QUIRE_ASSIGN(const uint64_t hot_bytes, ParseResizeCall(request.body));
  if (const auto resized = leases_.Resize(hot_bytes); !resized) {
    return std::unexpected(FromCacheError(resized.error()));
  }
  const auto [used, limit] = context_.budget_used_of();
  return JsonReply({{"object", "cache.budget"}, {"used_bytes", used}, {"limit_bytes", limit}});
}

// A new one lasts as long as the connection it was asked for on.
ApiResult<void> Service::Leases(const HttpRequest& request, Handled& handled) {
  QUIRE_TRY(CheckOperator(handled.caller));
  if (request.method != "POST") {
    handled.outcome = JsonReply({{"object", "list"}, {"data", JsonOf(leases_.All())}});
    return {};
  }
  QUIRE_ASSIGN(const LeaseCall call, ParseLeaseCall(request.body, /*names_owner=*/true));
  const auto taken = leases_.Take(call.owner, call.bytes, call.wait_us);
  if (!taken) return std::unexpected(FromCacheError(taken.error()));
  handled.outcome = std::make_unique<HeldLease>(leases_, *taken);
  return {};
}

ApiResult<Reply> Service::OneLease(const HttpRequest& request) {
  const std::string_view named = RouteOf(request.path).rest;
  uint64_t id = 0;
  const auto [end, code] = std::from_chars(named.data(), named.data() + named.size(), id);
  const bool is_number = code == std::errc() && end == named.data() + named.size();
  const auto changed = [&]() -> ApiResult<Result<void>> {
    if (!is_number) return Result<void>(Fail(ErrorCode::kNotFound, "there is no such lease"));
    if (request.method == "DELETE") return leases_.End(id);
    QUIRE_ASSIGN(const LeaseCall call, ParseLeaseCall(request.body, /*names_owner=*/false));
    return leases_.Change(id, call.bytes, call.wait_us);
  }();
  if (!changed) return std::unexpected(changed.error());
  if (!*changed) {
    const Error& error = changed->error();
    if (error.code == ErrorCode::kNotFound) return NotFound(error.message);
    return std::unexpected(FromCacheError(error));
  }
  for (const BudgetLease& lease : leases_.All()) {
    if (lease.id == id) return JsonReply(JsonOf(lease));
  }
  return JsonReply({{"object", "cache.lease"}, {"id", id}, {"ended", true}});
}

// A cache of ranks is the engine's thread's alone.
template <typename Ask>
auto Service::AskCache(Ask ask) -> decltype(ask()) {
  if (options_.ranks_mode.empty()) return ask();
  std::promise<decltype(ask())> promise;
  auto answer = promise.get_future();
  context_.engine.CallBetweenSteps([&ask, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(ask());
    } catch (const std::bad_alloc&) {
      promise.set_exception(std::current_exception());  // this call's, not the engine's
    }
  });
  return answer.get();
}

ApiResult<Reply> Service::SetLimits(const HttpRequest& request) {
  QUIRE_ASSIGN(const LimitsCall call, ParseLimitsCall(request.body));
  const auto tenant = context_.cache.FindTenant(call.tenant);
  if (!tenant) return NotFound(fmt::format("there is no tenant {}", Echo(call.tenant)));
  const auto set = AskCache(
      [&] { return context_.cache.SetLimits(*tenant, call.quota_bytes, call.floor_bytes); });
  if (!set) {
    return std::unexpected(FromCacheError(set.error()));
  }
  return JsonReply({{"object", "cache.limits"},
                    {"tenant", call.tenant},
                    {"quota_bytes", call.quota_bytes},
                    {"floor_bytes", call.floor_bytes}});
}

ApiResult<Reply> Service::Demote(const HttpRequest& request) {
  QUIRE_ASSIGN(const DemoteCall call, ParseDemoteCall(request.body));
  if (call.request || call.session) return DemoteHolder(call);
  TenantId tenant = kDefaultTenant;
  if (!call.tenant.empty()) {
    const auto named = context_.cache.FindTenant(call.tenant);
    if (!named) return NotFound(fmt::format("there is no tenant {}", Echo(call.tenant)));
    tenant = *named;
  }
  QUIRE_ASSIGN(const NamedPrompts named, PromptsOf(call.prompt));
  uint64_t blocks = 0;
  for (const std::vector<TokenId>& prompt : named.prompts) {
    const auto demoted =
        context_.cache.Demote({.tenant = tenant, .identity = &IdentityOf(named), .tokens = prompt});
    if (!demoted) return std::unexpected(FromCacheError(demoted.error()));
    blocks += *demoted;
  }
  return JsonReply({{"object", "cache.demoted"}, {"blocks", blocks}});
}

ApiResult<Reply> Service::DemoteHolder(const DemoteCall& call) {
  auto settling = MakeSettling();
  if (call.request) {
    context_.engine.Demote(RequestId(*call.request), std::move(settling.settled));
  } else {
    context_.engine.Demote(SessionId(*call.session), std::move(settling.settled));
  }
  if (const auto demoted = settling.outcome.get(); !demoted) {
    if (demoted.error().code == ErrorCode::kNotFound) return NotFound(demoted.error().message);
    return std::unexpected(FromCacheError(demoted.error()));
  }
  return JsonReply(
      {{"object", "cache.demoted"},
       {call.request ? "request" : "session", call.request ? *call.request : *call.session}});
}

// Its sessions are texts of it, so they go too, and first: a turn of one would publish its text
// again. Where one of the two fails the other is done.
ApiResult<Reply> Service::Erase(const HttpRequest& request) {
  QUIRE_ASSIGN(const std::string name, ParseTextCall(request.body, "tenant"));
  const auto tenant = context_.cache.FindTenant(name);
  if (!tenant) return NotFound(fmt::format("there is no tenant {}", Echo(name)));
  const auto sessions = sessions_.EndAllOf(*tenant);
  const auto erased = AskCache([&] { return context_.cache.Erase(*tenant); });
  if (!erased) return std::unexpected(FromCacheError(erased.error()));
  if (!sessions) return std::unexpected(sessions.error());
  return JsonReply({{"object", "cache.erased"},
                    {"tenant", name},
                    {"blocks", erased->blocks},
                    {"slots_zeroed", erased->slots_zeroed},
                    {"slots_pending", erased->slots_pending},
                    {"sessions", *sessions}});
}

// A path from a call reads nothing outside of the operator's directory, through links neither.
ApiResult<std::string> Service::AdapterPath(const std::string& said) const {
  if (options_.adapter_directory.empty()) {
    return Refusal(403, "permission_error", "no_adapter_directory",
                   "adapters are loaded from below the directory of --adapter-directory, and the "
                   "server has none");
  }
  std::error_code failed;
  const auto directory = std::filesystem::canonical(options_.adapter_directory, failed);
  if (failed) return NotFound("the directory of --adapter-directory is not there");
  for (const char* const file : {"", "adapter_config.json", "adapter_model.safetensors"}) {
    const auto path = std::filesystem::canonical(directory / said / file, failed);
    if (failed || !IsBelow(path, directory)) {
      return Refusal(404, "invalid_request_error", "not_found",
                     fmt::format("there is no adapter at {} below --adapter-directory", Echo(said)),
                     "lora_path");
    }
  }
  return std::filesystem::canonical(directory / said, failed).string();
}

ApiResult<Reply> Service::LoadAdapter(const HttpRequest& request) {
  QUIRE_ASSIGN(const AdapterCall call, ParseLoadAdapterCall(request.body));
  if (call.name == options_.model_name) {
    return BadRequest("lora_name", "it is the base model's name");
  }
  QUIRE_ASSIGN(const std::string path, AdapterPath(call.path));
  const auto loaded = context_.engine.adapters().Load(call.name, path);
  if (!loaded) return std::unexpected(FromAdapterError(loaded.error()));
  OrderedJson json = ModelJson(loaded->get());
  json["rank"] = (*loaded)->adapter->rank();
  json["modules"] = (*loaded)->adapter->modules();
  json["bytes"] = (*loaded)->adapter->bytes();
  return JsonReply(json);
}

ApiResult<Reply> Service::UnloadAdapter(const HttpRequest& request) {
  QUIRE_ASSIGN(const AdapterCall call, ParseUnloadAdapterCall(request.body));
  if (const auto unloaded = context_.engine.adapters().Unload(call.name); !unloaded) {
    return std::unexpected(FromAdapterError(unloaded.error()));
  }
  return JsonReply({{"id", call.name}, {"object", "model.deleted"}, {"deleted", true}});
}

}  // namespace quire::serve::http
