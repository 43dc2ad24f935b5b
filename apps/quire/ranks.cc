#include "apps/quire/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "env/clock.h"
#include "ranks/local_transport.h"

namespace quire::app {
namespace {

/// After its own error a rank leaves the others so long to hear of it and to print theirs.
constexpr std::chrono::milliseconds kOthersPrint{500};

}  // namespace

void AddRanksFlags(Command& command, RanksFlags& flags) {
  command.Add({.name = "--ranks",
               .value = &flags.mode,
               .help = "The processes that mpirun started compute together (docs/ranks.md); "
                       "sequence: each holds a share of every context; pipeline: each has some of "
                       "the layers",
               .check = OneOf{"sequence", "pipeline"}});
  command.Add({.name = "--rank-threads",
               .value = &flags.threads,
               .help = "With --ranks: so many ranks, as threads of this process instead "
                       "of those that mpirun started",
               .check = Between<uint32_t>{1, ranks::kRanksMax},
               .needs = "--ranks"});
  command.Add({.name = "--ranks-deadline",
               .value = &flags.deadline_s,
               .help = "Seconds after which a rank that is not heard is given up",
               .check = Between<double>{0.1, 86400},
               .shows_default = true,
               .needs = "--ranks"});
}

Result<std::unique_ptr<RankProcess>> RankProcess::Start(const RanksFlags& flags) {
  QUIRE_ASSIGN(auto mpi, ranks::MpiRanks::Start());
  const auto deadline_us = static_cast<uint64_t>(flags.deadline_s * 1e6);
  std::unique_ptr<RankProcess> process(
      new RankProcess(std::move(mpi), {.deadline_us = deadline_us}));
  QUIRE_TRY(process->CheckSettings());
  return process;
}

Result<void> RankProcess::CheckSettings() {
  QUIRE_TRY(group_.Barrier(kRankLoadDeadlineUs));
  const std::string own = ranks::MpiRanks::MessageSettings();
  QUIRE_ASSIGN(const auto all, group_.AllGatherAny(std::as_bytes(std::span(own))));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string said(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    if (said == own) continue;
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("ranks: rank {} has {}, rank {} has {}; say it once for all ranks, "
                            "with mpirun --mca",
                            group_.rank(), own, rank, said));
  }
  return {};
}

RankProcess::RankProcess(std::unique_ptr<ranks::MpiRanks> mpi, const ranks::GroupOptions& options)
    : mpi_(std::move(mpi)), group_(mpi_->transport(), SystemClock(), options) {}

RankProcess::~RankProcess() {
  if (ended_) return;
  group_.Fail({ErrorCode::kIo, fmt::format("ranks: rank {} ended early", group_.rank())});
  // MPI's own end would wait for the others.
  static_cast<void>(mpi_.release());
}

void RankProcess::End(int exit_code, const Error* error) {
  if (error == nullptr && group_.Barrier(kRankLoadDeadlineUs)) {
    ended_ = true;
    return;
  }
  if (error != nullptr) group_.Fail(*error);
  std::this_thread::sleep_for(kOthersPrint);
  mpi_->Abort(std::max(exit_code, 1));
}

namespace {

// Rank 0 is this thread, and has the exit code.
int RunRankThreads(std::string_view command, const RanksFlags& flags,
                   const std::function<Result<int>(ranks::Group* group)>& run) {
  const ranks::GroupOptions options = {.deadline_us =
                                           static_cast<uint64_t>(flags.deadline_s * 1e6)};
  ranks::LocalRanks ranks(flags.threads, SystemClock());
  std::vector<std::unique_ptr<ranks::Transport>> ends;
  for (uint32_t rank = 0; rank < flags.threads; ++rank) ends.push_back(ranks.Join(rank));
  const auto run_rank = [&](uint32_t rank) {
    ranks::Group group(*ends[rank], SystemClock(), options);
    auto code = run(&group);
    if (!code) group.Fail(code.error());
    return code;
  };
  std::vector<std::jthread> others;
  for (uint32_t rank = 1; rank < flags.threads; ++rank) {
    others.emplace_back([&, rank] { static_cast<void>(run_rank(rank)); });
  }
  const auto code = run_rank(0);
  others.clear();
  return code ? *code : Report(command, code.error());
}

}  // namespace

// mpirun says it; ranks that are threads are on one host.
uint32_t LocalRank(const ranks::Group& group) {
  const char* const said = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  return said == nullptr ? group.rank() : static_cast<uint32_t>(std::strtoul(said, nullptr, 10));
}

void LeaveSignalsToRank0() {
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
}

int RunWithRanks(std::string_view command, const RanksFlags& flags,
                 const std::function<Result<int>(ranks::Group* group)>& run) {
  if (!flags.mode.empty() && flags.threads > 0) return RunRankThreads(command, flags, run);
  std::unique_ptr<RankProcess> process;
  if (!flags.mode.empty()) {
    auto started = RankProcess::Start(flags);
    if (!started) return Report(command, started.error());
    process = *std::move(started);
  }
  const auto code = run(process == nullptr ? nullptr : &process->group());
  const int exit_code = code ? *code : Report(command, code.error());
  if (process != nullptr) process->End(exit_code, code ? nullptr : &code.error());
  return exit_code;
}

}  // namespace quire::app
