#include "serve/http/session_table.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/hash.h"
#include "base/log.h"

namespace quire::serve::http {

namespace {

uint64_t AgeMicros(int64_t since_us, uint64_t now_us) {
  return static_cast<uint64_t>(std::max<int64_t>(static_cast<int64_t>(now_us) - since_us, 0));
}

}  // namespace

std::string RandomName(const std::string& prefix) {
  std::array<uint8_t, 16> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  return prefix + ToHex(bytes);
}

OrderedJson SessionTable::Json(const std::string& name, const Entry& entry, uint64_t now_us) {
  const auto age_s = [&](int64_t us) { return AgeMicros(us, now_us) / 1'000'000; };
  OrderedJson json = {{"id", name},
                      {"object", "session"},
                      {"tokens", entry.tokens},
                      {"age_s", age_s(entry.opened_us)},
                      {"idle_s", age_s(entry.used_us)},
                      {"busy", entry.calls_under_way > 0}};
  if (!entry.adapter.empty()) json["adapter"] = entry.adapter;
  if (!entry.unusable.empty()) json["unusable"] = entry.unusable;
  return json;
}

ApiResult<SessionTable::Entries::const_iterator> SessionTable::Find(const Caller& caller,
                                                                    const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.tenant != caller.tenant) {
    return NotFound(fmt::format("there is no session '{}'", name.substr(0, 64)));
  }
  return found;
}

bool SessionTable::IsFull(const Caller& caller) const {
  const auto own = std::ranges::count_if(
      entries_, [&](const auto& each) { return each.second.tenant == caller.tenant; });
  return static_cast<uint64_t>(own) >= limits_.per_tenant_max;
}

ApiResult<SessionTable::Entries::const_iterator> SessionTable::FindFree(
    const Caller& caller, const std::string& name) const {
  QUIRE_ASSIGN(const auto found, Find(caller, name));
  const Entry& entry = found->second;
  const auto conflict = [](std::string code, std::string message) {
    return Refusal(409, "conflict_error", std::move(code), std::move(message));
  };
  if (!entry.unusable.empty()) return conflict("session_unusable", entry.unusable);
  if (entry.calls_under_way > 0) {
    return conflict("busy", fmt::format("session '{}' has a call that has not finished", name));
  }
  return found;
}

void SessionTable::Restore(SessionStore& store, const Cache& cache, uint64_t now_us) {
  MutexLock lock(mutex_);
  store_ = &store;
  const uint64_t unix_us = store.UnixMicros();
  // Of too many, those stay behind that were not used for longest.
  std::vector<const StoredSession*> newest;
  for (const StoredSession& each : store.found()) newest.push_back(&each);
  std::ranges::stable_sort(newest, std::greater{},
                           [](const StoredSession* each) { return each->head.used_unix_us; });
  const auto at = [&](uint64_t then_unix_us) {
    return static_cast<int64_t>(now_us) -
           static_cast<int64_t>(unix_us - std::min(unix_us, then_unix_us));
  };
  uint64_t left = 0;
  for (const StoredSession* const each : newest) {
    const SessionHead& head = each->head;
    const auto tenant = cache.FindTenant(head.tenant);
    Entry entry{.id = SessionId::None(),
                .tenant = tenant.value_or(TenantId::None()),
                .opened_us = at(head.opened_unix_us),
                .used_us = at(head.used_unix_us),
                .tokens = head.tokens,
                .adapter = head.adapter};
    if (each->unusable) {
      // The log has more; a path on this machine is no client's business.
      entry.unusable = each->unusable->code == ErrorCode::kUnsupported
                           ? "the session was made with another model, or by a newer server"
                           : "the session's file is damaged or cannot be read";
    } else if (tenant) {
      const auto id = engine_.OpenSession({.tenant = *tenant, .name = head.name, .stored = true});
      if (id) entry.id = *id;
    }
    if (!tenant || (entry.id.is_none() && entry.unusable.empty())) {
      ++left;
    } else {
      entries_.emplace(head.name, std::move(entry));
    }
  }
  if (left > 0) {
    LogWarn(
        "sessions: {} that are stored are left alone: nobody has their tenants' names now, or "
        "there are as many as may be (--sessions)",
        left);
  }
}

OrderedJson SessionTable::Enter(const std::string& name, const Caller& caller, SessionId id,
                                uint64_t tokens, const std::string& adapter, uint64_t now_us) {
  const auto [entry, added] =
      entries_.emplace(name, Entry{.id = id,
                                   .tenant = caller.tenant,
                                   .opened_us = static_cast<int64_t>(now_us),
                                   .used_us = static_cast<int64_t>(now_us),
                                   .tokens = tokens,
                                   .adapter = adapter});
  return Json(entry->first, entry->second, now_us);
}

