#include "apps/quire/runtime.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <thread>

#include "apps/quire/output.h"
#include "apps/quire/pipeline_rank.h"
#include "apps/quire/sequence_ranks.h"
#include "base/log.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/files.h"
#include "evict/policies.h"

namespace quire::app {

Codec CodecOf(ComputeType type) {
  switch (type) {
    case ComputeType::kF32: return Codec::kF32;
    case ComputeType::kF16: return Codec::kF16;
    case ComputeType::kBf16: return Codec::kBf16;
  }
  return Codec::kF32;
}

namespace {

/// The codec of a checked flag; without one, values are kept as the model computes them.
Codec CodecOfFlag(const std::string& name, ComputeType compute) {
  return name.empty() ? CodecOf(compute) : ParseCodec(name).value();
}

constexpr std::array kPlacements = {Placement::kFreeList, Placement::kFirstFit, Placement::kBestFit,
                                    Placement::kBuddy};

OneOf PlacementNames() {
  OneOf names;
  for (const Placement placement : kPlacements) names.emplace_back(PlacementName(placement));
  return names;
}

/// Of a checked flag.
Placement PlacementOf(std::string_view name) {
  return *std::ranges::find(kPlacements, name, PlacementName);
}

Result<NumericProfile> ProfileOf(const RuntimeFlags& flags, ComputeType compute) {
  const bool has_codecs = !flags.k.empty() || !flags.v.empty() || flags.residual_tokens != 0;
  if (!flags.ladder.empty() && has_codecs) {
    return Fail(ErrorCode::kInvalidArgument,
                "--ladder: names the codecs of K and V itself; leave --kv, --k, --v and --residual "
                "out");
  }
  const Codec k = CodecOfFlag(flags.k, compute);
  const Codec v = CodecOfFlag(flags.v, compute);
  if (flags.residual_tokens != 0 && IsIdentity(k) && IsIdentity(v)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("--residual {}: {} and {} store what was written, so there is nothing "
                            "to keep open; only 0 is possible",
                            flags.residual_tokens, CodecName(k), CodecName(v)));
  }
  // Open blocks keep what the codecs keep when they store values as they are, else what the model
  // computes.
  const Codec open = IsIdentity(k) && k == v ? k : CodecOf(compute);
  NumericProfile profile = NumericProfile::Uniform(open, flags.block_tokens);
  profile.codecs = {{StreamRole::kKey, k}, {StreamRole::kValue, v}};
  profile.residual_tokens = flags.residual_tokens;
  profile.compute = compute;
  if (!flags.ladder.empty()) QUIRE_TRY(SetLadder(flags.ladder, profile));
  return profile;
}

}  // namespace

Result<CacheOptions> CacheOptionsOf(const RuntimeFlags& flags, const model::Model& model,
                                    const cuda::Backend* device) {
  CacheOptions options{.geometry = model::GeometryOf(model.config())};
  QUIRE_ASSIGN(options.profile, ProfileOf(flags, model.compute()));
  options.layout = ParseArenaLayout(flags.layout).value();
  options.placement = PlacementOf(flags.placement);
  options.policy = flags.policy;
  options.announce = flags.announce;
  if (flags.eviction_batch == "adaptive") options.eviction_batch = EvictionBatch::kAdaptive;
  QUIRE_ASSIGN(options.hot_bytes, ParseBytes(flags.hot_bytes));
  QUIRE_ASSIGN(options.hot_bytes_max, ParseBytes(flags.hot_bytes_max));
  options.tokens_max = flags.max_seq_len != 0 ? flags.max_seq_len : model.config().positions_max;
  options.profile.arithmetic = model::ArithmeticName(model.arithmetic());
  if (device != nullptr) device->Choose(options);
  return options;
}

serve::EngineOptions EngineOptionsOf(const RuntimeFlags& flags) {
  return {.chunk_tokens_min = flags.chunk_tokens,
          .chunk_tokens_max = flags.chunk_tokens,
          .load = *serve::LoadPolicyOf(flags.load),  // a name that was checked
          .resident_tokens = flags.resident_tokens};
}

std::string AdapterNameOf(const std::string& adapter) {
  const size_t end = adapter.find('=');
  return end == std::string::npos ? std::string() : adapter.substr(0, end);
}

