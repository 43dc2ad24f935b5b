// quire sim: stores, caches and engines on a machine that fails, from seeds.
#include "sim/sim.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>

#include "apps/quire/command.h"
#include "apps/quire/output.h"
#include "base/hash.h"
#include "base/log.h"
#include "sim/cache_sim.h"
#include "sim/cold_sim.h"
#include "sim/engine_sim.h"
#include "sim/remote_sim.h"

namespace quire::app {

namespace {

struct SimFlags {
  std::string seeds = "1..100";
  uint64_t steps = 2000;
  std::string what = "both";
  bool json = false;
};

struct Range {
  uint64_t first = 0;
  uint64_t last = 0;
};

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "7" or "1..300", both ends included.
std::optional<Range> ParseSeeds(std::string_view text) {
  const size_t dots = text.find("..");
  const auto first = ParseNumber(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : ParseNumber(text.substr(dots + 2));
  if (!first || !last || *first > *last) return std::nullopt;
  return Range{*first, *last};
}

int RunSim(const SimFlags& flags) {
  const Range seeds = *ParseSeeds(flags.seeds);
  SetLogLevel(LogLevel::kError);  // faults are the point
  sim::SimReport sum;
  Blake2b<16> digest;
  const auto add = [&](const sim::SimReport& report) {
    sum.steps += report.steps;
    sum.faults += report.faults;
    sum.crashes += report.crashes;
    sum.loaded += report.loaded;
    sum.answers += report.answers;
    sum.arrived += report.arrived;
    sum.streamed += report.streamed;
    sum.scanned += report.scanned;
    sum.wrong_bytes += report.wrong_bytes;
    sum.lost_bytes += report.lost_bytes;
    sum.over_cap += report.over_cap;
    sum.leaked += report.leaked;
    sum.unexplained += report.unexplained;
    sum.stuck += report.stuck;
    digest.Update(std::as_bytes(std::span(report.digest)));
    if (report.problems() > 0) PrintError(report.first_problem + "\n");
  };
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    const sim::SimOptions options = {.seed = seed, .steps = flags.steps};
    const auto runs = [&](std::string_view what) {
      return flags.what == what || flags.what == "all" ||
             (flags.what == "both" && what != "engine" && what != "remote");
    };
    if (runs("store")) add(sim::RunColdSim(options));
    if (runs("remote")) add(sim::RunRemoteSim(options));
    if (runs("cache")) add(sim::RunCacheSim(options));
    if (runs("engine")) add(sim::RunEngineSim(options));
  }
  const nlohmann::ordered_json object = {{"seeds", seeds.last - seeds.first + 1},
                                         {"steps", sum.steps},
                                         {"faults", sum.faults},
                                         {"crashes", sum.crashes},
                                         {"loaded", sum.loaded},
                                         {"arrived", sum.arrived},
                                         {"answers", sum.answers},
                                         {"streamed", sum.streamed},
                                         {"scanned", sum.scanned},
                                         {"wrong_bytes", sum.wrong_bytes},
                                         {"lost_bytes", sum.lost_bytes},
                                         {"over_cap", sum.over_cap},
                                         {"leaked", sum.leaked},
                                         {"unexplained", sum.unexplained},
                                         {"stuck", sum.stuck},
                                         {"digest", ToHex(digest.Finish())}};
  PrintObject(object, flags.json, /*name_width=*/12);
  return sum.problems() == 0 ? kOk : kFailedCheck;
}

}  // namespace

void AddSim(Command& program) {
  auto flags = std::make_shared<SimFlags>();
  Command command = program.AddCommand("sim",
                                       "The cold store, caches on it and an engine on these, "
                                       "on a machine that fails, and oracles that know every "
                                       "byte");
  const TextCheck seeds = {
      "A..B", [](const std::string& text) {
        return ParseSeeds(text) ? std::string()
                                : fmt::format("'{}' is not a seed or a range such as 1..300", text);
      }};
  command.Add({.name = "--seeds",
               .value = &flags->seeds,
               .help = "Seeds to run",
               .check = seeds,
               .shows_default = true});
  command.Add({.name = "--steps",
               .value = &flags->steps,
               .help = "Steps of each seed",
               .shows_default = true});
  command.Add({.name = "--what",
               .value = &flags->what,
               .help = "store: the cold store alone; cache: caches on it; both: these two; "
                       "engine: an engine with sessions on a cache and a store; remote: machines "
                       "that share one; all: all four",
               .check = OneOf{"store", "cache", "both", "engine", "remote", "all"},
               .shows_default = true});
  command.Add({.name = "--json", .value = &flags->json, .help = "Print one JSON object"});
  command.Run([flags] { return RunSim(*flags); });
}

}  // namespace quire::app
