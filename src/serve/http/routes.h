// The paths of the server: which there are, which methods each takes, which need no key.
#ifndef QUIRE_SERVE_HTTP_ROUTES_H_
#define QUIRE_SERVE_HTTP_ROUTES_H_

#include <cstdint>
#include <string_view>

namespace quire::serve::http {

enum class Way : uint8_t {
  kNone,
  kHealth,
  kReady,
  kPage,
  kModels,
  kModel,
  kCache,
  kPrefetch,
  kResize,
  kErase,
  kDemote,
  kLimits,
  kSequences,
  kLoadAdapter,
  kUnloadAdapter,
  kLeases,
  kLease,
  kMetrics,
  kTokenize,
  kDetokenize,
  kSessions,
  kSession,
  kFork,
  kCompletions,
  kChat,
};

struct Route {
  Way way = Way::kNone;
  std::string_view name = "other";  // in metrics
  std::string_view methods{};       // as the field Allow lists them
  bool is_open = false;             // needs no key
  std::string_view rest{};          // what of the path names one model, session or lease
};

/// Lifetime: its `rest` is a part of `path`
Route RouteOf(std::string_view path);

/// The server can do this method here: HEAD where it can GET.
bool Takes(const Route& route, std::string_view method);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_ROUTES_H_
