#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "env/clock.h"
#include "model/random_model.h"
#include "model/test_cache.h"
#include "ranks/pipeline/leader.h"
#include "ranks/pipeline/pipeline_cache.h"
#include "ranks/pipeline/ring.h"
#include "ranks/pipeline/stage.h"
#include "ranks/test_ranks.h"

namespace quire::ranks::pipeline {
namespace {

using model::MakeAttention;
using model::ModelConfig;
using model::SomeTokens;

constexpr uint64_t kHotBytes = 1 << 24;

ModelConfig FourLayers() {
  ModelConfig config = model::SmallConfig();
  config.layers = 4;
  return config;
}

// What a rank is made of; it stays while groups of ranks come and go.
struct RankState {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<AttentionBackend> attention = MakeAttention();
  std::unique_ptr<Executor> executor = MakeThreadPool(1);
  StageSetup setup;
};

std::vector<RankState> MakeRanks(const ModelConfig& config, Codec codec, uint32_t ranks) {
  const model::RandomTensors tensors(config, ComputeType::kBf16, /*seed=*/1);
  std::vector<RankState> made(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    auto model = model::Model::Create(config, tensors, {.stage = rank, .stages = ranks});
    EXPECT_TRUE(model.has_value()) << model.error().message;
    made[rank].model = *std::move(model);
    made[rank].cache = model::MakeCache(made[rank].model->config(), codec, kHotBytes);
    made[rank].setup = {.rank = rank, .ranks = ranks, .settings = "test"};
  }
  return made;
}

Identity SomeIdentity() { return {.domain = {.name = "test"}}; }

using Work = std::function<Result<void>(Leader& leader, PipelineCache& cache, Identity& identity)>;

// All ranks from their start to their end. Returns what each of them ended with.
std::vector<Result<void>> RunPipeline(std::vector<RankState>& ranks, const Work& work,
                                      const Schedule& schedule = {},
                                      const GroupOptions& options = {}) {
  std::vector<Result<void>> ended(ranks.size());
  RunRanks(
      static_cast<uint32_t>(ranks.size()), schedule,
      [&](Group& group) {
        RankState& own = ranks[group.rank()];
        Ring ring(group, SystemClock());
        ended[group.rank()] = [&]() -> Result<void> {
          if (group.rank() > 0) {
            return Stage({.model = *own.model,
                          .cache = *own.cache,
                          .attention = *own.attention,
                          .executor = *own.executor},
                         own.setup, SomeIdentity())
                .Serve(ring);
          }
          Leader leader(
              {.model = *own.model, .attention = *own.attention, .executor = *own.executor},
              own.setup, ring);
          Identity identity = SomeIdentity();
          QUIRE_TRY(leader.Join(identity));
          PipelineCache cache(*own.cache, leader);
          QUIRE_TRY(work(leader, cache, identity));
          return leader.Stop();
        }();
      },
      options);
  return ended;
}

void ExpectAllEndedWell(const std::vector<Result<void>>& ended) {
  for (size_t rank = 0; rank < ended.size(); ++rank) {
    EXPECT_TRUE(ended[rank].has_value()) << rank << ": " << ended[rank].error().message;
  }
}

TokenId Best(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

struct Answers {
  std::vector<Digest> digests;  // of the logits of each prompt's answer
  std::vector<uint64_t> found;  // tokens
};

// Prompts in chunks, all of them under way at once, then some tokens of each, two prompts a step.
Result<void> Answer(const std::vector<std::vector<TokenId>>& prompts, model::StepFlow& flow,
                    Cache& cache, const Identity& identity, uint64_t vocab, Answers& answers) {
  constexpr uint64_t kChunk = 32;
  constexpr int kAnswer = 6;
  std::vector<std::unique_ptr<Sequence>> sequences;
  answers.found.clear();
  for (const auto& prompt : prompts) {
    QUIRE_ASSIGN(Plan plan, cache.Acquire({.identity = &identity, .tokens = prompt}));
    answers.found.push_back(plan.resident_tokens());
    EXPECT_EQ(plan.missing_tokens(), prompt.size() - plan.resident_tokens());
    QUIRE_ASSIGN(auto sequence,
                 cache.Open(std::move(plan), {.reserve_tokens = prompt.size() + kAnswer}));
    sequences.push_back(std::move(sequence));
  }
  std::vector<std::vector<float>> logits(prompts.size(), std::vector<float>(vocab));
  uint32_t under_way = 0;
  const auto make_room = [&](uint32_t most) -> Result<void> {
    for (; under_way > most; --under_way) QUIRE_TRY(flow.Finish());
    return {};
  };
  bool more = true;
  while (std::exchange(more, false)) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::span<const TokenId> left =
          std::span(prompts[i]).subspan(std::min(sequences[i]->length(), prompts[i].size()));
      if (left.empty()) continue;
      const bool is_last = left.size() <= kChunk;
      const model::StepItem item = {.sequence = sequences[i].get(),
                                    .tokens = left.first(std::min(kChunk, left.size())),
                                    .logits = is_last ? logits[i].data() : nullptr};
      QUIRE_TRY(flow.Begin({&item, 1}));
      ++under_way;
      QUIRE_TRY(make_room(flow.stages()));
      more = true;
    }
  }
  QUIRE_TRY(make_room(0));
  std::vector<Blake2b<32>> hashes(prompts.size());
  for (int step = 0; step < kAnswer; ++step) {
    for (size_t first = 0; first < prompts.size(); first += 2) {
      std::vector<TokenId> tokens;
      std::vector<model::StepItem> items;
      const size_t end = std::min(first + 2, prompts.size());
      tokens.reserve(2);
      for (size_t i = first; i < end; ++i) {
        hashes[i].Update(std::as_bytes(std::span(logits[i])));
        tokens.push_back(Best(logits[i]));
        items.push_back({.sequence = sequences[i].get(),
                         .tokens = std::span(&tokens.back(), 1),
                         .logits = logits[i].data()});
      }
      QUIRE_TRY(flow.Begin(items));
      ++under_way;
    }
    QUIRE_TRY(make_room(0));
  }
  answers.digests.clear();
  for (Blake2b<32>& hash : hashes) answers.digests.push_back(hash.Finish());
  return {};
}

std::vector<std::vector<TokenId>> FourPrompts(uint32_t vocab) {
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    prompts.push_back(SomeTokens(70 + 29 * seed, vocab, seed + 5));
  }
  return prompts;
}

