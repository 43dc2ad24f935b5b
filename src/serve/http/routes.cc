#include "serve/http/routes.h"

#include <array>

namespace quire::serve::http {

namespace {

constexpr std::string_view kRead = "GET, HEAD";
constexpr std::string_view kCall = "POST";

constexpr std::array<Route, 21> kRoutes = {{
    {.way = Way::kHealth, .name = "/healthz", .methods = kRead, .is_open = true},
    {.way = Way::kHealth, .name = "/health", .methods = kRead, .is_open = true},
    {.way = Way::kReady, .name = "/readyz", .methods = kRead, .is_open = true},
    {.way = Way::kPage, .name = "/", .methods = kRead, .is_open = true},
    {.way = Way::kModels, .name = "/v1/models", .methods = kRead},
    {.way = Way::kCache, .name = "/v1/cache", .methods = kRead},
    {.way = Way::kPrefetch, .name = "/v1/cache/prefetch", .methods = kCall},
    {.way = Way::kResize, .name = "/v1/cache/resize", .methods = kCall},
    {.way = Way::kErase, .name = "/v1/cache/erase", .methods = kCall},
    {.way = Way::kDemote, .name = "/v1/cache/demote", .methods = kCall},
    {.way = Way::kLimits, .name = "/v1/cache/limits", .methods = kCall},
    {.way = Way::kSequences, .name = "/v1/cache/sequences", .methods = kRead},
    {.way = Way::kLeases, .name = "/v1/cache/leases", .methods = "GET, HEAD, POST"},
    {.way = Way::kLoadAdapter, .name = "/v1/load_lora_adapter", .methods = kCall},
    {.way = Way::kUnloadAdapter, .name = "/v1/unload_lora_adapter", .methods = kCall},
    {.way = Way::kMetrics, .name = "/metrics", .methods = kRead},
    {.way = Way::kTokenize, .name = "/v1/tokenize", .methods = kCall},
    {.way = Way::kDetokenize, .name = "/v1/detokenize", .methods = kCall},
    {.way = Way::kSessions, .name = "/v1/sessions", .methods = "GET, HEAD, POST"},
    {.way = Way::kCompletions, .name = "/v1/completions", .methods = kCall},
    {.way = Way::kChat, .name = "/v1/chat/completions", .methods = kCall},
}};

constexpr std::string_view kFork = "/fork";

/// What follows `name` and a '/', if `path` goes on so.
bool GoesOn(std::string_view path, std::string_view name, std::string_view& rest) {
  if (!path.starts_with(name) || path.size() <= name.size() || path[name.size()] != '/') {
    return false;
  }
  rest = path.substr(name.size() + 1);
  return true;
}

}  // namespace

Route RouteOf(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (route.name == path) return route;
  }
  std::string_view rest;
  if (GoesOn(path, "/v1/models", rest)) {
    return {.way = Way::kModel, .name = "/v1/models", .methods = kRead, .rest = rest};
  }
  if (GoesOn(path, "/v1/cache/leases", rest)) {
    return {
        .way = Way::kLease, .name = "/v1/cache/leases", .methods = "POST, DELETE", .rest = rest};
  }
  if (!GoesOn(path, "/v1/sessions", rest)) return {};
  if (rest.ends_with(kFork)) {
    rest.remove_suffix(kFork.size());
    return {.way = Way::kFork, .name = "/v1/sessions", .methods = kCall, .rest = rest};
  }
  return {
      .way = Way::kSession, .name = "/v1/sessions", .methods = "GET, HEAD, DELETE", .rest = rest};
}

bool Takes(const Route& route, std::string_view method) {
  std::string_view left = route.methods;
  while (!left.empty()) {
    const size_t end = left.find(", ");
    if (left.substr(0, end) == method) return true;
    left = end == std::string_view::npos ? std::string_view() : left.substr(end + 2);
  }
  return false;
}

}  // namespace quire::serve::http
