// Attention beside its floors: decode against a plain streaming read of as many bytes, prefill
// against multiply-adds in registers, and so is decode of a context that stays in cache.
// Shape: Qwen3-0.6B, 16 query heads on 8 KV heads, head_dim 128; "g4" has 4 query heads to a KV
// head instead of 2.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/bits.h"
#include "bench/bench.h"
#include "bench/pairs.h"
#include "bench/sequence.h"
#include "env/machine.h"
#include "quire/attention.h"

namespace quire::bench {
namespace {

/// K and V of one pass: several times the last-level cache, so that no layer finds the one before
/// it; no more than the layers that the model has.
constexpr uint64_t kBytesPerPass = uint64_t{512} << 20;
constexpr uint64_t kCachesPerPass = 4;
constexpr uint32_t kLayersMin = 4;

/// One decoded token, in ms for all layers of the model; the floor is the roofline's time for as
/// many bytes.
Row DecodeRow(const Options& options, const std::string& name, const Sequence& sequence,
              uint32_t group, uint32_t threads, AttentionBackend* attention, Roofline* roofline) {
  const std::vector<float> queries = Queries(1, group);
  std::vector<float> out(queries.size());
  const auto executor = MakeThreadPool(threads);
  const auto pass = [&] {
    for (uint32_t layer = 0; layer < sequence.layers(); ++layer) {
      const AttentionTask task = sequence.Task(1, queries.data(), out.data());
      attention->Attend(sequence.Shape(layer, group), {&task, 1}, *executor);
    }
  };
  pass();  // scratch and page tables
  const double gigabytes_per_token =
      static_cast<double>(sequence.bytes()) / sequence.layers() * kModelLayers * 1e-9;
  return MeasurePairs(
      options,
      {.name = fmt::format("{}/t{}", name, threads),
       .unit = "ms/token",
       .less_is_better = true,
       .work =
           [&] {
             const double begin_s = NowSeconds();
             pass();
             return (NowSeconds() - begin_s) * 1e3 / sequence.layers() * kModelLayers;
           },
       .floor = [&] { return gigabytes_per_token / roofline->ReadGbPerSecond(threads) * 1e3; }});
}

Result<void> Decode(const Options& options, Codec codec, uint32_t tokens, uint32_t group,
                    AttentionBackend* attention, std::vector<Row>* rows) {
  const std::string name = fmt::format("decode/{}/{}{}", CodecName(codec), tokens,
                                       group == kGroup ? "" : fmt::format("/g{}", group));
  if (!IsWanted(options, name)) return {};
  const auto bytes_per_layer = static_cast<uint64_t>(double{kKvHeads} * tokens * kHeadDim * 2 *
                                                     CodecBitsPerValue(codec) / 8);
  const uint64_t bytes = std::max(kBytesPerPass, kCachesPerPass * LastLevelCacheBytes());
  const auto layers = static_cast<uint32_t>(
      std::clamp<uint64_t>(DivUp(bytes, bytes_per_layer), kLayersMin, kModelLayers));
  QUIRE_ASSIGN(const auto sequence, Sequence::Create(codec, tokens, layers));
  Roofline roofline(sequence->bytes());
  for (const uint32_t threads : options.threads) {
    rows->push_back(DecodeRow(options, name, *sequence, group, threads, attention, &roofline));
  }
  return {};
}

/// Decode of one layer of a context that stays in the last-level cache, over and over: what
/// kernels cost when memory does not.
Result<void> CachedDecode(const Options& options, Codec codec, AttentionBackend* attention,
                          std::vector<Row>* rows) {
  constexpr uint32_t kTokens = kSplitTokens;
  constexpr uint32_t kPasses = 400;
  const std::string name = fmt::format("cached/{}/{}/t1", CodecName(codec), kTokens);
  if (!IsWanted(options, name)) return {};
  QUIRE_ASSIGN(const auto sequence, Sequence::Create(codec, kTokens, 1));
  const std::vector<float> queries = Queries(1, kGroup);
  std::vector<float> out(queries.size());
  const AttentionShape shape = sequence->Shape(0, kGroup);
  const AttentionTask task = sequence->Task(1, queries.data(), out.data());
  const auto executor = MakeThreadPool(1);
  const double gigaflops = 1e-9 * kPasses * kTokens * kKvHeads * kGroup * kHeadDim * 2 * 2;
  rows->push_back(MeasurePairs(options, {.name = name,
                                         .unit = "GFLOP/s",
                                         .work =
                                             [&] {
                                               const double begin_s = NowSeconds();
                                               for (uint32_t pass = 0; pass < kPasses; ++pass) {
                                                 attention->Attend(shape, {&task, 1}, *executor);
                                               }
                                               return gigaflops / (NowSeconds() - begin_s);
                                             },
                                         .floor = [&] { return FmaPeakGflops(1); }}));
  return {};
}

/// One chunk at the end of a context, one layer, beside multiply-adds in registers.
Result<void> Prefill(const Options& options, Codec codec, uint32_t chunk, uint32_t tokens,
                     AttentionBackend* attention, std::vector<Row>* rows) {
  const std::string name = fmt::format("prefill/{}/{}/chunk{}", CodecName(codec), tokens, chunk);
  if (!IsWanted(options, name)) return {};
  QUIRE_ASSIGN(const auto sequence, Sequence::Create(codec, tokens, 1));
  const std::vector<float> queries = Queries(chunk, kGroup);
  std::vector<float> out(queries.size());
  const AttentionShape shape = sequence->Shape(0, kGroup);
  const AttentionTask task = sequence->Task(chunk, queries.data(), out.data());
  // Row r sees tokens - chunk + r + 1 tokens; two products of kHeadDim multiply-adds each.
  const double tokens_seen = chunk * (tokens - chunk + 0.5 * (chunk + 1));
  const double gigaflops = tokens_seen * kKvHeads * kGroup * kHeadDim * 2 * 2 * 1e-9;
  for (const uint32_t threads : options.threads) {
    const auto executor = MakeThreadPool(threads);
    attention->Attend(shape, {&task, 1}, *executor);
    rows->push_back(MeasurePairs(options, {.name = fmt::format("{}/t{}", name, threads),
                                           .unit = "GFLOP/s",
                                           .work =
                                               [&] {
                                                 const double begin_s = NowSeconds();
                                                 attention->Attend(shape, {&task, 1}, *executor);
                                                 return gigaflops / (NowSeconds() - begin_s);
                                               },
                                           .floor = [&] { return FmaPeakGflops(threads); }}));
  }
  return {};
}

}  // namespace

Result<std::vector<Row>> Attention(const Options& options) {
  QUIRE_ASSIGN(const auto attention, MakeCpuAttention());
  struct Case {
    Codec codec;
    uint32_t tokens = 32'768;
    uint32_t group = kGroup;
  };
  std::vector<Row> rows;
  for (const Case& c :
       {Case{Codec::kF16, 4096}, Case{Codec::kF16, 16'384}, Case{Codec::kF16}, Case{Codec::kBf16},
        Case{Codec::kF32, 16'384}, Case{Codec::kFp8E4m3}, Case{Codec::kFp8E5m2}, Case{Codec::kInt8},
        Case{Codec::kInt8, 32'768, 4}, Case{Codec::kInt8, 32'768, 8}, Case{Codec::kInt4},
        Case{Codec::kNf4}, Case{Codec::kNf4, 32'768, 4}, Case{Codec::kNf4, 32'768, 8},
        Case{Codec::kFp4}, Case{Codec::kQ25}}) {
    QUIRE_TRY(Decode(options, c.codec, c.tokens, c.group, attention.get(), &rows));
  }
  for (const Codec codec : kCodecs) {
    QUIRE_TRY(CachedDecode(options, codec, attention.get(), &rows));
  }
  for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kNf4}) {
    QUIRE_TRY(Prefill(options, codec, 512, 8192, attention.get(), &rows));
  }
  return rows;
}

}  // namespace quire::bench