Answers AnswersOf(std::vector<RankState>& ranks, const Schedule& schedule = {}) {
  const uint32_t vocab = ranks[0].model->config().vocab;
  Answers answers;
  ExpectAllEndedWell(RunPipeline(
      ranks,
      [&](Leader& leader, PipelineCache& cache, Identity& identity) {
        return Answer(FourPrompts(vocab), leader, cache, identity, vocab, answers);
      },
      schedule));
  return answers;
}

void ExpectNothingHeld(const std::vector<RankState>& ranks) {
  for (const RankState& rank : ranks) {
    std::istringstream map(rank.cache->BlockMap());
    for (std::string line; std::getline(map, line);) {
      if (line.ends_with(':')) continue;
      EXPECT_EQ(line.find_first_of("pS"), std::string::npos) << line;  // private, or leased
    }
  }
}

class PipelineBitsTest : public testing::TestWithParam<Codec> {};

TEST_P(PipelineBitsTest, AreThoseOfOneProcessHitAndMiss) {
  const ModelConfig config = FourLayers();
  auto alone = MakeRanks(config, GetParam(), 1);
  const Answers expected = AnswersOf(alone);
  for (const uint32_t count : {2u, 3u, 4u}) {
    auto ranks = MakeRanks(config, GetParam(), count);
    const Answers miss = AnswersOf(ranks, {.seed = count, .delay_us_max = 300});
    EXPECT_EQ(miss.digests, expected.digests) << count << " ranks, miss";
    EXPECT_EQ(miss.found, (std::vector<uint64_t>{0, 0, 0, 0}));
    const Answers hit = AnswersOf(ranks, {.seed = count, .delay_us_max = 300});
    EXPECT_EQ(hit.digests, expected.digests) << count << " ranks, hit";
    EXPECT_EQ(hit.found, (std::vector<uint64_t>{64, 96, 112, 144}));
    ExpectNothingHeld(ranks);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, PipelineBitsTest, testing::ValuesIn(kCodecs),
                         [](const auto& each) { return std::string(CodecName(each.param)); });

TEST(Pipeline, FindsWhatAllRanksHave) {
  auto ranks = MakeRanks(FourLayers(), Codec::kF16, 3);
  const Answers first = AnswersOf(ranks);
  // The least recently used ends go; what is left is another prefix on each rank.
  ranks[1].cache->Evict(5);
  ranks[2].cache->Evict(9);
  const Answers second = AnswersOf(ranks);
  EXPECT_EQ(second.digests, first.digests);
  const auto total = [](const Answers& answers) {
    uint64_t tokens = 0;
    for (const uint64_t found : answers.found) tokens += found;
    return tokens;
  };
  EXPECT_GT(total(second), 0u);
  EXPECT_LT(total(second), uint64_t{64 + 96 + 112 + 144});
  const Answers third = AnswersOf(ranks);  // all have it again
  EXPECT_EQ(third.found, (std::vector<uint64_t>{64, 96, 112, 144}));
  ExpectNothingHeld(ranks);
}

TEST(Pipeline, OpensOnAllRanksOrOnNone) {
  const ModelConfig config = FourLayers();
  auto ranks = MakeRanks(config, Codec::kF16, 3);
  const uint64_t block_bytes = ranks[1].cache->block_bytes();
  ranks[1].cache = model::MakeCache(ranks[1].model->config(), Codec::kF16, 12 * block_bytes);
  const auto small = SomeTokens(20, config.vocab, 1);
  const auto large = SomeTokens(600, config.vocab, 2);
  ExpectAllEndedWell(
      RunPipeline(ranks, [&](Leader&, PipelineCache& cache, Identity& identity) -> Result<void> {
        for (int again = 0; again < 2; ++again) {
          QUIRE_ASSIGN(Plan plan, cache.Acquire({.identity = &identity, .tokens = large}));
          const auto refused = cache.Open(std::move(plan), {});
          EXPECT_FALSE(refused.has_value());
          if (!refused) {
            EXPECT_EQ(refused.error().message.substr(0, 7), "rank 1:");
          }
          QUIRE_ASSIGN(plan, cache.Acquire({.identity = &identity, .tokens = small}));
          QUIRE_ASSIGN(const auto sequence, cache.Open(std::move(plan), {}));
          EXPECT_TRUE(sequence->Reserve(100).has_value());
          const auto grown = sequence->Reserve(600);
          EXPECT_FALSE(grown.has_value());
          if (!grown) {
            EXPECT_EQ(grown.error().message.substr(0, 7), "rank 1:");
          }
        }
        return {};
      }));
  ExpectNothingHeld(ranks);
}

TEST(Pipeline, RefusesWhatItsSequencesCannotDo) {
  const ModelConfig config = FourLayers();
  auto ranks = MakeRanks(config, Codec::kF16, 2);
  const auto tokens = SomeTokens(20, config.vocab, 1);
  ExpectAllEndedWell(RunPipeline(
      ranks, [&](Leader& leader, PipelineCache& cache, Identity& identity) -> Result<void> {
        const auto code = [](const auto& result) {
          return result ? std::nullopt : std::optional(result.error().code);
        };
        const auto open = [&](const SequenceOptions& options) -> Result<std::unique_ptr<Sequence>> {
          QUIRE_ASSIGN(Plan plan, cache.Acquire({.identity = &identity, .tokens = tokens}));
          return cache.Open(std::move(plan), options);
        };
        EXPECT_EQ(code(open({.contiguous = true})), ErrorCode::kUnsupported);
        EXPECT_EQ(code(open({.resident_tokens = 256})), ErrorCode::kUnsupported);
        EXPECT_EQ(code(cache.Pin({.identity = &identity, .tokens = tokens}, 0)),
                  ErrorCode::kUnsupported);
        QUIRE_ASSIGN(const auto sequence, open({}));
        const model::StepItem item = {.sequence = sequence.get(), .tokens = tokens};
        QUIRE_TRY(leader.Begin({&item, 1}));
        QUIRE_TRY(leader.Finish());
        EXPECT_EQ(code(sequence->Rollback(16)), ErrorCode::kUnsupported);
        EXPECT_TRUE(sequence->Rollback(20).has_value());
        EXPECT_EQ(code(sequence->Fork()), ErrorCode::kUnsupported);
        EXPECT_EQ(code(sequence->Select({})), ErrorCode::kUnsupported);
        const auto own = model::OpenSequence(*ranks[0].cache, *ranks[0].model, tokens);
        const model::StepItem foreign = {.sequence = own.get(), .tokens = tokens};
        EXPECT_EQ(code(leader.Begin({&foreign, 1})), ErrorCode::kInvalidArgument);
        return {};
      }));
}

TEST(Pipeline, TenantsAreApartOnAllRanksAndHaveTheirLimitsOnEach) {
  const ModelConfig config = FourLayers();
  auto ranks = MakeRanks(config, Codec::kF16, 3);
  const auto tokens = SomeTokens(100, config.vocab, 1);
  // A rank that has less to give than others.
  ASSERT_TRUE(ranks[2].cache->AddTenant({.name = "of its own", .floor_bytes = kHotBytes / 2}));
  const auto stats_of_a = [&ranks](uint32_t rank) {
    Cache& cache = *ranks[rank].cache;
    return cache.tenant_stats(cache.FindTenant("a").value()).value();
  };
  ExpectAllEndedWell(RunPipeline(
      ranks, [&](Leader& leader, PipelineCache& cache, Identity& identity) -> Result<void> {
        const auto ask = [&](TenantId tenant) -> Result<uint64_t> {
          QUIRE_ASSIGN(Plan plan,
                       cache.Acquire({.tenant = tenant, .identity = &identity, .tokens = tokens}));
          QUIRE_ASSIGN(const auto sequence, cache.Open(std::move(plan), {}));
          const uint64_t found = sequence->length();
          const model::StepItem item = {.sequence = sequence.get(),
                                        .tokens = std::span(tokens).subspan(found)};
          QUIRE_TRY(leader.Begin({&item, 1}));
          QUIRE_TRY(leader.Finish());
          return found;
        };
        QUIRE_ASSIGN(const TenantId a, cache.AddTenant({.name = "a"}));
        QUIRE_ASSIGN(const TenantId b, cache.AddTenant({.name = "b"}));
        EXPECT_EQ(ask(a).value(), 0u);
        EXPECT_EQ(ask(a).value(), 96u);
        EXPECT_EQ(ask(b).value(), 0u);
        EXPECT_EQ(ask(kDefaultTenant).value(), 0u);
        QUIRE_TRY(cache.Erase(a));
        for (uint32_t rank = 0; rank < ranks.size(); ++rank)
          EXPECT_EQ(stats_of_a(rank).bytes_used, 0u);
        EXPECT_EQ(ask(a).value(), 0u);

        const uint64_t quota = 3 * ranks[0].cache->block_bytes();
        QUIRE_TRY(cache.SetLimits(a, quota, 0));
        EXPECT_EQ(ask(a).error().code, ErrorCode::kTooLarge);
        const auto refused = cache.SetLimits(a, 0, kHotBytes / 4 * 3);
        EXPECT_EQ(refused.error().message.substr(0, 7), "rank 2:");
        for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
          EXPECT_EQ(stats_of_a(rank).quota_bytes, quota);
          EXPECT_EQ(stats_of_a(rank).floor_bytes, 0u);
        }
        QUIRE_TRY(cache.RemoveTenant(a));
        for (RankState& rank : ranks) EXPECT_FALSE(rank.cache->FindTenant("a"));
        EXPECT_EQ(cache.RemoveTenant(a).error().code, ErrorCode::kNotFound);
        EXPECT_EQ(ask(b).value(), 96u);
        return {};
      }));
  ExpectNothingHeld(ranks);
}

