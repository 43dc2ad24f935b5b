// Contexts that memory does not hold: attention over all layers of Qwen3-0.6B, of which the store
// has all but the last tokens, beside the same with all of it in memory and beside fio reading as
// many bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/context.h"
#include "bench/fio.h"
#include "bench/must.h"
#include "bench/quiet.h"
#include "bench/sequence.h"
#include "bench/shapes.h"
#include "model/forward.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "quire/env.h"
#include "quire/sequence.h"

namespace quire::bench {
namespace {

constexpr uint32_t kQueryHeads = kContextKvHeads * kGroup;
// Each layer of a split is one request of the disk whatever the length of blocks.
constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kStepTokens = kSplitTokens;
constexpr uint32_t kSplitBlocks = kSplitTokens / kBlockTokens;
constexpr uint64_t kTokensPerResident = 32;  // of the context

struct StreamCase {
  Codec codec = Codec::kF16;
  uint64_t tokens = 0;
  uint32_t rows = 1;  // of a query
  uint32_t threads = 1;
};

NumericProfile ProfileOf(Codec codec) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kF16, kBlockTokens);
  for (CodecRule& rule : profile.codecs) rule.codec = codec;
  return profile;
}

/// A context whose K and V are appended, and attention over all of its layers.
class Attended {
 public:
  Attended(const StreamCase& of, DiskStore* store, uint64_t hot_bytes, uint64_t resident_tokens)
      : of_(of),
        cache_(Must(Cache::Create(
            {.geometry = Geometry::Uniform(kContextLayers, kContextKvHeads, kContextDim),
             .profile = ProfileOf(of.codec),
             .hot_bytes = hot_bytes,
             .store = store}))),
        rows_(kStepTokens * kContextKvHeads * kContextDim),
        queries_(Queries(of.rows, kGroup)),
        out_(queries_.size()) {
    std::vector<TokenId> tokens(of.tokens);
    Prng prng(1);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(kContextVocab));
    sequence_ = Must(cache_->Open(Must(cache_->Acquire({.identity = &identity_, .tokens = tokens})),
                                  {.reserve_tokens = of.tokens + of.rows,
                                   .step_tokens = kStepTokens,
                                   .resident_tokens = resident_tokens,
                                   .query_heads = resident_tokens == 0 ? 0 : kQueryHeads}));
    for (uint64_t done = 0; done < of.tokens; done += kStepTokens) {
      for (uint16_t& value : rows_) value = static_cast<uint16_t>(0x3000 + prng.NextBelow(0x800));
      for (uint32_t layer = 0; layer < kContextLayers; ++layer) Append(layer, kStepTokens);
      Must(sequence_->Commit(std::span(tokens).subspan(done, kStepTokens)));
    }
  }

  /// Seconds of one query behind the context, in all layers.
  double Attend(AttentionBackend& attention, Executor& executor) {
    const double begin_s = WallSeconds();
    StreamedContext* const streamed = sequence_->streamed();
    for (uint32_t layer = 0; layer < kContextLayers; ++layer) {
      Append(layer, of_.rows);
      const LayerBlocks blocks = sequence_->Blocks(layer);
      const AttentionShape shape =
          model::AttentionShapeOf(LargeShape(kContextLayers), layer, blocks);
      AttentionTask task = {.queries = queries_.data(),
                            .out = out_.data(),
                            .rows = of_.rows,
                            .first_position = of_.tokens};
      Must(AttendStreamed(attention, layer, shape, blocks.tables, {&task, 1}, {&streamed, 1},
                          executor));
    }
    const double seconds = WallSeconds() - begin_s;
    Must(sequence_->Rollback(of_.tokens));
    return seconds;
  }
  std::span<const float> out() const { return out_; }
  uint64_t streamed_tokens() const { return sequence_->streamed()->tokens(); }
  uint64_t block_bytes() const { return cache_->block_bytes(); }
  uint64_t hot_bytes_used() const { return cache_->stats().hot_bytes_used; }

 private:
  void Append(uint32_t layer, uint32_t count) {
    const RowsView view = {.data = rows_.data(),
                           .dtype = Codec::kF16,
                           .token_stride = int64_t{kContextKvHeads} * kContextDim,
                           .head_stride = kContextDim};
    Must(sequence_->Append(layer, {.key = view, .value = view, .tokens = count}));
  }

  const StreamCase of_;
  const Identity identity_{.weights = {1}, .domain = {.name = "bench"}};
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<uint16_t> rows_;
  std::vector<float> queries_;
  std::vector<float> out_;
};

// Of the context in f16, whatever the codec, and some for the lists.
uint64_t AtMostBytes(uint64_t tokens) {
  return tokens * kContextLayers * kContextKvHeads * kContextDim * 2 * sizeof(uint16_t) / 8 * 9 +
         (uint64_t{64} << 20);
}

