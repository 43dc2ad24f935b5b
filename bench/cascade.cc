// Decode of sequences that share a long prefix: all in one call, which reads the prefix once,
// beside one of them alone, beside as many calls of one, and beside multiply-adds in registers.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/pairs.h"
#include "bench/sequence.h"
#include "quire/attention.h"

namespace quire::bench {
namespace {

constexpr uint32_t kSharedTokens = 16'384;
constexpr uint32_t kPrivateTokens = 64;
/// Together many times any last-level cache, so that no layer finds the one before it.
constexpr uint32_t kLayers = 8;

/// The last rows of sequences that have all but their last blocks in common.
class Family {
 public:
  Family(const Sequence& sequence, uint32_t count)
      : sequence_(sequence),
        queries_(Queries(count, kGroup)),
        out_(queries_.size()),
        blocks_(count) {
    const std::vector<const std::byte*>& slots = sequence.slots();
    const uint32_t shared = kSharedTokens / sequence.block_tokens();
    const uint32_t own = kPrivateTokens / sequence.block_tokens();
    const size_t values = queries_.size() / count;
    for (uint32_t i = 0; i < count; ++i) {
      blocks_[i].assign(slots.begin(), slots.begin() + shared);
      const auto first_own = slots.begin() + shared + i * own;
      blocks_[i].insert(blocks_[i].end(), first_own, first_own + own);
      tasks_.push_back({.queries = queries_.data() + i * values,
                        .out = out_.data() + i * values,
                        .rows = 1,
                        .first_position = kSharedTokens + kPrivateTokens - 1,
                        .sealed = blocks_[i].data(),
                        .open = blocks_[i].data()});
    }
  }

  /// ms for one token of each of the first `count` sequences and all layers of the model, in calls
  /// of `at_once` sequences.
  double Step_ms(uint32_t count, uint32_t at_once, AttentionBackend* attention,
                 Executor* executor) const {
    const double begin_s = NowSeconds();
    for (uint32_t layer = 0; layer < sequence_.layers(); ++layer) {
      const AttentionShape shape = sequence_.Shape(layer, kGroup);
      for (uint32_t i = 0; i < count; i += at_once) {
        attention->Attend(shape, std::span(tasks_).subspan(i, at_once), *executor);
      }
    }
    return (NowSeconds() - begin_s) * 1e3 / sequence_.layers() * kModelLayers;
  }

 private:
  const Sequence& sequence_;
  const std::vector<float> queries_;
  std::vector<float> out_;
  std::vector<std::vector<const std::byte*>> blocks_;
  std::vector<AttentionTask> tasks_;
};

Result<void> AddRows(const Options& options, Codec codec, AttentionBackend* attention,
                     std::vector<Row>* rows) {
  constexpr uint32_t kFew = 4;
  constexpr uint32_t kMany = 32;
  QUIRE_ASSIGN(const auto sequence,
               Sequence::Create(codec, kSharedTokens + kMany * kPrivateTokens, kLayers));
  const Family family(*sequence, kMany);
  // Two products of kHeadDim multiply-adds for every query vector and shared token.
  const double gigaflops_per_step =
      double{kMany} * kSharedTokens * kKvHeads * kGroup * kHeadDim * 2 * 2 * kModelLayers * 1e-9;
  for (const uint32_t threads : options.threads) {
    const auto executor = MakeThreadPool(threads);
    const auto step_ms = [&](uint32_t count, uint32_t at_once) {
      return family.Step_ms(count, at_once, attention, executor.get());
    };
    const auto name = [&](const char* what) {
      return fmt::format("cascade/{}/{}+{}/{}/t{}", CodecName(codec), kSharedTokens, kPrivateTokens,
                         what, threads);
    };
    const auto measure = [&](const PairedCase& paired) {
      if (!IsWanted(options, paired.name)) return;
      step_ms(kMany, kMany);  // scratch and page tables
      rows->push_back(MeasurePairs(options, paired));
    };
    measure({.name = name("4_beside_1"),
             .unit = "ms/step",
             .less_is_better = true,
             .work = [&] { return step_ms(kFew, kFew); },
             .floor = [&] { return step_ms(1, 1); }});
    measure({.name = name("32_beside_32_calls"),
             .unit = "ms/step",
             .less_is_better = true,
             .work = [&] { return step_ms(kMany, kMany); },
             .floor = [&] { return step_ms(kMany, 1); }});
    measure({.name = name("32_beside_fma"),
             .unit = "GFLOP/s",
             .work = [&] { return gigaflops_per_step / step_ms(kMany, kMany) * 1e3; },
             .floor = [&] { return FmaPeakGflops(threads); }});
  }
  return {};
}

}  // namespace

Result<std::vector<Row>> Cascade(const Options& options) {
  QUIRE_ASSIGN(const auto attention, MakeCpuAttention());
  std::vector<Row> rows;
  for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kNf4, Codec::kQ25}) {
    QUIRE_TRY(AddRows(options, codec, attention.get(), &rows));
  }
  return rows;
}

}  // namespace quire::bench
