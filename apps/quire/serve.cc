// quire serve: the HTTP server on one model.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "apps/quire/output.h"
#include "apps/quire/runtime.h"
#include "base/log.h"
#include "base/version.h"
#include "env/clock.h"
#include "env/file.h"
#include "quire/events.h"
#include "serve/driver.h"
#include "serve/http/server.h"
#include "serve/http/toml_file.h"
#include "text/chat_template.h"
#include "text/generation_config.h"

namespace quire::app {

namespace {

namespace http = serve::http;

constexpr uint64_t kConfigBytesMax = 1 << 20;

struct ServeFlags {
  RuntimeFlags runtime;
  std::string kv;
  std::string config;
  std::string name;
  std::string api_keys;
  bool no_auth = false;
  std::string access_log = "-";
  http::ServerOptions server;
  http::ServiceOptions service;
  EventOptions events;
  std::string body_bytes = "4MiB";
  std::string bodies_bytes = "64MiB";
  uint32_t adapters_max = serve::AdapterLimits{}.count_max;
  std::string adapter_bytes = "4GiB";
  uint32_t running_max = 64;
  uint32_t requests_max = 1024;
  uint32_t sessions_max = 1024;
  std::string admission = "grow";
  uint32_t call_timeout_s = 600;
  uint32_t session_idle_s = 3600;
  uint32_t header_s = 10;
  uint32_t body_s = 30;
  uint32_t idle_s = 60;
  uint32_t write_s = 30;
  uint32_t drain_s = 30;
};

/// Every member of the file is a flag of the same name, checked as the flag is; a flag that was
/// given on the command line wins.
Result<void> ApplyConfig(Command& command, const std::string& path) {
  QUIRE_ASSIGN(const std::string text, ReadFile(path, kConfigBytesMax));
  QUIRE_ASSIGN(const auto file, http::ParseToml(text, path));
  QUIRE_ASSIGN(const auto settings, file.Settings());
  for (const http::TomlSetting& setting : settings) {
    const auto bad = [&](const std::string& what) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' {}", setting.where, setting.name, what));
    };
    const std::string flag = "--" + setting.name;
    if (!command.Has(flag) || setting.name == "config" || setting.name == "help") {
      return bad("is no setting; 'quire serve --help' lists them");
    }
    if (setting.values.size() != 1) return bad("has one value");
    if (command.IsGiven(flag)) continue;
    if (const std::string problem = command.Set(flag, setting.values[0]); !problem.empty()) {
      return bad(fmt::format("cannot be '{}': {}", setting.values[0], problem));
    }
  }
  return {};
}

/// "models/tiny/" is "tiny".
std::string NameOf(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

Result<serve::EngineOptions> EngineOptionsOf(const ServeFlags& flags, http::EventHub& hub) {
  QUIRE_ASSIGN(const uint64_t adapter_bytes, ParseBytes(flags.adapter_bytes));
  // Prompts go in larger pieces where no request generates.
  return serve::EngineOptions{
      .chunk_tokens_min = flags.runtime.chunk_tokens,
      .chunk_tokens_max = flags.runtime.chunk_tokens * 4,
      .admission = flags.admission == "whole" ? serve::Admission::kWhole : serve::Admission::kGrow,
      .running_max = flags.running_max,
      .requests_max = flags.requests_max,
      .sessions_max = flags.sessions_max,
      .load = *serve::LoadPolicyOf(flags.runtime.load),
      .resident_tokens = flags.runtime.resident_tokens,
      .adapters = {.count_max = flags.adapters_max, .bytes_max = adapter_bytes},
      .on_event = [&hub](serve::RequestId id) { hub.Notify(id); }};
}

/// Errors: kUnsupported names a flag that ranks cannot honour
Result<void> CheckWithRanks(const ServeFlags& flags) {
  for (const auto& [name, is_given] :
       {std::pair("--events", !flags.events.endpoint.empty()),
        {"--adapter-directory", !flags.service.adapter_directory.empty()}}) {
    if (!is_given) continue;
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{}: not possible with --ranks {}; leave one of them out", name,
                            flags.runtime.ranks.mode));
  }
  return {};
}

