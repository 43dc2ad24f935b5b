#include "serve/c/engine_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/log.h"
#include "cache/stats_json.h"
#include "env/clock.h"
#include "env/file.h"
#include "serve/reports.h"
#include "text/generation_config.h"

namespace quire::serve::c {
namespace {

constexpr uint64_t kTokenizerBytesMax = uint64_t{1} << 30;

Codec CodecOf(ComputeType type) {
  switch (type) {
    case ComputeType::kF32: return Codec::kF32;
    case ComputeType::kF16: return Codec::kF16;
    case ComputeType::kBf16: return Codec::kBf16;
  }
  return Codec::kF32;
}

uint64_t UnixMicros() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

using OrderedJson = nlohmann::ordered_json;

// What is not UTF-8 becomes U+FFFD.
std::string DumpJson(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

Result<std::shared_ptr<EngineHost>> EngineHost::Open(const HostOptions& options) {
  std::shared_ptr<EngineHost> host(new EngineHost());
  QUIRE_ASSIGN(host->attention_, MakeCpuAttention());
  QUIRE_ASSIGN(const model::Arithmetic arithmetic, model::ChooseArithmetic(options.arithmetic));
  QUIRE_ASSIGN(host->model_, model::Model::Load(options.model, {.window = options.window,
                                                                .arithmetic = arithmetic}));
  QUIRE_ASSIGN(const auto generation, model::GenerationConfig::Load(options.model));
  host->stop_tokens_ = host->model_->config().eos;
  host->stop_tokens_.insert(host->stop_tokens_.end(), generation.eos.begin(), generation.eos.end());
  const std::string path = options.model + "/tokenizer.json";
  const auto json = ReadFile(path, kTokenizerBytesMax);
  if (json) {
    QUIRE_ASSIGN(host->tokenizer_, model::Tokenizer::Parse(*json, path));
  } else if (json.error().code != ErrorCode::kNotFound) {
    return std::unexpected(json.error());
  }
  host->identity_ = {.weights = host->model_->fingerprint(),
                     .position_encoding = host->model_->position_encoding(),
                     .domain = {.name = "local"}};
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  host->executor_ = MakeThreadPool(options.threads != 0 ? options.threads : cores);
  QUIRE_TRY(host->OpenStore(options));
  QUIRE_ASSIGN(auto cache_options, host->CacheOptionsOf(options));
  QUIRE_ASSIGN(host->cache_, Cache::Create(std::move(cache_options)));
  if (!options.store.directory.empty()) {
    QUIRE_TRY(host->OpenSessions(options, json.value_or("")));
  }
  QUIRE_ASSIGN(host->engine_, Engine::Create({.model = *host->model_,
                                              .cache = *host->cache_,
                                              .attention = *host->attention_,
                                              .executor = *host->executor_,
                                              .clock = SystemClock()},
                                             host->identity_,
                                             {.chunk_tokens_min = options.chunk_tokens,
                                              .chunk_tokens_max = options.chunk_tokens,
                                              .admission = Admission::kGrow,
                                              .sessions_max = 65'536,
                                              .load = options.load,
                                              .resident_tokens = options.resident_tokens,
                                              .sessions = host->sessions_.get()}));
  host->leases_.emplace(*host->engine_, *host->cache_, SystemClock());
  host->driver_ = std::make_unique<Driver>(*host->engine_);
  return host;
}

EngineHost::~EngineHost() {
  driver_.reset();
  if (store_ == nullptr) return;
  if (const auto flushed = store_->Flush(); !flushed) {
    LogWarn("engine: not all blocks are in the store: {}", flushed.error().message);
  }
}

Result<CacheOptions> EngineHost::CacheOptionsOf(const HostOptions& options) const {
  const Codec own = CodecOf(model_->compute());
  const Codec codec = options.codec.value_or(own);
  NumericProfile profile =
      NumericProfile::Uniform(IsIdentity(codec) ? codec : own, options.block_tokens);
  for (CodecRule& rule : profile.codecs) rule.codec = codec;
  if (!options.ladder.empty()) QUIRE_TRY(SetLadder(options.ladder, profile));
  profile.compute = model_->compute();
  profile.arithmetic = model::ArithmeticName(model_->arithmetic());
  const uint64_t longest = model_->config().positions_max;
  return CacheOptions{.geometry = model::GeometryOf(model_->config()),
                      .profile = std::move(profile),
                      .layout = options.layout,
                      .placement = options.placement,
                      .hot_bytes = options.hot_bytes,
                      .hot_bytes_max = options.hot_bytes_max,
                      .tokens_max = options.tokens_max != 0 ? options.tokens_max : longest,
                      .clock = &SystemClock(),
                      .policy = options.policy,
                      .eviction_batch = options.eviction_batch,
                      .store = store_.get()};
}

Result<void> EngineHost::OpenStore(const HostOptions& options) {
  if (options.store.directory.empty() && options.store.remote.empty()) return {};
  QUIRE_ASSIGN(store_, DiskStore::Open(options.store));
  QUIRE_ASSIGN(identity_.domain.secret, store_->Secret());
  return {};
}

Result<void> EngineHost::OpenSessions(const HostOptions& options,
                                      const std::string& tokenizer_json) {
  QUIRE_ASSIGN(session_files_, MakeFiles({.depth = 1, .threads_only = true}));
  QUIRE_ASSIGN(
      sessions_,
      SessionStore::Open(*session_files_, {.directory = options.store.directory + "/sessions",
                                           .fingerprint = FingerprintOf(identity_, tokenizer_json),
                                           .bytes_max = options.session_bytes,
                                           .keys = options.store.keys,
                                           .unix_us = UnixMicros}));
  MutexLock lock(mutex_);
  for (const StoredSession& found : sessions_->found()) {
    known_[found.head.name] = {
        .tokens = found.head.tokens,
        .unusable = found.unusable ? found.unusable->message : std::string()};
  }
  sessions_->Start();
  return {};
}

Result<const model::Tokenizer*> EngineHost::tokenizer() const {
  if (tokenizer_) return &*tokenizer_;
  return Fail(ErrorCode::kUnsupported, "the model's directory has no tokenizer.json: feed tokens");
}

void EngineHost::NoteOpen(const std::string& name, uint64_t tokens) {
  MutexLock lock(mutex_);
  known_[name] = {.tokens = tokens, .open = true};
}

void EngineHost::NoteClosed(const std::string& name) {
  MutexLock lock(mutex_);
  if (keeps_sessions()) {
    known_[name].open = false;
  } else {
    known_.erase(name);
  }
}

void EngineHost::NoteEnded(const std::string& name) {
  MutexLock lock(mutex_);
  known_.erase(name);
}

uint64_t EngineHost::TokensOf(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = known_.find(name);
  return found == known_.end() ? 0 : found->second.tokens;
}

std::string EngineHost::AdaptersJson() const {
  auto json = OrderedJson::array();
  for (const auto& served : engine_->adapters().All()) {
    json.push_back({{"name", served->name},
                    {"rank", served->adapter->rank()},
                    {"modules", served->adapter->modules()},
                    {"bytes", served->adapter->bytes()}});
  }
  return DumpJson(json);
}

std::string EngineHost::SessionsJson() const {
  MutexLock lock(mutex_);
  auto json = OrderedJson::array();
  for (const auto& [name, known] : known_) {
    OrderedJson unusable;
    if (!known.unusable.empty()) unusable = known.unusable;
    json.push_back({{"name", name},
                    {"tokens", known.tokens},
                    {"open", known.open},
                    {"unusable", std::move(unusable)}});
  }
  return DumpJson(json);
}

std::string EngineHost::StatsJson() const {
  OrderedJson store;
  if (store_ != nullptr) store = JsonOf(store_->stats());
  return DumpJson({{"engine", JsonOf(driver_->stats(), SystemClock().NowMicros())},
                   {"cache", JsonOf(cache_->stats())},
                   {"store", std::move(store)},
                   {"leases", JsonOf(leases_->All())}});
}

std::string EngineHost::SequencesJson() const {
  return DumpJson(JsonOf(driver_->Sequences(), [](TenantId) { return std::string("default"); }));
}

}  // namespace quire::serve::c
