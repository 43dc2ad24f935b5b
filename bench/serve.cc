// The engine under the requests of a recorded service, in process, on a model of the bundled one's
// shape with random weights. Each block of the trace is one block of the cache, with tokens made
// from its id, so prefixes are shared as they were; answers are scaled by the same factor. The
// requests are run twice: all at once, for the throughput; then as they came, at a rate that keeps
// the machine busy for most of the time, for what a caller sees. The floors: of the throughput the
// time inside the steps of the model; of times what some of the requests take with the machine to
// themselves; of hits a cache that forgets nothing.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/prng.h"
#include "bench/bench.h"
#include "bench/shapes.h"
#include "env/clock.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "serve/engine.h"

namespace quire::bench {
namespace {

constexpr size_t kRequests = 96;    // of the trace, the first
constexpr size_t kAlone = 12;       // of these, run alone for the floors
constexpr size_t kBlocksMost = 48;  // of a prompt; longer ones are cut
constexpr uint64_t kOutputScale = 16;
constexpr uint32_t kOutputMost = 24;
constexpr uint64_t kHotBytes = uint64_t{32} << 20;
constexpr double kLoad = 0.8;  // of what all at once came to

struct Planned {
  serve::Request request;
  uint64_t arrival_us = 0;  // after the first
};

/// The times and tokens that callers saw in one run.
struct Seen {
  double seconds = 0;
  double step_seconds = 0;
  uint64_t tokens = 0;  // of prompts and answers
  uint64_t prompt_tokens = 0;
  uint64_t reused_tokens = 0;
  std::vector<double> first_ms;  // of each request
  std::vector<double> next_ms;   // between tokens
};

double Quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

std::vector<Planned> PlanOf(const Options& options, uint32_t vocab) {
  std::vector<Planned> plan;
  for (size_t i = 0; i < std::min(options.trace.size(), kRequests); ++i) {
    Planned planned;
    const auto& blocks = options.trace[i];
    for (size_t b = 0; b < std::min(blocks.size(), kBlocksMost); ++b) {
      Prng prng(blocks[b]);
      for (uint32_t t = 0; t < kBlockTokensDefault; ++t) {
        planned.request.prompt.push_back(static_cast<TokenId>(prng.NextBelow(vocab)));
      }
    }
    if (planned.request.prompt.empty()) continue;
    const uint64_t output = options.arrivals[i].output_tokens / kOutputScale;
    planned.request.max_tokens =
        static_cast<uint32_t>(std::clamp<uint64_t>(output, 1, kOutputMost));
    planned.arrival_us =
        (options.arrivals[i].timestamp_ms - options.arrivals[0].timestamp_ms) * 1000;
    plan.push_back(std::move(planned));
  }
  return plan;
}

// Hits of a cache that forgets nothing, over all prompt tokens.
double UnlimitedHits(const std::vector<Planned>& plan) {
  std::set<std::vector<TokenId>> seen;
  uint64_t hits = 0;
  uint64_t all = 0;
  for (const Planned& planned : plan) {
    const std::vector<TokenId>& prompt = planned.request.prompt;
    bool found = true;
    for (size_t end = kBlockTokensDefault; end <= prompt.size(); end += kBlockTokensDefault) {
      const bool known =
          !seen.emplace(prompt.begin(), prompt.begin() + static_cast<int64_t>(end)).second;
      found = found && known && end < prompt.size();
      if (found) hits += kBlockTokensDefault;
    }
    all += prompt.size();
  }
  return static_cast<double>(hits) / static_cast<double>(all);
}

/// A model, and engines with an empty cache each.
class Server {
 public:
  static Result<std::shared_ptr<Server>> Create(uint32_t threads) {
    auto server = std::make_shared<Server>();
    const model::ModelConfig config = TinyShape();
    QUIRE_ASSIGN(
        server->model_,
        model::Model::Create(config, model::RandomTensors(config, ComputeType::kBf16, 1), {}));
    QUIRE_ASSIGN(server->attention_, MakeCpuAttention());
    server->executor_ = MakeThreadPool(threads);
    return server;
  }

  /// Submits each request `scale` times its arrival after the first and takes all its events.
  Result<Seen> Run(std::span<const Planned> plan, double scale) {
    CacheOptions options{.geometry = model::GeometryOf(model_->config()),
                         .profile = NumericProfile::Uniform(Codec::kBf16),
                         .hot_bytes = kHotBytes};
    QUIRE_ASSIGN(const auto cache, Cache::Create(std::move(options)));
    QUIRE_ASSIGN(const auto engine,
                 serve::Engine::Create({.model = *model_,
                                        .cache = *cache,
                                        .attention = *attention_,
                                        .executor = *executor_,
                                        .clock = SystemClock()},
                                       Identity{.weights = model_->fingerprint()},
                                       {.admission = serve::Admission::kGrow}));
    return RunOn(*engine, plan, scale);
  }

 private:
  using RequestId = serve::RequestId;
  struct Open {
    RequestId id;
    uint64_t last_us = 0;  // of its last token
  };

