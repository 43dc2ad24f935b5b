// quire replay: what a recorded service would have hit, by policy and capacity.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "apps/quire/command.h"
#include "apps/quire/output.h"
#include "apps/quire/replayer.h"
#include "apps/quire/trace.h"
#include "base/log.h"
#include "env/file.h"

namespace quire::app {
namespace {

struct ReplayFlags {
  std::string trace;
  std::vector<uint64_t> capacities = {};  // empty: everything fits
  std::vector<std::string> policies = {"lru"};
  std::optional<uint64_t> resample = {};  // seed
  uint64_t store_blocks = 0;
  uint64_t segment_blocks = ReplayOptions{}.segment_blocks;
  std::string remote_writes = {};  // empty: there is no remote
  uint32_t machines = 1;
  double hint_share = 0;
  uint64_t hint_s = 300;
  std::string ladder{};   // "f16:int8:int4"; empty: none
  uint64_t sessions = 0;  // to draw; 0: as many as there are
  bool curve = false;
  std::string svg = {};  // file for the curve
  bool json = false;
};

constexpr std::pair<std::string_view, ReplayRemoteWrites> kRemoteWrites[] = {
    {"reused", ReplayRemoteWrites::kReused},
    {"recycled", ReplayRemoteWrites::kRecycled},
    {"all", ReplayRemoteWrites::kAll}};

std::optional<ReplayRemoteWrites> RemoteWritesOf(const std::string& name) {
  for (const auto& [known, writes] : kRemoteWrites) {
    if (known == name) return writes;
  }
  return std::nullopt;
}

Result<std::optional<ReplayLadder>> LadderOf(const ReplayFlags& flags) {
  if (flags.ladder.empty()) return std::nullopt;
  if (flags.hint_share > 0 || std::ranges::count(flags.policies, "belady") > 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "--ladder: knows neither hints nor the bound; leave --hint-share and belady out");
  }
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
  QUIRE_TRY(SetLadder(flags.ladder, profile));
  const Codec memory = profile.codecs.front().codec;
  const double first_bits = CodecBitsPerValue(profile.open_dtype);
  return ReplayLadder{
      .memory = CodecBitsPerValue(memory) / first_bits,
      .store = CodecBitsPerValue(profile.store_codec.value_or(memory)) / first_bits};
}

nlohmann::ordered_json RunOne(const ReplayFlags& flags, const ReplayInput& input, uint64_t capacity,
                              const std::string& policy,
                              const std::optional<ReplayLadder>& ladder) {
  ProgressBar bar(fmt::format("{} in {} blocks", policy, capacity));
  const auto progress = [&](uint64_t done) { bar.Update(done, input.requests().size()); };
  const ReplayResult result = Replay(input, capacity, policy,
                                     {.progress = progress,
                                      .store_blocks = flags.store_blocks,
                                      .segment_blocks = flags.segment_blocks,
                                      .remote_writes = RemoteWritesOf(flags.remote_writes),
                                      .machines = flags.machines,
                                      .hint_share = flags.hint_share,
                                      .hint_ms_most = flags.hint_s * 1000,
                                      .ladder = ladder});
  nlohmann::ordered_json run = {{"policy", policy},
                                {"capacity_blocks", capacity},
                                {"requests", result.requests},
                                {"blocks", result.blocks},
                                {"unique_blocks", input.unique_blocks()},
                                {"hit_blocks", result.hit_blocks},
                                {"hit_ratio", result.hit_ratio()},
                                {"evicted_blocks", result.evicted_blocks},
                                {"state_digest", fmt::format("{:016x}", result.digest)},
                                {"blocks_per_s", result.blocks_per_second()}};
  if (!flags.ladder.empty()) {
    run.update({{"ladder", flags.ladder},
                {"approximate_hit_blocks", result.approximate_hit_blocks},
                {"evicted_twins", result.evicted_twins}});
  }
  if (flags.hint_share > 0) {
    run.update({{"hint_share", flags.hint_share},
                {"hint_s", flags.hint_s},
                {"hints", result.hints},
                {"hints_clipped", result.hints_clipped}});
  }
  if (flags.store_blocks == 0) return run;
  run.update({{"store_blocks", flags.store_blocks},
              {"segment_blocks", flags.segment_blocks},
              {"store_hit_blocks", result.store_hit_blocks},
              {"store_written_blocks", result.store_written_blocks},
              {"store_recycled_blocks", result.store_recycled_blocks},
              {"machines", flags.machines}});
  if (flags.remote_writes.empty()) return run;
  run.update({{"remote_writes", flags.remote_writes},
              {"remote_hit_blocks", result.remote_hit_blocks},
              {"remote_written_blocks", result.remote_written_blocks}});
  return run;
}

// From 64 blocks on, four to a doubling, until everything fits.
std::vector<uint64_t> CurveCapacities(uint64_t unique_blocks) {
  std::vector<uint64_t> capacities;
  for (double capacity = 64; capacity < static_cast<double>(unique_blocks);
       capacity *= std::sqrt(std::sqrt(2))) {
    capacities.push_back(static_cast<uint64_t>(capacity));
  }
  capacities.push_back(unique_blocks);
  return capacities;
}

int RunCurve(const ReplayFlags& flags, const ReplayInput& input) {
  if (flags.policies != std::vector<std::string>{"lru"}) {
    LogWarn("replay: the curve is that of lru, not of {}; replay those without --curve",
            fmt::join(flags.policies, ", "));
  }
  const std::vector<CurvePoint> curve = EstimateCurve(
      input, flags.capacities.empty() ? CurveCapacities(input.unique_blocks()) : flags.capacities);
  if (!flags.svg.empty()) {
    if (const auto written = WriteFile(flags.svg, CurveSvg(curve)); !written) {
      return Report("replay", written.error());
    }
  }
  if (!flags.json) {
    fmt::print("{:>10} {:>10}\n", "capacity", "hit ratio");
    for (const CurvePoint& point : curve) {
      fmt::print("{:>10} {:>10.4f}\n", point.capacity_blocks, point.hit_ratio);
    }
    return kOk;
  }
  auto rows = nlohmann::ordered_json::array();
  for (const CurvePoint& point : curve) {
    rows.push_back({{"capacity_blocks", point.capacity_blocks}, {"hit_ratio", point.hit_ratio}});
  }
  PrintJson({{"policy", "lru"},
             {"requests", input.requests().size()},
             {"blocks", input.blocks().size()},
             {"unique_blocks", input.unique_blocks()},
             {"curve", rows}});
  return kOk;
}

int RunReplay(const ReplayFlags& flags) {
  if (flags.machines > 1 && std::ranges::count(flags.policies, "belady") > 0) {
    return Report("replay",
                  {.code = ErrorCode::kInvalidArgument,
                   .message = "--policy belady knows one machine alone: leave out --machines"});
  }
  const auto ladder = LadderOf(flags);
  if (!ladder) return Report("replay", ladder.error());
  auto trace = ReadTrace(flags.trace);
  if (!trace) return Report("replay", trace.error());
  if (flags.resample) trace = Resample(*trace, *flags.resample, flags.sessions);
  if (!trace) return Report("replay", trace.error());
  const ReplayInput input(*trace);
  if (flags.curve) return RunCurve(flags, input);
  std::vector<uint64_t> capacities = flags.capacities;
  if (capacities.empty()) capacities.push_back(input.unique_blocks());
  auto runs = nlohmann::ordered_json::array();
  if (!flags.json) {
    fmt::print("{:<10} {:>10} {:>12} {:>12} {:>10} {:>11}\n", "policy", "capacity", "blocks", "hit",
               "hit ratio", "Mblocks/s");
  }
  for (const uint64_t capacity : capacities) {
    for (const std::string& policy : flags.policies) {
      const auto run = RunOne(flags, input, capacity, policy, *ladder);
      if (!flags.json) {
        fmt::print("{:<10} {:>10} {:>12} {:>12} {:>10.4f} {:>11.2f}\n", policy, capacity,
                   run["blocks"].get<uint64_t>(), run["hit_blocks"].get<uint64_t>(),
                   run["hit_ratio"].get<double>(), run["blocks_per_s"].get<double>() / 1e6);
      }
      runs.push_back(run);
    }
  }
  if (!flags.json) return kOk;
  if (runs.size() == 1) {
    PrintJson(runs[0]);
  } else {
    PrintJson({{"runs", runs}});
  }
  return kOk;
}

}  // namespace

