// The whole model beside its floors: a prefill chunk against multiply-adds in registers, a decoded
// token at depth 0 against a plain streaming read of all weights. Layers of Qwen3-0.6B with random
// bf16 weights and a small vocabulary; as many layers as leave the last-level cache behind. What
// sealing costs: a prefill chunk into a cache that encodes beside the same into one that does not,
// of these layers and of a model as small as the bundled one.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "bench/bench.h"
#include "bench/pairs.h"
#include "env/machine.h"
#include "model/model.h"
#include "model/random_model.h"
#include "quire/attention.h"
#include "quire/cache.h"

namespace quire::bench {
namespace {

constexpr uint32_t kChunkTokens = 512;
constexpr uint32_t kDecodeTokens = 8;   // of one measurement
constexpr uint64_t kCachesPerPass = 4;  // weights, in last-level caches, at least
constexpr uint32_t kLayersMin = 4;
constexpr uint32_t kLayersMax = 28;  // the model's own number
constexpr uint64_t kHotBytes = 1 << 28;

model::ModelConfig LargeShape() {
  model::ModelConfig config = model::SmallConfig();
  config.hidden = 1024;
  config.intermediate = 3072;
  config.query_heads = 16;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.vocab = 8192;
  config.rope.theta = 1e6;
  const uint64_t layer_bytes =
      2 * uint64_t{config.hidden} *
      (2 * config.query_dim() + 2 * config.kv_dim() + 3 * config.intermediate);
  config.layers = static_cast<uint32_t>(std::clamp<uint64_t>(
      DivUp(kCachesPerPass * LastLevelCacheBytes(), layer_bytes), kLayersMin, kLayersMax));
  return config;
}

// Of models/tiny.
model::ModelConfig TinyShape() {
  model::ModelConfig config = model::SmallConfig();
  config.hidden = 256;
  config.intermediate = 640;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.vocab = 288;
  config.layers = 4;
  return config;
}

Result<std::shared_ptr<model::Model>> RandomModel(const model::ModelConfig& config) {
  QUIRE_ASSIGN(
      std::unique_ptr<model::Model> made,
      model::Model::Create(config, model::RandomTensors(config, ComputeType::kBf16, 1), {}));
  return std::shared_ptr<model::Model>(std::move(made));
}

// A model, a cache of its shape and one sequence that nobody shares.
class Subject {
 public:
  static Result<std::unique_ptr<Subject>> Create(std::shared_ptr<model::Model> model, Codec codec) {
    auto subject = std::unique_ptr<Subject>(new Subject());
    const model::ModelConfig config = model->config();
    subject->model_ = std::move(model);
    QUIRE_ASSIGN(subject->attention_, MakeCpuAttention());
    CacheOptions options;
    options.geometry = model::GeometryOf(config);
    options.profile = NumericProfile::Uniform(codec);
    options.profile.open_dtype = Codec::kBf16;
    options.hot_bytes = kHotBytes;
    QUIRE_ASSIGN(subject->cache_, Cache::Create(std::move(options)));
    for (uint32_t i = 0; i < kChunkTokens; ++i) {
      subject->prompt_.push_back(static_cast<TokenId>(i * 7919 % config.vocab));
    }
    const Identity identity{.weights = subject->model_->fingerprint()};
    QUIRE_ASSIGN(auto plan,
                 subject->cache_->Acquire(
                     {.identity = &identity, .tokens = subject->prompt_, .reuse = false}));
    QUIRE_ASSIGN(subject->sequence_, subject->cache_->Open(std::move(plan), {.publish = false}));
    subject->logits_.resize(config.vocab);
    return subject;
  }

  const model::Model& model() const { return *model_; }

  // Multiply-adds of the layers' matrix products for one token, twice; attention is not counted.
  double gigaflops_per_token() const {
    const model::ModelConfig& config = model_->config();
    const uint64_t head_bytes = uint64_t{config.vocab} * config.hidden * 2;
    return static_cast<double>(model_->weight_bytes() - head_bytes) * 1e-9;  // 2 bytes, 2 flops
  }

  // Seconds for a chunk from position 0, without logits.
  double Prefill(Executor& executor) { return Step(prompt_, nullptr, executor); }

