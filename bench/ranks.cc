// Attention of ranks that share the lanes of one context, each on a core of its own, beside one
// rank on one core. The ranks are threads here, so the wire between them costs a copy.
#include <fmt/format.h>

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

/// Some ranks, and the memory that all of them read: each its own lanes.
class RanksOfBench {
 public:
  RanksOfBench(uint32_t count, const DecodedSequence& sequence)
      : sequence_(sequence),
        tables_(sequence.Tables(indptr_, Slots(sequence))),
        pool_(MakePinnedPool(count)),
        transports_(count, SystemClock()) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      Rank& made = *ranks_.emplace_back(std::make_unique<Rank>());
      made.end = transports_.Join(rank);
      made.group = std::make_unique<ranks::Group>(*made.end, SystemClock(), ranks::GroupOptions{});
      made.inner = Must(MakeCpuAttention());
      made.attention = std::make_unique<ranks::sequence::RankAttention>(
          *made.inner, *made.group, ranks::sequence::LaneShare(rank, count));
      made.executor = MakeThreadPool(1);
      made.out.resize(queries_.size());
    }
  }

  /// Seconds for one row at one layer, on all ranks at once.
  double Attend(uint32_t layer) {
    const AttentionShape shape = sequence_.Shape(layer, kGroup);
    return SecondsOf(*pool_, [&] {
      pool_->ParallelFor(static_cast<uint32_t>(ranks_.size()), [&](uint32_t i, uint32_t) {
        Rank& rank = *ranks_[i];
        const AttentionTask task = {
            .queries = queries_.data(),
            .out = rank.out.data(),
            .rows = 1,
            .first_position = slots_.size() * uint64_t{sequence_.block_tokens()} - 1};
        Must(rank.attention->Attend(shape, tables_, {&task, 1}, *rank.executor));
      });
    });
  }

 private:
  struct Rank {
    std::unique_ptr<ranks::Transport> end;
    std::unique_ptr<ranks::Group> group;
    std::unique_ptr<AttentionBackend> inner;
    std::unique_ptr<ranks::sequence::RankAttention> attention;
    std::unique_ptr<Executor> executor;
    std::vector<float> out;
  };

  const uint32_t* Slots(const DecodedSequence& sequence) {
    for (uint32_t slot = 0; slot < sequence.blocks(); ++slot) slots_.push_back(slot);
    indptr_[1] = slots_.size();
    return slots_.data();
  }

  const DecodedSequence& sequence_;
  const std::vector<float> queries_ = Queries(1, kGroup);
  std::vector<uint64_t> indptr_{0, 0};
  std::vector<uint32_t> slots_;
  BlockTables tables_;
  std::unique_ptr<Executor> pool_;
  ranks::LocalRanks transports_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

struct BesideOneRank {
  std::unique_ptr<DecodedSequence> sequence;
  std::unique_ptr<RanksOfBench> one;
  std::unique_ptr<RanksOfBench> several;
};

Result<Subject> RanksBesideOne(Codec codec, uint32_t tokens, uint32_t count) {
  auto made = std::make_shared<BesideOneRank>();
  QUIRE_ASSIGN(made->sequence, DecodedSequence::Create(codec, tokens, kLayersOfRanks));
  made->one = std::make_unique<RanksOfBench>(1, *made->sequence);
  made->several = std::make_unique<RanksOfBench>(count, *made->sequence);
  return Timed{.unit = "ms/token",
               .less_is_better = true,
               .amount = 1e3 / kLayersOfRanks * kModelLayers,
               .places = kLayersOfRanks,
               .slice = fmt::format("1 row over {} tokens, 1 layer, {} ranks", tokens, count),
               .work = [=](uint32_t layer) { return made->several->Attend(layer); },
               .floor =
                   [=](uint32_t layer) {
                     return made->one->Attend((layer + kLayersOfRanks / 2) % kLayersOfRanks);
                   }};
}

}  // namespace

std::vector<Case> RanksCases(const Options& options) {
  std::vector<Case> cases;
  for (const Codec codec : {Codec::kF16, Codec::kInt8}) {
    for (const uint32_t count : options.threads) {
      if (count == 1 || kLanes % count != 0) continue;
      constexpr uint32_t kTokens = 65'536;
      cases.push_back(
          {.name = fmt::format("decode/{}/{}/{}_ranks_beside_1", CodecName(codec), kTokens, count),
           .prepare = [=] { return RanksBesideOne(codec, kTokens, count); }});
    }
  }
  return cases;
}

}  // namespace quire::bench