void AddAdapterFlag(Command& command, std::vector<std::string>& adapters, const std::string& help) {
  command.Add({.name = "--adapter",
               .value = &adapters,
               .help = help,
               .check = TextCheck{
                   .name = "NAME=DIR", .problem = [](const std::string& text) {
                     const std::string name = AdapterNameOf(text);
                     if (!serve::IsAdapterName(name) || text.size() == name.size() + 1) {
                       return "'" + text + "' is no NAME=DIR, for example tone=adapters/tone";
                     }
                     return std::string();
                   }}});
}

void AddWindowFlags(Command& command, model::Window& window) {
  command.Add({.name = "--window",
               .value = &window.window_tokens,
               .help = "Every layer of a model without windows sees --sinks and this many last "
                       "tokens; memory stays the same however long the text is, the answer is "
                       "another one (default: all)"});
  command.Add({.name = "--sinks",
               .value = &window.sink_tokens,
               .help = "First tokens that stay in sight of --window (default: none)"});
}

void AddOnFullFlag(Command& command, std::string& on_full) {
  command.Add({.name = "--on-full",
               .value = &on_full,
               .help =
                   "reject: refuse what may not fit; halt: stop where the cache is full; spill: "
                   "stream from the store then, see --resident-tokens",
               .check = OneOf{"reject", "halt", "spill"},
               .shows_default = true});
}

void AddRuntimeFlags(Command& command, RuntimeFlags& flags, ModelFlag model) {
  command.Add({.name = "--model",
               .value = &flags.model,
               .help = "Model directory in Hugging Face form",
               .required = model == ModelFlag::kRequired,
               .shows_default = true});
  command.Add({.name = "--block-tokens",
               .value = &flags.block_tokens,
               .help = "Tokens per block: 16, 32 ... 256",
               .check = BlockTokensCheck(),
               .shows_default = true});
  command.Add({.name = "--residual",
               .value = &flags.residual_tokens,
               .help = "Last tokens that are read in full precision, where the codec encodes",
               .shows_default = true});
  command.Add({.name = "--ladder",
               .value = &flags.ladder,
               .help =
                   "f16:int8: blocks that grow cold stay in the second codec alone, and so they "
                   "go to a store, or in a third one: f16:int8:int4; requests that accept "
                   "approximate blocks find them (docs/ladder.md; default: none)"});
  command.Add({.name = "--layout",
               .value = &flags.layout,
               .help = "Order of the arena's axes",
               .check = OneOf{"block_major", "layer_major", "head_major"},
               .shows_default = true});
  command.Add({.name = "--placement",
               .value = &flags.placement,
               .help = "How slots are chosen; all but the free list keep runs of free ones for "
                       "sequences in one piece",
               .check = PlacementNames(),
               .shows_default = true});
  command.Add({.name = "--policy",
               .value = &flags.policy,
               .help = "Which block goes first when room is needed (docs/policies.md)",
               .check = OneOf(evict::PolicyNames().begin(), evict::PolicyNames().end()),
               .shows_default = true});
  command.Add({.name = "--eviction-batch",
               .value = &flags.eviction_batch,
               .help = "exact: what is needed goes; adaptive: the more of the latest requests had "
                       "to evict, the more goes at once",
               .check = OneOf{"exact", "adaptive"},
               .shows_default = true});
  command.Add({.name = "--max-seq-len",
               .value = &flags.max_seq_len,
               .help = "Longest prompt and output together (default: the model's)"});
  AddWindowFlags(command, flags.window);
  command.Add({.name = "--hot-bytes",
               .value = &flags.hot_bytes,
               .help = "Budget of the cache: 4GB, 512MiB",
               .check = BytesCheck(),
               .shows_default = true});
  command.Add({.name = "--hot-bytes-max",
               .value = &flags.hot_bytes_max,
               .help = "Most that the budget may be raised to while it runs (default: --hot-bytes)",
               .check = BytesCheck()});
  command.Add({.name = "--store",
               .value = &flags.store,
               .help = "Directory where blocks outlive the process; a later one finds them"});
  command.Add({.name = "--warm-bytes",
               .value = &flags.warm_bytes,
               .help = "Memory where blocks stay that leave the cache, in front of --store or "
                       "alone: for caches on a device (default: none)",
               .check = BytesCheck()});
  command.Add({.name = "--store-bytes",
               .value = &flags.store_bytes,
               .help = "Most that the store takes of the disk",
               .check = BytesCheck(),
               .shows_default = true});
  command.Add({.name = "--remote",
               .value = &flags.remote,
               .help = "Service that machines share, behind --store: redis://[USER@]HOST[:PORT]"
                       "[,HOST...][/PREFIX], rediss:// with TLS, s3://BUCKET[/PREFIX]"
                       "[?endpoint=URL]; passwords and keys are in the environment "
                       "(docs/remote.md)"});
  command.Add({.name = "--fleet-key",
               .value = &flags.fleet_key,
               .help = "File of 32 random bytes that those machines have in common (default: "
                       "none, and nothing is shared)"});
  command.Add({.name = "--remote-writes",
               .value = &flags.remote_writes,
               .help = "all; or reused: behind --store, only what is used again",
               .check = OneOf{"reused", "all"},
               .shows_default = true});
  AddKeysFlags(command, flags.keys);
  command.Add({.name = "--load",
               .value = &flags.load,
               .help = "What the store has is loaded; auto: loaded, computed or both, whatever was "
                       "fastest lately; both: its end is loaded while its front is computed",
               .check = OneOf{"always", "auto", "never", "both"},
               .shows_default = true});
  command.Add({.name = "--resident-tokens",
               .value = &flags.resident_tokens,
               .help = "What --hot-bytes cannot hold whole is read back from the store while "
                       "layers attend, all but at least so many of its last tokens; 0: it is "
                       "refused (default)"});
  command.Add({.name = "--chunk",
               .value = &flags.chunk_tokens,
               .help = "Prompt tokens per step",
               .check = Between<int>{1, 1 << 20},
               .shows_default = true});
  command.Add({.name = "--threads",
               .value = &flags.threads,
               .help = "Worker threads (default: one per core)",
               .check = Between<int>{1, 1024}});
  command.Add({.name = "--compute",
               .value = &flags.compute,
               .help = "f32: compute in f32 whatever the file's type",
               .check = OneOf{"f32"}});
  command.Add({.name = "--codec-fallback,!--no-codec-fallback",
               .value = &flags.codec_fallback,
               .help = "A codec that cannot be used here gives way to int8 or f16, with a warning "
                       "(default), or is refused"});
  AddDeviceFlags(command, flags.device);
}

