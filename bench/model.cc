// The whole model beside its floors: a prefill chunk against multiply-adds in registers, a decoded
// token at depth 0 against a plain streaming read of all weights. Layers of Qwen3-0.6B with random
// bf16 weights and a small vocabulary: one layer for chunks, for tokens as many as leave the
// last-level cache behind. What a step costs beside its arithmetic: a token of each of some short
// contexts, of a narrow model with as many layers, against reading weights, K and V. What sealing
// costs: a prefill chunk into a cache that encodes beside the same into one that does not, of this
// layer and of a model as small as the bundled one. What adapters cost: steps of sequences of two
// adapters and of the base model beside the same steps of the base model alone. What the classes
// dot16 save: prompts and decoded tokens of each that the processor has beside the same in fma32.
#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "bench/bench.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "bench/roofline.h"
#include "bench/shapes.h"
#include "env/machine.h"
#include "model/random_model.h"
#include "quire/attention.h"
#include "quire/cache.h"

namespace quire::bench {
namespace {

constexpr uint32_t kChunkTokens = 512;
constexpr uint32_t kDecodeTokens = 8;  // of a round
constexpr uint32_t kLongTokens = 4096;
constexpr uint64_t kCachesPerPass = 4;  // weights, in last-level caches, at least
constexpr uint32_t kLayersMin = 4;
constexpr uint32_t kLayersMax = 28;  // the model's own number
constexpr uint64_t kHotBytes = 1 << 29;
constexpr uint32_t kAdapterRank = 16;
constexpr uint32_t kShortTokens = kChunkTokens - kDecodeTokens;  // before the tokens of a round

uint32_t LayersBeyondCache() {
  const model::ModelConfig config = LargeShape(1);
  const uint64_t layer_bytes =
      2 * uint64_t{config.hidden} *
      (2 * config.query_dim() + 2 * config.kv_dim() + 3 * config.intermediate);
  return static_cast<uint32_t>(std::clamp<uint64_t>(
      DivUp(kCachesPerPass * LastLevelCacheBytes(), layer_bytes), kLayersMin, kLayersMax));
}

Result<std::shared_ptr<model::Model>> RandomModel(
    const model::ModelConfig& config, model::Arithmetic arithmetic = model::Arithmetic::kFma32) {
  QUIRE_ASSIGN(std::unique_ptr<model::Model> made,
               model::Model::Create(config, model::RandomTensors(config, ComputeType::kBf16, 1),
                                    {.arithmetic = arithmetic}));
  return std::shared_ptr<model::Model>(std::move(made));
}

// A model, a cache of its shape and sequences that share nothing; a step advances all of them.
class Runner {
 public:
  static Result<std::shared_ptr<Runner>> Create(std::shared_ptr<model::Model> model, Codec codec,
                                                uint32_t threads, uint32_t sequences = 1,
                                                uint32_t prompt_tokens = kChunkTokens) {
    auto runner = std::shared_ptr<Runner>(new Runner());
    const model::ModelConfig config = model->config();
    runner->model_ = std::move(model);
    QUIRE_ASSIGN(runner->attention_, MakeCpuAttention());
    CacheOptions options;
    options.geometry = model::GeometryOf(config);
    options.profile = NumericProfile::Uniform(codec);
    options.profile.open_dtype = Codec::kBf16;
    options.profile.arithmetic = model::ArithmeticName(runner->model_->arithmetic());
    options.hot_bytes = kHotBytes;
    QUIRE_ASSIGN(runner->cache_, Cache::Create(std::move(options)));
    for (uint32_t i = 0; i < prompt_tokens; ++i) {
      runner->prompt_.push_back(static_cast<TokenId>(i * 7919 % config.vocab));
    }
    const Identity identity{.weights = runner->model_->fingerprint()};
    for (uint32_t i = 0; i < sequences; ++i) {
      QUIRE_ASSIGN(auto plan,
                   runner->cache_->Acquire(
                       {.identity = &identity, .tokens = runner->prompt_, .reuse = false}));
      QUIRE_ASSIGN(auto sequence, runner->cache_->Open(std::move(plan), {.publish = false}));
      runner->sequences_.push_back(std::move(sequence));
    }
    runner->logits_.resize(config.vocab);
    runner->executor_ = MakePinnedPool(threads);
    return runner;
  }

