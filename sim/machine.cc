#include "sim/machine.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace quire::sim {
namespace {

constexpr uint64_t kSectorBytes = 512;
constexpr uint64_t kWearOneIn = 300;  // steps

}  // namespace

Machine::Machine(const SimOptions& options, uint64_t prng_seed)
    : options_(options),
      prng_(prng_seed),
      faults_(static_cast<Faults>(prng_.NextBelow(3))),
      files_({.seed = prng_.Next64(), .latency_us_max = prng_.NextBelow(3000)}, clock_),
      wear_prng_(prng_seed ^ 0x3ec7) {
  // SQLite's random numbers must be the same in two runs of a seed.
  sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, static_cast<int>(options.seed % 1'000'000 + 1),
                       nullptr);
}

tier::ColdOptions Machine::SomeColdOptions(uint64_t segments) const {
  return {.directory = "store",
          .bytes_cap = kCatalogueBytes + tier::EpochBytesMax() + tier::kLockBytesMax +
                       segments * kSegmentBytes,
          .segment_bytes = kSegmentBytes,
          .catalogue_bytes_max = kCatalogueBytes,
          .chunk_bytes = 64 << 10,
          .headers_bytes_max = 20'000};
}

std::unique_ptr<tier::ColdStore> Machine::OpenStore() {
  const uint64_t faults = files_.faults();
  auto opened = tier::ColdStore::Open(cold_, files_, clock_);
  // A file that could not be read while it opened can be read when it is opened again.
  if (!opened || (honest() && files_.faults() > faults)) {
    if (opened) opened->reset();
    files_.set_rates({});
    files_.set_disk_bytes(~uint64_t{0});
    opened = tier::ColdStore::Open(cold_, files_, clock_);
    files_.set_rates(RatesOf(faults_));
  }
  if (opened) return *std::move(opened);
  Problem(report_.stuck, "does not open: " + opened.error().message);
  return nullptr;
}

std::optional<Machine::Worn> Machine::Wear() {
  if (faults_ == Faults::kCrashes || !wear_prng_.NextChance(kWearOneIn)) return std::nullopt;
  const std::string directory = cold_.directory + "/";
  std::vector<std::string> paths;
  for (const std::string& path : files_.Paths()) {
    const bool may_fail = path.starts_with(directory) && !path.ends_with(tier::kLockName);
    if (may_fail && !files_.Contents(path)->empty()) paths.push_back(path);
  }
  if (paths.empty()) return std::nullopt;
  // There are few of them among the segments, and one may go in a run.
  if (!epochs_worn_ && wear_prng_.NextChance(3)) {
    std::erase_if(paths, [&](const std::string& path) { return !IsOfEpochs(path); });
    if (paths.empty()) return std::nullopt;
  }
  Worn worn = {.path = paths[wear_prng_.NextBelow(paths.size())]};
  if (IsOfEpochs(worn.path) && std::exchange(epochs_worn_, true)) return std::nullopt;
  worn.begin =
      wear_prng_.NextBelow(files_.Contents(worn.path)->size()) / kSectorBytes * kSectorBytes;
  worn.end = worn.begin + kSectorBytes * (1 + wear_prng_.NextBelow(8));
  const bool for_good = wear_prng_.NextChance(8);
  worn_for_good_ |= for_good;
  files_.Damage(worn.path, worn.begin, worn.end - worn.begin,
                for_good ? BadSectors::kForGood : BadSectors::kUntilWritten);
  return worn;
}

bool Machine::IsOfEpochs(std::string_view path) const {
  return path.starts_with(cold_.directory + "/epochs");
}

bool Machine::EpochsAreWorn() const {
  return std::ranges::any_of(tier::kEpochNames, [&](std::string_view name) {
    return files_.IsDamaged(fmt::format("{}/{}", cold_.directory, name));
  });
}

void Machine::Problem(uint64_t& counter, const std::string& what, uint64_t by) {
  counter += by;
  if (!report_.first_problem.empty()) return;
  report_.first_problem = fmt::format("seed {} step {}: {}", options_.seed, report_.steps, what);
}

SimReport Machine::Finish() {
  report_.faults = files_.faults();
  for (const std::string& path : files_.Paths()) {
    if (path.find("segment-") != std::string::npos) digest_.Update(*files_.Contents(path));
  }
  report_.digest = digest_.Finish();
  return report_;
}

}  // namespace quire::sim
