// quire bench: flags and printing of what the benches measure.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "apps/quire/command.h"
#include "apps/quire/device.h"
#include "apps/quire/load.h"
#include "apps/quire/ranks.h"
#include "apps/quire/sequence_ranks.h"
#include "apps/quire/trace.h"
#include "bench/against.h"
#include "bench/bench.h"
#include "bench/pairs.h"
#include "bench/slices.h"
#include "env/file.h"
#include "env/machine.h"
#include "quire/attention.h"

namespace quire::app {

namespace {

using CasesFunction = std::vector<bench::Case> (*)(const bench::Options&);

const std::map<std::string, CasesFunction>& Benches() {
  static const std::map<std::string, CasesFunction> benches = {{"attention", bench::AttentionCases},
                                                               {"blocks", bench::BlocksCases},
                                                               {"cache", bench::CacheCases},
                                                               {"cascade", bench::CascadeCases},
                                                               {"codec", bench::CodecCases},
                                                               {"index", bench::IndexCases},
                                                               {"model", bench::ModelCases},
                                                               {"pipeline", bench::PipelineCases},
                                                               {"pool", bench::PoolCases},
                                                               {"ranks", bench::RanksCases},
                                                               {"serve", bench::ServeCases},
                                                               {"stream", bench::StreamCases},
                                                               {"tier", bench::TierCases}};
  return benches;
}

using DeviceCasesFunction = std::vector<bench::Case> (*)(cuda::Backend&);

const std::map<std::string, DeviceCasesFunction>& DeviceBenches() {
  static const std::map<std::string, DeviceCasesFunction> benches = {
      {"attention", bench::DeviceAttentionCases},
      {"cascade", bench::DeviceCascadeCases},
      {"model", bench::DeviceModelCases},
      {"tier", bench::DeviceTierCases}};
  return benches;
}

struct BenchFlags {
  std::string name;
  std::vector<uint32_t> threads = {1, 2};
  uint32_t rounds_min = 40;
  std::string wanted;  // part of a case's name
  std::string trace;
  std::string against;
  DeviceFlags device;
  RanksFlags ranks;
  bool instructions = false;
  bool slices = false;
  bool json = false;
  LoadOptions load;
  std::string key_file;
};

std::string CpuTarget() {
  const auto backend = MakeCpuAttention();
  return backend ? std::string((*backend)->target()) : "none";
}

nlohmann::ordered_json Machine() {
  return {{"cpu_target", CpuTarget()}, {"last_level_cache_bytes", LastLevelCacheBytes()}};
}

// Says what runs now, on one line of a terminal.
void ShowProgress(const std::string& line) {
  if (isatty(STDERR_FILENO) != 0) {
    fmt::print(stderr, "\r\033[K{}", line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
}

void EndProgress() {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K");
}

// Leaves the requests of a trace where the bench finds them.
Result<void> LoadTrace(const std::string& path, bench::Options& options) {
  QUIRE_ASSIGN(Trace trace, ReadTrace(path));
  for (TraceRequest& request : trace) {
    options.trace.push_back(std::move(request.block_ids));
    options.arrivals.push_back(
        {.timestamp_ms = request.timestamp_ms, .output_tokens = request.output_tokens});
  }
  const bool empty =
      std::ranges::all_of(options.trace, [](const auto& blocks) { return blocks.empty(); });
  if (empty) return Fail(ErrorCode::kInvalidArgument, path + " names no blocks");
  options.trace_name = std::filesystem::path(path).stem().stem().string();
  return {};
}

bool IsWanted(const BenchFlags& flags, const std::string& name) {
  return name.find(flags.wanted) != std::string::npos;
}

// The command line of a worker that has the same cases.
std::vector<std::string> WorkerCommand(const BenchFlags& flags, const std::string& binary,
                                       const std::string& threads) {
  std::vector<std::string> command = {binary,     "bench",     flags.name,
                                      "--slices", "--threads", threads};
  if (!flags.trace.empty()) {
    command.emplace_back("--trace");
    command.push_back(flags.trace);
  }
  if (flags.device.device != "cpu") {
    for (const std::string& word : {std::string("--device"), flags.device.device,
                                    std::string("--arithmetic"), flags.device.arithmetic}) {
      command.push_back(word);
    }
  }
  return command;
}

Result<std::string> OwnBinary() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Fail(ErrorCode::kIo, "/proc/self/exe: " + error.message());
  return path.string();
}

struct MeasuredRow {
  bench::Row row;
  std::optional<uint64_t> instructions;
};

struct Measured {
  std::vector<MeasuredRow> rows;
  std::string counted_target;  // empty: nothing was counted
};

// Instructions of all rows on one thread: with more, how long threads wait for each other is
// counted too.
Result<void> CountInstructions(const BenchFlags& flags, Measured& measured) {
  QUIRE_ASSIGN(const std::string own, OwnBinary());
  auto started = bench::InstructionCounter::Start(WorkerCommand(flags, own, "1"));
  if (!started && started.error().code == ErrorCode::kUnsupported) {
    EndProgress();
    fmt::print(stderr, "quire bench: no instructions: {}\n", started.error().message);
    return {};
  }
  QUIRE_ASSIGN(auto counter, std::move(started));
  measured.counted_target = counter.target();
  for (MeasuredRow& each : measured.rows) {
    if (each.row.pairs == 0 || !each.row.name.ends_with("/t1")) continue;
    ShowProgress("counting " + each.row.name);
    const auto count = counter.Count(each.row.name);
    if (count) {
      each.instructions = *count;
    } else if (count.error().code == ErrorCode::kUnsupported) {  // the pool's addresses, say
      fmt::print(stderr, "quire bench: no instructions of {}\n", count.error().message);
    } else {
      return std::unexpected(count.error());
    }
  }
  return {};
}

Result<Measured> MeasureAll(const BenchFlags& flags, const std::vector<bench::Case>& cases) {
  std::vector<bench::Case> wanted;
  for (const bench::Case& each : cases) {
    if (IsWanted(flags, each.name)) wanted.push_back(each);
  }
  QUIRE_ASSIGN(std::vector<bench::Row> rows,
               bench::Measure(wanted, flags.rounds_min, ShowProgress));
  Measured measured;
  for (bench::Row& row : rows) {
    measured.rows.push_back({.row = std::move(row), .instructions = std::nullopt});
  }
  if (flags.instructions) QUIRE_TRY(CountInstructions(flags, measured));
  return measured;
}

nlohmann::ordered_json JsonOf(const MeasuredRow& measured) {
  const bench::Row& row = measured.row;
  nlohmann::ordered_json object = {
      {"case", row.name},     {"value", row.value},
      {"unit", row.unit},     {"better", row.less_is_better ? "less" : "more"},
      {"floor", row.floor},   {"ratio", row.ratio},
      {"median", row.median}, {"pairs", row.pairs}};
  if (!row.slice.empty()) object["slice"] = row.slice;
  if (measured.instructions) object["instructions"] = *measured.instructions;
  if (!row.note.empty()) object["note"] = row.note;
  return object;
}

void Print(const BenchFlags& flags, const Measured& measured) {
  if (flags.json) {
    auto list = nlohmann::ordered_json::array();
    for (const MeasuredRow& each : measured.rows) list.push_back(JsonOf(each));
    nlohmann::ordered_json machine = Machine();
    if (!measured.counted_target.empty()) machine["counted_target"] = measured.counted_target;
    PrintJson({{"bench", flags.name}, {"machine", machine}, {"rows", list}});
    return;
  }
  const bool counted = !measured.counted_target.empty();
  if (counted) {
    fmt::print("instructions: of one slice, counted by callgrind on {}; times: on {}\n",
               measured.counted_target, CpuTarget());
  }
  fmt::print("{:<40} {:>12} {:>12} {:<12} {:>6} {:>6} {:>14}\n", "case", "value", "floor", "unit",
             "ratio", "median", counted ? "instructions" : "");
  for (const MeasuredRow& each : measured.rows) {
    const bench::Row& row = each.row;
    fmt::print("{:<40} {:>12.3f} {:>12.3f} {:<12} {:>6.3f} {:>6.3f} {:>14}  {}\n", row.name,
               row.value, row.floor, row.unit, row.ratio, row.median,
               each.instructions ? std::to_string(*each.instructions) : "", row.note);
  }
}

void Print(const BenchFlags& flags, const std::vector<bench::Comparison>& rows) {
  if (flags.json) {
    auto list = nlohmann::ordered_json::array();
    for (const bench::Comparison& row : rows) {
      nlohmann::ordered_json object = {{"case", row.name}};
      if (row.note.empty()) {
        object.update({{"value", row.value},
                       {"unit", row.unit},
                       {"better", row.less_is_better ? "less" : "more"},
                       {"against", row.against},
                       {"ratio", row.ratio},
                       {"median", row.median},
                       {"pairs", row.pairs}});
      } else {
        object["note"] = row.note;
      }
      list.push_back(std::move(object));
    }
    PrintJson({{"bench", flags.name},
               {"machine", Machine()},
               {"against", flags.against},
               {"rows", list}});
    return;
  }
  fmt::print("ratio: the time of {} / ours; more than 1 where ours is faster\n", flags.against);
  fmt::print("{:<40} {:>12} {:>12} {:<12} {:>6} {:>6}\n", "case", "ours", "other", "unit", "ratio",
             "median");
  for (const bench::Comparison& row : rows) {
    if (row.note.empty()) {
      fmt::print("{:<40} {:>12.3f} {:>12.3f} {:<12} {:>6.3f} {:>6.3f}\n", row.name, row.value,
                 row.against, row.unit, row.ratio, row.median);
    } else {
      fmt::print("{:<40} {}\n", row.name, row.note);
    }
  }
}

Result<void> RunAgainst(const BenchFlags& flags) {
  const std::string threads = fmt::format("{}", fmt::join(flags.threads, ","));
  QUIRE_ASSIGN(const auto other,
               bench::Worker::Start(WorkerCommand(flags, flags.against, threads)));
  QUIRE_ASSIGN(const std::string own, OwnBinary());
  QUIRE_ASSIGN(const auto ours, bench::Worker::Start(WorkerCommand(flags, own, threads)));
  QUIRE_ASSIGN(const auto rows,
               bench::Compare(
                   *ours, *other, flags.rounds_min,
                   [&](const std::string& name) { return IsWanted(flags, name); }, ShowProgress));
  EndProgress();
  Print(flags, rows);
  return {};
}

// Instead of a case: rank 0 has measured all.
constexpr uint64_t kNoCase = UINT64_MAX;

Result<void> FollowRank0(const std::vector<bench::Case>& cases, ranks::Group& group) {
  while (true) {
    uint64_t number = kNoCase;
    QUIRE_TRY(group.Broadcast(0, ranks::BytesOf(number)));
    if (number == kNoCase) return {};
    if (number >= cases.size()) return Fail(ErrorCode::kCorrupt, "ranks: rank 0 names no case");
    QUIRE_TRY(cases[number].follow());
  }
}

// Ranks that measure themselves together.
Result<int> RunOnRanks(const BenchFlags& flags, ranks::Group& group) {
  const bool sequence = flags.ranks.mode == "sequence";
  const std::string_view measured_by = sequence ? "ranks" : "pipeline";
  const bool has_others = !flags.against.empty() || !flags.trace.empty() || flags.instructions ||
                          flags.slices || flags.threads != BenchFlags{}.threads ||
                          flags.device.device != DeviceFlags{}.device ||
                          flags.device.arithmetic != DeviceFlags{}.arithmetic;
  if (flags.name != measured_by || has_others) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--ranks {}: measured by `quire bench {}`, with no flags but --case, "
                            "--pairs and --json",
                            flags.ranks.mode, measured_by));
  }
  if (sequence) QUIRE_TRY(SequenceRanks::ShareOf(group));
  std::vector<bench::Case> cases = Benches().at(flags.name)({.group = &group});
  if (std::ranges::none_of(cases, [&](const auto& each) { return IsWanted(flags, each.name); })) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("no case of {} on {} ranks has \"{}\" in its name", flags.name,
                            group.size(), flags.wanted));
  }
  if (group.rank() != 0) {
    QUIRE_TRY(FollowRank0(cases, group));
    return kOk;
  }
  const auto tell = [&group](uint64_t number) {
    return group.Broadcast(0, ranks::BytesOf(number));
  };
  for (uint64_t number = 0; number < cases.size(); ++number) {
    cases[number].prepare = [tell, number,
                             prepare = cases[number].prepare]() -> Result<bench::Subject> {
      QUIRE_TRY(tell(number));
      return prepare();
    };
  }
  QUIRE_ASSIGN(const Measured measured, MeasureAll(flags, cases));
  QUIRE_TRY(tell(kNoCase));  // fails where a rank was lost meanwhile
  EndProgress();
  Print(flags, measured);
  return kOk;
}

