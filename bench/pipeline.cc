// Four requests on a pipeline of two ranks, threads with a core each, beside the same requests on
// one rank with one core. The floor is half of the time of one rank: the best of two cores.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "bench/bench.h"
#include "bench/must.h"
#include "bench/quiet.h"
#include "bench/shapes.h"
#include "env/clock.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "ranks/group.h"
#include "ranks/local_transport.h"
#include "ranks/pipeline/leader.h"
#include "ranks/pipeline/pipeline_cache.h"
#include "ranks/pipeline/ring.h"
#include "ranks/pipeline/stage.h"
#include "serve/driver.h"
#include "serve/engine.h"

namespace quire::bench {
namespace {

constexpr uint32_t kRanks = 2;
constexpr uint32_t kPipelineLayers = 4;
constexpr uint32_t kPipelineRequests = 4;
constexpr uint32_t kPipelineChunkTokens = 64;
constexpr uint64_t kPipelineHotBytes = uint64_t{256} << 20;

/// The calling thread on one processor, above what else the machine runs, if the system allows.
void Pin(uint32_t processor, int priority) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
  const sched_param param = {.sched_priority = priority};
  static_cast<void>(sched_setscheduler(0, priority > 0 ? SCHED_RR : SCHED_OTHER, &param));
}

/// A stage with a cache of its own, computed by the thread that asks.
struct Stage {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<AttentionBackend> attention = Must(MakeCpuAttention());
  std::unique_ptr<Executor> executor = MakeThreadPool(1);
};

Stage MakeStage(uint32_t rank, uint32_t ranks) {
  const model::ModelConfig config = LargeShape(kPipelineLayers);
  Stage stage;
  stage.model =
      Must(model::Model::Create(config, model::RandomTensors(config, ComputeType::kBf16, 1),
                                {.stage = rank, .stages = ranks}));
  stage.cache = Must(Cache::Create({.geometry = model::GeometryOf(stage.model->config()),
                                    .profile = NumericProfile::Uniform(Codec::kBf16),
                                    .hot_bytes = kPipelineHotBytes}));
  return stage;
}

std::unique_ptr<serve::Engine> MakeEngine(Stage& stage, Cache& cache, const Identity& identity,
                                          model::StepFlow* flow) {
  return Must(serve::Engine::Create(
      {.model = *stage.model,
       .cache = cache,
       .attention = *stage.attention,
       .executor = *stage.executor,
       .clock = SystemClock(),
       .flow = flow},
      identity,
      {.chunk_tokens_min = kPipelineChunkTokens, .chunk_tokens_max = kPipelineChunkTokens}));
}

struct PipelineLoad {
  uint32_t prompt_tokens;
  uint32_t answer_tokens;

  uint32_t tokens() const { return kPipelineRequests * (prompt_tokens + answer_tokens); }
};

double SecondsToServe(serve::Engine& engine, const PipelineLoad& load) {
  std::vector<serve::Request> requests;
  for (uint32_t i = 0; i < kPipelineRequests; ++i) {
    serve::Request request{.max_tokens = load.answer_tokens, .reuse = false};
    Prng prng(i);
    for (uint32_t t = 0; t < load.prompt_tokens; ++t) {
      request.prompt.push_back(static_cast<TokenId>(prng.NextBelow(1000)));
    }
    requests.push_back(std::move(request));
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const serve::Response& response : serve::RunAll(engine, std::move(requests))) {
    QUIRE_CHECK_MSG(response.finish == serve::Finish::kLength, response.error.message);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One rank on one core, and two ranks on two.
class Contestants {
 public:
  Contestants() : local_(kRanks, SystemClock()), ends_{local_.Join(0), local_.Join(1)} {
    for (uint32_t rank = 0; rank < kRanks; ++rank) stages_.push_back(MakeStage(rank, kRanks));
    engine_alone_ = MakeEngine(alone_, *alone_.cache, {.weights = alone_.model->fingerprint()},
                               /*flow=*/nullptr);
    follower_ = std::thread([this] { Follow(); });
    // The ring's thread inherits what its maker has: it must not wait for the layers.
    Pin(0, 2);
    ring_ = std::make_unique<ranks::pipeline::Ring>(group_, SystemClock());
    Pin(0, 0);
    leader_ = std::make_unique<ranks::pipeline::Leader>(
        ranks::pipeline::Leader::Components{.model = *stages_[0].model,
                                            .attention = *stages_[0].attention,
                                            .executor = *stages_[0].executor},
        ranks::pipeline::StageSetup{.rank = 0, .ranks = kRanks}, *ring_);
    Identity identity;
    Must(leader_->Join(identity));
    cache_ = std::make_unique<ranks::pipeline::PipelineCache>(*stages_[0].cache, *leader_);
    engine_ = MakeEngine(stages_[0], *cache_, identity, leader_.get());
  }
  ~Contestants() {
    engine_.reset();
    Must(leader_->Stop());
    leader_.reset();
    ring_.reset();
    follower_.join();
  }

  double Alone(const PipelineLoad& load) {
    const QuietMoment quiet(*alone_.executor);
    return SecondsToServe(*engine_alone_, load);
  }
  double Together(const PipelineLoad& load) {
    Pin(0, 1);
    const double seconds = SecondsToServe(*engine_, load);
    Pin(0, 0);
    return seconds;
  }

 private:
  void Follow() {
    ranks::Group group(*ends_[1], SystemClock(), {});
    Pin(1, 2);
    ranks::pipeline::Ring ring(group, SystemClock());
    Pin(1, 1);
    Must(ranks::pipeline::Stage({.model = *stages_[1].model,
                                 .cache = *stages_[1].cache,
                                 .attention = *stages_[1].attention,
                                 .executor = *stages_[1].executor},
                                {.rank = 1, .ranks = kRanks}, {})
             .Serve(ring));
  }

  Stage alone_ = MakeStage(0, 1);
  std::unique_ptr<serve::Engine> engine_alone_;
  ranks::LocalRanks local_;
  std::array<std::unique_ptr<ranks::Transport>, kRanks> ends_;
  std::vector<Stage> stages_;
  ranks::Group group_{*ends_[0], SystemClock(), {}};
  std::thread follower_;
  std::unique_ptr<ranks::pipeline::Ring> ring_;
  std::unique_ptr<ranks::pipeline::Leader> leader_;
  std::unique_ptr<ranks::pipeline::PipelineCache> cache_;
  std::unique_ptr<serve::Engine> engine_;
};

Case PipelineCase(const std::string& name, const PipelineLoad& load) {
  return {.name = fmt::format("pipeline/{}/r{}", name, kRanks),
          .prepare = [load]() -> Result<Subject> {
            auto both = std::make_shared<Contestants>();
            return Timed{
                .unit = "tokens/s",
                .amount = static_cast<double>(load.tokens()),
                .slice = fmt::format("{} requests of {} tokens, {} generated each",
                                     kPipelineRequests, load.prompt_tokens, load.answer_tokens),
                .work = [both, load](uint32_t) { return both->Together(load); },
                .floor = [both, load](uint32_t) { return both->Alone(load) / kRanks; },
                .note = [] { return std::string("floor: half of one rank's time"); }};
          }};
}

}  // namespace

std::vector<Case> PipelineCases(const Options&) {
  return {PipelineCase("prompts", {.prompt_tokens = 256, .answer_tokens = 1}),
          PipelineCase("answers", {.prompt_tokens = 16, .answer_tokens = 32})};
}

}  // namespace quire::bench