TEST(Pipeline, ATenantThatOneRankAloneRefusesEndsAllRanks) {
  auto ranks = MakeRanks(FourLayers(), Codec::kF16, 3);
  ASSERT_TRUE(ranks[1].cache->AddTenant({.name = "of its own", .floor_bytes = kHotBytes / 2}));
  const auto ended =
      RunPipeline(ranks, [](Leader&, PipelineCache& cache, Identity&) -> Result<void> {
        QUIRE_TRY(cache.AddTenant({.name = "a", .floor_bytes = kHotBytes / 4 * 3}));
        return {};
      });
  for (const auto& each : ended) {
    ASSERT_FALSE(each.has_value());
    EXPECT_NE(each.error().message.find("rank 1: "), std::string::npos) << each.error().message;
  }
}

TEST(Pipeline, RanksThatWereStartedWithOtherOptionsAreNamed) {
  auto ranks = MakeRanks(FourLayers(), Codec::kF16, 3);
  ranks[2].setup.settings = "other";
  const auto ended =
      RunPipeline(ranks, [](Leader&, PipelineCache&, Identity&) { return Result<void>(); });
  for (const auto& each : ended) {
    ASSERT_FALSE(each.has_value());
    EXPECT_NE(each.error().message.find("rank 2: it was started with other options"),
              std::string::npos)
        << each.error().message;
  }
}