Result<void> Runtime::OpenSessions(const RuntimeFlags& flags) {
  constexpr uint64_t kTokenizerBytesMax = uint64_t{1} << 30;
  std::string tokenizer;
  if (tokenizer_) {
    QUIRE_ASSIGN(tokenizer, ReadFile(flags.model + "/tokenizer.json", kTokenizerBytesMax));
  }
  QUIRE_ASSIGN(const uint64_t bytes_max, ParseBytes(flags.session_bytes));
  QUIRE_ASSIGN(session_files_, MakeFiles({.depth = 1, .threads_only = true}));
  QUIRE_ASSIGN(sessions_,
               serve::SessionStore::Open(
                   *session_files_,
                   {.directory = flags.store + "/sessions",
                    .fingerprint = serve::FingerprintOf(identity_, tokenizer),
                    .bytes_max = bytes_max,
                    .keys = flags.keys,
                    .unix_us = [] {
                      const auto now = std::chrono::system_clock::now().time_since_epoch();
                      return static_cast<uint64_t>(
                          std::chrono::duration_cast<std::chrono::microseconds>(now).count());
                    }}));
  sessions_->Start();
  return {};
}

namespace {

bool IsPipeline(const RuntimeFlags& flags) { return flags.ranks.mode == "pipeline"; }

/// Errors: kUnsupported names a flag that ranks cannot honour
Result<void> CheckFlagsWithRanks(const RuntimeFlags& flags) {
  const auto refuse = [&](std::string_view flag) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{}: not possible with --ranks {}; leave one of them out", flag,
                            flags.ranks.mode));
  };
  if (flags.device.device != "cpu" && !IsPipeline(flags)) return refuse("--device");
  if (flags.resident_tokens > 0) return refuse("--resident-tokens");
  if (!flags.ladder.empty()) return refuse("--ladder");
  if (!flags.adapters.empty()) return refuse("--adapter");
  return {};
}

