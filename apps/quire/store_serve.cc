// quire store serve: one process owns a store of blocks, others use it through a socket.
#include <fmt/format.h>
#include <grp.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <memory>

#include "apps/quire/command.h"
#include "apps/quire/output.h"
#include "store/socket/server.h"

namespace quire::app {
namespace {

struct StoreServeFlags {
  BlockStoreOptions store;
  store::StoreServerOptions server;
  std::string cap = "8GiB";
  std::string block;
  std::string memory = "256MiB";
  std::string client = "256MiB";
  std::string mode = "0600";
  std::string group;
  bool json = false;
};

store::StoreServer* running = nullptr;  // what a signal stops

TextCheck ModeCheck() {
  return {.name = "MODE", .problem = [](const std::string& text) -> std::string {
            uint32_t mode = 0;
            const auto end = text.data() + text.size();
            const auto parsed = std::from_chars(text.data(), end, mode, 8);
            if (parsed.ec == std::errc() && parsed.ptr == end && mode <= 0777) return "";
            return text + " is no mode such as 0660";
          }};
}

Result<gid_t> GroupOf(const std::string& name) {
  const group* const found = ::getgrnam(name.c_str());
  if (found == nullptr) return Fail(ErrorCode::kInvalidArgument, name + ": no such group");
  return found->gr_gid;
}

void PrintReady(const StoreServeFlags& flags, const BlockStoreStats& stats) {
  if (flags.json) {
    PrintJson({{"directory", flags.store.directory},
               {"socket", flags.server.socket},
               {"pid", ::getpid()},
               {"cap_bytes", stats.bytes_cap},
               {"block_bytes_max", stats.block_bytes_max},
               {"blocks", stats.blocks}});
  } else {
    fmt::print(
        "quire store serves {} ({} blocks, cap {}) at {}\n"
        "try: quire store status {}\n",
        flags.store.directory, stats.blocks, FormatBytes(stats.bytes_cap), flags.server.socket,
        flags.server.socket);
  }
  FlushOutput();
}

Result<void> ReadFlags(StoreServeFlags& flags) {
  QUIRE_ASSIGN(flags.store.bytes_cap, ParseBytes(flags.cap));
  if (!flags.block.empty()) {
    QUIRE_ASSIGN(flags.store.block_bytes_max, ParseBytes(flags.block));
  }
  QUIRE_ASSIGN(flags.store.memory_bytes, ParseBytes(flags.memory));
  QUIRE_ASSIGN(flags.server.client_bytes, ParseBytes(flags.client));
  flags.server.access.mode = static_cast<uint32_t>(std::stoul(flags.mode, nullptr, 8));
  if (!flags.group.empty()) {
    QUIRE_ASSIGN(flags.server.access.group, GroupOf(flags.group));
  }
  if (flags.store.directory.starts_with("unix:")) {
    return Fail(ErrorCode::kInvalidArgument,
                flags.store.directory + ": a socket; only a directory can be served");
  }
  return {};
}

Result<int> Serve(StoreServeFlags& flags) {
  QUIRE_TRY(ReadFlags(flags));
  QUIRE_ASSIGN(const auto store, BlockStore::Open(flags.store));
  QUIRE_ASSIGN(const auto server, store::StoreServer::Create(*store, flags.server));
  running = server.get();
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, [](int) { running->Stop(); });
  PrintReady(flags, store->stats());
  server->Run();
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, SIG_IGN);
  store->Close();
  return store->stats().puts_lost > 0 ? kResource : kOk;
}

nlohmann::ordered_json StatsJson(const BlockStoreStats& stats) {
  return {{"clients", stats.clients},
          {"blocks", stats.blocks},
          {"bytes", stats.bytes},
          {"cap_bytes", stats.bytes_cap},
          {"live_bytes", stats.bytes_live},
          {"block_bytes_max", stats.block_bytes_max},
          {"memory_bytes", stats.memory_bytes},
          {"bytes_written", stats.bytes_written},
          {"bytes_read", stats.bytes_read},
          {"evicted", stats.evicted},
          {"damaged", stats.damaged},
          {"puts", stats.puts},
          {"puts_present", stats.puts_present},
          {"puts_failed", stats.puts_failed},
          {"puts_lost", stats.puts_lost},
          {"hits", stats.hits},
          {"memory_hits", stats.memory_hits},
          {"misses", stats.misses},
          {"gets_failed", stats.gets_failed},
          {"removed", stats.removed},
          {"disk_full", stats.disk_full}};
}

