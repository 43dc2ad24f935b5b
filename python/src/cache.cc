// Cache, Plan, Identity, LayerGroup and SharedBudget.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <optional>

#include "bind.h"
#include "quire/events.h"

namespace quire::python {
namespace {

constexpr Name<OnFull> kOnFull[] = {{"reject", OnFull::kReject},
                                    {"halt", OnFull::kHalt},
                                    {"no_evict", OnFull::kNoEvict},
                                    {"fewer", OnFull::kFewer}};
constexpr Name<ComputeType> kComputes[] = {
    {"f32", ComputeType::kF32}, {"f16", ComputeType::kF16}, {"bf16", ComputeType::kBf16}};
constexpr Name<EvictionBatch> kEvictionBatches[] = {{"exact", EvictionBatch::kExact},
                                                    {"adaptive", EvictionBatch::kAdaptive}};
constexpr Name<Placement> kPlacements[] = {{"free_list", Placement::kFreeList},
                                           {"first_fit", Placement::kFirstFit},
                                           {"best_fit", Placement::kBestFit},
                                           {"buddy", Placement::kBuddy}};

Digest ToDigest(const nb::bytes& bytes, const char* name) {
  Digest digest{};
  if (bytes.size() != digest.size()) {
    Raise(ErrorCode::kInvalidArgument, std::string(name) + " has " + std::to_string(bytes.size()) +
                                           " bytes, not " + std::to_string(digest.size()));
  }
  std::memcpy(digest.data(), bytes.c_str(), digest.size());
  return digest;
}

nb::bytes FromDigest(const Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

struct GroupOptions {
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t value_dim = 0;
  uint32_t window_tokens = 0;
  uint32_t sink_tokens = 0;
  bool latent = false;
};

LayerGroup MakeGroup(std::vector<uint32_t> layers, const GroupOptions& options) {
  LayerGroup group{.kind = options.window_tokens > 0 ? LayerKind::kWindow : LayerKind::kFull,
                   .layers = std::move(layers),
                   .window_tokens = options.window_tokens,
                   .sink_tokens = options.sink_tokens};
  if (options.latent) {
    group.streams = {
        {.role = StreamRole::kLatent, .heads = options.kv_heads, .dim = options.head_dim}};
    return group;
  }
  const uint32_t value_dim = options.value_dim == 0 ? options.head_dim : options.value_dim;
  group.streams = {{.role = StreamRole::kKey, .heads = options.kv_heads, .dim = options.head_dim},
                   {.role = StreamRole::kValue, .heads = options.kv_heads, .dim = value_dim}};
  return group;
}

Geometry MakeGeometry(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      std::vector<LayerGroup> groups) {
  const bool uniform = layers != 0 || kv_heads != 0 || head_dim != 0;
  if (uniform == !groups.empty()) {
    Raise(ErrorCode::kInvalidArgument, "either layers, kv_heads and head_dim, or groups");
  }
  if (!uniform) return {.groups = std::move(groups)};
  if (layers > 65'536) {  // as Geometry::Validate says, before a list of so many is made
    Raise(ErrorCode::kInvalidArgument, std::to_string(layers) + " layers, at most 65536");
  }
  return Geometry::Uniform(layers, kv_heads, head_dim);
}

void MakeCache(PyCache* self, uint64_t hot_bytes, uint32_t layers, uint32_t kv_heads,
               uint32_t head_dim, std::vector<LayerGroup> groups, std::string_view codec,
               std::optional<std::string> value_codec, std::optional<std::string> open_codec,
               const std::optional<std::string>& ladder, uint32_t block_tokens,
               uint32_t residual_tokens, std::string_view compute, std::string arithmetic,
               std::string_view layout, std::string_view placement, bool huge_pages,
               uint64_t tokens_max, uint64_t hot_bytes_max, std::string policy,
               std::string_view eviction_batch, bool codec_fallback, const PyBudget* shared_budget,
               const PyDiskStore* disk_store, std::string events, std::string events_replay,
               std::string events_topic) {
  CacheOptions options;
  options.geometry = MakeGeometry(layers, kv_heads, head_dim, std::move(groups));
  const Codec key = ToCodec(codec);
  options.profile = NumericProfile::Uniform(key, block_tokens);
  for (CodecRule& rule : options.profile.codecs) {
    if (rule.role == StreamRole::kValue && value_codec) rule.codec = ToCodec(*value_codec);
  }
  options.profile.open_dtype = open_codec        ? ToCodec(*open_codec)
                               : IsIdentity(key) ? key
                                                 : Codec::kF16;
  options.profile.residual_tokens = residual_tokens;
  if (ladder) {
    if (key != Codec::kF16 || value_codec || open_codec || residual_tokens != 0) {
      Raise(ErrorCode::kInvalidArgument,
            "ladder: it names the codecs itself; leave codec, value_codec, open_codec and "
            "residual_tokens out");
    }
    Value(SetLadder(*ladder, options.profile));
  }
  options.profile.compute = Named(kComputes, "compute", compute);
  options.profile.arithmetic = std::move(arithmetic);
  const std::optional<ArenaLayout> arena = ParseArenaLayout(layout);
  if (!arena) {
    Raise(ErrorCode::kInvalidArgument, "no layout is named \"" + std::string(layout) + "\"");
  }
  options.layout = *arena;
  options.placement = Named(kPlacements, "placement", placement);
  options.huge_pages = huge_pages;
  options.tokens_max = tokens_max;
  options.hot_bytes = hot_bytes;
  options.hot_bytes_max = hot_bytes_max;
  options.policy = std::move(policy);
  options.eviction_batch = Named(kEvictionBatches, "eviction_batch", eviction_batch);
  const std::shared_ptr<SharedBudget> budget =
      shared_budget == nullptr ? nullptr : shared_budget->get();
  options.shared_budget = budget.get();
  const std::shared_ptr<DiskStore> store = disk_store == nullptr ? nullptr : disk_store->get();
  options.store = store.get();
  options.announce = !events.empty();

  const GilFree free;
  std::unique_ptr<AttentionBackend> kernels;
  if (codec_fallback) {
    kernels = Value(MakeCpuAttention());
    options.fallback_kernels = kernels.get();
  }
  std::shared_ptr<Cache> cache = Share(Value(Cache::Create(std::move(options))), budget, store);
  if (!events.empty()) {
    const EventOptions wanted{.endpoint = std::move(events),
                              .replay_endpoint = std::move(events_replay),
                              .topic = std::move(events_topic)};
    const auto first_ends = Share(Value(EventPublisher::Start(*cache->changes(), wanted)), cache);
    cache = {first_ends, cache.get()};
  }
  new (self) PyCache(std::move(cache));
}

nb::dict CodecsOf(const PyCache& self) {
  const std::shared_ptr<Cache> cache = self.get();
  const NumericProfile& profile = cache->options().profile;
  const std::vector<Stream>& streams = cache->options().geometry.groups.front().streams;
  const auto name = [](Codec codec) {
    const std::string_view text = CodecName(codec);
    return nb::str(text.data(), text.size());
  };
  nb::dict codecs;
  codecs["key"] = name(Value(profile.CodecFor(streams.front().role)));
  codecs["value"] = name(Value(profile.CodecFor(streams.back().role)));
  codecs["open"] = name(profile.open_dtype);
  return codecs;
}

// Calls `use` with a request made of Python's arguments, without the GIL.
template <typename Use>
auto WithRequest(const PyCache& self, nb::handle tokens, const Identity& identity, uint32_t tenant,
                 bool reuse, const Use& use, float approximate_error_max = 0.0f) {
  const std::shared_ptr<Cache> cache = self.get();
  const std::vector<TokenId> list = ToTokens(tokens);
  const Identity copy = identity;  // a Python object may change it meanwhile
  const GilFree free;
  return use(cache, AcquireRequest{.tenant = TenantId(tenant),
                                   .identity = &copy,
                                   .tokens = list,
                                   .reuse = reuse,
                                   .approximate_error_max = approximate_error_max});
}

std::shared_ptr<PyPlan> Acquire(const PyCache& self, nb::handle tokens, const Identity& identity,
                                uint32_t tenant, bool reuse, float approximate_error_max) {
  return WithRequest(
      self, tokens, identity, tenant, reuse,
      [](const std::shared_ptr<Cache>& cache, const AcquireRequest& request) {
        Plan plan = Value(cache->Acquire(request));
        return std::make_shared<PyPlan>(Share(std::make_unique<PlanState>(cache, std::move(plan))));
      },
      approximate_error_max);
}

std::shared_ptr<PySequence> Open(const PyCache& self, PyPlan& plan, uint64_t reserve_tokens,
                                 uint64_t step_tokens, std::string_view on_full, bool publish,
                                 bool contiguous, uint64_t resident_tokens, uint32_t query_heads) {
  const std::shared_ptr<Cache> cache = self.get();
  CheckOwner(plan, cache);
  const SequenceOptions options{.reserve_tokens = reserve_tokens,
                                .step_tokens = step_tokens,
                                .on_full = Named(kOnFull, "on_full", on_full),
                                .publish = publish,
                                .contiguous = contiguous,
                                .resident_tokens = resident_tokens,
                                .query_heads = query_heads};
  Plan taken = plan.Take();
  const GilFree free;
  auto sequence = Value(cache->Open(std::move(taken), options));
  return std::make_shared<PySequence>(
      Share(std::make_unique<SequenceState>(cache, std::move(sequence))));
}

nb::list Missing(const PyPlan& self) {
  const std::shared_ptr<PlanState> state = self.get();
  nb::list runs;
  for (const MissRun& run : state->plan.missing()) {
    const std::string_view name = MissReasonName(run.reason);
    runs.append(nb::make_tuple(nb::str(name.data(), name.size()), run.tokens));
  }
  return runs;
}

std::string ReasonOf(const PyPlan& self) {
  return std::string(MissReasonName(self.get()->plan.reason()));
}

uint32_t AddTenant(const PyCache& self, std::string name, uint64_t quota_bytes,
                   uint64_t floor_bytes, std::string domain, bool shared, double ttl_s,
                   uint64_t store_quota_bytes, uint64_t store_floor_bytes) {
  const std::shared_ptr<Cache> cache = self.get();
  const TenantOptions options{.name = std::move(name),
                              .quota_bytes = quota_bytes,
                              .floor_bytes = floor_bytes,
                              .domain = std::move(domain),
                              .shared = shared,
                              .ttl_us = ToTtl(ttl_s),
                              .store_quota_bytes = store_quota_bytes,
                              .store_floor_bytes = store_floor_bytes};
  const GilFree free;
  return Value(cache->AddTenant(options)).number();
}

nb::dict Erase(const PyCache& self, uint32_t tenant) {
  const std::shared_ptr<Cache> cache = self.get();
  EraseReport report;
  {
    const GilFree free;
    report = Value(cache->Erase(TenantId(tenant)));
  }
  nb::dict made;
  made["blocks"] = report.blocks;
  made["slots_zeroed"] = report.slots_zeroed;
  made["slots_pending"] = report.slots_pending;
  return made;
}

// Without the domain's secret.
std::string ReprOf(const Identity& self) {
  const auto hex = nb::cast<std::string>(FromDigest(self.weights).attr("hex")());
  std::string text = "<quire.Identity: weights " + hex.substr(0, 12) + "...";
  if (!self.adapter.empty()) {
    text += ", adapter '" + self.adapter + "' version " + std::to_string(self.adapter_version);
  }
  if (!self.position_encoding.empty()) text += ", '" + self.position_encoding + "'";
  if (!self.domain.name.empty()) text += ", domain '" + self.domain.name + "'";
  return text + ">";
}

void BindIdentity(nb::module_& module) {
  nb::class_<Identity>(module, "Identity",
                       "Who computed the values: equal identity and equal tokens mean equal bytes."
                       "\n\nWhatever decides K and V besides the tokens belongs in here. Programs "
                       "that leave something out share blocks that differ.")
      .def(
          "__init__",
          [](Identity* self, const nb::bytes& weights, std::string adapter,
             uint64_t adapter_version, std::string position_encoding, std::string domain,
             const std::optional<nb::bytes>& domain_secret) {
            Identity made{.weights = ToDigest(weights, "weights"),
                          .adapter = std::move(adapter),
                          .adapter_version = adapter_version,
                          .position_encoding = std::move(position_encoding),
                          .domain = {.name = std::move(domain)}};
            if (domain_secret) made.domain.secret = ToDigest(*domain_secret, "domain_secret");
            new (self) Identity(std::move(made));
          },
          nb::arg("weights"), nb::kw_only(), nb::arg("adapter") = "",
          nb::arg("adapter_version") = 0, nb::arg("position_encoding") = "", nb::arg("domain") = "",
          nb::arg("domain_secret") = nb::none(),
          "weights: 32 bytes, a digest of every weight and of the config that shapes them.\n"
          "adapter, adapter_version: a LoRA and its version, which moves at every training step.\n"
          "position_encoding: for example \"rope:theta=1000000\".\n"
          "domain, domain_secret: who shares; the secret (32 bytes) keys the hash of the tokens.")
      .def_prop_ro("weights", [](const Identity& self) { return FromDigest(self.weights); })
      .def_ro("adapter", &Identity::adapter)
      .def_ro("adapter_version", &Identity::adapter_version)
      .def_ro("position_encoding", &Identity::position_encoding)
      .def_prop_ro("domain", [](const Identity& self) { return self.domain.name; })
      .def("__repr__", &ReprOf)
      .def("__eq__", [](const Identity& self, const Identity& other) { return self == other; })
      .def("__eq__", [](const Identity&, nb::handle) { return false; })
      .def("__hash__", [](const Identity& self) {
        return std::hash<std::string_view>{}(
            {reinterpret_cast<const char*>(self.weights.data()), self.weights.size()});
      });
}

std::string DescribeGroup(const LayerGroup& self) {
  std::string text = "<quire.LayerGroup: " + std::to_string(self.layers.size()) + " layers";
  for (const Stream& stream : self.streams) {
    text += std::string(", ") +
            (stream.role == StreamRole::kKey     ? "key"
             : stream.role == StreamRole::kValue ? "value"
                                                 : "latent") +
            " " + std::to_string(stream.heads) + " x " + std::to_string(stream.dim);
  }
  if (self.window_tokens > 0) text += ", window of " + std::to_string(self.window_tokens);
  if (self.sink_tokens > 0) text += " after " + std::to_string(self.sink_tokens) + " sinks";
  return text + ">";
}

void BindLayerGroup(nb::module_& module) {
  nb::class_<LayerGroup>(module, "LayerGroup",
                         "Layers that share kind, window and streams (Cache(groups=...)).")
      .def(
          "__init__",
          [](LayerGroup* self, std::vector<uint32_t> layers, uint32_t kv_heads, uint32_t head_dim,
             uint32_t value_dim, uint32_t window_tokens, uint32_t sink_tokens, bool latent) {
            new (self) LayerGroup(MakeGroup(std::move(layers), {.kv_heads = kv_heads,
                                                                .head_dim = head_dim,
                                                                .value_dim = value_dim,
                                                                .window_tokens = window_tokens,
                                                                .sink_tokens = sink_tokens,
                                                                .latent = latent}));
          },
          nb::arg("layers"), nb::kw_only(), nb::arg("kv_heads"), nb::arg("head_dim"),
          nb::arg("value_dim") = 0, nb::arg("window_tokens") = 0, nb::arg("sink_tokens") = 0,
          nb::arg("latent") = false,
          "layers: absolute numbers, ascending.\n"
          "value_dim: 0: head_dim.\n"
          "window_tokens: a query sees itself and window_tokens - 1 before it; 0: all.\n"
          "sink_tokens: with a window, the first tokens that stay visible.\n"
          "latent: one stream that is read as K and as V (MLA), passed as `key`.")
      .def("__repr__", &DescribeGroup)
      .def_ro("layers", &LayerGroup::layers)
      .def_ro("window_tokens", &LayerGroup::window_tokens)
      .def_ro("sink_tokens", &LayerGroup::sink_tokens);
}

void BindBudget(nb::module_& module) {
  nb::class_<PyBudget>(module, "SharedBudget",
                       "A hard budget in bytes that several caches pay from, besides each its "
                       "own (Cache(shared_budget=...)). Threads: any.")
      .def(
          "__init__",
          [](PyBudget* self, uint64_t bytes, uint64_t bytes_max) {
            new (self) PyBudget(Share(std::make_unique<SharedBudget>(bytes, bytes_max)));
          },
          nb::arg("bytes"), nb::arg("bytes_max") = 0,
          "bytes_max: the most that resize may raise it to; 0: bytes.")
      .def_prop_ro("bytes", [](const PyBudget& self) { return self.get()->bytes(); })
      .def_prop_ro("used_bytes", [](const PyBudget& self) { return self.get()->used_bytes(); })
      .def("__repr__",
           [](const PyBudget& self) {
             return self.Repr("SharedBudget", [](const SharedBudget& budget) {
               return std::to_string(budget.used_bytes()) + " of " +
                      std::to_string(budget.bytes()) + " bytes used";
             });
           })
      .def(
          "resize", [](const PyBudget& self, uint64_t bytes) { Value(self.get()->Resize(bytes)); },
          nb::arg("bytes"),
          "Evicts nothing. Raises: TooLargeError above bytes_max; BusyError more is charged.");
}

std::shared_ptr<PyTicket> Load(const PyCache& self, PyPlan& plan, std::optional<double> timeout_s,
                               bool from_end, uint32_t by_layer) {
  const std::shared_ptr<Cache> cache = self.get();
  CheckOwner(plan, cache);
  if (from_end && by_layer != 0) {
    Raise(ErrorCode::kInvalidArgument, "load: both from_end and by_layer");
  }
  LoadOptions options{.timeout_us = ToMicros(timeout_s)};
  if (from_end) options.order = LoadOrder::kFromEnd;
  if (by_layer != 0) {
    options.order = LoadOrder::kByLayer;
    options.slices = by_layer;
  }
  Plan taken = plan.Take();
  const GilFree free;
  Ticket ticket = Value(cache->Load(std::move(taken), options));
  return std::make_shared<PyTicket>(
      Share(std::make_unique<TicketState>(cache, from_end, std::move(ticket))));
}

void BindPlan(nb::module_& module) {
  nb::class_<PyPlan>(module, "Plan",
                     "What the cache has of a prompt, pinned until it is opened or closed.\n\n"
                     "Made by Cache.acquire(), used up by Cache.open(), also when that fails.")
      .def_prop_ro(
          "resident_tokens", [](const PyPlan& self) { return self.get()->plan.resident_tokens(); },
          "Tokens found: a multiple of block_tokens, less than the prompt.")
      .def_prop_ro(
          "missing_tokens", [](const PyPlan& self) { return self.get()->plan.missing_tokens(); },
          "Tokens that must be computed; never 0.")
      .def_prop_ro(
          "loadable_tokens", [](const PyPlan& self) { return self.get()->plan.loadable_tokens(); },
          "Of the missing tokens, those that Cache.load can bring from the store.")
      .def_prop_ro(
          "approximate_tokens",
          [](const PyPlan& self) { return self.get()->plan.approximate_tokens(); },
          "Of the resident tokens, those in the lower precision of a ladder.")
      .def_prop_ro(
          "approximate_error",
          [](const PyPlan& self) { return self.get()->plan.approximate_error(); },
          "The largest relative error of theirs.")
      .def_prop_ro("reason", &ReasonOf,
                   "Why the first missing token is missing, for example \"never_seen\".")
      .def_prop_ro(
          "differs_at", [](const PyPlan& self) { return self.get()->plan.differs_at(); },
          nb::sig("def differs_at(self) -> int | None"),
          "Where in the prompt the first token stands that differs from what is cached behind the "
          "tokens that are alike; None: nothing that is cached goes on from there.")
      .def_prop_ro("missing", &Missing, nb::sig("def missing(self) -> list[tuple[str, int]]"),
                   "All missing tokens in order, as (reason, tokens).")
      .def("__repr__",
           [](const PyPlan& self) {
             return self.Repr("Plan", [](const PlanState& state) {
               return std::to_string(state.plan.resident_tokens()) + " tokens resident, " +
                      std::to_string(state.plan.missing_tokens()) + " missing (" +
                      std::string(MissReasonName(state.plan.reason())) + ")";
             });
           })
      .def_prop_ro("closed", &PyPlan::closed)
      .def("close", &PyPlan::Close, "Drops the pins. Does nothing once it was opened.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Plan"))
      .def(
          "__exit__", [](PyPlan& self, const nb::args&) { self.Close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

void BindRequests(nb::class_<PyCache>& type) {
  type.def(
          "acquire", &Acquire, nb::arg("tokens"), nb::arg("identity"), nb::kw_only(),
          nb::arg("tenant") = 0, nb::arg("reuse") = true, nb::arg("approximate_error_max") = 0.0f,
          "Pins the longest cached prefix of a prompt; at least one token is left to compute.\n\n"
          "tokens: the whole prompt, a list or an array [n] of int32 or int64.\n"
          "approximate_error_max: with a ladder, the largest relative error of blocks in the lower "
          "precision that it accepts; what a sequence computes after them is published for "
          "requests that accept it, too. 0: it is exact.\n"
          "Raises: InvalidArgumentError no tokens, or more than tokens_max; NotFoundError no such "
          "tenant. A miss is no error. Threads: any.")
      .def("open", &Open, nb::arg("plan"), nb::kw_only(), nb::arg("reserve_tokens") = 0,
           nb::arg("step_tokens") = 512, nb::arg("on_full") = "reject", nb::arg("publish") = true,
           nb::arg("contiguous") = false, nb::arg("resident_tokens") = 0,
           nb::arg("query_heads") = 0,
           "A sequence that starts with the plan's resident tokens and has room for the rest.\n\n"
           "reserve_tokens: prompt and expected output; 0: the prompt.\n"
           "step_tokens: most tokens appended between two commits, where windows or codecs that "
           "encode need room for them.\n"
           "on_full: \"reject\" reserves all of it or refuses; \"halt\" reserves the prompt, and "
           "growing may fail; \"no_evict\" takes free room only; \"fewer\" reserves what there is "
           "room for, at least the prompt.\n"
           "publish: False: its blocks are never shared.\n"
           "contiguous: its blocks are consecutive slots (reuse=False, a placement with runs).\n"
           "resident_tokens: for a context that hot_bytes do not hold, with a disk_store: at least "
           "so many of its last tokens stay in memory, and Attention reads the others back, with "
           "the same bits. It needs query_heads, the heads that query a layer.\n"
           "Raises: NoSpaceError, TooLargeError, InvalidArgumentError, UnsupportedError. The plan "
           "is used up then too.")
      .def("load", &Load, nb::arg("plan"), nb::kw_only(), nb::arg("timeout_s") = nb::none(),
           nb::arg("from_end") = false, nb::arg("by_layer") = 0,
           "Begins to read what the store has of a plan; Ticket.take() gives the plan back, with "
           "what came resident.\n\ntimeout_s: what is not there by then is left to be computed.\n"
           "from_end: the last block first, for a caller that computes the front meanwhile, on "
           "Ticket.front(), and says with Ticket.meet() how far it is.\n"
           "by_layer: in so many slices (2 to 8) the first layers of all blocks, then the next "
           "ones, for a caller that computes what follows meanwhile, on Ticket.arriving(); 0: "
           "whole blocks.\n"
           "Raises: NoSpaceError no room for it; UnsupportedError from_end with windows or "
           "residual_tokens. The plan is used up in any case.")
      .def(
          "prefetch",
          [](const PyCache& self, nb::handle tokens, const Identity& identity, uint32_t tenant,
             float approximate_error_max) {
            return WithRequest(
                self, tokens, identity, tenant, true,
                [](const std::shared_ptr<Cache>& cache, const AcquireRequest& request) {
                  return Value(cache->Prefetch(request));
                },
                approximate_error_max);
          },
          nb::arg("tokens"), nb::arg("identity"), nb::kw_only(), nb::arg("tenant") = 0,
          nb::arg("approximate_error_max") = 0.0f,
          "For a prompt that is expected: begins to read what the store has of it, and returns how "
          "many tokens are on their way. They are cached then; nothing holds them.\n\n"
          "Raises: NoSpaceError no room for them. Threads: any.")
      .def(
          "demote",
          [](const PyCache& self, nb::handle tokens, const Identity& identity, uint32_t tenant) {
            return WithRequest(
                self, tokens, identity, tenant, true,
                [](const std::shared_ptr<Cache>& cache, const AcquireRequest& request) {
                  return Value(cache->Demote(request));
                });
          },
          nb::arg("tokens"), nb::arg("identity"), nb::kw_only(), nb::arg("tenant") = 0,
          "Moves what memory has of the whole blocks of `tokens` to the store now, and returns how "
          "many blocks left memory: from the last one on, up to one that is in use, pinned or "
          "continued by another prompt.\n\n"
          "Raises: UnsupportedError there is no store; NoSpaceError and IoError none left, for the "
          "store took nothing. Threads: any.")
      .def(
          "pin",
          [](const PyCache& self, nb::handle tokens, const Identity& identity, uint32_t tenant,
             double ttl_s) {
            const uint64_t ttl = ToTtl(ttl_s);
            return WithRequest(
                self, tokens, identity, tenant, true,
                [&](const std::shared_ptr<Cache>& cache, const AcquireRequest& request) {
                  return Value(cache->Pin(request, ttl));
                });
          },
          nb::arg("tokens"), nb::arg("identity"), nb::kw_only(), nb::arg("tenant") = 0,
          nb::arg("ttl_s") = 0.0,
          "Keeps the whole blocks of `tokens` whoever uses them, for ttl_s (0: until unpin); "
          "returns how many.\n\nRaises: NotFoundError not all of it is cached; NoSpaceError over "
          "the tenant's quota.")
      .def(
          "unpin",
          [](const PyCache& self, nb::handle tokens, const Identity& identity, uint32_t tenant) {
            WithRequest(self, tokens, identity, tenant, true,
                        [](const std::shared_ptr<Cache>& cache, const AcquireRequest& request) {
                          Value(cache->Unpin(request));
                          return 0;
                        });
          },
          nb::arg("tokens"), nb::arg("identity"), nb::kw_only(), nb::arg("tenant") = 0,
          "Takes one pin back. Raises: NotFoundError there is none.");
}

void BindTenants(nb::class_<PyCache>& type) {
  type.def("add_tenant", &AddTenant, nb::arg("name"), nb::kw_only(), nb::arg("quota_bytes") = 0,
           nb::arg("floor_bytes") = 0, nb::arg("domain") = "", nb::arg("shared") = false,
           nb::arg("ttl_s") = 0.0, nb::arg("store_quota_bytes") = 0,
           nb::arg("store_floor_bytes") = 0,
           "A party that pays for its blocks and reads no one else's (or, with shared, a domain "
           "for tenants to name); returns its number.\n\n"
           "ttl_s: blocks that it has not used for so long go; 0: none.")
      .def(
          "find_tenant",
          [](const PyCache& self, const std::string& name) {
            return Value(self.get()->FindTenant(name)).number();
          },
          nb::arg("name"), "The number of a tenant. Raises: NotFoundError.")
      .def(
          "remove_tenant",
          [](const PyCache& self, uint32_t tenant) {
            const auto cache = self.get();
            const GilFree free;
            Value(cache->RemoveTenant(TenantId(tenant)));
          },
          nb::arg("tenant"),
          "Erases what it published and takes it out. Raises: BusyError something of it is held.")
      .def(
          "set_limits",
          [](const PyCache& self, uint32_t tenant, uint64_t quota_bytes, uint64_t floor_bytes) {
            const auto cache = self.get();
            const GilFree free;
            Value(cache->SetLimits(TenantId(tenant), quota_bytes, floor_bytes));
          },
          nb::arg("tenant"), nb::kw_only(), nb::arg("quota_bytes") = 0, nb::arg("floor_bytes") = 0,
          "Another quota (0: as much as the budget) and floor while sequences live; what it has "
          "cached beyond the quota goes. Raises: NotFoundError, InvalidArgumentError, NoSpaceError "
          "the floors do not fit, BusyError it holds more; the limits stay then.")
      .def("erase", &Erase, nb::arg("tenant"),
           nb::sig("def erase(self, tenant: int) -> EraseReport"),
           "Forgets all that a tenant published and wrote, and zeroes it.")
      .def(
          "tenant_stats",
          [](const PyCache& self, uint32_t tenant) {
            return FromJson(ToJson(Value(self.get()->tenant_stats(TenantId(tenant)))));
          },
          nb::arg("tenant"), nb::sig("def tenant_stats(self, tenant: int) -> TenantStats"));
}

std::string Describe(const Cache& cache) {
  const CacheStats stats = cache.stats();
  const Stream& first = cache.options().geometry.groups.front().streams.front();
  return std::to_string(cache.options().geometry.layer_count()) + " layers in " +
         std::string(CodecName(Value(cache.options().profile.CodecFor(first.role)))) + ", " +
         std::to_string(stats.hot_bytes_used) + " of " + std::to_string(stats.hot_bytes_limit) +
         " bytes, " + std::to_string(stats.published_blocks) + " blocks published, " +
         std::to_string(stats.sequences) + " sequences";
}

void BindUpkeep(nb::class_<PyCache>& type) {
  type.def(
          "evict",
          [](const PyCache& self, uint64_t blocks) {
            const auto cache = self.get();
            const GilFree free;
            return cache->Evict(blocks);
          },
          nb::arg("blocks"), "Evicts up to so many unleased blocks; returns how many went.")
      .def(
          "trim",
          [](const PyCache& self) {
            const auto cache = self.get();
            const GilFree free;
            return cache->Trim();
          },
          "Returns free slots' pages to the system; returns their bytes.")
      .def(
          "resize",
          [](const PyCache& self, uint64_t hot_bytes) {
            const auto cache = self.get();
            const GilFree free;
            Value(cache->Resize(hot_bytes));
          },
          nb::arg("hot_bytes"),
          "Changes the hard budget while sequences live, up to hot_bytes_max.\n\n"
          "Raises: TooLargeError, NoSpaceError, BusyError; nothing changes then.")
      .def(
          "verify",
          [](const PyCache& self) {
            const auto cache = self.get();
            const GilFree free;
            const VerifyReport report = cache->Verify();
            return std::pair(report.blocks, report.damaged);
          },
          nb::sig("def verify(self) -> tuple[int, int]"),
          "Recomputes every published block's checksum; returns (blocks, damaged). Damaged ones "
          "are never found again.")
      .def(
          "stats", [](const PyCache& self) { return FromJson(ToJson(self.get()->stats())); },
          nb::sig("def stats(self) -> CacheStats"),
          "Numbers of the allocator and the ledger: bytes, slots, lookups, hit_tokens, ...")
      .def(
          "block_map", [](const PyCache& self) { return self.get()->BlockMap(); },
          "One character per slot: '.' free, 'p' private, 's' published, 'S' published and "
          "leased, 'w' a window has passed it.")
      .def(
          "free_slots",
          [](const PyCache& self) {
            const auto cache = self.get();
            return FromJson(ToJson(cache->FreeSlots()));
          },
          nb::sig("def free_slots(self) -> list[FreeRuns]"),
          "How free slots lie, class by class: fragmentation is 0 where they are one run.")
      .def(
          "entries",
          [](const PyCache& self, std::optional<uint32_t> tenant, uint64_t entries_max) {
            const auto cache = self.get();
            std::string json;
            {
              const GilFree free;
              const TenantId of = tenant ? TenantId(*tenant) : TenantId::None();
              json = ToJson(Value(cache->Entries({.tenant = of, .entries_max = entries_max})));
            }
            return FromJson(json);
          },
          nb::arg("tenant") = nb::none(), nb::arg("entries_max") = UINT64_MAX,
          nb::sig("def entries(self, tenant: int | None = None, entries_max: int = "
                  "18446744073709551615) -> list[CacheEntry]"),
          "The published blocks that lookups of a tenant (None: everybody's) may find, in no "
          "order: where each is, what holds it, and since when.\n\nRaises: NotFoundError.")
      .def_prop_ro("codecs", &CodecsOf, nb::sig("def codecs(self) -> Codecs"),
                   "What is stored: key, value and open (of what is not encoded yet).")
      .def_prop_ro(
          "block_bytes", [](const PyCache& self) { return self.get()->block_bytes(); },
          "Bytes of one block, all layers, as stored.")
      .def_prop_ro("block_tokens",
                   [](const PyCache& self) { return self.get()->options().profile.block_tokens; })
      .def_prop_ro("layers",
                   [](const PyCache& self) { return self.get()->options().geometry.layer_count(); })
      .def_prop_ro("tokens_max",
                   [](const PyCache& self) { return self.get()->options().tokens_max; })
      .def("__repr__", [](const PyCache& self) { return self.Repr("Cache", &Describe); })
      .def_prop_ro("closed", &PyCache::closed)
      .def("close", &PyCache::Close,
           "Lets go of it. Its memory goes with its last sequence, plan and view. What is to be "
           "found in a store later: DiskStore.flush() first.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Cache"))
      .def(
          "__exit__", [](PyCache& self, const nb::args&) { self.Close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace

void BindCache(nb::module_& module) {
  BindIdentity(module);
  BindLayerGroup(module);
  BindBudget(module);
  BindPlan(module);
  nb::class_<PyCache> type(
      module, "Cache",
      "A paged K/V cache, shared by prefix, within a hard budget.\n\nThreads: any thread, any call."
      " The GIL is let go while the engine works.");
  type.def(
      "__init__", &MakeCache, nb::kw_only(), nb::arg("hot_bytes"), nb::arg("layers") = 0,
      nb::arg("kv_heads") = 0, nb::arg("head_dim") = 0,
      nb::arg("groups") = std::vector<LayerGroup>{}, nb::arg("codec") = "f16",
      nb::arg("value_codec") = nb::none(), nb::arg("open_codec") = nb::none(),
      nb::arg("ladder") = nb::none(), nb::arg("block_tokens") = kBlockTokensDefault,
      nb::arg("residual_tokens") = 0, nb::arg("compute") = "f32", nb::arg("arithmetic") = "fma32",
      nb::arg("layout") = "block_major", nb::arg("placement") = "free_list",
      nb::arg("huge_pages") = false, nb::arg("tokens_max") = 1 << 20, nb::arg("hot_bytes_max") = 0,
      nb::arg("policy") = "lru", nb::arg("eviction_batch") = "exact",
      nb::arg("codec_fallback") = false, nb::arg("shared_budget").none() = nb::none(),
      nb::arg("store").none() = nb::none(), nb::arg("events") = "", nb::arg("events_replay") = "",
      nb::arg("events_topic") = "",
      "hot_bytes: the hard budget, slots in use and their metadata.\n"
      "layers, kv_heads, head_dim: the model; or groups, for windows and mixed layers.\n"
      "codec, value_codec, open_codec: names of quire.CODECS (docs/codecs.md).\n"
      "ladder: \"f16:int8\" instead of these: blocks that grow cold stay in the second codec "
      "alone, and so they go to a store, or in a third one: \"f16:int8:int4\"; see acquire "
      "(docs/ladder.md).\n"
      "block_tokens: a power of two from 16 to 256.\n"
      "store: where published blocks are kept below memory; a later process finds them.\n"
      "events, events_replay, events_topic: endpoints of ZeroMQ where the blocks that come and "
      "go are told while the cache lives, and the first frame of each message "
      "(docs/events.md).\n"
      "compute, arithmetic: how K and V are made; part of every block's identity.\n"
      "Raises: InvalidArgumentError names the field; NoSpaceError hot_bytes holds no block; "
      "UnsupportedError a codec or layout that this build lacks.");
  BindRequests(type);
  BindTenants(type);
  BindUpkeep(type);
}

}  // namespace quire::python