/// A rank's own store lies below the one that is given.
Result<std::string> StoreOfRank(const std::string& store, const ranks::Group* group) {
  if (store.empty() || group == nullptr) return store;
  std::error_code failed;
  std::filesystem::create_directories(store, failed);
  if (failed) return Fail(ErrorCode::kIo, fmt::format("{}: {}", store, failed.message()));
  return fmt::format("{}/rank-{}", store, group->rank());
}

/// What shapes values, or how much of them there may be, on all ranks alike.
std::string SettingsOf(const model::Model& model, const CacheOptions& cache,
                       const RuntimeFlags& flags) {
  const NumericProfile& profile = cache.profile;
  return fmt::format(
      "{} layers, hidden {}, vocab {}, --k {} --v {} --block-tokens {} --residual {} --max-seq-len "
      "{} --window {} --sinks {} --chunk {}, open {}, compute {}, arithmetic {}, revision {}",
      model.layers().of, model.config().hidden, model.config().vocab,
      CodecName(*profile.CodecFor(StreamRole::kKey)),
      CodecName(*profile.CodecFor(StreamRole::kValue)), profile.block_tokens,
      profile.residual_tokens, cache.tokens_max, flags.window.window_tokens,
      flags.window.sink_tokens, flags.chunk_tokens, CodecName(profile.open_dtype),
      static_cast<int>(profile.compute), profile.arithmetic, profile.kernel_revision);
}

}  // namespace

Result<void> Runtime::LoadModel(const RuntimeFlags& flags, const ranks::Group* group) {
  QUIRE_ASSIGN(const model::Arithmetic arithmetic, ArithmeticOf(flags.device));
  ProgressBar bar("loading " + flags.model);
  model::LoadOptions options = {
      .compute_f32 = flags.compute == "f32",
      .window = flags.window,
      .progress = [&bar](uint64_t done, uint64_t total) { bar.Update(done, total); },
      .operators = device_ == nullptr ? model::OperatorsFactory() : device_->operators(),
      .arithmetic = arithmetic};
  if (group != nullptr && group->rank() > 0) options.progress = {};
  if (group != nullptr && IsPipeline(flags)) {
    options.stage = group->rank();
    options.stages = group->size();
  }
  QUIRE_ASSIGN(model_, model::Model::Load(flags.model, options));
  bar.Clear();
  return {};
}

Result<void> Runtime::JoinRanks(const RuntimeFlags& flags, ranks::Group& group) {
  const bool loads = flags.load != "never";
  if (IsPipeline(flags)) {
    QUIRE_ASSIGN(rank_,
                 PipelineRank::Join({.group = group,
                                     .model = *model_,
                                     .cache = cache(),
                                     .attention = *attention_,
                                     .executor = *executor_,
                                     .loads = loads,
                                     .settings = SettingsOf(*model_, cache().options(), flags),
                                     .flush = [this] { FlushStore(); }},
                                    identity_));
    return {};
  }
  QUIRE_ASSIGN(rank_, SequenceRanks::Join({.group = group,
                                           .cache = cache(),
                                           .model = *model_,
                                           .attention = *attention_,
                                           .executor = *executor_,
                                           .identity = identity_,
                                           .geometry = model::GeometryOf(model_->config()),
                                           .loads = loads}));
  return {};
}

