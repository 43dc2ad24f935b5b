// What an engine says of itself, as JSON: for people, monitors and programs that are not C++.
#ifndef QUIRE_SERVE_REPORTS_H_
#define QUIRE_SERVE_REPORTS_H_

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "serve/budget_leases.h"
#include "serve/engine_options.h"
#include "serve/sequence_list.h"

namespace quire::serve {

/// The counters by their names. `now_us` by the engine's clock: what was measured long ago is null.
nlohmann::ordered_json JsonOf(const EngineStats& stats, uint64_t now_us);

/// [{"request": number or null, "session": number or null, "session_name": or null, "tenant",
/// "stage", "priority", "age_ms", "text_tokens", "generated_tokens", "held_tokens",
/// "blocks_shared", "blocks_own", "bytes", "tokens_streamed", "tokens_approximate",
/// "approximate_error"}]; priority as in quire_turn_options.
nlohmann::ordered_json JsonOf(std::span<const SequenceEntry> sequences,
                              const std::function<std::string(TenantId)>& name_of);

/// {"object": "cache.lease", "id", "owner", "bytes"}
nlohmann::ordered_json JsonOf(const BudgetLease& lease);
nlohmann::ordered_json JsonOf(std::span<const BudgetLease> leases);

}  // namespace quire::serve

#endif  // QUIRE_SERVE_REPORTS_H_
