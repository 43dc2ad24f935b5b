// --ranks: this process as one of those that mpirun started.
#ifndef QUIRE_APPS_RANKS_H_
#define QUIRE_APPS_RANKS_H_

#include <memory>
#include <string>

#include "apps/quire/command.h"
#include "model/model.h"
#include "quire/cache.h"
#include "ranks/group.h"
#include "ranks/leader.h"
#include "ranks/member.h"
#include "ranks/mpi_ranks.h"

namespace quire::app {

struct RanksFlags {
  std::string mode{};  // empty: no ranks
  double deadline_s = 60;
};

void AddRanksFlags(Command& command, RanksFlags& flags);

/// This process among its ranks, from its start to its end.
class RankProcess {
 public:
  /// Errors: as ranks::MpiRanks::Start
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

  std::unique_ptr<ranks::MpiRanks> mpi_;
  ranks::Group group_;
  bool ended_ = false;
};

/// What a runtime has besides where ranks share the lanes of its contexts.
class SequenceRanks {
 public:
  /// Errors: kInvalidArgument a number of ranks that lanes cannot be divided among
  static Result<ranks::LaneShare> ShareOf(const ranks::Group& group);

  struct Components {
    ranks::Group& group;
    Cache& cache;
    model::Model& model;
    AttentionBackend& attention;
    Executor& executor;
    const Identity& identity;
    const Geometry& geometry;  // of the model
    bool loads = true;         // what the store has
  };
  /// Returns when all ranks are there.
  /// Errors: as ranks::ShareCache::Create and ranks::Member::Join
  static Result<std::unique_ptr<SequenceRanks>> Join(const Components& components);

  /// Null: this rank follows.
  ranks::LeaderCache* leader() { return leader_.get(); }
  /// Does what rank 0 says, until it has no more to say.
  Result<void> Follow() { return ranks::Follow(*member_, vocab_); }

 private:
  SequenceRanks(ranks::ShareCache cache, const Components& components);

  ranks::ShareCache cache_;
  const uint64_t vocab_;
  std::unique_ptr<ranks::Member> member_;
  std::unique_ptr<ranks::LeaderCache> leader_;
};

}  // namespace quire::app

#endif  // QUIRE_APPS_RANKS_H_
