// quire store: looks at a store of cached blocks, and mends it.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "apps/quire/command.h"
#include "base/hash.h"
#include "env/clock.h"
#include "env/files.h"
#include "remote/measure.h"
#include "remote/open.h"
#include "remote/tools.h"
#include "serve/session_store.h"
#include "tier/rotate.h"
#include "tier/tools.h"

namespace quire::app {

namespace {

struct StoreFlags {
  std::string directory;
  bool json = false;
  bool read_only = false;
  std::string fleet_key;  // of a remote
  std::string tenant;
  std::string record_bytes = "1MiB";
  remote::MeasureOptions measure;
};

bool IsRemote(const StoreFlags& flags) { return flags.directory.find("://") != std::string::npos; }

nlohmann::ordered_json ReportJson(const tier::StoreReport& report) {
  return {{"records", report.records},
          {"bytes", report.bytes},
          {"cap_bytes", report.bytes_cap},
          {"damaged", report.damaged},
          {"unfinished", report.unfinished},
          {"secret_changed", report.secret_changed},
          {"repaired", report.repaired},
          {"erased", report.erased},
          {"other_versions", report.other_versions},
          {"encrypted", report.is_encrypted},
          {"wrapped_by", report.wrapped_by},
          {"keys", report.keys}};
}

nlohmann::ordered_json RecordJson(const tier::RecordSummary& record) {
  return {{"key", ToHex(record.key)},           {"publisher", ToHex(record.publisher)},
          {"profile", ToHex(record.profile)},   {"geometry", ToHex(record.geometry)},
          {"erase_epoch", record.erase_epoch},  {"block_index", record.block_index},
          {"tokens", record.token_count},       {"bytes", record.record_bytes()},
          {"segment", record.location.segment}, {"offset", record.location.offset}};
}

// `verifies`: damage is a failed check.
int Finish(const StoreFlags& flags, const Result<tier::StoreReport>& report, bool verifies) {
  if (!report) return Report("store", report.error());
  PrintObject(ReportJson(*report), flags.json);
  if (report->secret_changed) {
    fmt::print(stderr,
               "store {}: SECRET is not the one that it was made with: put it back, or nothing is "
               "found\n",
               flags.directory);
  }
  return verifies && report->damaged > 0 ? kFailedCheck : kOk;
}

int List(const StoreFlags& flags, Files& files) {
  auto records = nlohmann::ordered_json::array();
  const auto visit = [&](const tier::RecordSummary& record) {
    if (flags.json) {
      records.push_back(RecordJson(record));
    } else {
      fmt::print("{}  {} tokens  block {}  {}\n", ToHex(record.key), record.token_count,
                 record.block_index, FormatBytes(record.record_bytes()));
    }
  };
  const auto report = tier::StatStore(files, flags.directory, visit);
  if (!report) return Report("store", report.error());
  if (!flags.json) return kOk;
  auto object = ReportJson(*report);
  object["list"] = std::move(records);
  PrintJson(object);
  return kOk;
}

Result<tier::StoreReport> Verify(const StoreFlags& flags, Files& files) {
  if (!flags.read_only) return tier::VerifyStore(files, flags.directory);
  // Most owners finish within their commit interval what looks damaged now.
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::seconds(1)); };
  return tier::VerifyStoreBeside(files, flags.directory, pause);
}

