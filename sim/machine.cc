#include "sim/machine.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <utility>

namespace quire::sim {

Machine::Machine(const SimOptions& options, uint64_t prng_seed)
    : options_(options),
      prng_(prng_seed),
      faults_(static_cast<Faults>(prng_.NextBelow(3))),
      files_({.seed = prng_.Next64(), .latency_us_max = prng_.NextBelow(3000)}, clock_) {
  // What SQLite stores must not differ between two runs of a seed.
  sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, static_cast<int>(options.seed % 1'000'000 + 1),
                       nullptr);
}

tier::ColdOptions Machine::SomeColdOptions(uint64_t segments) const {
  return {.directory = "store",
          .bytes_cap = kCatalogueBytes + tier::EpochBytesMax() + tier::kLockBytesMax +
                       segments * kSegmentBytes,
          .segment_bytes = kSegmentBytes,
          .catalogue_bytes_max = kCatalogueBytes,
          .chunk_bytes = 64 << 10};
}

std::unique_ptr<tier::ColdStore> Machine::OpenStore() {
  auto opened = tier::ColdStore::Open(cold_, files_, clock_);
  if (!opened) {
    files_.set_rates({});
    files_.set_disk_bytes(~uint64_t{0});
    opened = tier::ColdStore::Open(cold_, files_, clock_);
    files_.set_rates(RatesOf(faults_));
  }
  if (opened) return *std::move(opened);
  Problem(report_.stuck, "does not open: " + opened.error().message);
  return nullptr;
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