TEST(Pipeline, ARankThatIsToldWhatCannotBeSaysSo) {
  const ModelConfig config = FourLayers();
  auto ranks = MakeRanks(config, Codec::kF16, 3);
  Stage stage({.model = *ranks[2].model,
               .cache = *ranks[2].cache,
               .attention = *ranks[2].attention,
               .executor = *ranks[2].executor},
              ranks[2].setup, SomeIdentity());
  const auto refusal = [&](Message message) {
    const auto taken = stage.Take(message);
    return taken ? std::string() : taken.error().message;
  };
  EXPECT_NE(refusal({.command = Command::kEnd, .number = 2}).find("message 2 after message 0"),
            std::string::npos);
  Message forged = {.command = Command::kEnd, .number = 1};
  forged.state.fill(1);
  EXPECT_NE(refusal(forged).find("differ from those of the ranks before it"), std::string::npos);
  Message step = {.command = Command::kStep, .number = 1};
  step.items = {{.sequence = 9, .tokens = 1}};
  step.tokens = {1};
  EXPECT_NE(refusal(step).find("0 values came"), std::string::npos);
}

TEST(Pipeline, ARankThatDiesIsNamedByAllOthers) {
  const ModelConfig config = FourLayers();
  constexpr GroupOptions kSoon{.deadline_us = 1'500'000};
  for (const uint32_t dead : {0u, 1u, 2u}) {
    // On a busy machine ranks that did not run for so long are named too.
    const std::string name = "rank ([0-2], )*" + std::to_string(dead) + "[ ,]";
    for (const uint64_t after : {20u, 45u, 90u}) {
      auto ranks = MakeRanks(config, Codec::kF16, 3);
      Answers answers;
      const auto ended = RunPipeline(
          ranks,
          [&](Leader& leader, PipelineCache& cache, Identity& identity) -> Result<void> {
            while (true) {
              QUIRE_TRY(ChangeTenant(cache));
              QUIRE_TRY(Answer(FourPrompts(config.vocab), leader, cache, identity, config.vocab,
                               answers));
            }
          },
          {.death = Schedule::Death{.rank = dead, .after_messages = after}}, kSoon);
      for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
        ASSERT_FALSE(ended[rank].has_value()) << dead << " after " << after << ", rank " << rank;
        if (rank == dead) continue;
        EXPECT_THAT(ended[rank].error().message, testing::ContainsRegex(name))
            << dead << " after " << after << ", rank " << rank;
      }
      ExpectNothingHeld(ranks);
    }
  }
}