Result<void> RunCases(const BenchFlags& flags, const std::vector<bench::Case>& cases) {
  if (flags.name == "index" && flags.trace.empty()) {
    fmt::print(stderr, "quire bench: without --trace no case that replays one\n");
  }
  QUIRE_ASSIGN(const Measured measured, MeasureAll(flags, cases));
  EndProgress();
  Print(flags, measured);
  return {};
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// A running server, as its clients see it. There is no floor but that of hits.
Result<int> RunOnServer(BenchFlags& flags) {
  QUIRE_ASSIGN(const Trace trace, ReadTrace(flags.trace));
  if (!flags.key_file.empty()) {
    QUIRE_ASSIGN(flags.load.key, ReadFile(flags.key_file, 4096));
    flags.load.key.erase(flags.load.key.find_last_not_of(" \r\n") + 1);
  }
  QUIRE_ASSIGN(const LoadReport report, RunLoad(trace, flags.load));
  const auto d = [](uint64_t number) { return static_cast<double>(number); };
  auto rows = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& name, double value, const char* unit) {
    rows.push_back({{"case", name}, {"value", value}, {"unit", unit}});
  };
  add("answered", d(report.requests - report.failed), "requests");
  add("failed", d(report.failed), "requests");
  add("throughput", d(report.prompt_tokens + report.generated_tokens) / report.seconds, "tokens/s");
  add("generated", d(report.generated_tokens) / report.seconds, "tokens/s");
  for (const auto& [name, share] : {std::pair("p50", 0.5), {"p99", 0.99}}) {
    add(fmt::format("first_token/{}", name), Quantile(report.first_ms, share), "ms");
    add(fmt::format("next_token/{}", name), Quantile(report.next_ms, share), "ms");
  }
  const double hits =
      report.prompt_tokens == 0 ? 0 : d(report.cached_tokens) / d(report.prompt_tokens);
  add("hits", hits, "of prompts");
  rows.back()["floor"] = report.unlimited_hits;
  rows.back()["ratio"] = report.unlimited_hits == 0 ? 1.0 : hits / report.unlimited_hits;
  if (flags.json) {
    PrintJson(
        {{"bench", "serve"}, {"url", flags.load.url}, {"seconds", report.seconds}, {"rows", rows}});
  } else {
    for (const auto& row : rows) {
      fmt::print("{:<20} {:>14.3f} {}\n", row["case"].get<std::string>(),
                 row["value"].get<double>(), row["unit"].get<std::string>());
    }
  }
  if (report.failed == 0) return kOk;
  fmt::print(stderr, "quire bench: {} requests failed, the first one: {}\n", report.failed,
             report.first_failure);
  return kFailedCheck;
}