  const model::Model& model() const { return *model_; }

  // Its sequences have these in turn; null: the base model.
  void SetAdapters(std::vector<std::shared_ptr<const model::Adapter>> adapters) {
    adapters_ = std::move(adapters);
  }

  // Multiply-adds of the layers' matrix products for one token, twice; attention is not counted.
  double gigaflops_per_token() const {
    const model::ModelConfig& config = model_->config();
    const uint64_t head_bytes = uint64_t{config.vocab} * config.hidden * 2;
    return static_cast<double>(model_->weight_bytes() - head_bytes) * 1e-9;  // 2 bytes, 2 flops
  }

  Executor& executor() { return *executor_; }

  // Seconds for the prompt in chunks from position 0, without logits.
  double Prefill() {
    for (const auto& sequence : sequences_) sequence->Reset();
    double seconds = 0;
    for (size_t at = 0; at < prompt_.size(); at += kChunkTokens) {
      seconds += Step(std::span(prompt_).subspan(at, kChunkTokens), nullptr);
    }
    return seconds;
  }

  // Seconds for token `at` of the first few after `depth` tokens, with logits; they come in order.
  double Decode(uint32_t at, uint32_t depth = 0) {
    if (at == 0 && sequences_.front()->length() < depth) {
      Step(std::span(prompt_).first(depth), nullptr);
    } else if (at == 0) {
      for (const auto& sequence : sequences_) {
        QUIRE_CHECK(sequence->Rollback(depth).has_value());
      }
    }
    return Step(std::span(prompt_).subspan(depth + at, 1), logits_.data());
  }

 private:
  Runner() = default;

  // The logits are those of the first sequence.
  double Step(std::span<const TokenId> tokens, float* logits) {
    std::vector<model::StepItem> items;
    for (const auto& sequence : sequences_) {
      const size_t at = items.size();
      items.push_back(
          {.sequence = sequence.get(),
           .tokens = tokens,
           .logits = items.empty() ? logits : nullptr,
           .adapter = adapters_.empty() ? nullptr : adapters_[at % adapters_.size()].get()});
    }
    return SecondsOf(*executor_, [&] {
      const Result<void> done = model_->Step(items, *attention_, *executor_);
      QUIRE_CHECK_MSG(done.has_value(), done.error().message);
    });
  }

