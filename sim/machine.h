// The machine that a simulated run has: a seed, a clock, files that fail, and the store on them;
// and what the run reports.
#ifndef QUIRE_SIM_MACHINE_H_
#define QUIRE_SIM_MACHINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/hash.h"
#include "base/prng.h"
#include "env/clock.h"
#include "env/faulty_files.h"
#include "sim/sim.h"
#include "tier/cold.h"

namespace quire::sim {

inline constexpr uint64_t kNever = ~uint64_t{0};  // a step, or a time, that is never reached

/// A base for simulators. Everything random comes from `prng_`, in one order, so that a seed is one
/// run.
class Machine {
 protected:
  static constexpr uint64_t kSegmentBytes = 64 << 10;
  static constexpr uint64_t kCatalogueBytes = 128 << 10;

  Machine(const SimOptions& options, uint64_t prng_seed);
  ~Machine() = default;

  /// How large a store is, and how it works; of `segments` segments.
  tier::ColdOptions SomeColdOptions(uint64_t segments) const;
  /// Opens the store. The disk may be full or broken while it does; then it is opened again when it
  /// is not. Null: it does not open even so, which is a problem.
  std::unique_ptr<tier::ColdStore> OpenStore();
  /// Sectors of one of the store's files that went bad.
  struct Worn {
    std::string path{};
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  /// Where disks report errors, now and then some sectors go bad: for good, or until they are
  /// written. Of the epochs' copies one at a time.
  std::optional<Worn> Wear();
  bool IsOfEpochs(std::string_view path) const;
  /// A copy of the epochs lies on bad sectors: a crash that tears the other one costs both.
  bool EpochsAreWorn() const;
  /// Some sectors cannot be overwritten any more.
  bool worn_for_good() const { return worn_for_good_; }
  void Problem(uint64_t& counter, const std::string& what, uint64_t by = 1);
  /// Whether every loss needs a fault that explains it: the disk neither damages bytes nor lies.
  bool honest() const { return faults_ != Faults::kSilent; }
  /// The report, with what the disk holds in its digest.
  SimReport Finish();

  const SimOptions options_;
  Prng prng_;
  Faults faults_;
  ManualClock clock_;
  FaultyFiles files_;
  tier::ColdOptions cold_;
  SimReport report_;
  Blake2b<16> digest_;

 private:
  Prng wear_prng_;  // so that a run without bad sectors is the same one
  bool epochs_worn_ = false;
  bool worn_for_good_ = false;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_MACHINE_H_