Result<void> CheckFlags(ServeFlags& flags) {
  const auto bad = [](std::string what) {
    return Fail(ErrorCode::kInvalidArgument, std::move(what));
  };
  if (flags.runtime.model.empty()) return bad("--model is needed: a model directory");
  if (!flags.runtime.ranks.mode.empty()) QUIRE_TRY(CheckWithRanks(flags));
  QUIRE_ASSIGN(const http::HostAndPort address, http::ParseAddress(flags.server.listen));
  if (flags.api_keys.empty() && !flags.no_auth && !http::IsLoopbackHost(flags.server.listen)) {
    return bad(
        fmt::format("--listen {} can be reached from other machines: give --api-keys, or "
                    "--no-auth where anybody who reaches it may use and see all of it",
                    flags.server.listen));
  }
  if (!flags.api_keys.empty() && flags.no_auth) return bad("--api-keys or --no-auth, not both");
  QUIRE_ASSIGN(const uint64_t warm_bytes, ParseBytes(flags.runtime.warm_bytes));
  const bool has_store =
      !flags.runtime.store.empty() || warm_bytes > 0 || !flags.runtime.remote.empty();
  if (flags.service.on_full == "spill" && (!has_store || flags.runtime.resident_tokens == 0)) {
    return bad("--on-full spill: needs --resident-tokens, and --store, --warm-bytes or --remote");
  }
  QUIRE_ASSIGN(flags.server.body_bytes_max, ParseBytes(flags.body_bytes));
  QUIRE_ASSIGN(flags.server.bodies_bytes_max, ParseBytes(flags.bodies_bytes));
  if (flags.server.bodies_bytes_max < flags.server.body_bytes_max) {
    return bad("--bodies-bytes is less than --body-bytes: no body of that size could be read");
  }
  flags.runtime.announce = !flags.events.endpoint.empty();
  flags.runtime.keep_sessions = !flags.runtime.store.empty();
  // A call that opens, forks or ends a session with a file keeps a worker waiting for the disk.
  if (flags.runtime.keep_sessions) flags.server.worker_threads = 8;
  flags.server.header_ms = flags.server.handshake_ms = flags.header_s * uint64_t{1000};
  flags.server.body_ms = flags.body_s * uint64_t{1000};
  flags.server.idle_ms = flags.idle_s * uint64_t{1000};
  flags.server.write_ms = flags.write_s * uint64_t{1000};
  flags.server.drain_ms = flags.drain_s * uint64_t{1000};
  return {};
}

/// A keys file is its reader's alone: mode 0600 and of this user, or 0640 and of another one (root)
/// with this process's group, as packaging/quire.service has it.
void WarnOfReaders(const std::string& path) {
  struct stat file{};
  if (stat(path.c_str(), &file) != 0) return;
  const bool own_group = file.st_uid != geteuid() && file.st_gid == getegid();
  const mode_t others = own_group ? S_IROTH : S_IRGRP | S_IROTH;
  if ((file.st_mode & others) == 0) return;
  LogWarn(
      "{}: others than this server may read it: chmod 600 where it is this user's, else 640 "
      "with the group of this server",
      path);
}

void WarnOfRisks(const ServeFlags& flags) {
  if (!flags.api_keys.empty()) WarnOfReaders(flags.api_keys);
  if (flags.server.tls_cert.empty() && !http::IsLoopbackHost(flags.server.listen)) {
    LogWarn("--listen {}: without --tls-cert keys and texts travel as they are",
            flags.server.listen);
  }
  const std::string& events = flags.events.endpoint;
  if (flags.api_keys.empty() && events.starts_with("tcp://") && !events.starts_with("tcp://127.")) {
    LogWarn("--events {}: its readers see the prompts of all calls, without a key", events);
  }
}

/// What a person needs first: where it is, and one line to try.
void PrintWelcome(const ServeFlags& flags, const http::Server& server, const std::string& name) {
  const bool tls = !flags.server.tls_cert.empty();
  std::string host = http::ParseAddress(flags.server.listen).value().host;
  if (host == "0.0.0.0" || host == "::") host = "127.0.0.1";
  if (host.find(':') != std::string::npos) host = fmt::format("[{}]", host);
  const std::string url = fmt::format("{}://{}:{}", tls ? "https" : "http", host, server.port());
  const char* const key = flags.api_keys.empty() ? "" : " -H \"Authorization: Bearer $QUIRE_KEY\"";
  fmt::print("quire serves {} at {}  (page: {}/)\n", name, url, url);
  if (server.operator_port() != 0) {
    fmt::print("the operator's page: http://127.0.0.1:{}/\n", server.operator_port());
  }
  fmt::print(
      "try: curl {}/v1/completions{} -H 'Content-Type: application/json' -d "
      "'{{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}}'\n",
      url, key);
  FlushOutput();
}