  std::shared_ptr<model::Model> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<Cache> cache_;
  std::vector<std::shared_ptr<const model::Adapter>> adapters_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unique_ptr<Executor> executor_;
  std::vector<TokenId> prompt_;
  std::vector<float> logits_;
};

Result<Subject> PrefillBesideFma(uint32_t tokens, uint32_t threads) {
  QUIRE_ASSIGN(auto model, RandomModel(LargeShape(1)));
  QUIRE_ASSIGN(const auto runner,
               Runner::Create(std::move(model), Codec::kBf16, threads, 1, tokens));
  const double gigaflops = runner->gigaflops_per_token() * tokens;  // of products alone
  return Timed{
      .unit = "GFLOP/s",
      .amount = gigaflops,
      .slice = fmt::format("{} tokens in chunks of {}, 1 layer", tokens, kChunkTokens),
      .work = [=](uint32_t) { return runner->Prefill(); },
      .floor = [=](uint32_t) { return gigaflops * SecondsPerGigaflop(runner->executor()); }};
}

Result<Subject> DecodeBesideRead(uint32_t threads) {
  const uint32_t layers = LayersBeyondCache();
  QUIRE_ASSIGN(auto model, RandomModel(LargeShape(layers)));
  const uint64_t bytes = model->weight_bytes();
  QUIRE_ASSIGN(const auto runner, Runner::Create(std::move(model), Codec::kBf16, threads));
  const auto stream = std::make_shared<Stream>(bytes);
  return Timed{.unit = "GB/s",
               .amount = static_cast<double>(bytes) * kDecodeTokens * 1e-9,
               .places = kDecodeTokens,
               .slice = fmt::format("1 token, {} layers", layers),
               .work = [=](uint32_t token) { return runner->Decode(token); },
               .floor = [=](uint32_t) { return ReadSeconds(stream->runs(), runner->executor()); }};
}

// Tokens after short contexts of a narrow model, beside reading its weights, K and V once.
Result<Subject> ShortContexts(uint32_t sequences, uint32_t threads) {
  model::ModelConfig config = TinyShape();
  config.layers = kLayersMax;
  QUIRE_ASSIGN(auto model, RandomModel(config));
  const uint64_t kv_bytes = uint64_t{2} * config.layers * config.kv_dim() * sizeof(uint16_t);
  const uint64_t bytes = model->weight_bytes() + sequences * kChunkTokens * kv_bytes;
  QUIRE_ASSIGN(const auto runner,
               Runner::Create(std::move(model), Codec::kBf16, threads, sequences));
  const auto stream = std::make_shared<Stream>(bytes);
  return Timed{.unit = "us",
               .less_is_better = true,
               .amount = 1e6 / kDecodeTokens,
               .places = kDecodeTokens,
               .slice = fmt::format("1 token of {} sequences, {} layers", sequences, config.layers),
               .work = [=](uint32_t token) { return runner->Decode(token, kShortTokens); },
               .floor = [=](uint32_t) { return ReadSeconds(stream->runs(), runner->executor()); }};
}

// Prefill into a cache that encodes, beside one in bf16.
Result<Subject> Sealing(Codec codec, const model::ModelConfig& config, uint32_t threads) {
  QUIRE_ASSIGN(const auto model, RandomModel(config));
  QUIRE_ASSIGN(const auto encoding, Runner::Create(model, codec, threads));
  QUIRE_ASSIGN(const auto plain, Runner::Create(model, Codec::kBf16, threads));
  return Timed{.unit = "ms",
               .less_is_better = true,
               .amount = 1e3,
               .slice = fmt::format("{} tokens, {} layers", kChunkTokens, config.layers),
               .work = [=](uint32_t) { return encoding->Prefill(); },
               .floor = [=](uint32_t) { return plain->Prefill(); }};
}

// Steps of a batch, a third of it of each of two adapters, beside the same steps of the base model.
Result<Subject> Adapters(bool prefill, uint32_t sequences, uint32_t threads) {
  const model::ModelConfig config = LargeShape(prefill ? kLayersMin : kLayersMax);
  QUIRE_ASSIGN(const auto model, RandomModel(config));
  QUIRE_ASSIGN(const auto mixed, Runner::Create(model, Codec::kBf16, threads, sequences));
  QUIRE_ASSIGN(const auto base, Runner::Create(model, Codec::kBf16, threads, sequences));
  const auto adapter = [&](uint64_t seed) -> std::shared_ptr<const model::Adapter> {
    return model::RandomAdapter(config, kAdapterRank, ComputeType::kBf16, seed);
  };
  mixed->SetAdapters({nullptr, adapter(1), adapter(2)});
  const uint32_t tokens = prefill ? kChunkTokens : kDecodeTokens;
  const auto step = [=](const std::shared_ptr<Runner>& runner) {
    return std::function<double(uint32_t)>(
        [=](uint32_t at) { return prefill ? runner->Prefill() : runner->Decode(at); });
  };
  return Timed{.unit = "tokens/s",
               .amount = static_cast<double>(sequences) * tokens,
               .places = prefill ? 1 : kDecodeTokens,
               .slice = fmt::format("a step of {} sequences, {} layers, rank {}", sequences,
                                    config.layers, kAdapterRank),
               .work = step(mixed),
               .floor = step(base)};
}

// Runners of models that are alike but for their arithmetic.
struct Classes {
  std::shared_ptr<Runner> dot16;
  std::shared_ptr<Runner> fma32;

