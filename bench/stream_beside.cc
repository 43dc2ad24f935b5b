// A request beside one whose context is larger than memory and streams: its time per token, beside
// that of one that computes as much from memory, and its longest token while that one is opened.
#include <fmt/format.h>

#include <algorithm>
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
constexpr uint32_t kOpeningAnswer = 1024;  // longer than opening takes
constexpr uint32_t kBesideStepTokens = 256;
constexpr uint64_t kResidentTokens = 512;
constexpr uint64_t kOpenedTokens = 6 * 1024;  // that are read when it is opened
// Bytes of the long request at its end, with those of the others.
constexpr uint64_t kWholeBytes = uint64_t{1} << 30;
constexpr uint64_t kSmallBytes = uint64_t{100} << 20;
constexpr uint64_t kOpenedBytes = uint64_t{220} << 20;

/// An engine, and requests with a long prompt and a short one.
class Engine {
 public:
  Engine(model::Model& model, uint32_t threads, DiskStore* store, uint64_t hot_bytes,
         uint64_t resident_tokens)
      : executor_(MakePinnedPool(threads)),
        cache_(Must(Cache::Create({.geometry = model::GeometryOf(model.config()),
                                   .profile = NumericProfile::Uniform(Codec::kBf16, 256),
                                   .hot_bytes = hot_bytes,
                                   .store = store}))),
        engine_(Must(serve::Engine::Create({.model = model,
                                            .cache = *cache_,
                                            .attention = *attention_,
                                            .executor = *executor_,
                                            .clock = SystemClock()},
                                           Identity{.weights = model.fingerprint()},
                                           {.chunk_tokens_min = kBesideStepTokens,
                                            .chunk_tokens_max = kBesideStepTokens,
                                            .resident_tokens = resident_tokens}))) {}

  /// A request with a long prompt generates from now on.
  void BeginLong() {
    long_ = Must(engine_->Submit({.prompt = long_prompt_, .max_tokens = kLongAnswer}));
    while (long_answer_ == 0) Tick();
  }
  void EndLong() { End(std::exchange(long_, serve::RequestId{})); }

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
  /// The longest time between two tokens of a short request, in seconds: until a long one was
  /// opened, or of as many tokens as then.
  double LongestToken(bool opens) {
    const auto id = Must(engine_->Submit(
        {.prompt = Tokens(kShortTokens), .max_tokens = kOpeningAnswer, .reuse = false}));
    while (!Hear(id).any) engine_->Tick();
    serve::RequestId opened{};
    if (opens) opened = Must(engine_->Submit({.prompt = long_prompt_, .max_tokens = kLongAnswer}));
    double longest_s = 0;
    double last_s = WallSeconds();
    uint64_t tokens = 0;
    while (opens ? !IsOpened(opened) : tokens < tokens_while_opened_) {
      engine_->Tick();
      if (!Hear(id).any) continue;
      const double now_s = WallSeconds();
      longest_s = std::max(longest_s, now_s - std::exchange(last_s, now_s));
      ++tokens;
    }
    if (opens) {
      tokens_while_opened_ = std::max<uint64_t>(tokens, 1);
      longest_s = std::max(longest_s, WallSeconds() - last_s);
      End(opened);
    }
    End(id);
    return longest_s;
  }
  uint64_t tokens_while_opened() const { return tokens_while_opened_; }
  uint64_t long_answer() const { return long_answer_; }
  uint64_t streamed() const { return engine_->stats().streamed; }

 private:
  std::vector<TokenId> Tokens(uint64_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng_.NextBelow(kContextVocab));
    return tokens;
  }
  /// A request said something new; it may be its last.
  struct Heard {
    bool any = false;
    bool ended = false;
  };
  Heard Hear(serve::RequestId id) {
    Heard heard;
    while (const auto event = engine_->Next(id)) {
      heard.any = true;
      heard.ended = std::holds_alternative<serve::Response>(*event);
    }
    return heard;
  }
  bool IsOpened(serve::RequestId id) const {
    const auto sequences = engine_->sequences();
    const auto entry = std::ranges::find(sequences, id, &serve::SequenceEntry::request);
    return entry != sequences.end() && entry->sequence.tokens_used > 0;
  }
  void End(serve::RequestId id) {
    engine_->Cancel(id);
    while (!Hear(id).ended) engine_->Tick();
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
  const std::vector<TokenId> long_prompt_ = Tokens(kLongTokens);
  std::unique_ptr<AttentionBackend> attention_ = Must(MakeCpuAttention());
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<serve::Engine> engine_;
  serve::RequestId long_{};
  uint64_t long_answer_ = 0;  // tokens
  uint64_t tokens_while_opened_ = 1;
};

struct Machine {
  Machine() {
    const model::ModelConfig config = LargeShape(kLayers);
    model =
        Must(model::Model::Create(config, model::RandomTensors(config, ComputeType::kBf16, 1), {}));
    store = Must(DiskStore::Open(
        {.directory = directory / "store", .bytes_cap = 4 * kWholeBytes, .scrub_bytes_per_s = 0}));
  }

  const Directory directory;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<DiskStore> store;
};

struct Neighbours : Machine {
  explicit Neighbours(uint32_t threads) {
    streams = std::make_unique<Engine>(*model, threads, store.get(), kSmallBytes, kResidentTokens);
    streams->BeginLong();
    QUIRE_CHECK(streams->streamed() == 1);
    whole = std::make_unique<Engine>(*model, threads, nullptr, kWholeBytes, 0);
    whole->BeginLong();
  }

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

struct Opened : Machine {
  explicit Opened(uint32_t threads)
      : engine(*model, threads, store.get(), kOpenedBytes, kOpenedTokens) {
    engine.BeginLong();  // the store has it from now on
    engine.EndLong();
  }
  Engine engine;
};

Result<Subject> BesideOpening(uint32_t threads) {
  auto opened = std::make_shared<Opened>(threads);
  return Timed{
      .unit = "ms",
      .less_is_better = true,
      .amount = 1e3,
      .slice = fmt::format("the longest token of a request, while one of {} tokens is opened of "
                           "which {} are read into memory ({} layers)",
                           kLongTokens, kOpenedTokens, kLayers),
      .work = [opened](uint32_t) { return opened->engine.LongestToken(/*opens=*/true); },
      .floor = [opened](uint32_t) { return opened->engine.LongestToken(/*opens=*/false); },
      .note =
          [opened] {
            return fmt::format("the longest of as many tokens with nothing beside; {} tokens",
                               opened->engine.tokens_while_opened());
          }};
}

}  // namespace

std::vector<Case> StreamBesideCases(const Options& options) {
  std::vector<Case> cases;
  for (const uint32_t threads : options.threads) {
    cases.push_back({.name = fmt::format("beside/bf16/{}/t{}", kLongTokens, threads),
                     .prepare = [threads] { return Beside(threads); }});
    cases.push_back({.name = fmt::format("open/bf16/{}/t{}", kOpenedTokens, threads),
                     .prepare = [threads] { return BesideOpening(threads); }});
  }
  return cases;
}

}  // namespace quire::bench