/// What the server says of itself and of calls that name nothing else.
http::ServiceOptions ServiceOptionsOf(const ServeFlags& flags, Runtime& runtime,
                                      const model::GenerationConfig& generation) {
  http::ServiceOptions options = flags.service;
  options.model_name = flags.name.empty() ? NameOf(flags.runtime.model) : flags.name;
  options.version = kVersion;
  options.stop_tokens = runtime.model().config().eos;
  options.stop_tokens.insert(options.stop_tokens.end(), generation.eos.begin(),
                             generation.eos.end());
  options.tokens_max = runtime.cache().options().tokens_max;
  options.call_timeout_us = flags.call_timeout_s * uint64_t{1'000'000};
  options.sessions.idle_us = flags.session_idle_s * uint64_t{1'000'000};
  options.loopback_names_only = !flags.no_auth;
  options.publishes = !flags.runtime.remote.empty() &&
                      (flags.runtime.store.empty() || flags.runtime.remote_writes == "all");
  return options;
}

/// A rank that does what rank 0 says.
Result<int> FollowRank0(const ServeFlags& flags, Runtime& runtime) {
  if (flags.runtime.ranks.threads == 0) LeaveSignalsToRank0();
  QUIRE_TRY(runtime.rank()->Follow());
  runtime.FlushStore();
  return kOk;
}

/// `group`: null: there are no ranks.
Result<int> Serve(const ServeFlags& flags, ranks::Group* group) {
  const bool listens = group == nullptr || group->rank() == 0;
  std::optional<http::KeysFile> keys;  // the others hear of tenants from rank 0
  if (listens && !flags.api_keys.empty()) {
    QUIRE_ASSIGN(keys, http::ReadKeysFile(flags.api_keys));
  }
  if (listens) WarnOfRisks(flags);
  QUIRE_ASSIGN(const auto log, http::AccessLog::Open(listens ? flags.access_log : ""));
  QUIRE_ASSIGN(const auto chat, model::ChatTemplate::Load(flags.runtime.model));
  QUIRE_ASSIGN(const auto generation, model::GenerationConfig::Load(flags.runtime.model));
  http::EventHub hub;
  QUIRE_ASSIGN(const auto engine_options, EngineOptionsOf(flags, hub));
  QUIRE_ASSIGN(const auto runtime, Runtime::Load(flags.runtime, engine_options, group));
  Rank* const rank = runtime->rank();
  if (!listens) return FollowRank0(flags, *runtime);
  if (!runtime->tokenizer()) {
    return Fail(
        ErrorCode::kNotFound,
        fmt::format("{}: no tokenizer.json, and the API is about text", flags.runtime.model));
  }
  http::ServiceOptions options = ServiceOptionsOf(flags, *runtime, generation);
  if (group != nullptr) {
    options.ranks_mode = flags.runtime.ranks.mode;
    options.ranks_count = group->size();
    options.publishes = false;  // rank 0 knows of its own store alone
  }
  if (runtime->engine().adapters().Find(options.model_name)) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--adapter {}: it is the base model's name (--name)", options.model_name));
  }
  std::unique_ptr<EventPublisher> events;
  if (ChangeFeed* const changes = runtime->cache().changes(); changes != nullptr) {
    QUIRE_ASSIGN(events, EventPublisher::Start(*changes, flags.events));
  }
  std::optional<serve::Driver> driver;
  const http::ServiceContext served{.engine = runtime->engine(),
                                    .cache = runtime->engine_cache(),
                                    .hub = hub,
                                    .tokenizer = *runtime->tokenizer(),
                                    .chat = chat,
                                    .generation = generation,
                                    .clock = SystemClock(),
                                    .engine_stats = [&driver] { return driver->stats(); },
                                    .engine_sequences = [&driver] { return driver->Sequences(); },
                                    .budget_used_of =
                                        [&runtime] {
                                          return std::pair(runtime->registry().bytes_used(),
                                                           runtime->registry().budget_bytes());
                                        },
                                    .strftime_now = DateNow,
                                    .store = runtime->store(),
                                    .sessions = runtime->sessions(),
                                    .events = events.get()};
  QUIRE_ASSIGN(const auto service, http::Service::Create(served, options, keys));
  QUIRE_ASSIGN(const auto server, http::Server::Create(*service, *log, flags.server));
  std::optional<Error> lost;  // a rank; of the engine's thread
  serve::BetweenTicks between;
  if (rank != nullptr) {
    between.every_us = KeepAliveUs(*group);
    between.call = [rank, &lost, &server] {
      if (lost) return;
      if (auto alive = rank->KeepAlive(); !alive) {
        lost = std::move(alive).error();
        server->Stop();
      }
    };
  }
  driver.emplace(runtime->engine(), std::move(between));
  PrintWelcome(flags, *server, options.model_name);
  server->Run();
  driver.reset();
  if (lost) return std::unexpected(*std::move(lost));
  if (rank != nullptr) QUIRE_TRY(rank->Stop());
  runtime->FlushStore();  // what was read is there for the next start
  return kOk;
}