  static Result<Classes> Create(model::Arithmetic arithmetic, uint32_t layers, uint32_t threads,
                                uint32_t tokens) {
    const auto runner = [&](model::Arithmetic each) -> Result<std::shared_ptr<Runner>> {
      QUIRE_ASSIGN(auto model, RandomModel(LargeShape(layers), each));
      return Runner::Create(std::move(model), Codec::kBf16, threads, 1, tokens);
    };
    QUIRE_ASSIGN(auto dot16, runner(arithmetic));
    QUIRE_ASSIGN(auto fma32, runner(model::Arithmetic::kFma32));
    return Classes{std::move(dot16), std::move(fma32)};
  }
};

Result<Subject> PrefillBesideFma32(model::Arithmetic arithmetic, uint32_t tokens,
                                   uint32_t threads) {
  QUIRE_ASSIGN(const Classes classes, Classes::Create(arithmetic, 1, threads, tokens));
  return Timed{.unit = "ms",
               .less_is_better = true,
               .amount = 1e3,
               .slice = fmt::format("{} tokens in chunks of {}, 1 layer", tokens, kChunkTokens),
               .work = [=](uint32_t) { return classes.dot16->Prefill(); },
               .floor = [=](uint32_t) { return classes.fma32->Prefill(); }};
}

Result<Subject> DecodeBesideFma32(model::Arithmetic arithmetic, uint32_t threads) {
  const uint32_t layers = LayersBeyondCache();
  QUIRE_ASSIGN(const Classes classes, Classes::Create(arithmetic, layers, threads, kChunkTokens));
  return Timed{.unit = "ms",
               .less_is_better = true,
               .amount = 1e3 / kDecodeTokens,
               .places = kDecodeTokens,
               .slice = fmt::format("1 token, {} layers", layers),
               .work = [=](uint32_t token) { return classes.dot16->Decode(token); },
               .floor = [=](uint32_t token) { return classes.fma32->Decode(token); }};
}

std::vector<Case> ArithmeticCases(uint32_t threads) {
  std::vector<Case> cases;
  for (const model::Arithmetic arithmetic : model::kArithmeticClasses) {
    if (arithmetic == model::Arithmetic::kFma32 || !model::IsUsable(arithmetic)) continue;
    const std::string_view name = model::ArithmeticName(arithmetic);
    for (const uint32_t tokens : {kChunkTokens, kLongTokens}) {
      cases.push_back({.name = fmt::format("prefill/bf16/{}/tokens{}/t{}", name, tokens, threads),
                       .prepare = [=] { return PrefillBesideFma32(arithmetic, tokens, threads); }});
    }
    cases.push_back({.name = fmt::format("decode/bf16/{}/depth0/t{}", name, threads),
                     .prepare = [=] { return DecodeBesideFma32(arithmetic, threads); }});
  }
  return cases;
}

}  // namespace

std::vector<Case> ModelCases(const Options& options) {
  std::vector<Case> cases;
  for (const uint32_t threads : options.threads) {
    cases.push_back({.name = fmt::format("prefill/bf16/chunk{}/t{}", kChunkTokens, threads),
                     .prepare = [=] { return PrefillBesideFma(kChunkTokens, threads); }});
    cases.push_back({.name = fmt::format("prefill/bf16/tokens{}/t{}", kLongTokens, threads),
                     .prepare = [=] { return PrefillBesideFma(kLongTokens, threads); }});
    cases.push_back({.name = fmt::format("decode/bf16/depth0/t{}", threads),
                     .prepare = [=] { return DecodeBesideRead(threads); }});
    for (const uint32_t sequences : {1, 8, 32}) {
      cases.push_back(
          {.name = fmt::format("decode/bf16/short{}/b{}/t{}", kChunkTokens, sequences, threads),
           .prepare = [=] { return ShortContexts(sequences, threads); }});
    }
    for (const uint32_t sequences : {3, 6}) {
      cases.push_back(
          {.name = fmt::format("decode/bf16/adapters{}/b{}/t{}", kAdapterRank, sequences, threads),
           .prepare = [=] { return Adapters(false, sequences, threads); }});
    }
    cases.push_back({.name = fmt::format("prefill/bf16/adapters{}/chunk{}/b3/t{}", kAdapterRank,
                                         kChunkTokens, threads),
                     .prepare = [=] { return Adapters(true, 3, threads); }});
    for (Case& each : ArithmeticCases(threads)) cases.push_back(std::move(each));
    for (const char* const shape : {"tiny", "qwen3-0.6b"}) {
      const model::ModelConfig config = shape == std::string("tiny") ? TinyShape() : LargeShape(1);
      for (const Codec codec : kCodecs) {
        if (IsIdentity(codec)) continue;
        cases.push_back({.name = fmt::format("prefill/{}/{}/chunk{}/t{}", CodecName(codec), shape,
                                             kChunkTokens, threads),
                         .prepare = [=] { return Sealing(codec, config, threads); }});
      }
    }
  }
  for (Case& each : HostOfStepCases()) cases.push_back(std::move(each));
  return cases;
}

}  // namespace quire::bench
