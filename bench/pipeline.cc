// Four requests on a pipeline of ranks with a core each, two threads or the processes that mpirun
// started, beside the same requests on one rank with one core. The floor is the time of one rank
// divided by the ranks: the best of so many cores.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
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

constexpr uint32_t kRankThreads = 2;
constexpr uint32_t kPipelineLayers = 4;
constexpr uint32_t kPipelineRequests = 4;
constexpr uint32_t kPipelineChunkTokens = 64;
constexpr uint64_t kPipelineHotBytes = uint64_t{256} << 20;

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

/// Errors: of the first request that failed
Result<double> SecondsToServe(serve::Engine& engine, const PipelineLoad& load) {
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
    if (response.finish != serve::Finish::kLength) return std::unexpected(response.error);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Does what rank 0 says until it stops.
Result<void> FollowLeader(ranks::Group& group) {
  Stage stage = MakeStage(group.rank(), group.size());
  // The ring's thread inherits what its maker has: it must not wait for the layers.
  SetPriority(2);
  ranks::pipeline::Ring ring(group, SystemClock());
  SetPriority(1);
  const auto served = ranks::pipeline::Stage({.model = *stage.model,
                                              .cache = *stage.cache,
                                              .attention = *stage.attention,
                                              .executor = *stage.executor},
                                             {.rank = group.rank(), .ranks = group.size()}, {})
                          .Serve(ring);
  SetPriority(0);
  return served;
}

/// A group of two threads, of which the calling one is rank 0.
class TwoThreads {
 public:
  TwoThreads() : local_(kRankThreads, SystemClock()), ends_{local_.Join(0), local_.Join(1)} {
    follower_ = std::thread([this] {
      StayOnProcessor(1);
      ranks::Group group(*ends_[1], SystemClock(), {});
      Must(FollowLeader(group));
    });
    StayOnProcessor(0);
  }
  ~TwoThreads() { follower_.join(); }
  TwoThreads(const TwoThreads&) = delete;
  TwoThreads& operator=(const TwoThreads&) = delete;

  ranks::Group& group() { return group_; }

 private:
  ranks::LocalRanks local_;
  std::array<std::unique_ptr<ranks::Transport>, kRankThreads> ends_;
  ranks::Group group_{*ends_[0], SystemClock(), {}};
  std::thread follower_;
};

/// One rank on one core, and the group.
class Contestants {
 public:
  /// `processes`: the group; null: threads. Errors: a rank is lost
  static Result<std::shared_ptr<Contestants>> Create(ranks::Group* processes) {
    std::shared_ptr<Contestants> made(new Contestants(processes));
    Identity identity;
    QUIRE_TRY(made->leader_->Join(identity));
    made->engine_ = MakeEngine(made->stage_, *made->cache_, identity, made->leader_.get());
    return made;
  }
  ~Contestants() {
    engine_.reset();
    static_cast<void>(leader_->Stop());  // a rank that is lost was named
  }

  double Alone(const PipelineLoad& load) {
    const QuietMoment quiet(*alone_.executor);
    return Must(SecondsToServe(*engine_alone_, load));
  }
  /// For ever, where a rank is lost.
  double Together(const PipelineLoad& load) {
    SetPriority(1);
    const auto seconds = SecondsToServe(*engine_, load);
    SetPriority(0);
    return seconds.value_or(std::numeric_limits<double>::infinity());
  }

 private:
  explicit Contestants(ranks::Group* processes)
      : threads_(processes == nullptr ? std::make_unique<TwoThreads>() : nullptr),
        group_(processes == nullptr ? threads_->group() : *processes),
        stage_(MakeStage(0, group_.size())) {
    engine_alone_ = MakeEngine(alone_, *alone_.cache, {.weights = alone_.model->fingerprint()},
                               /*flow=*/nullptr);
    SetPriority(2);
    ring_ = std::make_unique<ranks::pipeline::Ring>(group_, SystemClock());
    SetPriority(0);
    leader_ = std::make_unique<ranks::pipeline::Leader>(
        ranks::pipeline::Leader::Components{
            .model = *stage_.model, .attention = *stage_.attention, .executor = *stage_.executor},
        ranks::pipeline::StageSetup{.rank = 0, .ranks = group_.size()}, *ring_);
    cache_ = std::make_unique<ranks::pipeline::PipelineCache>(*stage_.cache, *leader_);
  }

  Stage alone_ = MakeStage(0, 1);
  std::unique_ptr<serve::Engine> engine_alone_;
  std::unique_ptr<TwoThreads> threads_;  // null: processes
  ranks::Group& group_;
  Stage stage_;
  std::unique_ptr<ranks::pipeline::Ring> ring_;
  std::unique_ptr<ranks::pipeline::Leader> leader_;
  std::unique_ptr<ranks::pipeline::PipelineCache> cache_;
  std::unique_ptr<serve::Engine> engine_;
};

Case PipelineCase(const std::string& name, const PipelineLoad& load, ranks::Group* group) {
  const uint32_t ranks = group == nullptr ? kRankThreads : group->size();
  return {
      .name = fmt::format("pipeline/{}/r{}", name, ranks),
      .prepare = [load, ranks, group]() -> Result<Subject> {
        if (ranks > kPipelineLayers) {
          return Fail(
              ErrorCode::kInvalidArgument,
              fmt::format("pipeline: {} ranks; its model has {} layers", ranks, kPipelineLayers));
        }
        QUIRE_ASSIGN(const auto both, Contestants::Create(group));
        return Timed{
            .unit = "tokens/s",
            .amount = static_cast<double>(load.tokens()),
            .slice = fmt::format("{} requests of {} tokens, {} generated each", kPipelineRequests,
                                 load.prompt_tokens, load.answer_tokens),
            .work = [both, load](uint32_t) { return both->Together(load); },
            .floor = [both, load, ranks](uint32_t) { return both->Alone(load) / ranks; },
            .note = [ranks] { return fmt::format("floor: one rank's time divided by {}", ranks); }};
      },
      .follow = [group]() -> Result<void> {
        // Rank 0 says so.
        return group->size() > kPipelineLayers ? Result<void>() : FollowLeader(*group);
      }};
}

}  // namespace

std::vector<Case> PipelineCases(const Options& options) {
  return {PipelineCase("prompts", {.prompt_tokens = 256, .answer_tokens = 1}, options.group),
          PipelineCase("answers", {.prompt_tokens = 16, .answer_tokens = 32}, options.group)};
}

}  // namespace quire::bench