Result<int> RunRemote(const StoreFlags& flags, std::string_view what) {
  if (flags.fleet_key.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--fleet-key FILE is needed to look at a remote");
  }
  QUIRE_ASSIGN(const auto address, remote::ParseRemote(flags.directory));
  QUIRE_ASSIGN(const auto key, remote::ReadFleetKey(flags.fleet_key));
  QUIRE_ASSIGN(auto objects, remote::OpenObjects(address));
  auto list = nlohmann::ordered_json::array();
  const auto visit = [&](std::string_view name, const remote::SealedHead& head) {
    if (flags.json) {
      list.push_back({{"name", name},
                      {"publisher", ToHex(head.publisher)},
                      {"erase_epoch", head.erase_epoch},
                      {"bytes", head.object_bytes}});
    } else {
      fmt::print("{}  {}  {}\n", name, ToHex(head.publisher), FormatBytes(head.object_bytes));
    }
  };
  ProgressBar bar("objects looked at:");
  const auto progress = [&](uint64_t looked_at) { bar.Count(looked_at); };
  remote::RemoteReport report;
  if (what == "rm") {
    QUIRE_ASSIGN(report, remote::RemoveFromRemote(std::move(objects), key, flags.tenant,
                                                  SystemClock(), progress));
  } else {
    const auto each = what == "ls" ? remote::RemoteVisitor(visit) : nullptr;
    QUIRE_ASSIGN(report, remote::StatRemote(*objects, key, SystemClock(), each, progress));
  }
  bar.Clear();
  nlohmann::ordered_json object = {{"records", report.records},       {"bytes", report.bytes},
                                   {"publishers", report.publishers}, {"erased", report.erased},
                                   {"others", report.others},         {"removed", report.removed}};
  if (what == "ls") {
    if (!flags.json) return kOk;
    object["list"] = std::move(list);
  }
  PrintObject(object, flags.json);
  return kOk;
}

Result<int> BenchRemote(const StoreFlags& flags) {
  QUIRE_ASSIGN(const auto address, remote::ParseRemote(flags.directory));
  remote::MeasureOptions options = flags.measure;
  QUIRE_ASSIGN(options.record_bytes, ParseBytes(flags.record_bytes));
  QUIRE_ASSIGN(const auto rates, remote::MeasureRemote(address, options, SystemClock()));
  nlohmann::ordered_json object;
  for (const auto& [name, rate] : {std::pair("put", rates.put), std::pair("get", rates.get)}) {
    object[name] = {
        {"gb_per_s", rate.gb_per_s}, {"cpu_s_per_gb", rate.cpu_s_per_gb}, {"failed", rate.failed}};
  }
  PrintObject(object, flags.json);
  return kOk;
}

struct RotateFlags {
  std::string directory;
  tier::RotateOptions keys;
  bool json = false;
};

Result<int> Rotate(const RotateFlags& flags) {
  QUIRE_ASSIGN(const auto files, MakeFiles());
  std::optional<ProgressBar> bar;
  tier::RotateOptions options = flags.keys;
  if (options.rewrites) bar.emplace("writing records anew");
  options.progress = [&](uint64_t done, uint64_t all) { bar->Update(done, all); };
  QUIRE_ASSIGN(const tier::RotateReport report,
               tier::RotateKeys(*files, flags.directory, options, SystemClock()));
  bar.reset();
  QUIRE_TRY(serve::SessionStore::RotateKeys(*files, flags.directory + "/sessions", flags.keys.keys,
                                            flags.keys.new_keys, flags.keys.renews_data_keys));
  const nlohmann::ordered_json object = {{"rewrapped", report.rewrapped},
                                         {"renewed", report.renewed},
                                         {"keys", report.keys},
                                         {"old_keys", report.keys_old}};
  PrintObject(object, flags.json);
  return kOk;
}

void AddRotate(Command& store) {
  auto flags = std::make_shared<RotateFlags>();
  Command rotate = store.AddCommand(
      "rotate", "give an encrypted store other keys, while no process has it open");
  rotate.Add({.name = "DIR",
              .value = &flags->directory,
              .help = "The store's directory; sessions in it follow",
              .required = true});
  AddKeysFlags(rotate, flags->keys.keys);
  rotate.Add({.name = "--new-keys",
              .value = &flags->keys.new_keys.file,
              .help = "File of the key that wraps everything from now on"});
  rotate.Add({.name = "--new-keys-command",
              .value = &flags->keys.new_keys.command,
              .help = "The same with a command",
              .excludes = "--new-keys"});
  rotate.Add({.name = "--data-keys",
              .value = &flags->keys.renews_data_keys,
              .help = "New data keys too, for what is written from now on; what the old ones "
                      "sealed is written anew while the store is used, then they go"});
  rotate.Add({.name = "--rewrite",
              .value = &flags->keys.rewrites,
              .help = "Write all that old data keys sealed anew at once, so that they go now"});
  rotate.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
  rotate.Run([flags] {
    const auto done = Rotate(*flags);
    return done ? *done : Report("store", done.error());
  });
}

