// The time per token of a request beside one whose context is larger than memory and streams, and
// beside one that computes as much from memory.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/prng.h"
#include "bench/bench.h"
#include "bench/context.h"
#include "bench/must.h"
#include "bench/quiet.h"
#include "bench/shapes.h"
#include "env/clock.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "serve/engine.h"

namespace quire::bench {
namespace {

constexpr uint32_t kLayers = 4;
constexpr uint64_t kLongTokens = 8 * 1024;
constexpr uint32_t kLongAnswer = 16 * 1024;  // longer than any measurement
constexpr uint64_t kShortTokens = 33;
constexpr uint32_t kShortAnswer = 17;
constexpr uint32_t kBesideStepTokens = 256;
constexpr uint64_t kResidentTokens = 512;
// Bytes of the long request at its end, with those of the others.
constexpr uint64_t kWholeBytes = uint64_t{1} << 30;
constexpr uint64_t kSmallBytes = uint64_t{100} << 20;

/// An engine in which a request with a long prompt generates during the whole measurement.
class Engine {
 public:
  Engine(model::Model& model, uint32_t threads, DiskStore* store, uint64_t hot_bytes)
      : executor_(MakePinnedPool(threads)),
        cache_(Must(Cache::Create({.geometry = model::GeometryOf(model.config()),
                                   .profile = NumericProfile::Uniform(Codec::kBf16, 256),
                                   .hot_bytes = hot_bytes,
                                   .store = store}))),
        engine_(Must(
            serve::Engine::Create({.model = model,
                                   .cache = *cache_,
                                   .attention = *attention_,
                                   .executor = *executor_,
                                   .clock = SystemClock()},
                                  Identity{.weights = model.fingerprint()},
                                  {.chunk_tokens_min = kBesideStepTokens,
                                   .chunk_tokens_max = kBesideStepTokens,
                                   .resident_tokens = store == nullptr ? 0 : kResidentTokens}))) {
    long_ = Must(engine_->Submit({.prompt = Tokens(kLongTokens), .max_tokens = kLongAnswer}));
    while (long_answer_ == 0) Tick();
  }

  /// Seconds from the first to the last token of a short request.
  double NeighbourSeconds() {
    const auto id = Must(engine_->Submit(
        {.prompt = Tokens(kShortTokens), .max_tokens = kShortAnswer, .reuse = false}));
    double first_s = 0;
    while (true) {
      Tick();
      while (const auto event = engine_->Next(id)) {
        if (std::holds_alternative<serve::NewToken>(*event) && first_s == 0) {
          first_s = WallSeconds();
        }
        if (const auto* const response = std::get_if<serve::Response>(&*event)) {
          QUIRE_CHECK_MSG(response->finish == serve::Finish::kLength, response->error.message);
          return WallSeconds() - first_s;
        }
      }
    }
  }
  uint64_t long_answer() const { return long_answer_; }
  uint64_t streamed() const { return engine_->stats().streamed; }

 private:
  std::vector<TokenId> Tokens(uint64_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng_.NextBelow(kContextVocab));
    return tokens;
  }
  void Tick() {
    engine_->Tick();
    while (const auto event = engine_->Next(long_)) {
      if (std::holds_alternative<serve::NewToken>(*event)) ++long_answer_;
      if (const auto* const response = std::get_if<serve::Response>(&*event)) {
        QUIRE_CHECK_MSG(false, "the long request ended: " + response->error.message);
      }
    }
  }

  Prng prng_{1};
  std::unique_ptr<AttentionBackend> attention_ = Must(MakeCpuAttention());
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<serve::Engine> engine_;
  serve::RequestId long_{};
  uint64_t long_answer_ = 0;  // tokens
};

struct Neighbours {
  explicit Neighbours(uint32_t threads) {
    const model::ModelConfig config = LargeShape(kLayers);
    model =
        Must(model::Model::Create(config, model::RandomTensors(config, ComputeType::kBf16, 1), {}));
    store = Must(DiskStore::Open(
        {.directory = directory / "store", .bytes_cap = 4 * kWholeBytes, .scrub_bytes_per_s = 0}));
    streams = std::make_unique<Engine>(*model, threads, store.get(), kSmallBytes);
    QUIRE_CHECK(streams->streamed() == 1);
    whole = std::make_unique<Engine>(*model, threads, nullptr, kWholeBytes);
  }

  const Directory directory;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<DiskStore> store;
  std::unique_ptr<Engine> streams;
  std::unique_ptr<Engine> whole;
};

Result<Subject> Beside(uint32_t threads) {
  auto neighbours = std::make_shared<Neighbours>(threads);
  return Timed{
      .unit = "ms/token",
      .less_is_better = true,
      .amount = 1e3 / (kShortAnswer - 1),
      .slice =
          fmt::format("{} tokens of a request, beside one that generates behind {} ({} layers)",
                      kShortAnswer - 1, kLongTokens, kLayers),
      .work = [neighbours](uint32_t) { return neighbours->streams->NeighbourSeconds(); },
      .floor = [neighbours](uint32_t) { return neighbours->whole->NeighbourSeconds(); },
      .note =
          [neighbours] {
            return fmt::format(
                "the same beside one that has its context in memory; meanwhile the one that "
                "streams said {} tokens, and that one {}",
                neighbours->streams->long_answer(), neighbours->whole->long_answer());
          }};
}

}  // namespace

std::vector<Case> StreamBesideCases(const Options& options) {
  std::vector<Case> cases;
  for (const uint32_t threads : options.threads) {
    cases.push_back({.name = fmt::format("beside/bf16/{}/t{}", kLongTokens, threads),
                     .prepare = [threads] { return Beside(threads); }});
  }
  return cases;
}

}  // namespace quire::bench
