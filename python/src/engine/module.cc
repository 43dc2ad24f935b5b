// The extension module quire._engine: a model with its cache and its sessions, over the C interface
// of libquire_engine.so.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "handles.h"

namespace quire::python {
namespace {

constexpr Name<quire_codec> kCodecNames[] = {
    {"f32", QUIRE_F32},           {"f16", QUIRE_F16},
    {"bf16", QUIRE_BF16},         {"fp8_e4m3", QUIRE_FP8_E4M3},
    {"fp8_e5m2", QUIRE_FP8_E5M2}, {"int8", QUIRE_INT8},
    {"int4", QUIRE_INT4},         {"nf4", QUIRE_NF4},
    {"fp4", QUIRE_FP4},           {"q25", QUIRE_Q25}};
constexpr Name<quire_eviction_batch> kBatches[] = {{"exact", QUIRE_EXACT},
                                                   {"adaptive", QUIRE_ADAPTIVE}};
constexpr Name<quire_layout> kLayouts[] = {{"block_major", QUIRE_BLOCK_MAJOR},
                                           {"layer_major", QUIRE_LAYER_MAJOR},
                                           {"head_major", QUIRE_HEAD_MAJOR}};
constexpr Name<quire_placement> kPlacementNames[] = {{"free_list", QUIRE_FREE_LIST},
                                                     {"first_fit", QUIRE_FIRST_FIT},
                                                     {"best_fit", QUIRE_BEST_FIT},
                                                     {"buddy", QUIRE_BUDDY}};
constexpr Name<quire_on_full> kOnFullNames[] = {
    {"reject", QUIRE_REJECT}, {"halt", QUIRE_HALT}, {"spill", QUIRE_SPILL}};

// The texts of the C interface, whose length is asked for first; what they tell may grow meanwhile.
template <typename Ask>
std::string TextOf(const Ask& ask) {
  const GilFree free;
  quire_error error{};
  size_t length = 0;
  Check(ask(nullptr, 0, &length, &error), error);
  while (true) {
    std::string text(length + 1, '\0');
    const quire_code code = ask(text.data(), text.size(), &length, &error);
    if (code == QUIRE_INVALID_ARGUMENT && length + 1 > text.size()) continue;
    Check(code, error);
    text.resize(length);
    return text;
  }
}

template <quire_code (*kAsk)(const quire_engine*, char*, size_t, size_t*, quire_error*)>
std::string EngineText(const PyEngine& self) {
  const auto engine = self.get();
  return TextOf([&](char* text, size_t bytes, size_t* length, quire_error* error) {
    return kAsk(engine->engine, text, bytes, length, error);
  });
}

void Open(PyEngine* self, const std::filesystem::path& model,
          const std::optional<std::filesystem::path>& store, uint64_t hot_bytes,
          uint64_t hot_bytes_max, uint64_t store_bytes, uint64_t session_bytes, uint64_t tokens_max,
          uint32_t block_tokens, uint32_t chunk_tokens, uint32_t threads,
          const std::optional<std::string>& codec, uint64_t resident_tokens,
          const std::string& policy, const std::string& load, std::string_view eviction_batch,
          uint32_t window_tokens, uint32_t sink_tokens, std::string_view layout,
          std::string_view placement, const std::string& remote,
          const std::optional<std::filesystem::path>& fleet_key, bool remote_writes_all,
          const std::optional<std::filesystem::path>& keys, const std::string& keys_command,
          const std::optional<nb::bytes>& key, const std::string& arithmetic,
          const std::optional<std::string>& ladder) {
  if (key && key->size() != 32) {
    Raise(ErrorCode::kInvalidArgument,
          "a key of " + std::to_string(key->size()) + " bytes, not 32");
  }
  const std::string model_name = model.string();
  const std::string store_name = store ? store->string() : std::string();
  const std::string key_name = fleet_key ? fleet_key->string() : std::string();
  const std::string keys_name = keys ? keys->string() : std::string();
  quire_engine_options options{};
  options.size = sizeof options;
  options.model = model_name.c_str();
  options.store = store ? store_name.c_str() : nullptr;
  options.store_bytes = store_bytes;
  options.session_bytes = session_bytes;
  options.hot_bytes = hot_bytes;
  options.tokens_max = tokens_max;
  options.block_tokens = block_tokens;
  options.chunk_tokens = chunk_tokens;
  options.threads = threads;
  if (codec) options.codec = Named(kCodecNames, "codec", *codec);
  options.resident_tokens = resident_tokens;
  options.policy = policy.c_str();
  options.load = load.c_str();
  options.eviction_batch = Named(kBatches, "eviction_batch", eviction_batch);
  options.hot_bytes_max = hot_bytes_max;
  options.window_tokens = window_tokens;
  options.sink_tokens = sink_tokens;
  options.layout = Named(kLayouts, "layout", layout);
  options.placement = Named(kPlacementNames, "placement", placement);
  options.remote = remote.c_str();
  options.fleet_key_file = key_name.c_str();
  options.remote_writes_all = remote_writes_all;
  options.keys_file = keys_name.c_str();
  options.keys_command = keys_command.c_str();
  options.key = key ? static_cast<const uint8_t*>(key->data()) : nullptr;
  options.arithmetic = arithmetic.c_str();
  options.ladder = ladder ? ladder->c_str() : nullptr;
  const GilFree free;
  quire_engine* opened = nullptr;
  quire_error error{};
  Check(quire_engine_open(&options, &opened, &error), error);
  new (self) PyEngine(Share(std::make_unique<EngineState>(opened)));
}

quire_session_options SamplingOf(uint64_t seed, float temperature, float top_p, uint32_t top_k,
                                 float min_p) {
  quire_session_options options{};
  options.size = sizeof options;
  options.seed = seed;
  options.temperature = temperature;
  options.top_p = top_p;
  options.top_k = top_k;
  options.min_p = min_p;
  return options;
}

std::shared_ptr<TalkState> Talk(quire_session* session,
                                const std::shared_ptr<EngineState>& engine) {
  return Share(std::make_unique<TalkState>(session), engine);
}

std::shared_ptr<PySession> SessionOf(quire_session* session,
                                     const std::shared_ptr<EngineState>& engine) {
  auto talk = Talk(session, engine);
  std::string name = TextOf([&](char* text, size_t bytes, size_t* length, quire_error* error) {
    return quire_session_name(session, text, bytes, length, error);
  });
  return std::make_shared<PySession>(std::move(talk), std::move(name));
}

std::shared_ptr<PySession> OpenSession(const PyEngine& self, const std::optional<std::string>& name,
                                       uint64_t seed, float temperature, float top_p,
                                       uint32_t top_k, float min_p,
                                       const std::optional<std::string>& adapter) {
  const auto engine = self.get();
  quire_session_options options = SamplingOf(seed, temperature, top_p, top_k, min_p);
  if (adapter) options.adapter = adapter->c_str();
  if (name) options.name = name->c_str();
  quire_session* session = nullptr;
  {
    const GilFree free;
    quire_error error{};
    Check(quire_session_open(engine->engine, &options, &session, &error), error);
  }
  return SessionOf(session, engine);
}

void LoadAdapter(const PyEngine& self, const std::string& name,
                 const std::filesystem::path& directory) {
  const auto engine = self.get();
  const std::string path = directory.string();
  const GilFree free;
  quire_error error{};
  Check(quire_engine_load_adapter(engine->engine, name.c_str(), path.c_str(), &error), error);
}

void UnloadAdapter(const PyEngine& self, const std::string& name) {
  const auto engine = self.get();
  const GilFree free;
  quire_error error{};
  Check(quire_engine_unload_adapter(engine->engine, name.c_str(), &error), error);
}

std::shared_ptr<PySession> Reopen(const PyEngine& self, const std::string& name) {
  const auto engine = self.get();
  quire_session* session = nullptr;
  {
    const GilFree free;
    quire_error error{};
    Check(quire_session_reopen(engine->engine, name.c_str(), &session, &error), error);
  }
  return SessionOf(session, engine);
}

std::shared_ptr<PySession> Fork(const PySession& self, const std::optional<std::string>& name) {
  const auto talk = self.get();
  quire_session* fork = nullptr;
  {
    const GilFree free;
    const std::lock_guard one(talk->turn);
    quire_error error{};
    Check(quire_session_fork(talk->session, name ? name->c_str() : nullptr, &fork, &error), error);
  }
  return SessionOf(fork, nullptr);  // the C session keeps its engine
}

void End(const PySession& self) {
  const auto talk = self.get();
  const GilFree free;
  const std::lock_guard one(talk->turn);
  quire_error error{};
  Check(quire_session_end(talk->session, &error), error);
}

/// What is fed, and what its answer is to be like, with the memory that the C struct points to.
struct Turn {
  Turn(nb::handle prompt, uint32_t max_tokens, const std::optional<std::vector<int32_t>>& stops,
       bool stop, float repetition_penalty, float presence_penalty, float frequency_penalty,
       uint32_t min_tokens, const std::map<int32_t, float>& logit_bias, std::string_view on_full,
       std::optional<double> timeout_s, int32_t priority, std::optional<double> retain_s,
       uint64_t retain_tokens)
      : stop_tokens(stops.value_or(std::vector<int32_t>())) {
    options.size = sizeof options;
    if (nb::isinstance<nb::str>(prompt)) {
      text = nb::cast<std::string>(prompt);
      options.text = text.c_str();
    } else if (!prompt.is_none()) {
      tokens = ToTokens(prompt);
      options.tokens = tokens.data();
      options.token_count = tokens.size();
    }
    options.stop_tokens = stop_tokens.data();
    options.stop_count = stop_tokens.size();
    options.max_tokens = max_tokens;
    options.no_stop = stop && !(stops && stops->empty()) ? 0 : 1;
    options.repetition_penalty = repetition_penalty;
    options.presence_penalty = presence_penalty;
    options.frequency_penalty = frequency_penalty;
    options.min_tokens = min_tokens;
    for (const auto& [token, value] : logit_bias) bias.push_back({token, value});
    options.logit_bias = bias.data();
    options.logit_bias_count = bias.size();
    options.on_full = Named(kOnFullNames, "on_full", on_full);
    options.timeout_us = ToMicros(timeout_s);
    options.priority = priority;
    options.retain_us = ToMicros(retain_s);
    options.retain_tokens = retain_tokens;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  quire_turn_options options{};
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<int32_t> stop_tokens;
  std::vector<quire_logit_bias> bias;
  std::string keep_by;
};

std::shared_ptr<PyAnswer> Begin(const PySession& self, nb::handle prompt, uint32_t max_tokens,
                                const std::optional<std::vector<int32_t>>& stop_tokens, bool stop,
                                float repetition_penalty, float presence_penalty,
                                float frequency_penalty, uint32_t min_tokens,
                                const std::map<int32_t, float>& logit_bias,
                                std::string_view on_full, std::optional<double> timeout_s,
                                int32_t priority, std::optional<double> retain_s,
                                uint64_t retain_tokens, float approximate_error_max) {
  const auto talk = self.get();
  Turn turn(prompt, max_tokens, stop_tokens, stop, repetition_penalty, presence_penalty,
            frequency_penalty, min_tokens, logit_bias, on_full, timeout_s, priority, retain_s,
            retain_tokens);
  turn.options.approximate_error_max = approximate_error_max;
  {
    const GilFree free;
    const std::lock_guard one(talk->turn);
    quire_error error{};
    Check(quire_session_begin(talk->session, &turn.options, &error), error);
  }
  return std::make_shared<PyAnswer>(talk);
}

std::shared_ptr<PyAnswer> Ask(const PyEngine& self, nb::handle prompt, uint32_t max_tokens,
                              const std::optional<std::vector<int32_t>>& stop_tokens, bool stop,
                              float repetition_penalty, float presence_penalty,
                              float frequency_penalty, uint32_t min_tokens,
                              const std::map<int32_t, float>& logit_bias, std::string_view on_full,
                              std::optional<double> timeout_s, int32_t priority,
                              std::optional<double> retain_s, uint64_t retain_tokens, double keep,
                              uint64_t keep_blocks, const std::optional<std::string>& keep_by,
                              uint64_t seed, float temperature, float top_p, uint32_t top_k,
                              float min_p, const std::optional<std::string>& adapter,
                              float approximate_error_max) {
  const auto engine = self.get();
  Turn turn(prompt, max_tokens, stop_tokens, stop, repetition_penalty, presence_penalty,
            frequency_penalty, min_tokens, logit_bias, on_full, timeout_s, priority, retain_s,
            retain_tokens);
  turn.options.keep_share = keep;
  turn.options.keep_blocks = keep_blocks;
  turn.options.approximate_error_max = approximate_error_max;
  if (adapter) turn.options.adapter = adapter->c_str();
  if (keep_by) {
    turn.keep_by = *keep_by;
    turn.options.keep_by = turn.keep_by.c_str();
  }
  const quire_session_options sampling = SamplingOf(seed, temperature, top_p, top_k, min_p);
  quire_session* call = nullptr;
  {
    const GilFree free;
    quire_error error{};
    Check(quire_engine_ask(engine->engine, &turn.options, &sampling, &call, &error), error);
  }
  return std::make_shared<PyAnswer>(Talk(call, engine));
}

uint64_t Demote(const PyEngine& self, nb::handle prompt) {
  const auto engine = self.get();
  const Turn turn(prompt, 0, {}, true, 0, 0, 0, 0, {}, "reject", {}, 0, {}, 0);
  const GilFree free;
  quire_error error{};
  uint64_t blocks = 0;
  Check(quire_engine_demote(engine->engine, &turn.options, &blocks, &error), error);
  return blocks;
}

void Resize(const PyEngine& self, uint64_t hot_bytes) {
  const auto engine = self.get();
  const GilFree free;
  quire_error error{};
  Check(quire_engine_resize(engine->engine, hot_bytes, &error), error);
}

uint64_t MicrosOf(double seconds) {
  constexpr double kMost = 3600;
  if (!(seconds >= 0) || seconds > kMost) {
    Raise(ErrorCode::kInvalidArgument, "wait_s is not 0 to 3600");
  }
  return static_cast<uint64_t>(seconds * 1e6);
}

std::shared_ptr<PyLease> Lease(const PyEngine& self, const std::string& owner, uint64_t bytes,
                               double wait_s) {
  const auto engine = self.get();
  const uint64_t wait_us = MicrosOf(wait_s);
  const GilFree free;
  quire_lease* lease = nullptr;
  quire_error error{};
  Check(quire_engine_lease(engine->engine, owner.c_str(), bytes, wait_us, &lease, &error), error);
  return std::make_shared<PyLease>(Share(std::make_unique<LeaseState>(lease)));
}

void ResizeLease(const PyLease& self, uint64_t bytes, double wait_s) {
  const auto state = self.get();
  const uint64_t wait_us = MicrosOf(wait_s);
  const GilFree free;
  quire_error error{};
  Check(quire_lease_resize(state->lease, bytes, wait_us, &error), error);
}

std::string Entries(const PyEngine& self, uint64_t entries_max) {
  const auto engine = self.get();
  return TextOf([&](char* text, size_t bytes, size_t* length, quire_error* error) {
    return quire_engine_entries_json(engine->engine, entries_max, text, bytes, length, error);
  });
}

template <typename Class>
void DefineClose(Class& of, const char* enter) {
  using Type = typename Class::Type;
  of.def(
        "close", [](Type& self) { self.Close(); }, "Lets go of it; twice is once.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig(enter))
      .def(
          "__exit__", [](Type& self, const nb::args&) { self.Close(); },
          nb::sig("def __exit__(self, *_: object) -> None"));
}

constexpr const char* kTurnDoc =
    "prompt: a text, token ids, or None. stop_tokens: that end the answer (None: the model's own); "
    "stop=False: none do. on_full: where memory has no room, \"reject\" waits and may be "
    "preempted, "
    "\"halt\" ends, \"spill\" streams from the store. priority: -50 to 50, lower ones go first. "
    "logit_bias: by token. retain_s: it will be asked for again, so its first retain_tokens (0: "
    "all, "
    "with the answer) are kept in memory so long, at most an hour, within a quarter of what the "
    "cache may hold; the last event says how many are. approximate_error_max: with a ladder, the "
    "largest relative error of blocks in the lower precision that it may begin with; 0: the answer "
    "is exact.\n\n"
    "Raises: InvalidArgumentError, UnsupportedError; what makes it fail later is raised by the "
    "answer. Threads: any.";

void BindSession(nb::module_& module) {
  nb::class_<PySession> session(
      module, "Session",
      "Turns that build on each other. With a store it outlives the process under its name. It is "
      "let go of when it and its answers have been closed. Threads: any, one turn at a time.");
  session
      .def("turn", &Begin, nb::arg("prompt").none(), nb::kw_only(), nb::arg("max_tokens") = 16,
           nb::arg("stop_tokens") = nb::none(), nb::arg("stop") = true,
           nb::arg("repetition_penalty") = 1.0f, nb::arg("presence_penalty") = 0.0f,
           nb::arg("frequency_penalty") = 0.0f, nb::arg("min_tokens") = 0,
           nb::arg("logit_bias") = std::map<int32_t, float>(), nb::arg("on_full") = "reject",
           nb::arg("timeout_s") = nb::none(), nb::arg("priority") = 0,
           nb::arg("retain_s") = nb::none(), nb::arg("retain_tokens") = 0,
           nb::arg("approximate_error_max") = 0.0f,
           nb::sig("def turn(self, prompt: object, *, max_tokens: int = 16, "
                   "stop_tokens: list[int] | None = None, stop: bool = True, repetition_penalty: "
                   "float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, "
                   "min_tokens: int = 0, logit_bias: dict[int, float] = {}, on_full: str = "
                   "'reject', timeout_s: float | None = None, priority: int = 0, retain_s: float | "
                   "None = None, retain_tokens: int = 0, approximate_error_max: float = 0.0) -> "
                   "Answer"),
           (std::string("Feeds a prompt and begins its answer; max_tokens=0 only reads.\n\n") +
            kTurnDoc)
               .c_str())
      .def(
          "fork", &Fork, nb::arg("name") = nb::none(),
          "A second session with the same text and sampler. Raises: BusyError a turn is under way.")
      .def("end", &End,
           "Forgets it for good: its file is overwritten and removed when this returns.")
      .def_prop_ro("name", &PySession::name, "For Engine.reopen_session().")
      .def("__repr__", [](const PySession& self) {
        return self.Repr("engine.Session", [&](const TalkState&) { return self.name(); });
      });
  DefineClose(session, "def __enter__(self) -> Session");
}

void BindLease(nb::module_& module) {
  nb::class_<PyLease> lease(module, "Lease",
                            "Bytes of an engine's budget that something else has, until it is "
                            "closed. Threads: any.");
  lease
      .def("resize", &ResizeLease, nb::arg("bytes"), nb::kw_only(), nb::arg("wait_s") = 0.0,
           "More or less bytes. Raises: as Engine.lease; it stays as it is then.")
      .def("__repr__", [](const PyLease& self) {
        return self.Repr("engine.Lease", [](const LeaseState&) { return std::string("held"); });
      });
  DefineClose(lease, "def __enter__(self) -> Lease");
}

void BindEngine(nb::module_& module) {
  nb::class_<PyEngine> engine(
      module, "Engine",
      "A model, its cache and a thread that computes. It ends when it and all that came of it have "
      "been closed; then what was published is written to the store. Threads: any.");
  engine
      .def(
          "__init__", &Open, nb::arg("model"), nb::kw_only(), nb::arg("store") = nb::none(),
          nb::arg("hot_bytes") = uint64_t{4'000'000'000}, nb::arg("hot_bytes_max") = 0,
          nb::arg("store_bytes") = uint64_t{8} << 30, nb::arg("session_bytes") = uint64_t{1} << 30,
          nb::arg("tokens_max") = 0, nb::arg("block_tokens") = 16, nb::arg("chunk_tokens") = 512,
          nb::arg("threads") = 0, nb::arg("codec") = nb::none(), nb::arg("resident_tokens") = 0,
          nb::arg("policy") = "lru", nb::arg("load") = "auto", nb::arg("eviction_batch") = "exact",
          nb::arg("window_tokens") = 0, nb::arg("sink_tokens") = 0,
          nb::arg("layout") = "block_major", nb::arg("placement") = "free_list",
          nb::arg("remote") = "", nb::arg("fleet_key") = nb::none(),
          nb::arg("remote_writes_all") = false, nb::arg("keys") = nb::none(),
          nb::arg("keys_command") = "", nb::arg("key") = nb::none(),
          nb::arg("arithmetic") = "fma32", nb::arg("ladder") = nb::none(),
          nb::sig(
              "def __init__(self, model: str | os.PathLike[str], *, store: str | "
              "os.PathLike[str] | None = None, hot_bytes: int = 4000000000, hot_bytes_max: "
              "int = 0, store_bytes: int = 8589934592, session_bytes: int = 1073741824, "
              "tokens_max: int = 0, block_tokens: int = 16, chunk_tokens: int = 512, "
              "threads: int = 0, codec: str | None = None, resident_tokens: int = 0, policy: "
              "str = 'lru', load: str = 'auto', eviction_batch: str = 'exact', "
              "window_tokens: int = 0, sink_tokens: int = 0, layout: str = 'block_major', "
              "placement: str = 'free_list', remote: str = '', fleet_key: str | "
              "os.PathLike[str] | None = None, remote_writes_all: bool = False, keys: str | "
              "os.PathLike[str] | None = None, keys_command: str = '', key: bytes | None = None, "
              "arithmetic: str = 'fma32', ladder: str | None = None) -> None"),
          "Loads a model of Hugging Face's form and opens the store, where blocks and sessions "
          "outlive the process.\n\n"
          "hot_bytes: budget of K and V in memory, up to hot_bytes_max later (resize). tokens_max: "
          "of one text, 0: the model's. codec: of K and V, None: the model's type. "
          "resident_tokens: what memory cannot hold whole is read back from the store while layers "
          "attend, all but so many of its last tokens; 0: it is refused. policy, load, "
          "eviction_batch: docs/policies.md, docs/durability.md. window_tokens, sink_tokens: every "
          "layer sees these alone, and memory stays the same however long the text is. remote, "
          "fleet_key, remote_writes_all: as of quire.DiskStore; sessions are in the store "
          "alone. keys, keys_command, key: as of quire.DiskStore, for store and sessions. "
          "arithmetic: how matrices are multiplied, 'dot16' for a model of bf16 on a processor "
          "with products of bf16 (docs/numerics.md). ladder: 'f16:int8': blocks that grow cold "
          "stay in the second codec alone, and so they go to the store, or in a third one: "
          "'f16:int8:int4'; answers find them that accept them (docs/ladder.md).\n\n"
          "Raises: NotFoundError, CorruptError, UnsupportedError of the model's files; "
          "NoSpaceError hot_bytes; BusyError another process has the store; IoError.")
      .def(
          "ask", &Ask, nb::arg("prompt").none(), nb::kw_only(), nb::arg("max_tokens") = 16,
          nb::arg("stop_tokens") = nb::none(), nb::arg("stop") = true,
          nb::arg("repetition_penalty") = 1.0f, nb::arg("presence_penalty") = 0.0f,
          nb::arg("frequency_penalty") = 0.0f, nb::arg("min_tokens") = 0,
          nb::arg("logit_bias") = std::map<int32_t, float>(), nb::arg("on_full") = "reject",
          nb::arg("timeout_s") = nb::none(), nb::arg("priority") = 0,
          nb::arg("retain_s") = nb::none(), nb::arg("retain_tokens") = 0, nb::arg("keep") = 1.0,
          nb::arg("keep_blocks") = 0, nb::arg("keep_by") = nb::none(), nb::arg("seed") = 0,
          nb::arg("temperature") = 0.0f, nb::arg("top_p") = 1.0f, nb::arg("top_k") = 0,
          nb::arg("min_p") = 0.0f, nb::arg("adapter") = nb::none(),
          nb::arg("approximate_error_max") = 0.0f,
          nb::sig(
              "def ask(self, prompt: object, *, max_tokens: int = 16, "
              "stop_tokens: list[int] | None = None, stop: bool = True, repetition_penalty: "
              "float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, "
              "min_tokens: int = 0, logit_bias: dict[int, float] = {}, on_full: str = "
              "'reject', timeout_s: float | None = None, priority: int = 0, retain_s: float | "
              "None = None, retain_tokens: int = 0, keep: float = "
              "1.0, keep_blocks: int = 0, keep_by: str | None = None, seed: int = 0, temperature: "
              "float = 0.0, "
              "top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, adapter: str | None = None, "
              "approximate_error_max: float = 0.0) -> Answer"),
          (std::string("One prompt and its answer, in no session.\n\n"
                       "adapter: one that load_adapter() named; None: the base model. "
                       "keep: with less than 1 it goes on with this share of the prompt's blocks, "
                       "those that keep_by says (\"observed\", \"accumulated\", \"recent\"); "
                       "keep_blocks: it never holds more than so many; the "
                       "answer is an approximation then. ") +
           kTurnDoc)
              .c_str())
      .def("open_session", &OpenSession, nb::arg("name") = nb::none(), nb::kw_only(),
           nb::arg("seed") = 0, nb::arg("temperature") = 0.0f, nb::arg("top_p") = 1.0f,
           nb::arg("top_k") = 0, nb::arg("min_p") = 0.0f, nb::arg("adapter") = nb::none(),
           "A new session; temperature 0 says the most likely token. With a store it is durable "
           "when this returns. adapter: that all its turns are computed with.\n\nRaises: "
           "InvalidArgumentError the name is none, or taken; NotFoundError the adapter.")
      .def("load_adapter", &LoadAdapter, nb::arg("name"), nb::arg("directory"),
           nb::sig("def load_adapter(self, name: str, directory: str | os.PathLike[str]) -> None"),
           "Reads a LoRA adapter as PEFT writes it, which asks and sessions may name from now "
           "on.\n\nRaises: NotFoundError, CorruptError, UnsupportedError of its files; BusyError "
           "one "
           "of that name is loaded; NoSpaceError, TooLargeError 64 adapters, or 4 GiB of them.")
      .def("unload_adapter", &UnloadAdapter, nb::arg("name"),
           "No new answer finds it; those that are under way end with it. Raises: NotFoundError.")
      .def(
          "adapters",
          [](const PyEngine& self) {
            return FromJson(EngineText<quire_engine_adapters_json>(self));
          },
          nb::sig("def adapters(self) -> list[LoadedAdapter]"), "Those that are loaded, by name.")
      .def("reopen_session", &Reopen, nb::arg("name"),
           "Goes on with a session of the store, as it was after its last whole turn.\n\n"
           "Raises: NotFoundError; BusyError it is open; UnsupportedError another model's.")
      .def("resize", &Resize, nb::arg("hot_bytes"),
           "Another budget in memory while sessions go on. Raises: as Cache.resize.")
      .def("lease", &Lease, nb::arg("owner"), nb::arg("bytes"), nb::kw_only(),
           nb::arg("wait_s") = 0.0,
           "Takes bytes out of the budget for something outside the engine, such as the "
           "quire.Registry of a training run, until the lease is closed. Turns that run give way "
           "for at most wait_s seconds.\n\nRaises: BusyError they hold more after that; "
           "TooLargeError the budget has no more than that; NoSpaceError the rest holds no block.")
      .def("demote", &Demote, nb::arg("prompt"),
           "Moves what memory has of a text's whole blocks to the store now, and returns how many "
           "left memory. Raises: as Cache.demote.")
      .def(
          "sessions",
          [](const PyEngine& self) {
            return FromJson(EngineText<quire_engine_sessions_json>(self));
          },
          nb::sig("def sessions(self) -> list[StoredSession]"),
          "Sessions that there are, open or in the store.")
      .def(
          "sequences",
          [](const PyEngine& self) {
            return FromJson(EngineText<quire_engine_sequences_json>(self));
          },
          nb::sig("def sequences(self) -> list[SequenceEntry]"),
          "Who holds what of the cache: requests by age, then sessions.")
      .def(
          "stats",
          [](const PyEngine& self) { return FromJson(EngineText<quire_engine_stats_json>(self)); },
          nb::sig("def stats(self) -> EngineStats"), "What engine, cache and store count.")
      .def(
          "entries",
          [](const PyEngine& self, uint64_t entries_max) {
            return FromJson(Entries(self, entries_max));
          },
          nb::arg("entries_max") = UINT64_MAX,
          nb::sig("def entries(self, entries_max: int = 18446744073709551615) -> list[CacheEntry]"),
          "As Cache.entries().")
      .def(
          "free_slots",
          [](const PyEngine& self) { return FromJson(EngineText<quire_engine_free_json>(self)); },
          nb::sig("def free_slots(self) -> list[FreeRuns]"), "As Cache.free_slots().")
      .def("block_map", &EngineText<quire_engine_block_map>, "As Cache.block_map().")
      .def("__repr__", [](const PyEngine& self) {
        return self.Repr("engine.Engine", [](const EngineState&) { return std::string("open"); });
      });
  DefineClose(engine, "def __enter__(self) -> Engine");
}

}  // namespace
}  // namespace quire::python

NB_MODULE(_engine, module) {
  module.doc() = "The compiled half of quire.engine; import that instead.";
  nanobind::set_leak_warnings(false);
  quire::python::CountForks();
  quire::python::RegisterFailures();
  quire::python::BindEvent(module);
  quire::python::BindAnswer(module);
  quire::python::BindSession(module);
  quire::python::BindLease(module);
  quire::python::BindEngine(module);
}