int RunStore(const StoreFlags& flags, std::string_view what) {
  if (IsRemote(flags)) {
    const auto done = what == "bench" ? BenchRemote(flags) : RunRemote(flags, what);
    return done ? *done : Report("store", done.error());
  }
  const auto files = MakeFiles();
  if (!files) return Report("store", files.error());
  const std::string& directory = flags.directory;
  if (what == "bench") {
    return Report("store", {ErrorCode::kUnsupported,
                            "bench takes the address of a remote; `quire bench tier` measures a "
                            "disk"});
  }
  if (what == "rm") {
    return Report("store", {ErrorCode::kUnsupported,
                            "rm takes the address of a remote; a directory's tenants are erased by "
                            "the process that has it open"});
  }
  if (what == "ls") return List(flags, **files);
  if (what == "stat") return Finish(flags, tier::StatStore(**files, directory), false);
  if (what == "verify") return Finish(flags, Verify(flags, **files), true);
  if (what == "upgrade") return Finish(flags, tier::UpgradeStore(**files, directory), false);
  return Finish(flags, tier::RepairStore(**files, directory), true);
}

}  // namespace

void AddStore(Command& program) {
  Command store = program.AddCommand("store", "Stores of cached blocks on disk");
  store.NeedsCommand();
  struct Verb {
    const char* name;
    const char* help;
    bool may_look_beside = false;
    bool takes_remote = false;
  };
  for (const auto& [name, help, may_look_beside, takes_remote] :
       {Verb{"stat", "count records and bytes; also beside the process that has it open", true,
             true},
        Verb{"ls", "list the records; also beside the process that has it open", true, true},
        Verb{"bench", "write records to a remote, read them back and remove them", false, true},
        Verb{"rm", "erase a tenant from a remote: no machine finds what it published", false, true},
        Verb{"verify", "read everything and compare every checksum; exit 1 if damaged", true},
        Verb{"repair", "take out what is damaged; the catalogue is made anew by whoever opens it"},
        Verb{"upgrade", "rewrite records of older versions"}}) {
    auto flags = std::make_shared<StoreFlags>();
    Command command = store.AddCommand(name, help);
    command.Add({.name = "DIR",
                 .value = &flags->directory,
                 .help = takes_remote ? "The store's directory, or the address of a remote"
                                      : "The store's directory",
                 .required = true});
    if (takes_remote) {
      command.Add({.name = "--fleet-key",
                   .value = &flags->fleet_key,
                   .help = "Of a remote: the file that its machines have in common"});
    }
    if (std::string_view(name) == "bench") {
      command.Add({.name = "--record-bytes",
                   .value = &flags->record_bytes,
                   .help = "Of each record",
                   .check = BytesCheck(),
                   .shows_default = true});
      command.Add({.name = "--records",
                   .value = &flags->measure.records,
                   .help = "How many",
                   .check = Between<int>{1, 1 << 20},
                   .shows_default = true});
      command.Add({.name = "--depth",
                   .value = &flags->measure.depth,
                   .help = "Under way at a time",
                   .check = Between<int>{1, 1024},
                   .shows_default = true});
    }
    if (std::string_view(name) == "rm") {
      command.Add({.name = "--namespace",
                   .value = &flags->tenant,
                   .help = "The tenant, or domain; empty: what was published without a name",
                   .required = true});
    }
    command.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
    if (may_look_beside) {
      command.Add({.name = "--read-only",
                   .value = &flags->read_only,
                   .help = "Take no lock and change nothing: beside the process that has it open"});
    }
    command.Run([flags, what = std::string(name)] { return RunStore(*flags, what); });
  }
  AddRotate(store);
  AddStoreServe(store);
}

}  // namespace quire::app
