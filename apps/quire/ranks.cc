#include "apps/quire/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "env/clock.h"

namespace quire::app {
namespace {

/// Ranks read their model from one disk: the last one may come this much later than the first.
constexpr uint64_t kLoadDeadlineUs = 600'000'000;

/// After its own error a rank leaves the others so long to hear of it and to print theirs.
constexpr std::chrono::milliseconds kOthersPrint{500};

}  // namespace

void AddRanksFlags(Command& command, RanksFlags& flags) {
  command.Add({.name = "--ranks",
               .value = &flags.mode,
               .help = "The processes that mpirun started compute together (docs/ranks.md); "
                       "sequence: each holds a share of every context",
               .check = OneOf{"sequence"}});
  command.Add({.name = "--ranks-deadline",
               .value = &flags.deadline_s,
               .help = "Seconds after which a rank that is not heard is given up",
               .check = Between<double>{0.1, 86400},
               .shows_default = true});
}

Result<std::unique_ptr<RankProcess>> RankProcess::Start(const RanksFlags& flags) {
  QUIRE_ASSIGN(auto mpi, ranks::MpiRanks::Start());
  const auto deadline_us = static_cast<uint64_t>(flags.deadline_s * 1e6);
  return std::unique_ptr<RankProcess>(
      new RankProcess(std::move(mpi), {.deadline_us = deadline_us}));
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
  if (error == nullptr && group_.Barrier(kLoadDeadlineUs)) {
    ended_ = true;
    return;
  }
  if (error != nullptr) group_.Fail(*error);
  std::this_thread::sleep_for(kOthersPrint);
  mpi_->Abort(std::max(exit_code, 1));
}

Result<ranks::LaneShare> SequenceRanks::ShareOf(const ranks::Group& group) {
  const uint32_t size = group.size();
  if (std::has_single_bit(size) && size <= kLanes) return ranks::LaneShare(group.rank(), size);
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("--ranks sequence: {} ranks; 1, 2, 4, 8 or 16 can divide the {} lanes of "
                          "a context",
                          size, kLanes));
}

SequenceRanks::SequenceRanks(ranks::ShareCache cache, const Components& components)
    : cache_(std::move(cache)),
      vocab_(components.model.config().vocab),
      member_(std::make_unique<ranks::Member>(ranks::Member::Components{
          components.group, cache_, components.model, components.attention, components.executor})) {
  if (components.group.rank() == 0) leader_ = std::make_unique<ranks::LeaderCache>(*member_);
}

Result<std::unique_ptr<SequenceRanks>> SequenceRanks::Join(const Components& components) {
  QUIRE_ASSIGN(const ranks::LaneShare share, ShareOf(components.group));
  QUIRE_ASSIGN(auto cache, ranks::ShareCache::Create(components.cache, components.identity, share,
                                                     {.vocab = components.model.config().vocab,
                                                      .loads = components.loads}));
  std::unique_ptr<SequenceRanks> joined(new SequenceRanks(std::move(cache), components));
  // Whatever decides bits; secrets differ, each rank has a store of its own.
  Identity same = components.identity;
  same.domain.secret = {};
  const Digest description = RootKey(same, components.geometry, components.cache.options().profile);
  QUIRE_TRY(joined->member_->Join(description, kLoadDeadlineUs));
  return joined;
}

}  // namespace quire::app
