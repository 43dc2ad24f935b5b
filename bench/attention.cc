// Attention beside its floors: decode against a plain streaming read of the same bytes, prefill,
// and decode of a context that stays in cache, against multiply-adds in registers.
// "mixed" is decode of a precision ladder, half of whose context is in f16 and half encoded, beside
// decode of these halves alone.
// Shape: Qwen3-0.6B, 16 query heads on 8 KV heads, head_dim 128; "g4" and "g8" have so many query
// heads to a KV head instead of 2.
#include "quire/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "bench/bench.h"
#include "bench/must.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "bench/roofline.h"
#include "bench/sequence.h"
#include "env/machine.h"

namespace quire::bench {
namespace {

/// K and V of one round: several times the last-level cache, so that no layer finds the one before
/// it; no more than the layers that the model has.
constexpr uint64_t kBytesPerRound = uint64_t{256} << 20;
constexpr uint64_t kCachesPerRound = 4;
constexpr uint32_t kLayersMin = 2;
/// A slice of decode reads at most so much: a millisecond or two, so that it finds quiet moments.
constexpr uint64_t kBytesPerSlice = uint64_t{32} << 20;

/// What one case reads, and the kernels it reads it with.
struct Bench {
  /// The tokens are those of `pieces` sequences.
  static Result<std::shared_ptr<Bench>> Create(Codec codec, uint32_t tokens, uint32_t pieces,
                                               uint32_t layers, uint32_t threads) {
    auto made = std::make_shared<Bench>();
    QUIRE_ASSIGN(made->attention, MakeCpuAttention());
    QUIRE_ASSIGN(made->sequence, DecodedSequence::Create(codec, tokens, layers));
    made->tables = made->sequence->Pieces(pieces);
    made->executor = MakePinnedPool(threads);
    return made;
  }

  /// Seconds for one task, so often.
  double Attend(const AttentionShape& shape, const AttentionTask& task, uint32_t times = 1) {
    return SecondsOf(*executor, [&] {
      for (uint32_t i = 0; i < times; ++i) {
        Must(attention->Attend(shape, tables, {&task, 1}, *executor));
      }
    });
  }

  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<DecodedSequence> sequence;
  BlockTables tables;
  std::unique_ptr<Executor> executor;
  std::vector<float> queries;
  std::vector<float> out;
  std::vector<Runs> runs;  // by place, of the floor
};

double BytesPerLayer(Codec codec, uint32_t tokens) {
  return double{kKvHeads} * tokens * kHeadDim * 2 * CodecBitsPerValue(codec) / 8;
}

uint32_t LayersBeyondCache(double bytes_per_layer) {
  const uint64_t bytes = std::max(kBytesPerRound, kCachesPerRound * LastLevelCacheBytes());
  return static_cast<uint32_t>(std::clamp<uint64_t>(
      DivUp(bytes, static_cast<uint64_t>(bytes_per_layer)), kLayersMin, kModelLayers));
}

/// One decoded token, in ms for all layers of the model. A slice attends to some of the context at
/// one layer; the floor reads as many bytes half a round away, which have left the cache for as
/// long as those of the work.
Result<Subject> Decode(Codec codec, uint32_t tokens, uint32_t group, uint32_t threads) {
  const double bytes_per_layer = BytesPerLayer(codec, tokens);
  const uint32_t layers = LayersBeyondCache(bytes_per_layer);
  uint32_t pieces = 1;  // of a layer; a power of two, so that all have whole splits
  while (bytes_per_layer / pieces > kBytesPerSlice) pieces *= 2;
  QUIRE_ASSIGN(const auto bench, Bench::Create(codec, tokens, pieces, layers, threads));
  bench->queries = Queries(1, group);
  bench->out.resize(bench->queries.size());
  const uint32_t places = layers * pieces;
  for (uint32_t place = 0; place < places; ++place) {
    const uint32_t away = (place + places / 2) % places;
    bench->runs.push_back(bench->sequence->LayerRuns(away / pieces, away % pieces, pieces));
  }
  return Timed{
      .unit = "ms/token",
      .less_is_better = true,
      .amount = 1e3 / layers * kModelLayers,
      .places = places,
      .slice = fmt::format("1 row over {} tokens, 1 layer", tokens / pieces),
      .work =
          [=](uint32_t place) {
            return bench->Attend(bench->sequence->Shape(place / pieces, group),
                                 bench->sequence->Task(1, bench->queries.data(), bench->out.data(),
                                                       place % pieces, pieces));
          },
      .floor = [=](uint32_t place) { return ReadSeconds(bench->runs[place], *bench->executor); }};
}

/// A context whose first half has open forms in f16, and whose second half is encoded alone.
struct MixedBench {
  static Result<std::shared_ptr<MixedBench>> Create(Codec codec, uint32_t tokens, uint32_t layers,
                                                    uint32_t threads) {
    auto made = std::make_shared<MixedBench>();
    QUIRE_ASSIGN(made->open, Bench::Create(Codec::kF16, tokens, 2, layers, threads));
    QUIRE_ASSIGN(made->sealed, Bench::Create(codec, tokens, 2, layers, threads));
    const uint64_t blocks = made->open->sequence->blocks();
    made->indptr = {0, blocks};
    for (uint32_t block = 0; block < blocks; ++block) {
      made->open_slots.push_back(block < blocks / 2 ? block : kNoSlot);
      made->sealed_slots.push_back(block);
    }
    return made;
  }

