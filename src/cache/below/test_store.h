// A store on a machine in memory, turned by hand, and caches on it.
#ifndef QUIRE_CACHE_BELOW_TEST_STORE_H_
#define QUIRE_CACHE_BELOW_TEST_STORE_H_

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/below/store_state.h"
#include "cache/test_util.h"
#include "env/clock.h"
#include "env/faulty_files.h"
#include "quire/disk_store.h"
#include "tier/cold.h"

namespace quire::cache {

struct TestStore {
  explicit TestStore(uint64_t bytes_cap = uint64_t{16} << 20)
      : options{.directory = "store",
                .bytes_cap = bytes_cap,
                .staging_bytes = 2 << 20,
                .chunk_bytes = 64 << 10,
                .scrub_bytes_per_s = 0} {
    sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, 1, nullptr);
    Open();
  }

  void Open() {
    auto cold = Must(tier::ColdStore::Open(options, files, clock));
    auto made = std::make_unique<transfer::Transfers>(
        std::move(cold), clock, transfer::TransferOptions{.spread_us = spread_us});
    transfers = made.get();
    store = StoreState::Wrap(std::move(made));
  }
  /// As after a process that ended, was killed, or after a power cut. No cache may be left.
  void Restart() {
    store.reset();
    Open();
  }
  void Kill(bool power) {
    if (power) {
      files.LosePower();
    } else {
      files.KillProcess();
    }
    store.reset();
    files.Restart();
    Open();
  }
  /// Lets time pass and everything that is due happen.
  void Turn(uint64_t us = 2'000'000) {
    const uint64_t end_us = clock.NowMicros() + us;
    while (clock.NowMicros() < end_us) {
      if (!transfers->Tick(1000)) clock.Advance(1000);
    }
  }
  /// Turns a bit over in every so many bytes of the segments.
  void DamageSegments(uint64_t every_bytes) {
    for (const std::string& path : files.Paths()) {
      if (path.find("segment") == std::string::npos) continue;
      std::vector<std::byte>& bytes = *files.Contents(path);
      for (uint64_t i = every_bytes / 2; i < bytes.size(); i += every_bytes)
        bytes[i] ^= std::byte{4};
    }
  }

  ManualClock clock;
  FaultyFiles files{{.seed = 5, .latency_us_max = 100}, clock};
  tier::ColdOptions options;
  uint64_t spread_us = 0;  // from the next Open on
  std::unique_ptr<DiskStore> store;
  transfer::Transfers* transfers = nullptr;
};

/// A prompt as an engine runs it: loads what can be loaded, then computes the rest.
struct RunReport {
  std::unique_ptr<Sequence> sequence{};
  uint64_t reused = 0;    // tokens
  uint64_t loadable = 0;  // of these, that the store had
  MissReason reason{};    // of the first missing token
};
inline RunReport RunThrough(TestCache& test, std::span<const TokenId> prompt,
                            const LoadOptions& options = {}) {
  RunReport report;
  Plan plan = test.Acquire(prompt);
  report.loadable = plan.loadable_tokens();
  if (report.loadable > 0) {
    Ticket ticket = Must(test.cache->Load(std::move(plan), options));
    plan = ticket.Take();
  }
  report.reused = plan.resident_tokens();
  report.reason = plan.reason();
  report.sequence = Must(test.cache->Open(std::move(plan), {}));
  Must(test.model.Feed(*report.sequence, prompt));
  return report;
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_TEST_STORE_H_