void AddReplay(Command& program) {
  auto flags = std::make_shared<ReplayFlags>();
  Command command =
      program.AddCommand("replay", "Replays recorded requests on index, ledger and policy");
  command.Add({.name = "--trace",
               .value = &flags->trace,
               .help = "Requests: a .jsonl or .jsonl.gz file of hash_ids",
               .required = true});
  command.Add({.name = "--capacity-blocks",
               .value = &flags->capacities,
               .help = "Blocks that fit, or several such numbers: 1000,5000 (default: all fit)",
               .check = Between<uint64_t>{1, uint64_t{UINT32_MAX} - 1}});
  command.Add({.name = "--policy",
               .value = &flags->policies,
               .help = fmt::format("{}; or several: lru,belady. belady is the offline bound",
                                   fmt::join(ReplayPolicies(), ", ")),
               .check = ReplayPolicies(),
               .shows_default = true});
  command.Add({.name = "--store-blocks",
               .value = &flags->store_blocks,
               .help = "A store of so many blocks below memory; what is found there is a hit, too",
               .check = Between<uint64_t>{2, uint64_t{UINT32_MAX} - 1}});
  command.Add({.name = "--segment-blocks",
               .value = &flags->segment_blocks,
               .help = "Blocks that the store recycles at once",
               .check = Between<uint64_t>{1, uint64_t{1} << 20},
               .shows_default = true,
               .needs = "--store-blocks"});
  command.Add({.name = "--remote-writes",
               .value = &flags->remote_writes,
               .help =
                   "A remote behind the store, which keeps everything, and what is written to "
                   "it: reused: what is used again; recycled: that, and what the store recycles; "
                   "all",
               .check = OneOf{"reused", "recycled", "all"},
               .needs = "--store-blocks"});
  command.Add({.name = "--machines",
               .value = &flags->machines,
               .help =
                   "So many machines, each with this memory and this store, take the requests in "
                   "turn; a remote is shared by all",
               .check = Between<uint32_t>{1, 1000},
               .shows_default = true,
               .needs = "--store-blocks"});
  command.Add({.name = "--ladder",
               .value = &flags->ladder,
               .help = "f16:int8 or f16:int8:int4: a precision ladder within the bytes of "
                       "--capacity-blocks and --store-blocks of the first codec; every request "
                       "accepts approximate blocks"});
  command.Add({.name = "--hint-share",
               .value = &flags->hint_share,
               .help = "Each request says how long it is until another one goes on from it, and is "
                       "kept so long, within this share of the capacity: 0 to 1",
               .check = Between<double>{0, 1}});
  command.Add({.name = "--hint-s",
               .value = &flags->hint_s,
               .help = "Those that are longer than so many seconds say nothing",
               .check = Between<uint64_t>{1, 86'400},
               .shows_default = true,
               .needs = "--hint-share"});
  command.Add({.name = "--resample",
               .value = &flags->resample,
               .help = "Replay sessions of the trace drawn with replacement, by this seed"});
  command.Add({.name = "--sessions",
               .value = &flags->sessions,
               .help = "Draw so many of them (default: as many as there are)",
               .check = Between<uint64_t>{1, uint64_t{1} << 20},
               .needs = "--resample"});
  command.Add({.name = "--curve",
               .value = &flags->curve,
               .help = "Estimate LRU's hit ratio for many capacities from one pass"});
  command.Add({.name = "--svg",
               .value = &flags->svg,
               .help = "Also draw the curve into this file",
               .needs = "--curve"});
  command.Add({.name = "--json",
               .value = &flags->json,
               .help = "Print one JSON object; of several runs, a list `runs`"});
  command.Run([flags] { return RunReplay(*flags); });
}

}  // namespace quire::app
