// The store below memory, and loads from it.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "bind.h"

namespace quire::python {
namespace {

void Open(PyDiskStore* self, const std::filesystem::path& directory, uint64_t cap_bytes,
          double commit_interval_s, uint64_t staging_bytes, uint64_t scrub_bytes_per_s,
          uint64_t warm_bytes, const std::string& remote,
          const std::optional<std::filesystem::path>& fleet_key, bool remote_writes_all,
          const std::optional<std::filesystem::path>& keys, const std::string& keys_command,
          const std::optional<nb::bytes>& key) {
  DiskStoreOptions options{
      .directory = directory.string(),
      .bytes_cap = cap_bytes,
      .commit_interval_us = ToMicros(commit_interval_s),
      .warm_bytes = warm_bytes,
      .staging_bytes = staging_bytes,
      .scrub_bytes_per_s = scrub_bytes_per_s,
      .remote = remote,
      .fleet_key_file = fleet_key ? fleet_key->string() : "",
      .remote_writes = remote_writes_all ? RemoteWrites::kAll : RemoteWrites::kReused,
      .keys = {.file = keys ? keys->string() : "", .command = keys_command}};
  if (key) {
    const auto* const bytes = static_cast<const uint8_t*>(key->data());
    options.keys.key.assign(bytes, bytes + key->size());
  }
  const GilFree free;
  new (self) PyDiskStore(Share(Value(DiskStore::Open(options))), options.directory);
}

// On a thread of its own, so that Ctrl-C is heard here; the flush goes on then.
void Flush(const PyDiskStore& self) {
  std::promise<Result<void>> promise;
  std::future<Result<void>> outcome = promise.get_future();
  std::thread([store = self.get(), promise = std::move(promise)]() mutable {
    Result<void> flushed = store->Flush();
    store.reset();  // before it is told: after Close nothing has the directory
    promise.set_value(std::move(flushed));
  }).detach();
  AwaitInSteps(std::nullopt, [&](uint64_t step_us) {
    const GilFree free;
    return outcome.wait_for(std::chrono::microseconds(step_us)) == std::future_status::ready;
  });
  Value(outcome.get());
}

void Close(PyDiskStore& self) {
  if (self.closed()) return;
  if (self.is_here()) Flush(self);
  self.Close();
}

// Runs `use` on the ticket as its only user, without the GIL.
template <typename Use>
auto WithTicket(const PyTicket& self, const Use& use) {
  const std::shared_ptr<TicketState> state = self.get();
  const GilFree free;
  const std::lock_guard turn(state->turn);
  if (state->taken) Raise(ErrorCode::kInvalidArgument, "the ticket was taken");
  return use(*state);
}

bool Wait(const PyTicket& self, std::optional<double> timeout_s) {
  return AwaitInSteps(timeout_s, [&](uint64_t step_us) {
    return WithTicket(self, [&](TicketState& state) { return state.ticket.WaitFor(step_us); });
  });
}

std::shared_ptr<PyPlan> Take(const PyTicket& self) {
  Wait(self, std::nullopt);
  return WithTicket(self, [](TicketState& state) {
    state.taken = true;
    return std::make_shared<PyPlan>(
        Share(std::make_unique<PlanState>(state.cache, state.ticket.Take())));
  });
}

nb::dict Progress(const PyTicket& self) {
  const LoadProgress progress =
      WithTicket(self, [](TicketState& state) { return state.ticket.progress(); });
  nb::dict made;
  made["blocks"] = progress.blocks;
  made["blocks_ready"] = progress.blocks_ready;
  made["bytes"] = progress.bytes;
  made["meet_tokens"] = progress.meet_tokens;
  made["layers_ready"] = progress.layers_ready;
  made["elapsed_us"] = progress.elapsed_us;
  return made;
}

// Runs `use` on the ticket of a load from the end.
template <typename Use>
auto WithTicketFromEnd(const PyTicket& self, const Use& use) {
  return WithTicket(self, [&](TicketState& state) {
    if (!state.from_end) Raise(ErrorCode::kInvalidArgument, "the load is not from_end");
    return use(state);
  });
}

std::shared_ptr<PyPlan> Front(const PyTicket& self, uint64_t tokens) {
  return WithTicketFromEnd(self, [&](TicketState& state) {
    return std::make_shared<PyPlan>(
        Share(std::make_unique<PlanState>(state.cache, state.ticket.Front(tokens))));
  });
}

std::shared_ptr<PyPlan> Arriving(const PyTicket& self) {
  return WithTicket(self, [](TicketState& state) {
    return std::make_shared<PyPlan>(
        Share(std::make_unique<PlanState>(state.cache, Value(state.ticket.Arriving()))));
  });
}

void Meet(const PyTicket& self, uint64_t tokens) {
  WithTicketFromEnd(self, [&](TicketState& state) { state.ticket.Meet(tokens); });
}

std::string Describe(TicketState& state) {
  const std::unique_lock turn(state.turn, std::try_to_lock);
  if (!turn) return "another thread waits for it";
  if (state.taken) return "taken";
  const LoadProgress progress = state.ticket.progress();
  return std::to_string(progress.blocks_ready) + " of " + std::to_string(progress.blocks) +
         " blocks loaded";
}

std::string Repr(const PyDiskStore& self) {
  return self.Repr("DiskStore", [&](const DiskStore& store) {
    const DiskStoreStats stats = store.stats();
    return "'" + self.directory() + "', " + std::to_string(stats.records) + " records, " +
           std::to_string(stats.bytes) + " of " + std::to_string(stats.bytes_cap) + " bytes";
  });
}

void BindTicket(nb::module_& module) {
  nb::class_<PyTicket>(module, "Ticket",
                       "A load under way, made by Cache.load(). What has come is held until it is "
                       "taken or closed. Threads: any.")
      .def("wait", &Wait, nb::arg("timeout_s") = nb::none(),
           "Returns when the load has ended, or after so long: whether it has.")
      .def("take", &Take,
           "Waits for the end. The plan it was made from, with what was loaded resident; its "
           "misses say why the rest was not. Uses the ticket up.")
      .def(
          "cancel",
          [](const PyTicket& self) {
            WithTicket(self, [](TicketState& state) { state.ticket.Cancel(); });
          },
          "What has not come yet will not be waited for.")
      .def_prop_ro(
          "done",
          [](const PyTicket& self) {
            return WithTicket(self, [](TicketState& state) { return state.ticket.IsDone(); });
          },
          "Whether the load has ended.")
      .def_prop_ro("progress", &Progress, nb::sig("def progress(self) -> LoadProgress"),
                   "blocks to be loaded, blocks_ready, and their bytes; from_end: meet_tokens, the "
                   "tokens before what has come; by_layer: layers_ready, so many are there; "
                   "elapsed_us, to its end.")
      .def(
          "front", &Front, nb::arg("tokens"),
          "Of a load from_end: what was resident when it began, pinned once more, as a plan of the "
          "first `tokens` of the prompt, to compute from.")
      .def("arriving", &Arriving,
           "Of a load by_layer some of whose layers are ready: a plan that has the blocks on their "
           "way as resident ones. A sequence that is opened from it has the tokens of a layer when "
           "Sequence.await_layer() says so.\n\nRaises: UnsupportedError not by_layer; BusyError no "
           "layer is ready, or the load has ended or fails: wait for its end.")
      .def("meet", &Meet, nb::arg("tokens"),
           "Of a load from_end: the first `tokens` of the prompt are computed and published, and "
           "stay held until the ticket ends. Blocks that end there are not read any more.")
      .def("__repr__", [](const PyTicket& self) { return self.Repr("Ticket", &Describe); })
      .def_prop_ro("closed", &PyTicket::closed)
      .def("close", &PyTicket::Close, "Cancels what has not come.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Ticket"))
      .def(
          "__exit__", [](PyTicket& self, const nb::args&) { self.Close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace

void BindStore(nb::module_& module) {
  nb::class_<PyDiskStore>(
      module, "DiskStore",
      "The store below memory, in one directory of a local disk (docs/durability.md): what caches "
      "publish is written there behind their back, and a later process finds it.\n\nSeveral caches "
      "may share one; one process at a time owns a directory. Threads: any.")
      .def(
          "__init__", &Open, nb::arg("directory"), nb::kw_only(),
          nb::arg("cap_bytes") = DiskStoreOptions{}.bytes_cap, nb::arg("commit_interval_s") = 1.0,
          nb::arg("staging_bytes") = DiskStoreOptions{}.staging_bytes,
          nb::arg("scrub_bytes_per_s") = DiskStoreOptions{}.scrub_bytes_per_s,
          nb::arg("warm_bytes") = DiskStoreOptions{}.warm_bytes, nb::arg("remote") = "",
          nb::arg("fleet_key") = nb::none(), nb::arg("remote_writes_all") = false,
          nb::arg("keys") = nb::none(), nb::arg("keys_command") = "", nb::arg("key") = nb::none(),
          nb::sig("def __init__(self, directory: str | bytes | os.PathLike[str] | "
                  "os.PathLike[bytes], *, cap_bytes: int = 8589934592, commit_interval_s: float = "
                  "1.0, staging_bytes: int = 67108864, scrub_bytes_per_s: int = 8388608, "
                  "warm_bytes: int = 0, remote: str = '', fleet_key: str | os.PathLike[str] | "
                  "None = None, remote_writes_all: bool = False, keys: str | os.PathLike[str] | "
                  "None = None, keys_command: str = '', key: bytes | None = None) -> None"),
          "directory: made if there is none. Empty: nothing is on disk, there are warm_bytes or a "
          "remote alone.\n"
          "cap_bytes: hard, of all its files.\n"
          "commit_interval_s: what a crash may lose.\n"
          "staging_bytes: memory for bytes on their way.\n"
          "scrub_bytes_per_s: re-reads what it has, so fast; 0: never.\n"
          "warm_bytes: memory in front of the disk, for caches whose blocks are on a device.\n"
          "remote: a service that machines share, behind the others: redis://HOST, rediss://HOST "
          "or s3://BUCKET (docs/remote.md).\n"
          "fleet_key: a file of 32 random bytes that they have in common; without it nothing is "
          "shared.\n"
          "remote_writes_all: not only what is used again is written there.\n"
          "keys, keys_command, key: one of them encrypts the directory, or opens an encrypted one: "
          "a file of 32 bytes that its owner alone may read, a command that wraps and unwraps, or "
          "32 bytes (docs/encryption.md).\n"
          "Raises: BusyError another process has it; InvalidArgumentError keys that are not the "
          "directory's; CorruptError they are damaged; UnsupportedError a newer version wrote it; "
          "NoSpaceError; IoError.")
      .def(
          "secret",
          [](const PyDiskStore& self) {
            const Digest secret = Value(self.get()->Secret());
            return nb::bytes(secret.data(), secret.size());
          },
          "32 bytes for Identity(domain_secret=...), kept beside the store in a file that its "
          "owner alone may read. With another one nothing in the store is found.")
      .def("flush", &Flush,
           "Returns when everything that was published before is durable. Raises: IoError, "
           "NoSpaceError some of it could not be written.")
      .def(
          "stats", [](const PyDiskStore& self) { return FromJson(ToJson(self.get()->stats())); },
          nb::sig("def stats(self) -> DiskStoreStats"), "What it did and holds.")
      .def("__repr__", &Repr)
      .def_prop_ro("closed", &PyDiskStore::closed)
      .def("close", &Close, "Flushes and lets go of it. It ends with its last cache.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> DiskStore"))
      .def(
          "__exit__", [](PyDiskStore& self, const nb::args&) { Close(self); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
  BindTicket(module);
}

}  // namespace quire::python
