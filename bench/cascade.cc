// Decode of sequences that share a long prefix: all in one call, which reads the prefix once,
// beside one of them alone, beside as many calls of one, and beside multiply-adds in registers.
#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/must.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "bench/roofline.h"
#include "bench/sequence.h"
#include "quire/attention.h"

namespace quire::bench {
namespace {

constexpr uint32_t kSharedTokens = 16'384;
constexpr uint32_t kPrivateTokens = 64;
constexpr uint32_t kFew = 4;
constexpr uint32_t kMany = 32;
/// Together many times any last-level cache, so that no layer finds the one before it.
constexpr uint32_t kLayers = 8;

/// The last rows of sequences that have all but their last blocks in common.
class Family {
 public:
  static Result<std::shared_ptr<Family>> Create(Codec codec, uint32_t threads) {
    auto made = std::make_shared<Family>();
    QUIRE_ASSIGN(made->attention_, MakeCpuAttention());
    QUIRE_ASSIGN(made->sequence_,
                 DecodedSequence::Create(codec, kSharedTokens + kMany * kPrivateTokens, kLayers));
    made->executor_ = MakePinnedPool(threads);
    const uint32_t shared = kSharedTokens / made->sequence_->block_tokens();
    const uint32_t own = kPrivateTokens / made->sequence_->block_tokens();
    const size_t values = made->queries_.size() / kMany;
    for (uint32_t i = 0; i < kMany; ++i) {
      for (uint32_t slot = 0; slot < shared; ++slot) made->slots_.push_back(slot);
      for (uint32_t slot = 0; slot < own; ++slot) made->slots_.push_back(shared + i * own + slot);
      made->indptr_.push_back(made->slots_.size());
      made->tasks_.push_back({.queries = made->queries_.data() + i * values,
                              .out = made->out_.data() + i * values,
                              .rows = 1,
                              .first_position = kSharedTokens + kPrivateTokens - 1,
                              .sequence = i});
    }
    made->tables_ = made->sequence_->Tables(made->indptr_, made->slots_.data());
    return made;
  }

  /// Seconds for one row of each of the first `count` sequences at one layer, in calls of `at_once`
  /// sequences.
  double Step(uint32_t layer, uint32_t count, uint32_t at_once, const Heads& heads = {}) {
    const AttentionShape shape = sequence_->Shape(layer % kLayers, kGroup, heads);
    return SecondsOf(*executor_, [&] {
      for (uint32_t i = 0; i < count; i += at_once) {
        Must(attention_->Attend(shape, tables_, std::span(tasks_).subspan(i, at_once), *executor_));
      }
    });
  }

  Executor& executor() { return *executor_; }

 private:
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<DecodedSequence> sequence_;
  std::unique_ptr<Executor> executor_;
  const std::vector<float> queries_ = Queries(kMany, kGroup);
  std::vector<float> out_ = std::vector<float>(queries_.size());
  std::vector<uint64_t> indptr_{0};  // of the sequences' blocks
  std::vector<uint32_t> slots_;
  BlockTables tables_;
  std::vector<AttentionTask> tasks_;
};

/// The floor works at the layer half a round away, which has left the cache.
constexpr uint32_t kAway = kLayers / 2;

Result<Subject> BesideCalls(Codec codec, uint32_t threads, uint32_t count, uint32_t floor_count) {
  QUIRE_ASSIGN(const auto family, Family::Create(codec, threads));
  return Timed{
      .unit = "ms/step",
      .less_is_better = true,
      .amount = 1e3 / kLayers * kModelLayers,
      .places = kLayers,
      .slice = fmt::format("{} rows over {} tokens, 1 layer", count, kSharedTokens),
      .work = [=](uint32_t layer) { return family->Step(layer, count, count); },
      .floor = [=](uint32_t layer) { return family->Step(layer + kAway, floor_count, 1); }};
}

/// Head by head.
Result<Subject> BesideFma(Codec codec, uint32_t threads) {
  QUIRE_ASSIGN(const auto family, Family::Create(codec, threads));
  // Two products of kHeadDim multiply-adds for every query vector and shared token.
  const double gigaflops_per_head =
      double{kMany} * kSharedTokens * kGroup * kHeadDim * 2 * 2 * 1e-9;
  return Timed{
      .unit = "GFLOP/s",
      .amount = gigaflops_per_head * kKvHeads * kLayers,
      .places = kKvHeads * kLayers,
      .slice = fmt::format("{} rows over {} tokens, 1 layer, 1 KV head", kMany, kSharedTokens),
      .work =
          [=](uint32_t place) {
            return family->Step(place / kKvHeads, kMany, kMany,
                                {.first = place % kKvHeads, .count = 1});
          },
      .floor =
          [=](uint32_t) { return gigaflops_per_head * SecondsPerGigaflop(family->executor()); }};
}

}  // namespace

std::vector<Case> CascadeCases(const Options& options) {
  std::vector<Case> cases;
  for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kNf4, Codec::kQ25}) {
    for (const uint32_t threads : options.threads) {
      const auto name = [&](const char* what) {
        return fmt::format("cascade/{}/{}+{}/{}/t{}", CodecName(codec), kSharedTokens,
                           kPrivateTokens, what, threads);
      };
      cases.push_back({.name = name("4_beside_1"),
                       .prepare = [=] { return BesideCalls(codec, threads, kFew, 1); }});
      cases.push_back({.name = name("32_beside_32_calls"),
                       .prepare = [=] { return BesideCalls(codec, threads, kMany, kMany); }});
      cases.push_back(
          {.name = name("32_beside_fma"), .prepare = [=] { return BesideFma(codec, threads); }});
    }
  }
  return cases;
}

}  // namespace quire::bench