struct StatusFlags {
  std::string socket;
  std::string name_space;
  bool json = false;
};

Result<int> Status(const StatusFlags& flags, bool of_namespace) {
  QUIRE_ASSIGN(const auto store, BlockStore::Open({.directory = "unix:" + flags.socket}));
  BlockStoreStats stats = store->stats();
  --stats.clients;  // without this one
  auto object = StatsJson(stats);
  if (of_namespace) {
    QUIRE_ASSIGN(const NamespaceUsage usage, store->Usage(flags.name_space));
    object["namespace"] = {
        {"blocks", usage.blocks}, {"live_bytes", usage.bytes_live}, {"bytes", usage.bytes}};
  }
  PrintObject(object, flags.json);
  return kOk;
}

int Finish(const Result<int>& code) { return code ? *code : Report("store", code.error()); }

void AddSizes(Command& command, StoreServeFlags& flags) {
  const auto add = [&](const char* name, FlagValue value, const char* help, FlagCheck check,
                       bool shows_default = true) {
    command.Add({.name = name,
                 .value = value,
                 .help = help,
                 .check = std::move(check),
                 .shows_default = shows_default});
  };
  const auto count = Between<uint32_t>{1, 1'000'000};
  add("--cap-bytes", &flags.cap, "Most that its files take", BytesCheck());
  add("--block-bytes", &flags.block,
      "Longest block (default: 64MiB, or a sixteenth of the cap where that is less)", BytesCheck(),
      /*shows_default=*/false);
  add("--memory-bytes", &flags.memory, "Of the blocks used last, kept in memory too", BytesCheck());
  add("--accept-puts", &flags.store.accepts_puts,
      "A put ends when its block can be found, in memory; it is durable soon after", {},
      /*shows_default=*/false);
  add("--clients", &flags.server.clients_max, "Clients at once", count);
  add("--client-bytes", &flags.client, "Memory that each client shares with this process",
      BytesCheck());
  add("--client-blocks", &flags.server.client_blocks_max,
      "Blocks that one client has under way at once", count);
}

}  // namespace

void AddStoreServe(Command& store) {
  auto flags = std::make_shared<StoreServeFlags>();
  Command serve = store.AddCommand(
      "serve", "own a store of blocks for other processes, which open \"unix:PATH\"");
  serve.Add({.name = "DIR",
             .value = &flags->store.directory,
             .help = "The store's directory; made when it does not exist",
             .required = true});
  serve.Add({.name = "--socket",
             .value = &flags->server.socket,
             .help = "PATH where clients connect; who may is said by its mode",
             .required = true});
  serve.Add({.name = "--socket-mode",
             .value = &flags->mode,
             .help = "Mode of the socket, in octal",
             .check = ModeCheck(),
             .shows_default = true});
  serve.Add(
      {.name = "--socket-group", .value = &flags->group, .help = "Group of the socket, by name"});
  AddSizes(serve, *flags);
  AddKeysFlags(serve, flags->store.keys);
  serve.Add({.name = "--json",
             .value = &flags->json,
             .help = "Print one JSON object when clients can connect"});
  serve.Run([flags] { return Finish(Serve(*flags)); });

  auto status = std::make_shared<StatusFlags>();
  Command ask = store.AddCommand("status", "ask the process that serves a store how it is");
  ask.Add({.name = "SOCKET", .value = &status->socket, .help = "Its socket", .required = true});
  ask.Add({.name = "--namespace",
           .value = &status->name_space,
           .help = "What this one has on disk, too"});
  ask.Add({.name = "--json", .value = &status->json, .help = "Print one JSON object"});
  ask.Run([status, ask] { return Finish(Status(*status, ask.IsGiven("--namespace"))); });
}

}  // namespace quire::app
