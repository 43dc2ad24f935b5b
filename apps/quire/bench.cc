// quire bench: prints what the benches measured.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <utility>

#include "apps/quire/command.h"
#include "apps/quire/trace.h"
#include "bench/bench.h"
#include "env/machine.h"
#include "quire/attention.h"

namespace quire::app {

namespace {

using BenchFunction = Result<std::vector<bench::Row>> (*)(const bench::Options&);

const std::map<std::string, BenchFunction>& Benches() {
  static const std::map<std::string, BenchFunction> benches = {
      {"attention", bench::Attention}, {"cascade", bench::Cascade}, {"codec", bench::Codecs},
      {"index", bench::Index},         {"model", bench::Model},     {"pool", bench::Pool}};
  return benches;
}

nlohmann::ordered_json Machine() {
  const auto backend = MakeCpuAttention();
  return {{"cpu_target", backend ? std::string((*backend)->target()) : "none"},
          {"last_level_cache_bytes", LastLevelCacheBytes()}};
}

// Leaves the requests of a trace where the bench finds them.
Result<void> LoadTrace(const std::string& path, bench::Options& options) {
  QUIRE_ASSIGN(Trace trace, ReadTrace(path));
  for (TraceRequest& request : trace) options.trace.push_back(std::move(request.block_ids));
  options.trace_name = std::filesystem::path(path).stem().stem().string();
  return {};
}

int RunBench(const std::string& name, const bench::Options& flags, const std::string& trace_path,
             bool json) {
  bench::Options options = flags;
  if (isatty(STDERR_FILENO) != 0) {
    options.progress = [](const std::string& line) { fmt::print(stderr, "\r\033[K{}", line); };
  } else {
    options.progress = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  }
  if (!trace_path.empty()) {
    if (const auto loaded = LoadTrace(trace_path, options); !loaded) {
      return Report("bench", loaded.error());
    }
  }
  const auto rows = Benches().at(name)(options);
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K");
  if (!rows) return Report("bench", rows.error());
  if (!json) {
    fmt::print("{:<36} {:>12} {:>12} {:<12} {:>6}\n", "case", "value", "floor", "unit", "ratio");
    for (const bench::Row& row : *rows) {
      fmt::print("{:<36} {:>12.3f} {:>12.3f} {:<12} {:>6.3f}  {}\n", row.name, row.value, row.floor,
                 row.unit, row.ratio, row.note);
    }
    return kOk;
  }
  auto list = nlohmann::ordered_json::array();
  for (const bench::Row& row : *rows) {
    nlohmann::ordered_json object = {{"case", row.name},
                                     {"value", row.value},
                                     {"unit", row.unit},
                                     {"floor", row.floor},
                                     {"ratio", row.ratio}};
    if (!row.note.empty()) object["note"] = row.note;
    list.push_back(std::move(object));
  }
  PrintJson({{"bench", name}, {"machine", Machine()}, {"rows", list}});
  return kOk;
}

}  // namespace

void AddBench(CLI::App& program, int& exit) {
  struct Flags {
    std::string name;
    bench::Options options;
    std::string trace;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      program.add_subcommand("bench", "Measures a part as a share of its floor, in one run");
  command->add_option("name", flags->name, "What to measure")
      ->required()
      ->check(CLI::IsMember(Benches()));
  command->add_option("--threads", flags->options.threads, "Thread counts, for example 1,2")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--pairs", flags->options.pairs, "Interleaved pairs per case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option(
      "--case", flags->options.cases,
      "attention, cascade, index, model: only cases with this in their name, such as "
      "decode/f16/32768");
  command->add_option("--trace", flags->trace,
                      "Requests for `index` to replay: a .jsonl.gz file of hash_ids");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback(
      [flags, &exit] { exit = RunBench(flags->name, flags->options, flags->trace, flags->json); });
}

}  // namespace quire::app
