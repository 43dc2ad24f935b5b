// Sequences, and copies of many of them at once.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "bind.h"

namespace quire::python {
namespace {

// Runs `write` without the GIL, as the only writer of the sequence.
template <typename Write>
auto AsWriter(const PySequence& self, const Write& write) {
  const std::shared_ptr<SequenceState> state = self.get();
  const GilFree free;
  const std::lock_guard lock(state->writer);
  return write(*state->sequence);
}

std::shared_ptr<PySequence> Branch(const PySequence& self, const auto& make) {
  const std::shared_ptr<SequenceState> state = self.get();
  const GilFree free;
  const std::lock_guard lock(state->writer);
  std::unique_ptr<Sequence> made = Value(make(*state->sequence));
  return std::make_shared<PySequence>(
      Share(std::make_unique<SequenceState>(state->cache, std::move(made))));
}

void Append(const PySequence& self, uint32_t layer, const AnyArray& key,
            const std::optional<AnyArray>& value) {
  const std::shared_ptr<SequenceState> state = self.get();
  const std::vector<Stream>& streams = GroupOf(*state->cache, layer).streams;
  if (value.has_value() != (streams.size() > 1)) {
    Raise(ErrorCode::kInvalidArgument,
          "layer " + std::to_string(layer) + (value ? " has no value rows" : " needs value rows"));
  }
  LayerRows rows{.key = ToRows(key, streams[0], "key")};
  if (value) {
    rows.value = ToRows(*value, streams[1], "value");
    if (value->shape(0) != key.shape(0)) {
      Raise(ErrorCode::kInvalidArgument, "key has " + std::to_string(key.shape(0)) +
                                             " tokens and value " +
                                             std::to_string(value->shape(0)));
    }
  }
  if (key.shape(0) > std::numeric_limits<uint32_t>::max()) {
    Raise(ErrorCode::kInvalidArgument, "more than 4,294,967,295 tokens");
  }
  rows.tokens = static_cast<uint32_t>(key.shape(0));
  AsWriter(self, [&](Sequence& sequence) { Value(sequence.Append(layer, rows)); });
}

nb::ndarray<nb::numpy, float> Gather(const PySequence& self, uint32_t layer, std::string_view role,
                                     uint64_t begin, std::optional<uint64_t> end) {
  const std::shared_ptr<SequenceState> state = self.get();
  const StreamRole stream_role = ToRole(role);
  const Stream& stream = StreamOf(*state->cache, layer, stream_role);
  return GatherTokens(stream, begin, end, state->sequence->cursor(layer),
                      [&](uint64_t first, uint64_t last, std::span<float> values) {
                        return state->sequence->Gather(layer, stream_role, first, last, values);
                      });
}

std::shared_ptr<PyView> View(const PySequence& self, uint32_t layer, std::string_view role,
                             uint64_t begin, std::optional<uint64_t> end) {
  const std::shared_ptr<SequenceState> state = self.get();
  const StreamRole stream_role = ToRole(role);
  const TokenRange range{.begin = begin, .end = end.value_or(std::numeric_limits<uint64_t>::max())};
  const GilFree free;
  auto view = Value(state->sequence->View(layer, stream_role, range));
  return std::make_shared<PyView>(
      Share(std::make_unique<PinnedView>(state->cache, std::move(view))));
}

nb::ndarray<nb::numpy, float> Padded(const std::vector<const PySequence*>& sequences,
                                     uint32_t layer, std::string_view role, uint64_t tokens_max) {
  if (sequences.empty()) Raise(ErrorCode::kInvalidArgument, "no sequences");
  std::vector<std::shared_ptr<SequenceState>> states;
  std::vector<const Sequence*> list;
  for (const PySequence* sequence : sequences) {
    states.push_back(sequence->get());
    list.push_back(states.back()->sequence.get());
    if (states.back()->cache != states.front()->cache) {
      Raise(ErrorCode::kInvalidArgument, "the sequences are of different caches");
    }
  }
  const StreamRole stream_role = ToRole(role);
  const Stream& stream = StreamOf(*states.front()->cache, layer, stream_role);
  if (tokens_max > states.front()->cache->options().tokens_max) {
    Raise(ErrorCode::kInvalidArgument, "tokens_max is above that of the cache");
  }
  float* data = nullptr;
  auto out = NewArray<nb::numpy>(
      {list.size(), stream.heads, static_cast<size_t>(tokens_max), stream.dim}, &data);
  const std::span<float> values(data, list.size() * stream.heads * tokens_max * stream.dim);
  const GilFree free;
  Value(GatherPadded(list, layer, stream_role, tokens_max, values));
  return out;
}

void BindWriters(nb::class_<PySequence>& type) {
  type.def(
          "reserve",
          [](const PySequence& self, uint64_t tokens) {
            AsWriter(self, [&](Sequence& sequence) { Value(sequence.Reserve(tokens)); });
          },
          nb::arg("tokens"),
          "Room for so many tokens in all; all or nothing. Raises: NoSpaceError.")
      .def("append", &Append, nb::arg("layer"), nb::arg("key"), nb::arg("value") = nb::none(),
           nb::sig(
               "def append(self, layer: int, key: typing.Any, value: typing.Any = None) -> None"),
           "Writes the next rows of one layer.\n\n"
           "key, value: [tokens, heads, dim], float32, float16 or bfloat16, of NumPy, torch or "
           "whatever speaks DLPack; any strides, as long as the values of a head lie together. "
           "They are read during the call, without another copy. A latent model has no value.\n"
           "Raises: InvalidArgumentError shape, type or layer; NoSpaceError. Nothing changes then.")
      .def(
          "commit",
          [](const PySequence& self, nb::handle tokens) {
            self.get();  // a closed sequence says so before its tokens are read
            const std::vector<TokenId> list = ToTokens(tokens);
            AsWriter(self, [&](Sequence& sequence) { Value(sequence.Commit(list)); });
          },
          nb::arg("tokens"),
          "Makes the next len(tokens) tokens visible, and shares the whole blocks they "
          "complete.\n\n"
          "Raises: InvalidArgumentError names the layer that was not appended that far.")
      .def(
          "await_layer",
          [](const PySequence& self, uint32_t layer, std::optional<double> timeout_s) {
            return AwaitInSteps(timeout_s, [&](uint64_t step_us) {
              return AsWriter(self, [&](Sequence& sequence) {
                return Value(sequence.AwaitLayer(layer, step_us));
              });
            });
          },
          nb::arg("layer"), nb::arg("timeout_s") = nb::none(),
          "Of a sequence of Ticket.arriving(): waits until a layer of what is loaded is there, or so "
          "long: whether it is. Until all layers are, nothing but append() is possible.\n\nRaises: "
          "NotFoundError the load has ended without some of it: nothing of it is to be used.")
      .def(
          "rollback",
          [](const PySequence& self, uint64_t position) {
            AsWriter(self, [&](Sequence& sequence) { Value(sequence.Rollback(position)); });
          },
          nb::arg("position"),
          "Truncates to `position` tokens, committed or not. What is published stays in the cache."
          "\n\nRaises: InvalidArgumentError more than were written, inside a block that is encoded "
          "already, or before what a window kept; NoSpaceError no room for the copy of a block.")
      .def(
          "fork",
          [](const PySequence& self) {
            return Branch(self, [](Sequence& sequence) { return sequence.Fork(); });
          },
          "A second sequence with the same committed tokens: shares whole blocks.")
      .def(
          "select",
          [](const PySequence& self, const std::vector<uint64_t>& kept_blocks) {
            return Branch(self, [&](Sequence& sequence) { return sequence.Select(kept_blocks); });
          },
          nb::arg("kept_blocks"),
          "A private second sequence that has only these whole blocks, and the last partial one.")
      .def(
          "retain",
          [](const PySequence& self, uint64_t begin_token, std::optional<uint64_t> end_token,
             uint8_t priority, double ttl_s) {
            const Retention retention{
                .begin_token = begin_token,
                .end_token = end_token.value_or(std::numeric_limits<uint64_t>::max()),
                .priority = priority,
                .ttl_us = ToTtl(ttl_s)};
            AsWriter(self, [&](Sequence& sequence) { Value(sequence.Retain(retention)); });
          },
          nb::arg("begin_token") = 0, nb::arg("end_token") = nb::none(), nb::kw_only(),
          nb::arg("priority") = 50, nb::arg("ttl_s") = 0.0,
          "How much the blocks of a range are wanted, 0 to 100 (policy \"priority\"), for ttl_s, "
          "then 50 again (0: for good).")
      .def(
          "reset",
          [](const PySequence& self) {
            AsWriter(self, [](Sequence& sequence) { sequence.Reset(); });
          },
          "Back to zero tokens.");
}

void BindReaders(nb::class_<PySequence>& type) {
  type.def_prop_ro(
          "length", [](const PySequence& self) { return self.get()->sequence->length(); },
          "Committed tokens.")
      .def("__len__", [](const PySequence& self) { return self.get()->sequence->length(); })
      .def(
          "cursor",
          [](const PySequence& self, uint32_t layer) {
            const auto state = self.get();
            GroupOf(*state->cache, layer);
            return state->sequence->cursor(layer);
          },
          nb::arg("layer"), "Tokens written in a layer, committed or not.")
      .def_prop_ro(
          "dropped_tokens",
          [](const PySequence& self) { return self.get()->sequence->dropped_tokens(); },
          "Tokens before length that select left out.")
      .def(
          "stats",
          [](const PySequence& self) { return FromJson(ToJson(self.get()->sequence->stats())); },
          nb::sig("def stats(self) -> SequenceStats"))
      .def("gather", &Gather, nb::arg("layer"), nb::arg("role"), nb::arg("begin") = 0,
           nb::arg("end") = nb::none(),
           "A copy of tokens [begin, end) of one stream, float32 [heads, end - begin, dim].\n\n"
           "role: \"key\", \"value\" or \"latent\".\n"
           "Raises: InvalidArgumentError past what is written; NotFoundError a window has passed "
           "a block of the range.")
      .def("view", &View, nb::arg("layer"), nb::arg("role"), nb::arg("begin") = 0,
           nb::arg("end") = nb::none(),
           "The blocks of one stream in place and pinned.\n\nRaises: UnsupportedError the codec "
           "encodes.")
      .def("__repr__",
           [](const PySequence& self) {
             return self.Repr("Sequence", [](const SequenceState& state) {
               const SequenceStats stats = state.sequence->stats();
               return std::to_string(state.sequence->length()) + " tokens, " +
                      std::to_string(stats.blocks_shared) + " blocks shared and " +
                      std::to_string(stats.blocks_own) + " of its own";
             });
           })
      .def_prop_ro("closed", &PySequence::closed)
      .def("close", &PySequence::Close, "Returns every byte that it alone held.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Sequence"))
      .def(
          "__exit__", [](PySequence& self, const nb::args&) { self.Close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace

void BindSequence(nb::module_& module) {
  nb::class_<PySequence> type(
      module, "Sequence",
      "One sequence: shared blocks, then blocks of its own. Made by Cache.open().\n\n"
      "Threads: any. Calls that write take turns; the others run beside them.");
  BindWriters(type);
  BindReaders(type);
  module.def("gather_padded", &Padded, nb::arg("sequences"), nb::arg("layer"), nb::arg("role"),
             nb::arg("tokens_max"),
             "A copy of the committed tokens of many sequences, float32 [batch, heads, tokens_max, "
             "dim], zeros after each one's last token.");
}

}  // namespace quire::python
