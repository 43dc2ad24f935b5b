#include "serve/http/session_table.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/hash.h"

namespace quire::serve::http {

std::string RandomName(const std::string& prefix) {
  std::array<uint8_t, 16> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  return prefix + ToHex(bytes);
}

OrderedJson SessionTable::Json(const std::string& name, const Entry& entry, uint64_t now_us) {
  const auto age_s = [&](uint64_t us) { return (now_us - std::min(us, now_us)) / 1'000'000; };
  return {{"id", name},
          {"object", "session"},
          {"tokens", entry.tokens},
          {"age_s", age_s(entry.opened_us)},
          {"idle_s", age_s(entry.used_us)},
          {"busy", entry.calls_under_way > 0}};
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

ApiResult<OrderedJson> SessionTable::Enter(const Caller& caller, Result<SessionId> id,
                                           uint64_t tokens, uint64_t now_us) {
  if (!id) return std::unexpected(FromError(id.error()));
  const auto [entry, added] = entries_.emplace(RandomName("sess_"), Entry{.id = *id,
                                                                          .tenant = caller.tenant,
                                                                          .opened_us = now_us,
                                                                          .used_us = now_us,
                                                                          .tokens = tokens});
  return Json(entry->first, entry->second, now_us);
}

ApiResult<OrderedJson> SessionTable::Open(const Caller& caller,
                                          const model::SamplingOptions& sampling, uint64_t now_us) {
  MutexLock lock(mutex_);
  if (IsFull(caller)) return TooMany("the tenant has as many sessions as it may");
  return Enter(caller, engine_.OpenSession({.tenant = caller.tenant, .sampling = sampling}), 0,
               now_us);
}

ApiResult<OrderedJson> SessionTable::Fork(const Caller& caller, const std::string& name,
                                          uint64_t now_us) {
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(const auto found, Find(caller, name));
  if (IsFull(caller)) return TooMany("the tenant has as many sessions as it may");
  return Enter(caller, engine_.ForkSession(found->second.id), found->second.tokens, now_us);
}

ApiResult<void> SessionTable::End(const Caller& caller, const std::string& name) {
  MutexLock lock(mutex_);
  QUIRE_ASSIGN(const auto found, Find(caller, name));
  const auto ended = engine_.EndSession(found->second.id);
  entries_.erase(found);
  if (!ended) return std::unexpected(FromError(ended.error()));
  return {};
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
  QUIRE_ASSIGN(const auto found, Find(caller, name));
  Entry& entry = entries_.at(found->first);
  entry.used_us = now_us;
  ++entry.calls_under_way;
  return Used{.id = entry.id, .tokens = entry.tokens};
}

void SessionTable::NoteTokens(const std::string& name, uint64_t tokens, uint64_t now_us) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;  // it was ended meanwhile
  found->second.used_us = now_us;
  found->second.tokens = std::max(found->second.tokens, tokens);
  --found->second.calls_under_way;
}

void SessionTable::EndIdle(uint64_t now_us) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&](const auto& each) {
    const Entry& entry = each.second;
    if (entry.calls_under_way > 0 || now_us - std::min(entry.used_us, now_us) < limits_.idle_us) {
      return false;
    }
    return engine_.EndSession(entry.id).has_value();
  });
}

}  // namespace quire::serve::http
