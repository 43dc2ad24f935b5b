// Registry and Owner: inference and training runs on one budget.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <quire/registry.h>

#include <limits>
#include <span>

#include "bind.h"

namespace quire::python {
namespace {

class PyRegistry : public Handle<RegistryState> {
 public:
  explicit PyRegistry(std::shared_ptr<RegistryState> registry)
      : Handle(std::move(registry), "the registry") {}
};

void MakeRegistry(PyRegistry* self, uint64_t hot_bytes, uint32_t layers, uint32_t kv_heads,
                  uint32_t head_dim, std::string_view codec, uint32_t block_tokens,
                  uint64_t hot_bytes_max, uint64_t tokens_max, std::string policy) {
  const Codec stored = ToCodec(codec);
  CacheOptions options;
  options.geometry = Geometry::Uniform(layers, kv_heads, head_dim);
  options.profile = NumericProfile::Uniform(stored, block_tokens);
  options.profile.open_dtype = IsIdentity(stored) ? stored : Codec::kF16;
  options.hot_bytes = hot_bytes;
  options.hot_bytes_max = hot_bytes_max;
  options.tokens_max = tokens_max;
  options.policy = std::move(policy);
  const NumericProfile profile = options.profile;
  const Stream stream = options.geometry.groups.front().streams.front();
  const GilFree free;
  auto made = Share(Value(Registry::Create(std::move(options))));
  new (self) PyRegistry(std::make_shared<RegistryState>(
      RegistryState{.registry = std::move(made), .profile = profile, .stream = stream}));
}

OwnerOptions OptionsOf(const RegistryState& of, uint64_t tokens_max,
                       const std::optional<std::string>& codec,
                       std::vector<uint32_t> checkpoint_layers) {
  OwnerOptions options{.tokens_max = tokens_max, .checkpoint_layers = std::move(checkpoint_layers)};
  if (codec) {
    const Codec stored = ToCodec(*codec);
    options.profile = of.profile;
    for (CodecRule& rule : options.profile->codecs) rule.codec = stored;
    options.profile->open_dtype = IsIdentity(stored) ? stored : Codec::kF16;
  }
  return options;
}

std::shared_ptr<PyOwner> Owned(const std::shared_ptr<RegistryState>& of, const Owner& owner,
                               const OwnerOptions& options, const std::vector<TokenId>& prompt) {
  const GilFree free;
  auto made = Value(of->registry->GetOrCreate(owner, options, prompt));
  return std::make_shared<PyOwner>(
      std::make_shared<OwnerState>(OwnerState{.of = of, .owner = std::move(made)}));
}

std::shared_ptr<PyOwner> InferenceOf(const PyRegistry& self, uint64_t id, const Identity& identity,
                                     nb::handle prompt, uint64_t tokens_max,
                                     const std::optional<std::string>& codec) {
  const auto of = self.get();
  OwnerOptions options = OptionsOf(*of, tokens_max, codec, {});
  options.identity = identity;
  const std::vector<TokenId> tokens = prompt.is_none() ? std::vector<TokenId>() : ToTokens(prompt);
  return Owned(of, InferenceOwner{id}, options, tokens);
}

std::shared_ptr<PyOwner> TrainingOf(const PyRegistry& self, std::string adapter, uint64_t run,
                                    uint64_t version, uint64_t tokens_max,
                                    const std::optional<std::string>& codec,
                                    std::vector<uint32_t> checkpoint_layers) {
  const auto of = self.get();
  const TrainingOwner owner{.adapter = std::move(adapter), .run = run, .version = version};
  return Owned(of, owner, OptionsOf(*of, tokens_max, codec, std::move(checkpoint_layers)), {});
}

void Append(const PyOwner& self, uint32_t layer, const AnyArray& key, const AnyArray& value) {
  const auto state = self.get();
  LayerRows rows{.key = ToRows(key, state->of->stream, "key"),
                 .value = ToRows(value, state->of->stream, "value")};
  if (value.shape(0) != key.shape(0) || key.shape(0) > std::numeric_limits<uint32_t>::max()) {
    Raise(ErrorCode::kInvalidArgument, "key has " + std::to_string(key.shape(0)) +
                                           " tokens and value " + std::to_string(value.shape(0)));
  }
  rows.tokens = static_cast<uint32_t>(key.shape(0));
  const GilFree free;
  Value(state->owner->Append(layer, rows));
}

nb::ndarray<nb::numpy, float> Gather(const PyOwner& self, uint32_t layer, std::string_view role,
                                     uint64_t begin, std::optional<uint64_t> end) {
  const auto state = self.get();
  const StreamRole of = ToRole(role);
  return GatherTokens(state->of->stream, begin, end, state->owner->length(),
                      [&](uint64_t first, uint64_t last, std::span<float> values) {
                        return state->owner->Gather(layer, of, first, last, values);
                      });
}

std::shared_ptr<PyView> View(const PyOwner& self, uint32_t layer, std::string_view role,
                             uint64_t begin, std::optional<uint64_t> end) {
  const auto state = self.get();
  const StreamRole of = ToRole(role);
  const TokenRange range{.begin = begin, .end = end.value_or(std::numeric_limits<uint64_t>::max())};
  const GilFree free;
  auto view = Value(state->owner->View(layer, of, range));
  // The view needs a cache that lives: the registry has it.
  std::shared_ptr<Cache> cache(state->of, &state->of->registry->requests());
  return std::make_shared<PyView>(
      Share(std::make_unique<PinnedView>(std::move(cache), std::move(view))));
}

void BindOwner(nb::module_& module) {
  nb::class_<PyOwner>(module, "Owner",
                      "What one owner holds. Layers are the model's, and different threads may "
                      "append to different ones at once. Raises: NotFoundError it was evicted or "
                      "released. Threads: any.")
      .def("append", &Append, nb::arg("layer"), nb::arg("key"), nb::arg("value"),
           nb::sig("def append(self, layer: int, key: typing.Any, value: typing.Any) -> None"),
           "Writes the next rows [tokens, heads, dim] of one layer, as Sequence.append. Raises: "
           "InvalidArgumentError a checkpoint layer, or past tokens_max.")
      .def(
          "commit",
          [](const PyOwner& self, nb::handle tokens) {
            const auto state = self.get();
            const std::vector<TokenId> list = ToTokens(tokens);
            const GilFree free;
            Value(state->owner->Commit(list));
          },
          nb::arg("tokens"), "Makes the next tokens visible, once each cached layer has them.")
      .def("gather", &Gather, nb::arg("layer"), nb::arg("role"), nb::arg("begin") = 0,
           nb::arg("end") = nb::none(),
           "A copy of tokens [begin, end) of \"key\" or \"value\" as float32 [heads, tokens, dim].")
      .def("view", &View, nb::arg("layer"), nb::arg("role"), nb::arg("begin") = 0,
           nb::arg("end") = nb::none(),
           "The blocks of tokens [begin, end) in place, as Sequence.view. They stay until the view "
           "and all arrays made of it end, also after the owner's end.")
      .def(
          "clear",
          [](const PyOwner& self) {
            const auto state = self.get();
            const GilFree free;
            Value(state->owner->Clear());
          },
          "Back to zero tokens; what it alone held is free again.")
      .def(
          "release",
          [](const PyOwner& self) {
            const auto state = self.get();
            const GilFree free;
            return state->of->registry->Release(state->owner->owner());
          },
          "Its end, of a training run too; what it published stays cached. False: it had ended.")
      .def_prop_ro(
          "name", [](const PyOwner& self) { return OwnerName(self.get()->owner->owner()); },
          "\"inference 7\", \"training lora/3\".")
      .def_prop_ro(
          "length", [](const PyOwner& self) { return self.get()->owner->length(); },
          "Committed tokens; 0 after its end.")
      .def_prop_ro(
          "bytes", [](const PyOwner& self) { return self.get()->owner->bytes(); },
          "Of all that it holds, shared blocks included.")
      .def_prop_ro("evictable", [](const PyOwner& self) { return self.get()->owner->evictable(); })
      .def("__repr__", [](const PyOwner& self) {
        return self.Repr("Owner", [](const OwnerState& state) {
          return OwnerName(state.owner->owner()) + ", " + std::to_string(state.owner->length()) +
                 " tokens";
        });
      });
}

}  // namespace

void BindRegistry(nb::module_& module) {
  BindOwner(module);
  nb::class_<PyRegistry>(
      module, "Registry",
      "Owners by name, whose caches pay from one budget: inference, which may be evicted, and "
      "training runs, which hold K and V across optimizer steps and never are. Threads: any.")
      .def("__init__", &MakeRegistry, nb::kw_only(), nb::arg("hot_bytes"), nb::arg("layers"),
           nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("codec") = "f16",
           nb::arg("block_tokens") = 16, nb::arg("hot_bytes_max") = 0,
           nb::arg("tokens_max") = CacheOptions{}.tokens_max, nb::arg("policy") = "lru",
           "hot_bytes: the budget over all owners, up to hot_bytes_max later. The rest as Cache.")
      .def(
          "inference", &InferenceOf, nb::arg("id"), nb::arg("identity"),
          nb::arg("prompt") = nb::none(), nb::kw_only(), nb::arg("tokens_max") = 0,
          nb::arg("codec") = nb::none(),
          nb::sig("def inference(self, id: int, identity: Identity, prompt: object = None, *, "
                  "tokens_max: int = 0, codec: str | None = None) -> Owner"),
          "An inference owner, made if there is none; it starts with what is cached of the prompt. "
          "Raises: InvalidArgumentError it exists with other options; NoSpaceError.")
      .def("training", &TrainingOf, nb::arg("adapter"), nb::arg("run"), nb::kw_only(),
           nb::arg("version") = 0, nb::arg("tokens_max") = 0, nb::arg("codec") = nb::none(),
           nb::arg("checkpoint_layers") = std::vector<uint32_t>(),
           "A training run, made if there is none: it starts empty, publishes nothing and is never "
           "evicted. checkpoint_layers, ascending, are recomputed by the caller and hold nothing. "
           "Raises: as inference.")
      .def(
          "evict_to",
          [](const PyRegistry& self, uint64_t bytes) {
            const auto state = self.get();
            const GilFree free;
            return state->registry->EvictToBudget(bytes).bytes_used;
          },
          nb::arg("bytes"),
          "Brings the bytes in use down to `bytes`, as far as inference goes: first what is cached "
          "and not in use, then the least recent owners. Returns the bytes in use.")
      .def(
          "resize",
          [](const PyRegistry& self, uint64_t hot_bytes) {
            const auto state = self.get();
            const GilFree free;
            Value(state->registry->Resize(hot_bytes));
          },
          nb::arg("hot_bytes"),
          "Moves the budget. Raises: TooLargeError, NoSpaceError, BusyError training runs hold "
          "more; it stays then.")
      .def(
          "stats", [](const PyRegistry& self) { return FromJson(ToJson(*self.get()->registry)); },
          nb::sig("def stats(self) -> RegistryStats"), "The budget, and each owner's part of it.")
      .def(
          "close", [](PyRegistry& self) { self.Close(); },
          "Lets go of it; it ends with its last owner object. Twice is once.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Registry"))
      .def(
          "__exit__", [](PyRegistry& self, const nb::args&) { self.Close(); },
          nb::sig("def __exit__(self, *_: object) -> None"))
      .def("__repr__", [](const PyRegistry& self) {
        return self.Repr("Registry", [](const RegistryState& state) {
          return std::to_string(state.registry->owner_count()) + " owners, " +
                 std::to_string(state.registry->bytes_used()) + " of " +
                 std::to_string(state.registry->budget_bytes()) + " bytes";
        });
      });
}

}  // namespace quire::python
