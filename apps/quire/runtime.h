// A model, a registry of caches of its shape and an engine on both: what generate and demo run on.
#ifndef QUIRE_APPS_RUNTIME_H_
#define QUIRE_APPS_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/quire/command.h"
#include "apps/quire/device.h"
#include "apps/quire/ranks.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "registry/registry.h"
#include "serve/driver.h"
#include "serve/session_store.h"
#include "text/tokenizer.h"

namespace quire::app {

struct RuntimeFlags {
  std::string model;                    // directory
  std::vector<std::string> adapters{};  // NAME=DIR, loaded at the start
  std::string k;                        // codec names; empty: the model's own type
  std::string v;
  uint32_t block_tokens = kBlockTokensDefault;
  uint32_t residual_tokens = 0;
  std::string ladder;  // "f16:int8:int4"; empty: none
  std::string layout = "block_major";
  uint64_t max_seq_len = 0;  // 0: the model's
  model::Window window;      // of every layer; none: the model's
  std::string placement = "free_list";
  std::string policy = "lru";
  std::string eviction_batch = "exact";
  std::string hot_bytes = "4GB";
  std::string hot_bytes_max = "0";  // 0: hot_bytes
  std::string store{};              // directory; empty: none
  std::string store_bytes = "8GiB";
  std::string warm_bytes = "0";
  std::string remote{};     // address; empty: none
  std::string fleet_key{};  // file; empty: nothing is shared
  std::string remote_writes = "reused";
  StoreKeys keys{};            // of an encrypted store
  bool keep_sessions = false;  // in the store's directory, over restarts
  std::string session_bytes = "1GiB";
  std::string load = "auto";
  uint64_t resident_tokens = 0;  // of what streams; 0: nothing does
  uint32_t chunk_tokens = 512;
  uint32_t threads = 0;  // 0: one per core
  std::string compute;   // "f32", or empty for the file's precision
  DeviceFlags device;
  RanksFlags ranks;
  bool announce = false;       // CacheOptions::announce
  bool codec_fallback = true;  // a codec that cannot be used here gives way to one that can
};

/// The codec that stores what a model of this type computes as it is.
Codec CodecOf(ComputeType type);

/// What the flags ask of a cache for this model.
/// Errors: kUnsupported a flag that this build cannot honour
Result<CacheOptions> CacheOptionsOf(const RuntimeFlags& flags, const model::Model& model,
                                    const cuda::Backend* device);

/// What the flags ask of an engine: chunks of one size.
serve::EngineOptions EngineOptionsOf(const RuntimeFlags& flags);

/// --window and --sinks.
void AddWindowFlags(Command& command, model::Window& window);
/// --on-full.
void AddOnFullFlag(Command& command, std::string& on_full);
/// --adapter, of a command that names them itself.
void AddAdapterFlag(Command& command, std::vector<std::string>& adapters, const std::string& help);
/// What is before the first '='; empty: there is none.
std::string AdapterNameOf(const std::string& adapter);
/// Adds the flags that every command with a model takes.
enum class ModelFlag { kRequired, kOptional };
void AddRuntimeFlags(Command& command, RuntimeFlags& flags, ModelFlag model = ModelFlag::kRequired);

class Runtime {
 public:
  /// Loads the model (with a progress bar) and makes the registry.
  /// Errors: what the model loader and the cache say; kUnsupported for flags this build cannot
  /// honour
  static Result<std::unique_ptr<Runtime>> Load(const RuntimeFlags& flags) {
    return Load(flags, EngineOptionsOf(flags));
  }
  /// The same with another engine on it. `group`: the ranks that it computes with, which must
  /// outlive it; null: there are none. A rank that follows has no engine.
  static Result<std::unique_ptr<Runtime>> Load(const RuntimeFlags& flags,
                                               const serve::EngineOptions& engine,
                                               ranks::Group* group = nullptr);

  /// Null: the processor.
  const cuda::Backend* device() const { return device_.get(); }
  const model::Model& model() const { return *model_; }
  model::Model& model() { return *model_; }
  AttentionBackend& attention() { return *attention_; }
  Executor& executor() { return *executor_; }
  const Identity& identity() const { return identity_; }
  /// Absent when the directory has no tokenizer.json.
  const std::optional<model::Tokenizer>& tokenizer() const { return tokenizer_; }
  const NumericProfile& profile() const { return registry_->requests().options().profile; }
  Registry& registry() { return *registry_; }
  /// Whatever it opens is an inference owner of the registry.
  Cache& cache() { return registry_->requests(); }
  serve::Engine& engine() { return *engine_; }
  /// Null: there is none.
  DiskStore* store() { return store_.get(); }
  /// Returns when what was published is durable: a normal exit loses nothing. Where the disk does
  /// not take it the answers stand all the same, so it warns.
  void FlushStore();
  /// Null: there are no ranks.
  Rank* rank() { return rank_.get(); }
  /// The engine's: with ranks, whatever it opens is on all of them.
  Cache& engine_cache() { return rank_ == nullptr ? cache() : rank_->cache(); }
  /// Null: sessions end with the process.
  serve::SessionStore* sessions() { return sessions_.get(); }

 private:
  Runtime() = default;
  Result<void> LoadModel(const RuntimeFlags& flags, const ranks::Group* group);
  Result<void> JoinRanks(const RuntimeFlags& flags, ranks::Group& group);
  Result<void> OpenSessions(const RuntimeFlags& flags);
  Result<void> LoadAdapters(const RuntimeFlags& flags);

  std::unique_ptr<cuda::Backend> device_;  // null: the processor
  std::unique_ptr<model::Model> model_;
  std::optional<model::Tokenizer> tokenizer_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<AttentionBackend> attention_;
  Identity identity_{};
  std::unique_ptr<DiskStore> store_;  // null: none
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<Rank> rank_;  // null: there are no ranks
  std::unique_ptr<Files> session_files_;
  std::unique_ptr<serve::SessionStore> sessions_;
  std::unique_ptr<serve::Engine> engine_;
};

/// The local date now by a format of strftime.
std::string DateNow(const std::string& format);

}  // namespace quire::app

#endif  // QUIRE_APPS_RUNTIME_H_
