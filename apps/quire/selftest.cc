// quire selftest: whether this build keeps its promises on this machine.
#include <fmt/format.h>

#include <array>

#include "apps/quire/command.h"
#include "apps/quire/isolation.h"

namespace quire::app {

namespace {

int Isolation(bool json) {
  constexpr std::array kTested = {Codec::kF16, Codec::kInt8, Codec::kNf4};
  auto report = nlohmann::ordered_json::array();
  uint64_t failed = 0;
  for (const Codec codec : kTested) {
    const auto checks = CheckIsolation(codec);
    if (!checks) return Report("selftest", checks.error());
    for (const IsolationCheck& check : *checks) {
      failed += check.passed ? 0 : 1;
      report.push_back({{"codec", CodecName(codec)},
                        {"name", check.name},
                        {"passed", check.passed},
                        {"detail", check.detail}});
      if (json) continue;
      fmt::print("{}  {:<5} {}\n            {}\n", check.passed ? "ok  " : "FAIL", CodecName(codec),
                 check.name, check.detail);
    }
  }
  if (json) PrintJson({{"selftest", "isolation"}, {"failed", failed}, {"checks", report}});
  if (!json) fmt::print("{} checks, {} failed\n", report.size(), failed);
  return failed == 0 ? kOk : kFailedCheck;
}

}  // namespace

void AddSelftest(CLI::App& program, int& exit) {
  CLI::App* selftest = program.add_subcommand("selftest", "checks promises on this machine");
  selftest->require_subcommand(1);
  CLI::App* isolation =
      selftest->add_subcommand("isolation", "tenants are apart: sharing, quotas, erasing");
  auto json = std::make_shared<bool>(false);
  isolation->add_flag("--json", *json, "print one JSON object");
  isolation->callback([json, &exit] { exit = Isolation(*json); });
}

}  // namespace quire::app