int RunBench(BenchFlags& flags) {
  if (!flags.load.url.empty()) {
    if (flags.name != "serve" || flags.trace.empty()) {
      fmt::print(stderr, "quire bench: --url is for serve, with a --trace\n");
      return kBadUsage;
    }
    const auto code = RunOnServer(flags);
    return code ? *code : Report("bench", code.error());
  }
  if (!flags.ranks.mode.empty()) {
    return RunWithRanks("bench", flags.ranks,
                        [&flags](ranks::Group* group) { return RunOnRanks(flags, *group); });
  }
  bench::Options options{.threads = flags.threads};
  if (!flags.trace.empty()) {
    if (const auto loaded = LoadTrace(flags.trace, options); !loaded) {
      return Report("bench", loaded.error());
    }
  }
  if (flags.name == "serve" && flags.trace.empty()) {
    fmt::print(stderr, "quire bench: serve replays a trace; name one with --trace\n");
    return kBadUsage;
  }
  const auto device = OpenDevice(flags.device);
  if (!device) return Report("bench", device.error());
  if (*device == nullptr && flags.device.arithmetic != DeviceFlags{}.arithmetic) {
    return Report("bench", Error{ErrorCode::kUnsupported,
                                 fmt::format("--arithmetic {}: cases of the processor have theirs "
                                             "in their names, as `quire bench model --case dot16`",
                                             flags.device.arithmetic)});
  }
  if (*device != nullptr && !DeviceBenches().contains(flags.name)) {
    return Report("bench", Error{ErrorCode::kUnsupported,
                                 fmt::format("{} has no cases on a device; attention, cascade, "
                                             "model and tier have",
                                             flags.name)});
  }
  const std::vector<bench::Case> cases = *device != nullptr
                                             ? DeviceBenches().at(flags.name)(**device)
                                             : Benches().at(flags.name)(options);
  if (std::ranges::none_of(cases, [&](const auto& each) { return IsWanted(flags, each.name); })) {
    fmt::print(stderr, "quire bench: no case of {} has \"{}\" in its name\n", flags.name,
               flags.wanted);
    return kBadUsage;
  }
  const Result<void> done = flags.slices             ? bench::ServeSlices(cases, CpuTarget())
                            : !flags.against.empty() ? RunAgainst(flags)
                                                     : RunCases(flags, cases);
  return done ? kOk : Report("bench", done.error());
}

