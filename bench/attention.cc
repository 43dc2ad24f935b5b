// Attention beside its floors: decode against a plain streaming read of as many bytes, prefill
// against multiply-adds in registers. Shape: Qwen3-0.6B, 16 query heads on 8 KV heads, head_dim
// 128.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "bench/bench.h"
#include "bench/pairs.h"
#include "codec/scalar.h"
#include "codec/slot_layout.h"
#include "quire/attention.h"

namespace quire::bench {
namespace {

constexpr uint32_t kModelLayers = 28;
constexpr uint32_t kQueryHeads = 16;
constexpr uint32_t kKvHeads = 8;
constexpr uint32_t kHeadDim = 128;
/// K and V of one pass: many times any last-level cache, so that no layer finds the one before it.
constexpr uint64_t kBytesPerPass = uint64_t{512} << 20;
constexpr uint32_t kLayersMin = 4;

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// One sequence of `layers` layers in block-major slots, every page touched.
class Sequence {
 public:
  static Result<std::unique_ptr<Sequence>> Create(Codec codec, uint32_t tokens, uint32_t layers) {
    QUIRE_ASSIGN(auto layout, codec::SlotLayout::Create(
                                  Geometry::Uniform(layers, kKvHeads, kHeadDim),
                                  NumericProfile::Uniform(codec), ArenaLayout::kBlockMajor));
    auto sequence = std::unique_ptr<Sequence>(new Sequence(std::move(layout)));
    const uint32_t blocks = tokens / sequence->layout_.block_tokens();
    sequence->bytes_ = blocks * sequence->layout_.slot_bytes(0);
    QUIRE_ASSIGN(sequence->arena_, sequence->memory_->Reserve(sequence->bytes_));
    sequence->Fill(codec);
    for (uint32_t b = 0; b < blocks; ++b) {
      sequence->slots_.push_back(sequence->arena_ + b * sequence->layout_.slot_bytes(0));
    }
    return sequence;
  }

  ~Sequence() {
    if (arena_ != nullptr) memory_->Release(arena_, bytes_);
  }

  uint64_t bytes() const { return bytes_; }
  uint32_t layers() const { return layout_.layer_count(); }
  uint32_t tokens() const { return static_cast<uint32_t>(slots_.size()) * layout_.block_tokens(); }

  AttentionShape Shape(uint32_t layer) const {
    return {.query_heads = kQueryHeads,
            .key = layout_.key(layer),
            .value = layout_.value(layer),
            .scale = static_cast<float>(1.0 / std::sqrt(double{kHeadDim}))};
  }

  /// The last `rows` positions.
  AttentionTask Task(uint32_t rows, const float* queries, float* out) const {
    return {.queries = queries,
            .out = out,
            .rows = rows,
            .first_position = tokens() - rows,
            .sealed = slots_.data(),
            .open = slots_.data()};
  }

 private:
  explicit Sequence(codec::SlotLayout layout)
      : layout_(std::move(layout)), memory_(MakeHostMemory(true)) {}

  /// Random values, drawn once and repeated: only their being ordinary numbers matters.
  void Fill(Codec codec) {
    constexpr uint64_t kPatternValues = 1 << 16;
    const uint64_t pattern_bytes = kPatternValues * codec::ValueBytes(codec);
    std::vector<std::byte> pattern(pattern_bytes);
    Prng prng(1);
    for (uint64_t i = 0; i < kPatternValues; ++i) {
      codec::StoreValue(codec, prng.NextFloat(-1.0f, 1.0f), pattern.data(), i);
    }
    for (uint64_t at = 0; at < bytes_; at += pattern_bytes) {
      std::memcpy(arena_ + at, pattern.data(), std::min(pattern_bytes, bytes_ - at));
    }
  }

  codec::SlotLayout layout_;
  std::unique_ptr<DeviceMemory> memory_;
  std::byte* arena_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<const std::byte*> slots_;  // [blocks]
};

std::vector<float> Queries(uint32_t rows) {
  Prng prng(2);
  std::vector<float> queries(size_t{rows} * kQueryHeads * kHeadDim);
  for (float& value : queries) value = prng.NextFloat(-2.0f, 2.0f);
  return queries;
}

/// One decoded token, in ms for all layers of the model; the floor is the roofline's time for as
/// many bytes.
Row DecodeRow(const Options& options, const std::string& name, const Sequence& sequence,
              uint32_t threads, AttentionBackend* attention, Roofline* roofline) {
  const std::vector<float> queries = Queries(1);
  std::vector<float> out(queries.size());
  const auto executor = MakeThreadPool(threads);
  const auto pass = [&] {
    for (uint32_t layer = 0; layer < sequence.layers(); ++layer) {
      const AttentionTask task = sequence.Task(1, queries.data(), out.data());
      attention->Attend(sequence.Shape(layer), {&task, 1}, *executor);
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

bool IsWanted(const Options& options, const std::string& name) {
  return name.find(options.cases) != std::string::npos;
}

Result<void> Decode(const Options& options, Codec codec, uint32_t tokens,
                    AttentionBackend* attention, std::vector<Row>* rows) {
  const std::string name = fmt::format("decode/{}/{}", CodecName(codec), tokens);
  if (!IsWanted(options, name)) return {};
  const uint64_t bytes_per_layer =
      uint64_t{tokens} * kKvHeads * kHeadDim * 2 * codec::ValueBytes(codec);
  const auto layers = static_cast<uint32_t>(
      std::clamp<uint64_t>(kBytesPerPass / bytes_per_layer, kLayersMin, kModelLayers));
  QUIRE_ASSIGN(const auto sequence, Sequence::Create(codec, tokens, layers));
  Roofline roofline(sequence->bytes());
  for (const uint32_t threads : options.threads) {
    rows->push_back(DecodeRow(options, name, *sequence, threads, attention, &roofline));
  }
  return {};
}

/// One chunk at the end of a context, one layer, beside multiply-adds in registers.
Result<void> Prefill(const Options& options, uint32_t chunk, uint32_t tokens,
                     AttentionBackend* attention, std::vector<Row>* rows) {
  const std::string name = fmt::format("prefill/f16/{}/chunk{}", tokens, chunk);
  if (!IsWanted(options, name)) return {};
  QUIRE_ASSIGN(const auto sequence, Sequence::Create(Codec::kF16, tokens, 1));
  const std::vector<float> queries = Queries(chunk);
  std::vector<float> out(queries.size());
  const AttentionShape shape = sequence->Shape(0);
  const AttentionTask task = sequence->Task(chunk, queries.data(), out.data());
  // Row r sees tokens - chunk + r + 1 tokens; two products of kHeadDim multiply-adds each.
  const double tokens_seen = chunk * (tokens - chunk + 0.5 * (chunk + 1));
  const double gigaflops = tokens_seen * kQueryHeads * kHeadDim * 2 * 2 * 1e-9;
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
    uint32_t tokens;
  };
  std::vector<Row> rows;
  for (const Case& c :
       {Case{Codec::kF16, 4096}, Case{Codec::kF16, 16'384}, Case{Codec::kF16, 32'768},
        Case{Codec::kBf16, 32'768}, Case{Codec::kF32, 16'384}}) {
    QUIRE_TRY(Decode(options, c.codec, c.tokens, attention.get(), &rows));
  }
  QUIRE_TRY(Prefill(options, 512, 8192, attention.get(), &rows));
  return rows;
}

}  // namespace quire::bench
