// Attention of ranks that share the lanes of one context, each on a core of its own, beside one
// rank on one core. The ranks are threads, so the wire between them costs a copy, or processes that
// mpirun started.
#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "bench/bench.h"
#include "bench/must.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "bench/sequence.h"
#include "env/clock.h"
#include "quire/attention.h"
#include "ranks/group.h"
#include "ranks/local_transport.h"
#include "ranks/sequence/rank_attention.h"

namespace quire::bench {
namespace {

/// Together many times any last-level cache, so that no layer finds the one before it.
constexpr uint32_t kLayersOfRanks = 4;
constexpr uint32_t kTokensOfRanks = 65'536;
/// Instead of a layer: the other ranks are not needed any more.
constexpr uint32_t kNoLayer = UINT32_MAX;

/// One rank, and what it reads: its own lanes of a sequence.
class RankOfBench {
 public:
  RankOfBench(const DecodedSequence& sequence, ranks::Group& group)
      : sequence_(sequence),
        tables_(sequence.Tables(indptr_, Slots(sequence))),
        inner_(Must(MakeCpuAttention())),
        attention_(*inner_, group, ranks::sequence::LaneShare(group.rank(), group.size())) {}

  /// One row at one layer. All ranks call it.
  Result<void> Attend(uint32_t layer) {
    const AttentionTask task = {
        .queries = queries_.data(),
        .out = out_.data(),
        .rows = 1,
        .first_position = slots_.size() * uint64_t{sequence_.block_tokens()} - 1};
    return attention_.Attend(sequence_.Shape(layer, kGroup), tables_, {&task, 1}, *executor_);
  }

 private:
  const uint32_t* Slots(const DecodedSequence& sequence) {
    for (uint32_t slot = 0; slot < sequence.blocks(); ++slot) slots_.push_back(slot);
    indptr_[1] = slots_.size();
    return slots_.data();
  }

  const DecodedSequence& sequence_;
  const std::vector<float> queries_ = Queries(1, kGroup);
  std::vector<float> out_ = std::vector<float>(queries_.size());
  std::vector<uint64_t> indptr_{0, 0};
  std::vector<uint32_t> slots_;
  BlockTables tables_;
  std::unique_ptr<AttentionBackend> inner_;
  ranks::sequence::RankAttention attention_;
  std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
};

/// Ranks that are threads.
class ThreadRanks {
 public:
  ThreadRanks(uint32_t count, const DecodedSequence& sequence)
      : pool_(MakePinnedPool(count)), transports_(count, SystemClock()) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      ends_.push_back(transports_.Join(rank));
      groups_.push_back(
          std::make_unique<ranks::Group>(*ends_.back(), SystemClock(), ranks::GroupOptions{}));
      ranks_.push_back(std::make_unique<RankOfBench>(sequence, *groups_.back()));
    }
  }

  /// Seconds for one row at one layer, on all ranks at once.
  double Attend(uint32_t layer) {
    return SecondsOf(*pool_, [&] {
      pool_->ParallelFor(static_cast<uint32_t>(ranks_.size()),
                         [&](uint32_t rank, uint32_t) { Must(ranks_[rank]->Attend(layer)); });
    });
  }

 private:
  std::unique_ptr<Executor> pool_;
  ranks::LocalRanks transports_;
  std::vector<std::unique_ptr<ranks::Transport>> ends_;
  std::vector<std::unique_ptr<ranks::Group>> groups_;
  std::vector<std::unique_ptr<RankOfBench>> ranks_;
};

/// Ranks that are processes, of which this one is rank 0.
class ProcessRanks {
 public:
  ProcessRanks(ranks::Group& group, const DecodedSequence& sequence)
      : group_(group), own_(sequence, group) {}
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;
  ~ProcessRanks() { static_cast<void>(Tell(kNoLayer)); }

  /// For ever, where a rank is lost.
  double Attend(uint32_t layer) {
    SetPriority(1);
    const auto begin = std::chrono::steady_clock::now();
    const bool attended = Tell(layer) && own_.Attend(layer);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    SetPriority(0);
    return attended ? seconds.count() : std::numeric_limits<double>::infinity();
  }

 private:
  Result<void> Tell(uint32_t layer) { return group_.Broadcast(0, ranks::BytesOf(layer)); }

  ranks::Group& group_;
  RankOfBench own_;
};

struct BesideOneRank {
  std::unique_ptr<DecodedSequence> sequence;
  std::unique_ptr<ThreadRanks> one;
  std::unique_ptr<ThreadRanks> threads;
  std::unique_ptr<ProcessRanks> processes;  // instead of threads

  double Attend(uint32_t layer) {
    return processes != nullptr ? processes->Attend(layer) : threads->Attend(layer);
  }
};

/// `group`: null: the ranks are threads.
Result<Subject> RanksBesideOne(Codec codec, uint32_t count, ranks::Group* group) {
  auto made = std::make_shared<BesideOneRank>();
  QUIRE_ASSIGN(made->sequence, DecodedSequence::Create(codec, kTokensOfRanks, kLayersOfRanks));
  made->one = std::make_unique<ThreadRanks>(1, *made->sequence);
  if (group != nullptr) {
    made->processes = std::make_unique<ProcessRanks>(*group, *made->sequence);
    QUIRE_TRY(group->Barrier());
  } else {
    made->threads = std::make_unique<ThreadRanks>(count, *made->sequence);
  }
  return Timed{
      .unit = "ms/token",
      .less_is_better = true,
      .amount = 1e3 / kLayersOfRanks * kModelLayers,
      .places = kLayersOfRanks,
      .slice = fmt::format("1 row over {} tokens, 1 layer, {} ranks", kTokensOfRanks, count),
      .work = [=](uint32_t layer) { return made->Attend(layer); },
      .floor =
          [=](uint32_t layer) {
            return made->one->Attend((layer + kLayersOfRanks / 2) % kLayersOfRanks);
          }};
}

/// What the other ranks do while rank 0 has its subject.
Result<void> FollowRank0(Codec codec, ranks::Group& group) {
  QUIRE_ASSIGN(const auto sequence, DecodedSequence::Create(codec, kTokensOfRanks, kLayersOfRanks));
  RankOfBench own(*sequence, group);
  QUIRE_TRY(group.Barrier());
  SetPriority(1);
  while (true) {
    uint32_t layer = kNoLayer;
    QUIRE_TRY(group.Broadcast(0, ranks::BytesOf(layer)));
    if (layer == kNoLayer) break;
    QUIRE_TRY(own.Attend(layer));
  }
  SetPriority(0);
  return {};
}

}  // namespace

std::vector<Case> RanksCases(const Options& options) {
  ranks::Group* const group = options.group;
  const std::vector<uint32_t> counts =
      group != nullptr ? std::vector<uint32_t>{group->size()} : options.threads;
  std::vector<Case> cases;
  for (const Codec codec : {Codec::kF16, Codec::kInt8}) {
    for (const uint32_t count : counts) {
      if (count == 1 || kLanes % count != 0) continue;
      cases.push_back({.name = fmt::format("decode/{}/{}/{}_ranks_beside_1", CodecName(codec),
                                           kTokensOfRanks, count),
                       .prepare = [=] { return RanksBesideOne(codec, count, group); },
                       .follow = [=] { return FollowRank0(codec, *group); }});
    }
  }
  return cases;
}

}  // namespace quire::bench