void AddLoadFlags(Command& command, BenchFlags& flags) {
  command.Add({.name = "--url",
               .value = &flags.load.url,
               .help = "Of `serve`: a running server, http://HOST:PORT. Sends it the trace's "
                       "requests when they are due, answered or not"});
  command.Add({.name = "--rate",
               .value = &flags.load.rate,
               .help = "With --url: requests per second; 0: all at once",
               .check = Between<double>{0.0, 1e6},
               .shows_default = true});
  command.Add({.name = "--requests",
               .value = &flags.load.requests,
               .help = "With --url: of the trace, the first",
               .check = Between<int>{1, 1'000'000},
               .shows_default = true});
  command.Add({.name = "--prompt-blocks",
               .value = &flags.load.blocks_max,
               .help = "With --url: longer prompts are cut to so many blocks of 16 tokens",
               .check = Between<int>{1, 1'000'000},
               .shows_default = true});
  command.Add({.name = "--answer-tokens",
               .value = &flags.load.answer_tokens_max,
               .help = "With --url: longer answers are cut",
               .check = Between<int>{1, 1'000'000},
               .shows_default = true});
  command.Add({.name = "!--no-reuse",
               .value = &flags.load.reuse,
               .help = "With --url: the server computes every prompt"});
  command.Add({.name = "--key-file",
               .value = &flags.key_file,
               .help = "With --url: a file with the API key"});
}

}  // namespace

