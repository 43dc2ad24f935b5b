// All that an engine of the C interface stands on, and the names of its sessions.
#ifndef QUIRE_SERVE_C_ENGINE_HOST_H_
#define QUIRE_SERVE_C_ENGINE_HOST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "env/files.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "serve/budget_leases.h"
#include "serve/driver.h"
#include "serve/engine.h"
#include "text/tokenizer.h"

namespace quire::serve::c {

struct HostOptions {
  std::string model{};
  DiskStoreOptions store{};                    // neither a directory nor a remote: none
  uint64_t session_bytes = uint64_t{1} << 30;  // in the store's directory, if there is one
  uint64_t hot_bytes = 4'000'000'000;
  uint64_t hot_bytes_max = 0;  // 0: hot_bytes
  uint64_t tokens_max = 0;     // 0: the model's
  uint32_t block_tokens = kBlockTokensDefault;
  uint32_t chunk_tokens = 512;
  uint32_t threads = 0;  // 0: one per core
  std::optional<Codec> codec{};
  std::string ladder{};  // for SetLadder; empty: none
  uint64_t resident_tokens = 0;
  model::Window window{};
  std::string policy = CacheOptions{}.policy;
  EvictionBatch eviction_batch = EvictionBatch::kExact;
  ArenaLayout layout = ArenaLayout::kBlockMajor;
  Placement placement = Placement::kFreeList;
  LoadPolicy load = LoadPolicy::kAuto;
  std::string arithmetic = NumericProfile{}.arithmetic;
};

/// Threads: any
class EngineHost {
 public:
  static Result<std::shared_ptr<EngineHost>> Open(const HostOptions& options);
  /// Writes what was published to the store.
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  Engine& engine() { return *engine_; }
  Cache& cache() { return *cache_; }
  BudgetLeases& leases() { return *leases_; }
  bool keeps_sessions() const { return sessions_ != nullptr; }
  /// Errors: kUnsupported the model has none
  Result<const model::Tokenizer*> tokenizer() const;
  const std::vector<TokenId>& stop_tokens() const { return stop_tokens_; }

  /// A session is open under this name and has so many tokens.
  void NoteOpen(const std::string& name, uint64_t tokens);
  void NoteClosed(const std::string& name);
  void NoteEnded(const std::string& name);
  /// Tokens of a session that is known; 0 of any other.
  uint64_t TokensOf(const std::string& name) const;
  std::string AdaptersJson() const;
  std::string SessionsJson() const;
  std::string StatsJson() const;
  std::string SequencesJson() const;

 private:
  struct Known {
    uint64_t tokens = 0;
    bool open = false;
    std::string unusable{};  // why it is, if it is
  };

  EngineHost() = default;
  Result<CacheOptions> CacheOptionsOf(const HostOptions& options) const;
  Result<void> OpenStore(const HostOptions& options);
  Result<void> OpenSessions(const HostOptions& options, const std::string& tokenizer_json);

  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<model::Model> model_;
  std::optional<model::Tokenizer> tokenizer_;
  std::vector<TokenId> stop_tokens_;
  Identity identity_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DiskStore> store_;  // null: none
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Files> session_files_;
  std::unique_ptr<SessionStore> sessions_;  // null: there is no directory
  std::unique_ptr<Engine> engine_;
  std::optional<BudgetLeases> leases_;
  std::unique_ptr<Driver> driver_;

  mutable Mutex mutex_{LockRank::kLeaf};
  std::map<std::string, Known> known_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire::serve::c

#endif  // QUIRE_SERVE_C_ENGINE_HOST_H_
