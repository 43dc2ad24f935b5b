// quire replay: what a recorded service would have hit, by policy and capacity.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "apps/quire/command.h"
#include "apps/quire/progress.h"
#include "apps/quire/replayer.h"
#include "apps/quire/trace.h"

namespace quire::app {
namespace {

struct ReplayFlags {
  std::string trace;
  std::vector<uint64_t> capacities = {};  // empty: everything fits
  std::vector<std::string> policies = {"lru"};
  bool json = false;
};

nlohmann::ordered_json RunOne(const ReplayInput& input, uint64_t capacity,
                              const std::string& policy) {
  ProgressBar bar(fmt::format("{} in {} blocks", policy, capacity));
  const ReplayResult result = Replay(
      input, capacity, policy, [&](uint64_t done) { bar.Update(done, input.requests().size()); });
  return {{"policy", policy},
          {"capacity_blocks", capacity},
          {"requests", result.requests},
          {"blocks", result.blocks},
          {"unique_blocks", input.unique_blocks()},
          {"hit_blocks", result.hit_blocks},
          {"hit_ratio", result.hit_ratio()},
          {"blocks_per_s", result.blocks_per_second()}};
}

int RunReplay(const ReplayFlags& flags) {
  const auto trace = ReadTrace(flags.trace);
  if (!trace) return Report("replay", trace.error());
  const ReplayInput input(*trace);
  std::vector<uint64_t> capacities = flags.capacities;
  if (capacities.empty()) capacities.push_back(input.unique_blocks());
  auto runs = nlohmann::ordered_json::array();
  if (!flags.json) {
    fmt::print("{:<10} {:>10} {:>12} {:>12} {:>10} {:>11}\n", "policy", "capacity", "blocks", "hit",
               "hit ratio", "Mblocks/s");
  }
  for (const uint64_t capacity : capacities) {
    for (const std::string& policy : flags.policies) {
      const auto run = RunOne(input, capacity, policy);
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

void AddReplay(CLI::App& program, int& exit) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command =
      program.add_subcommand("replay", "Replays recorded requests on index, ledger and policy");
  command->add_option("--trace", flags->trace, "Requests: a .jsonl or .jsonl.gz file of hash_ids")
      ->required();
  command
      ->add_option("--capacity-blocks", flags->capacities,
                   "Blocks that fit, or several such numbers: 1000,5000 (default: all fit)")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Range(uint64_t{1}, uint64_t{UINT32_MAX} - 1));
  command
      ->add_option("--policy", flags->policies,
                   fmt::format("{}; or several: lru,belady. belady is the offline bound",
                               fmt::join(ReplayPolicies(), ", ")))
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::IsMember(ReplayPolicies()))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object; of several runs, a list `runs`");
  command->callback([flags, &exit] { exit = RunReplay(*flags); });
}

}  // namespace quire::app