void AddBench(Command& program) {
  auto flags = std::make_shared<BenchFlags>();
  Command command =
      program.AddCommand("bench", "Measures a part as a share of its floor, in one run");
  OneOf names;
  for (const auto& [name, cases] : Benches()) names.push_back(name);
  command.Add({.name = "name",
               .value = &flags->name,
               .help = "What to measure",
               .check = names,
               .required = true});
  command.Add({.name = "--threads",
               .value = &flags->threads,
               .help = "Thread counts, for example 1,2",
               .check = Between<int>{1, 1024},
               .shows_default = true});
  command.Add({.name = "--pairs",
               .value = &flags->rounds_min,
               .help = "Pairs of slices at every place of a case, at least; up to 4 times as many "
                       "while they still find better ones",
               .check = Between<int>{1, 1000},
               .shows_default = true});
  AddDeviceFlags(command, flags->device);
  command.Add({.name = "--case",
               .value = &flags->wanted,
               .help = "Only cases with this in their name, such as decode/f16/32768"});
  command.Add({.name = "--trace",
               .value = &flags->trace,
               .help = "Requests for `index` and `serve` to replay: a .jsonl.gz file of hash_ids"});
  AddLoadFlags(command, *flags);
  AddRanksFlags(command, flags->ranks);
  command.Add({.name = "--against",
               .value = &flags->against,
               .help = "Another build of quire: takes turns with this one on the same cases, "
                       "slice by slice"});
  command.Add({.name = "--instructions",
               .value = &flags->instructions,
               .help = "Also count the instructions of a slice, under valgrind",
               .excludes = "--against"});
  // For --against and --instructions.
  command.Add({.name = "--slices", .value = &flags->slices, .group = ""});
  command.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
  command.Run([flags] { return RunBench(*flags); });
}

}  // namespace quire::app