  static Result<Seen> RunOn(serve::Engine& engine, std::span<const Planned> plan, double scale) {
    const Clock& clock = SystemClock();
    const uint64_t start_us = clock.NowMicros();
    const auto due_us = [&](size_t i) {
      return start_us + static_cast<uint64_t>(static_cast<double>(plan[i].arrival_us) * scale);
    };
    Seen seen;
    std::vector<Open> open;
    size_t next = 0;
    while (next < plan.size() || !open.empty()) {
      while (next < plan.size() && due_us(next) <= clock.NowMicros()) {
        QUIRE_ASSIGN(const RequestId id, engine.Submit(plan[next].request));
        open.push_back({.id = id});
        ++next;
      }
      const serve::TickReport report = engine.Tick();
      for (Open& each : open) QUIRE_TRY(Take(engine, each, clock.NowMicros(), seen));
      std::erase_if(open, [](const Open& each) { return each.id.is_none(); });
      if (report.worked || next == plan.size()) continue;
      const uint64_t now_us = clock.NowMicros();
      engine.AwaitChange(due_us(next) - std::min(now_us, due_us(next)));
    }
    seen.seconds = static_cast<double>(clock.NowMicros() - start_us) * 1e-6;
    seen.step_seconds = static_cast<double>(engine.stats().step_us) * 1e-6;
    return seen;
  }

  static Result<void> Take(serve::Engine& engine, Open& open, uint64_t now_us, Seen& seen) {
    while (auto event = engine.Next(open.id)) {
      if (std::holds_alternative<serve::NewToken>(*event)) {
        if (open.last_us != 0) {
          seen.next_ms.push_back(static_cast<double>(now_us - open.last_us) * 1e-3);
        }
        open.last_us = now_us;
      } else if (auto* const response = std::get_if<serve::Response>(&*event)) {
        if (response->finish == serve::Finish::kFailed) return std::unexpected(response->error);
        seen.tokens += response->prompt_tokens + response->tokens.size();
        seen.prompt_tokens += response->prompt_tokens;
        seen.reused_tokens += response->reused_tokens;
        seen.first_ms.push_back(response->ttft_ms);
        open.id = RequestId::None();
        return {};
      }
    }
    return {};
  }

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<Executor> executor_;
};

/// All runs on so many threads: made once, by the first row that needs them.
class ServeRuns {
 public:
  ServeRuns(const Options& options, uint32_t threads)
      : plan_(PlanOf(options, TinyShape().vocab)), threads_(threads) {}

  struct Results {
    Seen at_once;
    Seen as_they_came;
    Seen alone;
    double unlimited_hits = 0;
    std::string note;
  };

  Result<const Results*> Get() {
    if (done_) return &*done_;
    QUIRE_ASSIGN(const auto server, Server::Create(threads_));
    Results results;
    QUIRE_ASSIGN(results.at_once, server->Run(plan_, 0));
    const double recorded_seconds = static_cast<double>(plan_.back().arrival_us) * 1e-6;
    const double scale =
        recorded_seconds > 0 ? results.at_once.seconds / kLoad / recorded_seconds : 0;
    QUIRE_ASSIGN(results.as_they_came, server->Run(plan_, scale));
    for (size_t i = 0; i < std::min(kAlone, plan_.size()); ++i) {
      QUIRE_ASSIGN(const Seen one, server->Run(std::span(plan_).subspan(i, 1), 0));
      results.alone.first_ms.push_back(one.first_ms[0]);
      results.alone.next_ms.insert(results.alone.next_ms.end(), one.next_ms.begin(),
                                   one.next_ms.end());
    }
    results.unlimited_hits = UnlimitedHits(plan_);
    results.note = fmt::format("{} requests, {} tokens", plan_.size(), results.at_once.tokens);
    done_ = std::move(results);
    return &*done_;
  }

 private:
  const std::vector<Planned> plan_;
  const uint32_t threads_;
  std::optional<Results> done_;
};

Exact Milliseconds(const std::vector<double>& seen, const std::vector<double>& alone, double share,
                   const std::string& note) {
  return {.unit = "ms",
          .less_is_better = true,
          .value = Quantile(seen, share),
          .floor = Quantile(alone, share),
          .note = note};
}

}  // namespace

std::vector<Case> ServeCases(const Options& options) {
  std::vector<Case> cases;
  for (const uint32_t threads : options.threads) {
    const auto runs = std::make_shared<ServeRuns>(options, threads);
    const auto add = [&](const std::string& name, auto row) {
      cases.push_back({.name = fmt::format("{}/{}/t{}", name, options.trace_name, threads),
                       .prepare = [runs, row]() -> Result<Subject> {
                         QUIRE_ASSIGN(const ServeRuns::Results* const results, runs->Get());
                         return Subject(row(*results));
                       }});
    };
    add("throughput", [](const ServeRuns::Results& results) {
      const Seen& seen = results.at_once;
      const auto tokens = static_cast<double>(seen.tokens);
      return Exact{.unit = "tokens/s",
                   .value = tokens / seen.seconds,
                   .floor = tokens / seen.step_seconds,
                   .note = results.note};
    });
    for (const auto& [name, share] : {std::pair("p50", 0.5), {"p99", 0.99}}) {
      add(fmt::format("first_token/{}", name), [share](const ServeRuns::Results& results) {
        return Milliseconds(results.as_they_came.first_ms, results.alone.first_ms, share,
                            results.note);
      });
      add(fmt::format("next_token/{}", name), [share](const ServeRuns::Results& results) {
        return Milliseconds(results.as_they_came.next_ms, results.alone.next_ms, share,
                            results.note);
      });
    }
    add("hits", [](const ServeRuns::Results& results) {
      const Seen& seen = results.as_they_came;
      return Exact{.unit = "of prompts",
                   .value = static_cast<double>(seen.reused_tokens) /
                            static_cast<double>(seen.prompt_tokens),
                   .floor = results.unlimited_hits,
                   .note = results.note};
    });
  }
  return cases;
}

}  // namespace quire::bench
