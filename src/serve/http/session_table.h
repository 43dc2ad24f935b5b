// Sessions by the names that clients know them by.
#ifndef QUIRE_SERVE_HTTP_SESSION_TABLE_H_
#define QUIRE_SERVE_HTTP_SESSION_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "serve/driver.h"
#include "serve/engine.h"
#include "serve/http/api_error.h"
#include "serve/http/caller.h"

namespace quire::serve::http {

struct SessionLimits {
  uint64_t per_tenant_max = 64;
  uint64_t idle_us = 3'600'000'000;  // one that was not used for so long ends
};

/// Names are random: no tenant finds another's. A tenant's are its own, whatever its key may see
/// besides. With a store, sessions are found again by their names after a restart, and what is
/// opened, forked or ended outlives the process before the call returns.
///
/// Threads: any; another one must turn the engine
class SessionTable {
 public:
  SessionTable(Engine& engine, const SessionLimits& limits) : engine_(engine), limits_(limits) {}

  /// Opens what the engine's store found, as far as its tenants are known to the cache; the rest is
  /// left there. To be called once, before anything else.
  void Restore(SessionStore& store, const Cache& cache, uint64_t now_us);

  /// Errors: 429 the tenant or engine has as many as it may; 507 the store has, or the disk is
  ///         full; 500 it cannot be written
  /// `adapter`: empty for the base model.
  ApiResult<OrderedJson> Open(const Caller& caller, const model::SamplingOptions& sampling,
                              const std::string& adapter, uint64_t now_us);
  /// Errors: 404; 409 a request of it has not finished, or it cannot be used; 429, 500, 507 as
  ///         Open
  ApiResult<OrderedJson> Fork(const Caller& caller, const std::string& from, uint64_t now_us);
  /// Errors: 404; 500 its file may come back
  ApiResult<void> End(const Caller& caller, const std::string& name);
  /// Ends all of a tenant's, also while calls of them are under way, and removes its files, those
  /// too that this process did not open. Returns how many the table had.
  /// Errors: 500 a file may come back: ask again
  ApiResult<uint64_t> EndAllOf(TenantId tenant);
  /// Errors: 404
  ApiResult<OrderedJson> Get(const Caller& caller, const std::string& name, uint64_t now_us) const;
  OrderedJson List(const Caller& caller, uint64_t now_us) const;
  uint64_t count() const;

  /// The engine's session, which is used now until NoteTokens, and what it holds.
  /// Errors: 404; 409 it cannot be used: it is of another model
  struct Used {
    SessionId id;
    uint64_t tokens;
    std::string adapter;  // empty: the base model
  };
  ApiResult<Used> Use(const Caller& caller, const std::string& name, uint64_t now_us);
  /// A call of it has ended, or never began, and it holds at least so many tokens.
  void NoteTokens(const std::string& name, uint64_t tokens, uint64_t now_us);
  /// Ends those that idle for too long.
  void EndIdle(uint64_t now_us);

 private:
  struct Entry {
    SessionId id;
    TenantId tenant;
    int64_t opened_us;  // by the clock of `now_us`; before its start, where another process did
    int64_t used_us;
    uint64_t tokens = 0;
    std::string adapter{};
    uint32_t calls_under_way = 0;
    std::string unusable{};  // why, if it is; then there is no such session in the engine
  };
  using Entries = std::map<std::string, Entry>;

  ApiResult<Entries::const_iterator> Find(const Caller& caller, const std::string& name) const
      QUIRE_REQUIRES(mutex_);
  ApiResult<Entries::const_iterator> FindFree(const Caller& caller, const std::string& name) const
      QUIRE_REQUIRES(mutex_);
  OrderedJson Enter(const std::string& name, const Caller& caller, SessionId id, uint64_t tokens,
                    const std::string& adapter, uint64_t now_us) QUIRE_REQUIRES(mutex_);
  ApiResult<OrderedJson> Entered(const std::string& name, Settling& settling, OrderedJson json);
  bool IsFull(const Caller& caller) const QUIRE_REQUIRES(mutex_);
  static OrderedJson Json(const std::string& name, const Entry& entry, uint64_t now_us);

  Engine& engine_;
  SessionStore* store_ = nullptr;
  const SessionLimits limits_;
  // Held while the engine's mailbox is asked.
  mutable Mutex mutex_{LockRank{0}};
  Entries entries_ QUIRE_GUARDED_BY(mutex_);
};

/// `prefix` and 32 random hexadecimal digits.
std::string RandomName(const std::string& prefix);

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_SESSION_TABLE_H_
