// Attention over what sequences have written, in place.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "bind.h"

namespace quire::python {
namespace {

using Queries = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Outs = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OfHeads = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Kernels, their scratch and threads: for one call at a time.
struct AttentionState {
  std::mutex turn;
  std::unique_ptr<AttentionBackend> backend;
  std::unique_ptr<Executor> executor;
};

class PyAttention : public Handle<AttentionState> {
 public:
  explicit PyAttention(std::shared_ptr<AttentionState> state)
      : Handle(std::move(state), "the attention") {}
};

/// As they are where they are float32 in C order; f16, bf16 and other strides are converted.
/// Errors: kInvalidArgument no array of 3 axes; kUnsupported another type
Queries ToQueries(nb::handle given) {
  AnyArray any;
  if (!nb::try_cast(given, any, false)) {
    Raise(ErrorCode::kInvalidArgument,
          "queries are no array in host memory that DLPack hands out (detach tensors that require "
          "grad)");
  }
  if (any.ndim() != 3) {
    Raise(ErrorCode::kInvalidArgument,
          "queries have " + std::to_string(any.ndim()) + " axes, not 3: [rows, query_heads, dim]");
  }
  ToValueType(any.dtype(), "queries");
  Queries queries;
  if (!nb::try_cast(given, queries, true)) {
    Raise(ErrorCode::kUnsupported, "queries cannot be converted: pass float32 in C order");
  }
  return queries;
}

Outs ToOut(nb::handle given) {
  Outs out;
  if (!nb::try_cast(given, out, false)) {
    Raise(ErrorCode::kInvalidArgument, "out is no writable float32 array of 3 axes in C order");
  }
  return out;
}

/// One call: what its tasks have in common, and the sequences, which are not written to meanwhile.
struct Call {
  uint32_t layer = 0;
  uint32_t query_heads = 0;
  std::optional<float> scale{};
  std::optional<OfHeads> sink_logits{};
  std::optional<OfHeads> alibi_slopes{};
  std::vector<std::shared_ptr<SequenceState>> sequences{};
  std::vector<AttentionTask> tasks{};  // as many; `sequence` is their number
};

/// One number for each query head, or nothing.
std::optional<OfHeads> ToOfHeads(const nb::object& given, const char* name) {
  if (given.is_none()) return std::nullopt;
  OfHeads numbers;
  if (!nb::try_cast(given, numbers, true)) {
    Raise(ErrorCode::kInvalidArgument,
          std::string(name) + " is no array of float32 with one axis, [query_heads]");
  }
  return numbers;
}

/// After the tasks have said how many heads there are.
void CheckHeads(const Call& call) {
  const auto check = [&call](const std::optional<OfHeads>& numbers, const char* name) {
    if (!numbers || numbers->shape(0) == call.query_heads) return;
    Raise(ErrorCode::kInvalidArgument,
          std::string(name) + " has " + std::to_string(numbers->shape(0)) +
              " numbers, but the queries have " + std::to_string(call.query_heads) + " heads");
  };
  check(call.sink_logits, "sink_logits");
  check(call.alibi_slopes, "alibi_slopes");
}

Call MakeCall(uint32_t layer, std::optional<float> scale, const nb::object& sink_logits,
              const nb::object& alibi_slopes) {
  return {.layer = layer,
          .scale = scale,
          .sink_logits = ToOfHeads(sink_logits, "sink_logits"),
          .alibi_slopes = ToOfHeads(alibi_slopes, "alibi_slopes")};
}

// The sequences' locks, each once and in one order, so that calls that share some cannot wait for
// each other in a circle.
std::vector<std::unique_lock<std::mutex>> LockAll(const Call& call) {
  std::vector<std::mutex*> mutexes;
  for (const auto& sequence : call.sequences) mutexes.push_back(&sequence->writer);
  std::ranges::sort(mutexes);
  mutexes.erase(std::ranges::unique(mutexes).begin(), mutexes.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  for (std::mutex* mutex : mutexes) locks.emplace_back(*mutex);
  return locks;
}

AttentionShape ShapeOf(const LayerStreams& streams, const LayerGroup& group, const Call& call) {
  const double root = std::sqrt(static_cast<double>(streams.key.dim));
  return {.query_heads = call.query_heads,
          .key = streams.key,
          .value = streams.value,
          .open_key = streams.open_key,
          .open_value = streams.open_value,
          .open_blocks = streams.open_blocks,
          .scale = call.scale.value_or(static_cast<float>(1.0 / root)),
          .window_tokens = group.window_tokens,
          .sink_tokens = group.sink_tokens,
          .sink_logits = call.sink_logits ? call.sink_logits->data() : nullptr,
          .alibi_slopes = call.alibi_slopes ? call.alibi_slopes->data() : nullptr};
}

/// Errors: kInvalidArgument rows beyond the `written` tokens of the layer
Result<void> CheckRows(const AttentionTask& task, uint64_t written, uint32_t layer) {
  if (task.rows <= written && task.first_position <= written - task.rows) return {};
  return Fail(ErrorCode::kInvalidArgument, std::to_string(task.rows) + " rows from position " +
                                               std::to_string(task.first_position) +
                                               " on, but layer " + std::to_string(layer) + " has " +
                                               std::to_string(written) + " tokens");
}

uint64_t LastRows(uint64_t rows, uint64_t written) { return written - std::min(rows, written); }

// Threads: without the GIL
void Run(AttentionState& attention, Call& call) {
  const std::lock_guard turn(attention.turn);
  const auto locks = LockAll(call);
  BatchTables tables;
  std::vector<StreamedContext*> streamed;
  for (const AttentionTask& task : call.tasks) {
    Sequence& sequence = *call.sequences[task.sequence]->sequence;
    Value(CheckRows(task, sequence.cursor(call.layer), call.layer));
    Value(tables.Add(sequence.Blocks(call.layer).tables));
    streamed.push_back(sequence.streamed());
  }
  const SequenceState& first = *call.sequences.front();
  const AttentionShape shape =
      ShapeOf(first.sequence->Streams(call.layer), GroupOf(*first.cache, call.layer), call);
  Value(AttendStreamed(*attention.backend, call.layer, shape, tables.tables(), call.tasks, streamed,
                       *attention.executor));
}

// Checks the arrays of one task against the layer's streams, and adds it.
void AddTask(Call& call, const Stream& key, const Stream& value, const Queries& queries,
             const Outs& out, uint64_t first_position) {
  if (queries.shape(2) != key.dim || out.shape(2) != value.dim) {
    Raise(ErrorCode::kInvalidArgument,
          "queries have dim " + std::to_string(queries.shape(2)) + " and out " +
              std::to_string(out.shape(2)) + ", but the layer has keys of " +
              std::to_string(key.dim) + " and values of " + std::to_string(value.dim));
  }
  if (out.shape(0) != queries.shape(0) || out.shape(1) != queries.shape(1)) {
    Raise(ErrorCode::kInvalidArgument, "out has other rows or heads than the queries");
  }
  if (queries.shape(1) != (call.tasks.empty() ? queries.shape(1) : call.query_heads) ||
      queries.shape(1) > 65'536 || queries.shape(0) > std::numeric_limits<uint32_t>::max()) {
    Raise(ErrorCode::kInvalidArgument,
          "queries of " + std::to_string(queries.shape(1)) + " heads beside others");
  }
  call.query_heads = static_cast<uint32_t>(queries.shape(1));
  call.tasks.push_back({.queries = queries.data(),
                        .out = out.data(),
                        .rows = static_cast<uint32_t>(queries.shape(0)),
                        .first_position = first_position,
                        .sequence = static_cast<uint32_t>(call.tasks.size())});
}

void AddSequence(Call& call, const PySequence& of, const Queries& queries, const Outs& out,
                 std::optional<uint64_t> first_position) {
  std::shared_ptr<SequenceState> sequence = of.get();
  if (!call.sequences.empty() && call.sequences.front()->cache != sequence->cache) {
    Raise(ErrorCode::kInvalidArgument, "the sequences are of different caches");
  }
  const std::vector<Stream>& streams = GroupOf(*sequence->cache, call.layer).streams;
  const uint64_t written = sequence->sequence->cursor(call.layer);
  AddTask(call, streams.front(), streams.back(), queries, out,
          first_position.value_or(LastRows(queries.shape(0), written)));
  call.sequences.push_back(std::move(sequence));
}

void AttendBatch(const PyAttention& self, uint32_t layer,
                 const std::vector<const PySequence*>& sequences,
                 const std::vector<nb::object>& queries, const std::vector<nb::object>& outs,
                 const std::optional<std::vector<uint64_t>>& first_positions,
                 std::optional<float> scale, const nb::object& sink_logits,
                 const nb::object& alibi_slopes) {
  if (queries.size() != sequences.size() || outs.size() != sequences.size() ||
      (first_positions && first_positions->size() != sequences.size())) {
    Raise(ErrorCode::kInvalidArgument, "lists of different lengths");
  }
  const std::shared_ptr<AttentionState> attention = self.get();
  Call call = MakeCall(layer, scale, sink_logits, alibi_slopes);
  std::vector<Queries> converted;  // until the end of the call
  for (size_t i = 0; i < sequences.size(); ++i) {
    converted.push_back(ToQueries(queries[i]));
    AddSequence(call, *sequences[i], converted.back(), ToOut(outs[i]),
                first_positions ? std::optional((*first_positions)[i]) : std::nullopt);
  }
  if (call.tasks.empty()) return;
  CheckHeads(call);
  const GilFree free;
  Run(*attention, call);
}

nb::object OutFor(nb::object given, const Queries& queries, const Stream& value) {
  if (!given.is_none()) return given;
  float* data = nullptr;
  return nb::cast(NewArray<nb::numpy>({queries.shape(0), queries.shape(1), value.dim}, &data));
}

nb::object Attend(const PyAttention& self, uint32_t layer, const PySequence& sequence,
                  const nb::object& given, std::optional<uint64_t> first_position,
                  std::optional<float> scale, const nb::object& sink_logits,
                  const nb::object& alibi_slopes, nb::object out) {
  const std::shared_ptr<AttentionState> attention = self.get();
  const Queries queries = ToQueries(given);
  out = OutFor(std::move(out), queries, GroupOf(*sequence.get()->cache, layer).streams.back());
  const Outs array = ToOut(out);
  Call call = MakeCall(layer, scale, sink_logits, alibi_slopes);
  AddSequence(call, sequence, queries, array, first_position);
  CheckHeads(call);
  {
    const GilFree free;
    Run(*attention, call);
  }
  return out;
}

nb::object AttendOwner(const PyAttention& self, uint32_t layer, const PyOwner& owner,
                       const nb::object& given, std::optional<uint64_t> first_position,
                       std::optional<float> scale, const nb::object& sink_logits,
                       const nb::object& alibi_slopes, nb::object out) {
  const std::shared_ptr<AttentionState> attention = self.get();
  const std::shared_ptr<OwnerState> state = owner.get();
  const Stream& stream = state->of->stream;
  const LayerGroup& group = GroupOf(state->of->registry->requests(), layer);
  const Queries queries = ToQueries(given);
  out = OutFor(std::move(out), queries, stream);
  const Outs array = ToOut(out);
  Call call = MakeCall(layer, scale, sink_logits, alibi_slopes);
  AddTask(call, stream, stream, queries, array, first_position.value_or(0));
  CheckHeads(call);
  {
    const GilFree free;
    const std::lock_guard turn(attention->turn);
    Value(state->owner->ReadBlocks(layer, [&](const LayerBlocks& blocks) -> Result<void> {
      AttentionTask& task = call.tasks.front();
      if (!first_position) task.first_position = LastRows(task.rows, blocks.tokens);
      if (auto ok = CheckRows(task, blocks.tokens, layer); !ok) return ok;
      return attention->backend->Attend(ShapeOf(blocks, group, call), blocks.tables, call.tasks,
                                        *attention->executor);
    }));
  }
  return out;
}

}  // namespace

void BindAttention(nb::module_& module) {
  constexpr uint32_t kThreadsMax = 1024;
  nb::class_<PyAttention>(module, "Attention",
                          "The CPU's attention kernels with threads and scratch. The bits do not "
                          "depend on the threads.\n\nThreads: any; calls take turns, so make one "
                          "per thread that attends.")
      .def(
          "__init__",
          [](PyAttention* self, uint32_t threads) {
            if (threads == 0 || threads > kThreadsMax) {
              Raise(
                  ErrorCode::kInvalidArgument,
                  std::to_string(threads) + " threads are not 1 to " + std::to_string(kThreadsMax));
            }
            auto state = std::make_unique<AttentionState>();
            state->backend = Value(MakeCpuAttention());
            state->executor = MakeThreadPool(threads);
            new (self) PyAttention(Share(std::move(state)));
          },
          nb::arg("threads") = 1,
          "threads: that run at once, the caller included.\n"
          "Raises: UnsupportedError a processor without fused multiply-add.")
      .def_prop_ro(
          "target",
          [](const PyAttention& self) { return std::string(self.get()->backend->target()); },
          "Instruction set in use, for example \"avx3\".")
      .def("__repr__",
           [](const PyAttention& self) {
             return self.Repr("Attention", [](const AttentionState& state) {
               return std::to_string(state.executor->worker_count()) + " threads, " +
                      std::string(state.backend->target());
             });
           })
      .def(
          "attend", &Attend, nb::arg("layer"), nb::arg("sequence"), nb::arg("queries"),
          nb::kw_only(), nb::arg("first_position") = nb::none(), nb::arg("scale") = nb::none(),
          nb::arg("sink_logits") = nb::none(), nb::arg("alibi_slopes") = nb::none(),
          nb::arg("out") = nb::none(),
          nb::sig("def attend(self, layer: int, sequence: Sequence, queries: object, *, "
                  "first_position: int | None = None, scale: float | None = None, "
                  "sink_logits: object = None, alibi_slopes: object = None, "
                  "out: typing.Any = None) -> typing.Any"),
          "Attention of one sequence over what is written in a layer; returns out.\n\n"
          "queries: [rows, query_heads, dim], float32 in C order; float16, bfloat16 and other "
          "strides are copied. Row r stands at first_position + r and sees the tokens up to and "
          "including its own.\n"
          "first_position: None: the rows are the last ones written.\n"
          "scale: None: 1 / sqrt(dim).\n"
          "sink_logits: float32 [query_heads], a logit of each head that takes part in its softmax "
          "and has no value (-inf: the head has none); None: no head has one.\n"
          "alibi_slopes: float32 [query_heads], ALiBi's slope of each head, times (key position - "
          "query position) added to its scores; None: none.\n"
          "out: float32 [rows, query_heads, value dim] in C order; None: a new NumPy array.\n"
          "The layer's window and the tokens it keeps are those of the cache.\n"
          "Raises: InvalidArgumentError shapes, or a row past what is written or before what its "
          "window kept; UnsupportedError a shape that the kernels lack.")
      .def("attend", &AttendOwner, nb::arg("layer"), nb::arg("owner"), nb::arg("queries"),
           nb::kw_only(), nb::arg("first_position") = nb::none(), nb::arg("scale") = nb::none(),
           nb::arg("sink_logits") = nb::none(), nb::arg("alibi_slopes") = nb::none(),
           nb::arg("out") = nb::none(),
           nb::sig("def attend(self, layer: int, owner: Owner, queries: object, *, "
                   "first_position: int | None = None, scale: float | None = None, "
                   "sink_logits: object = None, alibi_slopes: object = None, "
                   "out: typing.Any = None) -> typing.Any"),
           "The same over what an owner holds; appends to this layer wait meanwhile. Raises: "
           "InvalidArgumentError a checkpoint layer; NotFoundError it was evicted or released.")
      .def("attend_batch", &AttendBatch, nb::arg("layer"), nb::arg("sequences"), nb::arg("queries"),
           nb::arg("outs"), nb::kw_only(), nb::arg("first_positions") = nb::none(),
           nb::arg("scale") = nb::none(), nb::arg("sink_logits") = nb::none(),
           nb::arg("alibi_slopes") = nb::none(),
           nb::sig("def attend_batch(self, layer: int, sequences: list[Sequence], queries: "
                   "list[typing.Any], outs: list[typing.Any], *, first_positions: list[int] | None "
                   "= None, scale: float | None = None, sink_logits: object = None, alibi_slopes: "
                   "object = None) -> None"),
           "The same for many sequences of one cache in one call: lists of equal length, `outs` "
           "are written.");
}

}  // namespace quire::python