// Waits without the lock. What is not durable is not there.
ApiResult<OrderedJson> SessionTable::Entered(const std::string& name, Settling& settling,
                                             OrderedJson json) {
  const Result<void> settled = settling.outcome.get();
  if (settled) return json;
  MutexLock lock(mutex_);
  if (const auto found = entries_.find(name); found != entries_.end()) {
    (void)engine_.EndSession(found->second.id);  // it is there: no other call knows its name
    entries_.erase(found);
  }
  return std::unexpected(FromFileError(settled.error()));
}

ApiResult<OrderedJson> SessionTable::Open(const Caller& caller,
                                          const model::SamplingOptions& sampling,
                                          const std::string& adapter, uint64_t now_us) {
  const std::string name = RandomName("sess_");
  Settling settling = MakeSettling();
  OrderedJson json;
  {
    MutexLock lock(mutex_);
    if (IsFull(caller)) return TooMany("the tenant has as many sessions as it may");
    const auto id = engine_.OpenSession(
        {.tenant = caller.tenant, .sampling = sampling, .name = name, .adapter = adapter},
        std::move(settling.settled));
    if (!id) return std::unexpected(FromError(id.error()));
    json = Enter(name, caller, *id, 0, adapter, now_us);
  }
  return Entered(name, settling, std::move(json));
}

ApiResult<OrderedJson> SessionTable::Fork(const Caller& caller, const std::string& from,
                                          uint64_t now_us) {
  const std::string name = RandomName("sess_");
  Settling settling = MakeSettling();
  OrderedJson json;
  {
    MutexLock lock(mutex_);
    QUIRE_ASSIGN(const auto found, FindFree(caller, from));
    if (IsFull(caller)) return TooMany("the tenant has as many sessions as it may");
    const auto id = engine_.ForkSession(found->second.id, name, std::move(settling.settled));
    if (!id) return std::unexpected(FromError(id.error()));
    json = Enter(name, caller, *id, found->second.tokens, found->second.adapter, now_us);
  }
  return Entered(name, settling, std::move(json));
}

ApiResult<void> SessionTable::End(const Caller& caller, const std::string& name) {
  Settling settling = MakeSettling();
  {
    MutexLock lock(mutex_);
    QUIRE_ASSIGN(const auto found, Find(caller, name));
    const SessionId id = found->second.id;
    entries_.erase(found);
    if (!id.is_none()) {
      if (auto ended = engine_.EndSession(id, std::move(settling.settled)); !ended) {
        return std::unexpected(FromError(ended.error()));
      }
    } else {
      store_->Remove(name, std::move(settling.settled));
    }
  }
  if (const auto ended = settling.outcome.get(); !ended) {
    return std::unexpected(FromFileError(ended.error()));
  }
  return {};
}

ApiResult<uint64_t> SessionTable::EndAllOf(TenantId tenant) {
  Settling settling = MakeSettling();
  uint64_t count = 0;
  {
    MutexLock lock(mutex_);
    count = std::erase_if(entries_, [&](const auto& each) { return each.second.tenant == tenant; });
    engine_.EndSessionsOf(tenant, std::move(settling.settled));
  }
  if (const auto ended = settling.outcome.get(); !ended) {
    return std::unexpected(FromFileError(ended.error()));
  }
  return count;
}

ApiResult<OrderedJson> SessionTable::Get(const Caller& caller, const std::string& name,
                                         uint64_t now_us) const {
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(const auto found, Find(caller, name));
  return Json(found->first, found->second, now_us);
}

OrderedJson SessionTable::List(const Caller& caller, uint64_t now_us) const {
  MutexLock lock(mutex_);
  OrderedJson list = OrderedJson::array();
  for (const auto& [name, entry] : entries_) {
    if (entry.tenant == caller.tenant) list.push_back(Json(name, entry, now_us));
  }
  return {{"object", "list"}, {"data", std::move(list)}};
}

uint64_t SessionTable::count() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

ApiResult<SessionTable::Used> SessionTable::Use(const Caller& caller, const std::string& name,
                                                uint64_t now_us) {
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(const auto found, FindFree(caller, name));
  Entry& entry = entries_.at(found->first);
  entry.used_us = static_cast<int64_t>(now_us);
  ++entry.calls_under_way;
  return Used{.id = entry.id, .tokens = entry.tokens, .adapter = entry.adapter};
}

void SessionTable::NoteTokens(const std::string& name, uint64_t tokens, uint64_t now_us) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;  // it was ended meanwhile
  found->second.used_us = static_cast<int64_t>(now_us);
  found->second.tokens = std::max(found->second.tokens, tokens);
  --found->second.calls_under_way;
}

void SessionTable::EndIdle(uint64_t now_us) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&](const auto& each) {
    const Entry& entry = each.second;
    // What another model wrote waits for that one.
    if (entry.calls_under_way > 0 || !entry.unusable.empty()) return false;
    if (AgeMicros(entry.used_us, now_us) < limits_.idle_us) return false;
    return engine_.EndSession(entry.id).has_value();
  });
}

}  // namespace quire::serve::http
