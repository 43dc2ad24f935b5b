// --ranks: this process as one of those that mpirun started.
#ifndef QUIRE_APPS_RANKS_H_
#define QUIRE_APPS_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "apps/quire/command.h"
#include "model/step_flow.h"
#include "model/step_runner.h"
#include "quire/cache.h"
#include "ranks/group.h"
#include "ranks/mpi_ranks.h"

namespace quire::app {

struct RanksFlags {
  std::string mode{};    // empty: no ranks
  uint32_t threads = 0;  // ranks that are threads of this process; 0: mpirun started them
  double deadline_s = 60;
};

/// Ranks start, and read their model from one disk: the last one may come this much later than the
/// first.
inline constexpr uint64_t kRankLoadDeadlineUs = 600'000'000;

void AddRanksFlags(Command& command, RanksFlags& flags);

/// This process among its ranks, from its start to its end.
class RankProcess {
 public:
  /// Errors: as ranks::MpiRanks::Start; kInvalidArgument MPI is set up otherwise on another rank
  static Result<std::unique_ptr<RankProcess>> Start(const RanksFlags& flags);

  /// Where End was not called, the others are told that this rank is gone.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  ranks::Group& group() { return group_; }
  /// The last call: waits for the other ranks. With an error it tells them why, and ends all of
  /// them and this process, with `exit_code`.
  void End(int exit_code, const Error* error);

 private:
  RankProcess(std::unique_ptr<ranks::MpiRanks> mpi, const ranks::GroupOptions& options);
  Result<void> CheckSettings();

  std::unique_ptr<ranks::MpiRanks> mpi_;
  ranks::Group group_;
  bool ended_ = false;
};

/// What a runtime has besides where ranks compute together.
class Rank {
 public:
  virtual ~Rank() = default;
  /// Rank 0 leads: it has requests. The others follow.
  virtual bool leads() const = 0;
  /// Does what rank 0 says, until it has no more to say.
  virtual Result<void> Follow() = 0;

  // Of the rank that leads.
  /// Its sequences are those of all ranks.
  virtual Cache& cache() = 0;
  /// What takes the steps of an engine: one of the two.
  virtual model::StepRunner* steps() { return nullptr; }
  virtual model::StepFlow* flow() { return nullptr; }
  /// To be called at least every so often between the steps of the engine, on its thread, also
  /// while it has none: the others know then that this rank is there.
  ///
  /// Errors: a rank is lost, or has failed; the message names it
  virtual Result<void> KeepAlive() = 0;
  /// The others return from Follow.
  virtual Result<void> Stop() = 0;
  /// For reports: how many ranks there are, and what this one has.
  virtual nlohmann::ordered_json Describe() const = 0;
};

/// The number of this rank among those of its host.
uint32_t LocalRank(const ranks::Group& group);

/// How often Rank::KeepAlive is to be called: a rank waits for the next call until its deadline, so
/// some of them may be late.
inline uint64_t KeepAliveUs(const ranks::Group& group) { return group.options().deadline_us / 8; }

/// Of a rank that follows, in a process of its own: SIGTERM and SIGINT, which mpirun sends to all
/// ranks, are rank 0's to heed from now on, which tells the others when it has ended its work.
void LeaveSignalsToRank0();

/// Runs a command as the ranks that the flags ask for: `run` gets the group of its rank, or null
/// where there are no ranks. Reports errors. Returns the exit code.
int RunWithRanks(std::string_view command, const RanksFlags& flags,
                 const std::function<Result<int>(ranks::Group* group)>& run);

}  // namespace quire::app

#endif  // QUIRE_APPS_RANKS_H_