Result<std::unique_ptr<Runtime>> Runtime::Load(const RuntimeFlags& flags,
                                               const serve::EngineOptions& engine,
                                               ranks::Group* group) {
  if (group != nullptr) QUIRE_TRY(CheckFlagsWithRanks(flags));
  auto runtime = std::unique_ptr<Runtime>(new Runtime());
  DeviceFlags device = flags.device;
  if (group != nullptr) device.device = DeviceOfRank(device.device, LocalRank(*group));
  QUIRE_ASSIGN(runtime->device_, OpenDevice(device));
  if (runtime->device_ != nullptr) {
    runtime->attention_ = runtime->device_->MakeAttention();
  } else {
    QUIRE_ASSIGN(runtime->attention_, MakeCpuAttention());
  }
  QUIRE_TRY(runtime->LoadModel(flags, group));
  const std::string tokenizer_path = flags.model + "/tokenizer.json";
  if (access(tokenizer_path.c_str(), F_OK) == 0) {
    QUIRE_ASSIGN(runtime->tokenizer_, model::Tokenizer::Load(tokenizer_path));
  }
  QUIRE_ASSIGN(auto options, CacheOptionsOf(flags, *runtime->model_, runtime->device_.get()));
  if (flags.codec_fallback) options.fallback_kernels = runtime->attention_.get();
  options.clock = &SystemClock();
  if (group != nullptr && !IsPipeline(flags)) {
    QUIRE_ASSIGN(const ranks::sequence::LaneShare share, SequenceRanks::ShareOf(*group));
    options.geometry = share.GeometryOf(options.geometry);
  }
  runtime->identity_.domain.name = "local";
  QUIRE_ASSIGN(const uint64_t warm_bytes, ParseBytes(flags.warm_bytes));
  if (!flags.store.empty() || warm_bytes > 0 || !flags.remote.empty()) {
    QUIRE_ASSIGN(const uint64_t bytes_cap, ParseBytes(flags.store_bytes));
    const bool all = flags.remote_writes == "all";
    QUIRE_ASSIGN(const std::string directory, StoreOfRank(flags.store, group));
    DiskStoreOptions store = {.directory = directory,
                              .bytes_cap = bytes_cap,
                              .warm_bytes = warm_bytes,
                              .remote = flags.remote,
                              .fleet_key_file = flags.fleet_key,
                              .remote_writes = all ? RemoteWrites::kAll : RemoteWrites::kReused,
                              .keys = flags.keys};
    if (runtime->device_ != nullptr) runtime->device_->Choose(store);
    QUIRE_ASSIGN(runtime->store_, DiskStore::Open(store));
    QUIRE_ASSIGN(runtime->identity_.domain.secret, runtime->store_->Secret());
    options.store = runtime->store_.get();
  }
  QUIRE_ASSIGN(runtime->registry_, Registry::Create(std::move(options)));
  // Ranks that are threads share the cores; mpirun gives each process its own.
  const uint32_t sharers = group != nullptr && flags.ranks.threads > 0 ? group->size() : 1;
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency() / sharers);
  runtime->executor_ = MakeThreadPool(flags.threads != 0 ? flags.threads : cores);
  runtime->identity_.weights = runtime->model_->fingerprint();
  runtime->identity_.position_encoding = runtime->model_->position_encoding();
  serve::EngineOptions engine_options = engine;
  if (group != nullptr) {
    QUIRE_TRY(runtime->JoinRanks(flags, *group));
    if (!runtime->rank_->leads()) return runtime;
    // Ranks load before they open a sequence, and have room for steps of so many tokens.
    engine_options.load = serve::LoadPolicy::kNever;
    engine_options.chunk_tokens_max = engine_options.chunk_tokens_min;
  }
  if (runtime->store_ != nullptr && flags.keep_sessions) {
    QUIRE_TRY(runtime->OpenSessions(flags));
    engine_options.sessions = runtime->sessions_.get();
  }
  Rank* const rank = runtime->rank();
  QUIRE_ASSIGN(runtime->engine_,
               serve::Engine::Create({.model = *runtime->model_,
                                      .cache = runtime->engine_cache(),
                                      .attention = *runtime->attention_,
                                      .executor = *runtime->executor_,
                                      .clock = SystemClock(),
                                      .steps = rank == nullptr ? nullptr : rank->steps(),
                                      .flow = rank == nullptr ? nullptr : rank->flow()},
                                     runtime->identity_, engine_options));
  QUIRE_TRY(runtime->LoadAdapters(flags));
  return runtime;
}

Result<void> Runtime::LoadAdapters(const RuntimeFlags& flags) {
  for (const std::string& adapter : flags.adapters) {
    const std::string name = AdapterNameOf(adapter);
    QUIRE_TRY(engine_->adapters().Load(name, adapter.substr(name.size() + 1)));
  }
  return {};
}

void Runtime::FlushStore() {
  if (!store_) return;
  if (const auto flushed = store_->Flush(); !flushed) LogWarn("{}", flushed.error().message);
}

std::string DateNow(const std::string& format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 256> text{};
  const size_t bytes = std::strftime(text.data(), text.size(), format.c_str(), &local);
  return {text.data(), bytes};
}

}  // namespace quire::app