// Rank 0 sends nothing and waits for nothing meanwhile.
TEST(Pipeline, Rank0HearsWhileItIsIdleThatARankIsGone) {
  std::vector<Result<void>> alive(3);
  RunRanks(3, {.death = Schedule::Death{.rank = 1, .after_messages = 12}},
           [&](Group& group) {
             Ring ring(group, SystemClock());
             Result<void>& own = alive[group.rank()];
             while (own) {
               own = ring.Check();
               std::this_thread::sleep_for(std::chrono::milliseconds(1));
             }
           },
           {.deadline_us = 2'000'000});
  EXPECT_THAT(alive[0].error().message, testing::ContainsRegex("rank ([1-2], )*1[ ,]"));
}

// A session holds a sequence until the engine is gone.
TEST(Pipeline, ASequenceMayEndAfterTheRanksWereStopped) {
  auto ranks = MakeRanks(FourLayers(), Codec::kF16, 3);
  const auto tokens = SomeTokens(20, FourLayers().vocab, 1);
  ExpectAllEndedWell(RunPipeline(
      ranks, [&](Leader& leader, PipelineCache& cache, Identity& identity) -> Result<void> {
        QUIRE_ASSIGN(Plan plan, cache.Acquire({.identity = &identity, .tokens = tokens}));
        QUIRE_ASSIGN(auto sequence, cache.Open(std::move(plan), {}));
        QUIRE_TRY(leader.Stop());
        sequence.reset();
        const auto refused = cache.Acquire({.identity = &identity, .tokens = tokens});
        EXPECT_FALSE(refused.has_value());
        if (!refused) {
          EXPECT_EQ(refused.error().code, ErrorCode::kCancelled);
        }
        return {};
      }));
  ExpectNothingHeld(ranks);
}

}  // namespace
}  // namespace quire::ranks::pipeline