  // Seconds for one token of the first few, with logits.
  double Decode(Executor& executor) {
    double seconds = 0;
    for (uint32_t i = 0; i < kDecodeTokens; ++i) {
      seconds += Step(std::span(prompt_).subspan(i, 1), logits_.data(), executor);
    }
    return seconds / kDecodeTokens;
  }

  void Reset() { sequence_->Reset(); }

 private:
  Subject() = default;

  double Step(std::span<const TokenId> tokens, float* logits, Executor& executor) {
    const model::StepItem item = {.sequence = sequence_.get(), .tokens = tokens, .logits = logits};
    const auto begin = std::chrono::steady_clock::now();
    const Result<void> done = model_->Step({&item, 1}, *attention_, executor);
    QUIRE_CHECK_MSG(done.has_value(), done.error().message);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  std::shared_ptr<model::Model> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<TokenId> prompt_;
  std::vector<float> logits_;
};

// Prefill into caches that encode, beside one in bf16.
Result<void> AddSealing(const Options& options, const std::string& shape,
                        const std::shared_ptr<model::Model>& model, uint32_t threads,
                        std::vector<Row>& rows) {
  const std::unique_ptr<Executor> executor = MakeThreadPool(threads);
  QUIRE_ASSIGN(const std::unique_ptr<Subject> plain, Subject::Create(model, Codec::kBf16));
  for (const Codec codec : kCodecs) {
    const std::string name =
        fmt::format("prefill/{}/{}/chunk{}/t{}", CodecName(codec), shape, kChunkTokens, threads);
    if (IsIdentity(codec) || !IsWanted(options, name)) continue;
    QUIRE_ASSIGN(const std::unique_ptr<Subject> encoding, Subject::Create(model, codec));
    const auto prefill_ms = [&](Subject& subject) {
      subject.Reset();
      return subject.Prefill(*executor) * 1e3;
    };
    prefill_ms(*plain);  // scratch and page tables
    prefill_ms(*encoding);
    rows.push_back(MeasurePairs(options, {.name = name,
                                          .unit = "ms",
                                          .less_is_better = true,
                                          .work = [&] { return prefill_ms(*encoding); },
                                          .floor = [&] { return prefill_ms(*plain); }}));
  }
  return {};
}

}  // namespace

Result<std::vector<Row>> Model(const Options& options) {
  if (options.progress) options.progress("making random weights");
  QUIRE_ASSIGN(const std::shared_ptr<model::Model> model, RandomModel(LargeShape()));
  QUIRE_ASSIGN(const std::shared_ptr<model::Model> tiny, RandomModel(TinyShape()));
  QUIRE_ASSIGN(const std::unique_ptr<Subject> subject, Subject::Create(model, Codec::kBf16));
  const uint64_t bytes = subject->model().weight_bytes();
  Roofline roofline(bytes);
  std::vector<Row> rows;
  for (const uint32_t threads : options.threads) {
    const std::unique_ptr<Executor> executor = MakeThreadPool(threads);
    subject->Prefill(*executor);  // scratch and page tables
    const double gigaflops = subject->gigaflops_per_token() * kChunkTokens;
    AddPairs(options,
             {.name = fmt::format("prefill/bf16/chunk{}/t{}", kChunkTokens, threads),
              .unit = "GFLOP/s",
              .work =
                  [&] {
                    subject->Reset();
                    return gigaflops / subject->Prefill(*executor);
                  },
              .floor = [&] { return FmaPeakGflops(threads); }},
             rows);
    AddPairs(options,
             {.name = fmt::format("decode/bf16/depth0/t{}", threads),
              .unit = "GB/s",
              .work =
                  [&] {
                    subject->Reset();
                    return static_cast<double>(bytes) * 1e-9 / subject->Decode(*executor);
                  },
              .floor = [&] { return roofline.ReadGbPerSecond(threads); }},
             rows);
    QUIRE_TRY(AddSealing(options, "tiny", tiny, threads, rows));
    QUIRE_TRY(AddSealing(options, "qwen3-0.6b", model, threads, rows));
  }
  return rows;
}

}  // namespace quire::bench