struct Both {
  explicit Both(const StreamCase& of) : tokens(of.tokens), executor(MakePinnedPool(of.threads)) {
    store = Must(DiskStore::Open({.directory = directory / "store",
                                  .bytes_cap = 2 * AtMostBytes(of.tokens),
                                  .scrub_bytes_per_s = 0}));
    streamed = std::make_unique<Attended>(of, store.get(), AtMostBytes(of.tokens) / 4,
                                          RoundUp(of.tokens / kTokensPerResident, kSplitTokens));
    whole = std::make_unique<Attended>(of, nullptr, AtMostBytes(of.tokens), 0);
    streamed->Attend(*attention, *executor);  // reads the headers
    whole->Attend(*attention, *executor);
    QUIRE_CHECK(
        std::memcmp(streamed->out().data(), whole->out().data(), whole->out().size_bytes()) == 0);
  }

  /// The bytes of the context that only the store has.
  uint64_t front_bytes() const {
    return streamed->streamed_tokens() / kBlockTokens * streamed->block_bytes();
  }
  double Stream() {
    const DiskStoreStats before = store->stats();
    const double seconds = streamed->Attend(*attention, *executor);
    const DiskStoreStats after = store->stats();
    ++queries;
    requests += after.read_requests - before.read_requests;
    bytes += after.bytes_read - before.bytes_read;
    return seconds;
  }
  std::string Note(const std::string& floor) const {
    const double n = std::max<double>(static_cast<double>(queries), 1);
    const double sections =
        static_cast<double>(streamed->streamed_tokens() / kSplitTokens * kContextLayers);
    return fmt::format(
        "{}; {:.0f} requests a query, {:.3f} of splits x layers; {:.3f} of the front's {:.0f} MB; "
        "{} of {} tokens streamed, {:.0f} MB in memory",
        floor, static_cast<double>(requests) / n, static_cast<double>(requests) / n / sections,
        static_cast<double>(bytes) / n / static_cast<double>(front_bytes()),
        static_cast<double>(front_bytes()) * 1e-6, streamed->streamed_tokens(), tokens,
        static_cast<double>(streamed->hot_bytes_used()) * 1e-6);
  }

  const uint64_t tokens;
  const Directory directory;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<AttentionBackend> attention = Must(MakeCpuAttention());
  std::unique_ptr<DiskStore> store;
  std::unique_ptr<Attended> streamed;
  std::unique_ptr<Attended> whole;
  uint64_t queries = 0;  // that were measured
  uint64_t requests = 0;
  uint64_t bytes = 0;
};

// The floor is the longer of attending in memory and reading as many bytes.
Result<Subject> Query(const StreamCase& of) {
  auto both = std::make_shared<Both>(of);
  FioJob job = {.file = both->directory / "fio",
                .writes = true,
                .bytes = RoundUp(both->front_bytes(), uint64_t{1} << 20)};
  QUIRE_TRY(FioSeconds(job));  // makes the file
  job.writes = false;
  job.request_bytes = std::min<uint64_t>(
      RoundUp(both->streamed->block_bytes() * kSplitBlocks / kContextLayers, uint64_t{4096}),
      uint64_t{1} << 20);
  QUIRE_ASSIGN(job.depth, BestFioDepth(job));
  struct Slower {
    uint64_t fio = 0;
    uint64_t memory = 0;
  };
  auto slower = std::make_shared<Slower>();
  return Timed{.unit = "ms",
               .less_is_better = true,
               .amount = 1e3,
               .slice = fmt::format("attention of {} rows over {} tokens, {} layers", of.rows,
                                    of.tokens, kContextLayers),
               .work = [both](uint32_t) { return both->Stream(); },
               .floor =
                   [both, job, slower](uint32_t) {
                     const double memory_s = both->whole->Attend(*both->attention, *both->executor);
                     const double fio_s = Must(FioSeconds(job));
                     ++(fio_s > memory_s ? slower->fio : slower->memory);
                     return std::max(memory_s, fio_s);
                   },
               .note =
                   [both, job, slower] {
                     return both->Note(fmt::format(
                         "the floor is the longer of fio reading as much (requests of {} KiB, "
                         "depth {}; {} times) and of attention in memory ({} times)",
                         job.request_bytes >> 10, job.depth, slower->fio, slower->memory));
                   }};
}

}  // namespace

std::vector<Case> StreamCases(const Options& options) {
  std::vector<Case> cases;
  for (const auto& [kind, rows] : {std::pair("decode", 1u), {"prefill", 64u}}) {
    for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kInt4}) {
      for (const uint64_t tokens : {uint64_t{32} << 10, uint64_t{128} << 10}) {
        if (rows > 1 && tokens > (32 << 10)) continue;  // minutes for a chunk
        for (const uint32_t threads : options.threads) {
          const StreamCase of = {
              .codec = codec, .tokens = tokens, .rows = rows, .threads = threads};
          cases.push_back(
              {.name = fmt::format("{}/{}/{}/t{}", kind, CodecName(codec), tokens, threads),
               .prepare = [of] { return Query(of); }});
        }
      }
    }
  }
  for (Case& each : StreamBesideCases(options)) cases.push_back(std::move(each));
  return cases;
}

}  // namespace quire::bench