  AttentionShape Shape(uint32_t layer, uint32_t group) const {
    AttentionShape shape = sealed->sequence->Shape(layer, group);
    const AttentionShape of_open = open->sequence->Shape(layer, group);
    shape.open_key = of_open.key;
    shape.open_value = of_open.value;
    shape.open_key.rotated = shape.key.rotated;
    shape.open_value.rotated = shape.value.rotated;
    shape.open_blocks = kOpenWherePresent;
    return shape;
  }

  std::shared_ptr<Bench> open;
  std::shared_ptr<Bench> sealed;
  std::vector<uint64_t> indptr;
  std::vector<uint32_t> open_slots;
  std::vector<uint32_t> sealed_slots;
  std::vector<float> queries;
  std::vector<float> out;
};

/// One decoded token of a precision ladder, in ms for all layers of the model.
Result<Subject> MixedDecode(Codec codec, uint32_t tokens, uint32_t group, uint32_t threads) {
  const uint32_t layers = LayersBeyondCache(BytesPerLayer(codec, tokens / 2));
  QUIRE_ASSIGN(const auto bench, MixedBench::Create(codec, tokens, layers, threads));
  bench->queries = Queries(1, group);
  bench->out.resize(bench->queries.size());
  const BlockTables tables = {
      .sealed = bench->sealed->sequence->Tables(bench->indptr, bench->sealed_slots.data()).sealed,
      .open = bench->open->sequence->Tables(bench->indptr, bench->open_slots.data()).open};
  const auto half = [=](Bench& of, uint32_t layer, uint32_t piece) {
    return of.Attend(of.sequence->Shape(layer, group),
                     of.sequence->Task(1, bench->queries.data(), bench->out.data(), piece, 2));
  };
  return Timed{.unit = "ms/token",
               .less_is_better = true,
               .amount = 1e3 / layers * kModelLayers,
               .places = layers,
               .slice = fmt::format("1 row over {} tokens, 1 layer", tokens),
               .work =
                   [=](uint32_t layer) {
                     Bench& of = *bench->sealed;
                     AttentionTask task =
                         of.sequence->Task(1, bench->queries.data(), bench->out.data());
                     const AttentionShape shape = bench->Shape(layer, group);
                     return SecondsOf(*of.executor, [&] {
                       Must(of.attention->Attend(shape, tables, {&task, 1}, *of.executor));
                     });
                   },
               .floor =
                   [=](uint32_t layer) {
                     const uint32_t away = (layer + layers / 2) % layers;
                     return half(*bench->open, away, 0) + half(*bench->sealed, away, 1);
                   }};
}

/// Decode of one layer of a context that stays in the last-level cache, over and over: what
/// kernels cost when memory does not.
Result<Subject> CachedDecode(Codec codec, uint32_t tokens, uint32_t group) {
  constexpr uint32_t kTimes = 100;
  QUIRE_ASSIGN(const auto bench, Bench::Create(codec, tokens, 1, 1, 1));
  bench->queries = Queries(1, group);
  bench->out.resize(bench->queries.size());
  const double gigaflops = 1e-9 * kTimes * tokens * kKvHeads * group * kHeadDim * 2 * 2;
  return Timed{.unit = "GFLOP/s",
               .amount = gigaflops,
               .slice = fmt::format("1 row over {} tokens, 1 layer, {} times", tokens, kTimes),
               .work =
                   [=](uint32_t) {
                     return bench->Attend(
                         bench->sequence->Shape(0, group),
                         bench->sequence->Task(1, bench->queries.data(), bench->out.data()),
                         kTimes);
                   },
               .floor = [=](uint32_t) { return gigaflops * SecondsPerGigaflop(*bench->executor); }};
}

/// One chunk at the end of a context, one layer, head by head.
Result<Subject> Prefill(Codec codec, uint32_t tokens, uint32_t chunk, uint32_t threads) {
  QUIRE_ASSIGN(const auto bench, Bench::Create(codec, tokens, 1, 1, threads));
  bench->queries = Queries(chunk, kGroup);
  bench->out.resize(bench->queries.size());
  // Row r sees tokens - chunk + r + 1 tokens; two products of kHeadDim multiply-adds each.
  const double tokens_seen = chunk * (tokens - chunk + 0.5 * (chunk + 1));
  const double gigaflops_per_head = tokens_seen * kGroup * kHeadDim * 2 * 2 * 1e-9;
  return Timed{
      .unit = "GFLOP/s",
      .amount = gigaflops_per_head * kKvHeads,
      .places = kKvHeads,
      .slice = fmt::format("{} rows at the end of {} tokens, 1 KV head", chunk, tokens),
      .work =
          [=](uint32_t head) {
            return bench->Attend(
                bench->sequence->Shape(0, kGroup, {.first = head, .count = 1}),
                bench->sequence->Task(chunk, bench->queries.data(), bench->out.data()));
          },
      .floor = [=](uint32_t) { return gigaflops_per_head * SecondsPerGigaflop(*bench->executor); }};
}

/// Of cases with another number of query heads to a KV head than the model's.
std::string InName(uint32_t group) { return group == kGroup ? "" : fmt::format("/g{}", group); }

}  // namespace

std::vector<Case> AttentionCases(const Options& options) {
  struct Decoded {
    Codec codec;
    uint32_t tokens = 32'768;
    uint32_t group = kGroup;
  };
  std::vector<Case> cases;
  for (const Decoded& d : {Decoded{Codec::kF16, 4096},
                           Decoded{Codec::kF16, 16'384},
                           Decoded{Codec::kF16},
                           Decoded{Codec::kF16, 32'768, 4},
                           Decoded{Codec::kF16, 32'768, 8},
                           Decoded{Codec::kBf16},
                           Decoded{Codec::kF32, 16'384},
                           Decoded{Codec::kFp8E4m3},
                           Decoded{Codec::kFp8E4m3, 32'768, 4},
                           Decoded{Codec::kFp8E4m3, 32'768, 8},
                           Decoded{Codec::kFp8E5m2},
                           Decoded{Codec::kInt8, 4096},
                           Decoded{Codec::kInt8, 16'384},
                           Decoded{Codec::kInt8},
                           Decoded{Codec::kInt8, 32'768, 4},
                           Decoded{Codec::kInt8, 32'768, 8},
                           Decoded{Codec::kInt4, 4096},
                           Decoded{Codec::kInt4, 16'384},
                           Decoded{Codec::kInt4},
                           Decoded{Codec::kInt4, 32'768, 4},
                           Decoded{Codec::kInt4, 32'768, 8},
                           Decoded{Codec::kNf4},
                           Decoded{Codec::kNf4, 32'768, 4},
                           Decoded{Codec::kNf4, 32'768, 8},
                           Decoded{Codec::kFp4},
                           Decoded{Codec::kQ25}}) {
    for (const uint32_t threads : options.threads) {
      cases.push_back({.name = fmt::format("decode/{}/{}{}/t{}", CodecName(d.codec), d.tokens,
                                           InName(d.group), threads),
                       .prepare = [=] { return Decode(d.codec, d.tokens, d.group, threads); }});
    }
  }
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    for (const uint32_t threads : options.threads) {
      cases.push_back({.name = fmt::format("mixed/f16:{}/32768/t{}", CodecName(codec), threads),
                       .prepare = [=] { return MixedDecode(codec, 32'768, kGroup, threads); }});
    }
  }
  for (const uint32_t group : {kGroup, 8u}) {
    for (const Codec codec : kCodecs) {
      cases.push_back(
          {.name = fmt::format("cached/{}/{}{}/t1", CodecName(codec), kSplitTokens, InName(group)),
           .prepare = [=] { return CachedDecode(codec, kSplitTokens, group); }});
    }
  }
  constexpr uint32_t kPrefillTokens = 8192;
  constexpr uint32_t kChunk = 512;
  for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kNf4}) {
    for (const uint32_t threads : options.threads) {
      cases.push_back({.name = fmt::format("prefill/{}/{}/chunk{}/t{}", CodecName(codec),
                                           kPrefillTokens, kChunk, threads),
                       .prepare = [=] { return Prefill(codec, kPrefillTokens, kChunk, threads); }});
    }
  }
  return cases;
}

}  // namespace quire::bench
