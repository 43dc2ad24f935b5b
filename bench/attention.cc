// Attention beside its floors: decode against a plain streaming read of as many bytes, prefill
// against multiply-adds in registers. Shape: Qwen3-0.6B, 16 query heads on 8 KV heads, head_dim
// 128; "g4" has 4 query heads to a KV head instead of 2.
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
constexpr uint32_t kKvHeads = 8;
constexpr uint32_t kGroup = 2;
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
    for (uint32_t b = 0; b < blocks; ++b) {
      sequence->slots_.push_back(sequence->arena_ + b * sequence->layout_.slot_bytes(0));
    }
    sequence->Fill();
    return sequence;
  }

  ~Sequence() {
    if (arena_ != nullptr) memory_->Release(arena_, bytes_);
  }

  uint64_t bytes() const { return bytes_; }
  uint32_t layers() const { return layout_.layer_count(); }
  uint32_t tokens() const { return static_cast<uint32_t>(slots_.size()) * layout_.block_tokens(); }

  /// Every block is read sealed, a row's own too: it is one of thousands.
  AttentionShape Shape(uint32_t layer, uint32_t group) const {
    return {.query_heads = kKvHeads * group,
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

  /// Random codes and ordinary scales, drawn once and repeated: only that no value is NaN, infinite
  /// or denormal matters.
  void Fill() {
    constexpr uint64_t kPatternBytes = 1 << 17;
    const Codec codec = layout_.key(0).codec;
    std::vector<std::byte> codes(kPatternBytes);
    std::vector<std::byte> halves(kPatternBytes);
    Prng prng(1);
    for (std::byte& code : codes) code = std::byte(prng.Next64() & 0xb7);  // fp8: no NaN, no Inf
    if (IsIdentity(codec)) {
      for (uint64_t i = 0; i < kPatternBytes / codec::ValueBytes(codec); ++i) {
        codec::StoreValue(codec, prng.NextFloat(-1.0f, 1.0f), codes.data(), i);
      }
    }
    for (uint64_t i = 0; i < kPatternBytes / 2; ++i) {
      codec::StoreValue(Codec::kF16, prng.NextFloat(0.01f, 0.02f), halves.data(), i);
    }
    for (const std::byte* slot : slots_) {
      std::byte* const to = arena_ + (slot - arena_);
      Repeat(IsIdentity(codec) ? codes : halves, to, layout_.slot_bytes(0));
      if (IsIdentity(codec)) continue;
      for (uint32_t layer = 0; layer < layers(); ++layer) {
        for (const StreamLayout* stream : {&layout_.key(layer), &layout_.value(layer)}) {
          Repeat(codes, to + stream->offset_bytes, stream->heads * stream->head_stride_bytes);
        }
      }
    }
  }

  static void Repeat(const std::vector<std::byte>& pattern, std::byte* to, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += pattern.size()) {
      std::memcpy(to + at, pattern.data(), std::min<uint64_t>(pattern.size(), bytes - at));
    }
  }

  codec::SlotLayout layout_;
  std::unique_ptr<DeviceMemory> memory_;
  std::byte* arena_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<const std::byte*> slots_;  // [blocks]
};

std::vector<float> Queries(uint32_t rows, uint32_t group) {
  Prng prng(2);
  std::vector<float> queries(size_t{rows} * kKvHeads * group * kHeadDim);
  for (float& value : queries) value = prng.NextFloat(-2.0f, 2.0f);
  return queries;
}

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

bool IsWanted(const Options& options, const std::string& name) {
  return name.find(options.cases) != std::string::npos;
}

Result<void> Decode(const Options& options, Codec codec, uint32_t tokens, uint32_t group,
                    AttentionBackend* attention, std::vector<Row>* rows) {
  const std::string name = fmt::format("decode/{}/{}{}", CodecName(codec), tokens,
                                       group == kGroup ? "" : fmt::format("/g{}", group));
  if (!IsWanted(options, name)) return {};
  const auto bytes_per_layer = static_cast<uint64_t>(double{kKvHeads} * tokens * kHeadDim * 2 *
                                                     CodecBitsPerValue(codec) / 8);
  const auto layers = static_cast<uint32_t>(
      std::clamp<uint64_t>(kBytesPerPass / bytes_per_layer, kLayersMin, kModelLayers));
  QUIRE_ASSIGN(const auto sequence, Sequence::Create(codec, tokens, layers));
  Roofline roofline(sequence->bytes());
  for (const uint32_t threads : options.threads) {
    rows->push_back(DecodeRow(options, name, *sequence, group, threads, attention, &roofline));
  }
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
  for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kNf4}) {
    QUIRE_TRY(Prefill(options, codec, 512, 8192, attention.get(), &rows));
  }
  return rows;
}

}  // namespace quire::bench