int RunServe(Command& command, ServeFlags& flags) {
  if (!flags.config.empty()) {
    if (const auto applied = ApplyConfig(command, flags.config); !applied) {
      return Report("serve", applied.error());
    }
  }
  if (flags.runtime.k.empty()) flags.runtime.k = flags.kv;
  if (flags.runtime.v.empty()) flags.runtime.v = flags.kv;
  if (const auto checked = CheckFlags(flags); !checked) return Report("serve", checked.error());
  return RunWithRanks("serve", flags.runtime.ranks,
                      [&flags](ranks::Group* group) { return Serve(flags, group); });
}

// A flag with a check shows its default.
void AddTo(Command& command, const char* group, const char* name, FlagValue value, const char* help,
           FlagCheck check, const char* needs = "") {
  const bool shows_default = !std::holds_alternative<std::monostate>(check);
  command.Add({.name = name,
               .value = value,
               .help = help,
               .check = std::move(check),
               .shows_default = shows_default,
               .group = group,
               .needs = needs});
}

void AddEvents(Command& command, EventOptions& events) {
  const auto add = [&](const char* name, FlagValue value, const char* help, const char* needs,
                       FlagCheck check) {
    AddTo(command, "KV events", name, value, help, std::move(check), needs);
  };
  add("--events", &events.endpoint,
      "Where routers hear which blocks come and go, by ZeroMQ (docs/events.md): tcp://*:5557 is "
      "bound, tcp://HOST:5557 connected to (default: nowhere)",
      "", {});
  add("--events-replay", &events.replay_endpoint,
      "Where they ask for what they missed: tcp://*:5558, bound (default: nowhere)", "--events",
      {});
  add("--events-topic", &events.topic, "First frame of each message, such as kv@HOST:8080@MODEL",
      "--events", {});
  add("--events-buffer", &events.buffer_steps, "Messages that are kept for --events-replay",
      "--events", Between<uint64_t>{0, 1'000'000'000});
  add("--events-hwm", &events.hwm, "Messages that wait for one subscriber; more are lost to it",
      "--events", Between<uint32_t>{1, 1'000'000'000});
}

void AddLimits(Command& command, ServeFlags& flags) {
  const auto add = [&](const char* name, FlagValue value, const char* help, FlagCheck check) {
    AddTo(command, "Limits", name, value, help, std::move(check));
  };
  const auto number = [&](const char* name, FlagValue value, const char* help) {
    add(name, value, help, Between<uint32_t>{1, 1'000'000'000});
  };
  add("--body-bytes", &flags.body_bytes, "Largest body of a request", BytesCheck());
  add("--bodies-bytes", &flags.bodies_bytes,
      "Most that all bodies together take while they are read; more are answered with 503",
      BytesCheck());
  number("--connections", &flags.server.connections_max, "Connections at once");
  add("--connections-per-address", &flags.server.connections_per_address_max,
      "Of these, from one address; behind a proxy as many as --connections (default: half of them)",
      {});
  number("--calls-per-tenant", &flags.service.calls_per_tenant_max,
         "Calls of one tenant at once; more are answered with 429");
  number("--sessions-per-tenant", &flags.service.sessions.per_tenant_max, "Sessions of one tenant");
  number("--adapters", &flags.adapters_max, "Adapters at once");
  add("--adapter-bytes", &flags.adapter_bytes,
      "Most memory that adapters take, besides --hot-bytes", BytesCheck());
  number("--sessions", &flags.sessions_max, "Sessions in all");
  add("--session-bytes", &flags.runtime.session_bytes,
      "Most that the files of sessions take of the disk, with --store", BytesCheck());
  number("--requests", &flags.requests_max, "Answers waited for at once, in all");
  number("--running", &flags.running_max, "Requests that hold blocks at once");
  add("--max-answer-tokens", &flags.service.answer_tokens_max,
      "Most tokens of one answer (default: what the sequence length allows)", {});
  number("--choices", &flags.service.choices_max, "Answers of one call: prompts times n");
  number("--call-timeout", &flags.call_timeout_s, "Seconds for one call");
  number("--session-idle", &flags.session_idle_s, "Seconds until an unused session ends");
  number("--header-timeout", &flags.header_s, "Seconds for the header of a request");
  number("--body-timeout", &flags.body_s, "Seconds for its body");
  number("--idle-timeout", &flags.idle_s, "Seconds between two requests of a connection");
  number("--write-timeout", &flags.write_s, "Seconds until a client that reads nothing is left");
  number("--drain", &flags.drain_s, "Seconds that calls under way have after SIGTERM");
}

}  // namespace

void AddServe(Command& program) {
  auto flags = std::make_shared<ServeFlags>();
  Command command = program.AddCommand(
      "serve", "Serves a model over HTTP: the API of OpenAI, metrics and a page to look at");
  // It may come from the file.
  AddRuntimeFlags(command, flags->runtime, ModelFlag::kOptional);
  AddRanksFlags(command, flags->runtime.ranks);
  command.Add({.name = "--config",
               .value = &flags->config,
               .help = "A TOML file of these flags: listen = \"127.0.0.1:8080\". Flags win"});
  command.Add({.name = "--kv",
               .value = &flags->kv,
               .help = "Codec of K and V (default: the model's type)",
               .check = CodecCheck()});
  command.Add({.name = "--listen",
               .value = &flags->server.listen,
               .help = "HOST:PORT; port 0: any free one",
               .shows_default = true});
  command.Add({.name = "--name",
               .value = &flags->name,
               .help = "The model's name in the API (default: its directory)"});
  AddAdapterFlag(command, flags->runtime.adapters,
                 "A LoRA adapter as PEFT writes it, which calls name as their model; may be given "
                 "again");
  command.Add({.name = "--adapter-directory",
               .value = &flags->service.adapter_directory,
               .help = "Below which POST /v1/load_lora_adapter, the operator's call, finds "
                       "adapters (default: it loads none)"});
  command.Add({.name = "--api-keys",
               .value = &flags->api_keys,
               .help = "A TOML file of tenants and their keys (docs/operations.md)"});
  command.Add({.name = "--no-auth",
               .value = &flags->no_auth,
               .help = "Anybody who reaches it may use and see all of it"});
  command.Add({.name = "--operator-listen",
               .value = &flags->server.operator_listen,
               .help = "HOST:PORT on loopback whose callers see and change all without a key"});
  command.Add(
      {.name = "--tls-cert", .value = &flags->server.tls_cert, .help = "Certificate chain, PEM"});
  command.Add(
      {.name = "--tls-key", .value = &flags->server.tls_key, .help = "Its private key, PEM"});
  command.Add({.name = "--access-log",
               .value = &flags->access_log,
               .help = "A file for one line of JSON per request; -: stderr; empty: none",
               .shows_default = true});
  command.Add({.name = "--admission",
               .value = &flags->admission,
               .help = "whole: a request starts with room for all it may need; grow: with room "
                       "for what it has, so that more run at once",
               .check = OneOf{"whole", "grow"},
               .shows_default = true});
  AddOnFullFlag(command, flags->service.on_full);
  AddEvents(command, flags->events);
  AddLimits(command, *flags);
  command.Run([flags, command]() mutable { return RunServe(command, *flags); });
}

}  // namespace quire::app
