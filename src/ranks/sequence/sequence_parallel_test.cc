// Ranks that share the lanes of one context give the bits of one process, whatever they found in
// their caches, and hold an Nth of its K and V each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cache/below/test_store.h"
#include "model/model.h"
#include "model/test_cache.h"
#include "ranks/sequence/leader.h"
#include "ranks/sequence/member.h"
#include "ranks/test_ranks.h"

namespace quire::ranks::sequence {
namespace {

using cache::Must;
using model::StepItem;

struct Kind {
  std::string name;
  Codec codec = Codec::kF16;
  bool windowed = false;  // layer 1 looks through a window
  uint32_t residual_tokens = 0;
  ComputeType compute = ComputeType::kBf16;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

model::ModelConfig ConfigOf(const Kind& kind) {
  model::ModelConfig config = model::SmallConfig();
  config.positions_max = 1 << 14;
  if (kind.windowed) {
    config.family = model::Family::kQwen2;
    config.window_tokens = 700;
    config.window_layers = {1};
  }
  return config;
}

CacheOptions OptionsOf(const Kind& kind, const model::Model& model, const LaneShare& share,
                       uint64_t hot_bytes = 1 << 26) {
  CacheOptions options;
  options.geometry = share.GeometryOf(model::GeometryOf(model.config()));
  options.profile = NumericProfile::Uniform(kind.codec);
  options.profile.residual_tokens = kind.residual_tokens;
  if (!IsIdentity(kind.codec)) options.profile.open_dtype = Codec::kBf16;
  options.hot_bytes = hot_bytes;
  return options;
}

// A rank that lives as long as the test: its cache outlasts the groups that use it.
struct Machine {
  Machine(const Kind& kind, const LaneShare& of, uint64_t hot_bytes = 1 << 26)
      : share(of),
        model(model::MakeModel(ConfigOf(kind), kind.compute)),
        attention(model::MakeAttention()),
        executor(MakeThreadPool(1)),
        cache(Must(Cache::Create(OptionsOf(kind, *model, share, hot_bytes)))),
        identity{.weights = model->fingerprint(),
                 .adapter = {},
                 .position_encoding = model->position_encoding(),
                 .domain = {.name = "test", .secret = {3}}} {}

  const LaneShare share;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Cache> cache;
  const Identity identity;
};

std::vector<std::unique_ptr<Machine>> Machines(const Kind& kind, uint32_t ranks,
                                               uint64_t hot_bytes = 1 << 26) {
  std::vector<std::unique_ptr<Machine>> machines;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    machines.push_back(std::make_unique<Machine>(kind, LaneShare(rank, ranks), hot_bytes));
  }
  return machines;
}

// What rank 0 does, with the cache and the steps of all.
using Lead = std::function<void(LeaderCache& cache, Machine& machine)>;

// Returns what each rank ended with.
std::vector<Result<void>> RunOn(std::vector<std::unique_ptr<Machine>>& machines, const Lead& lead,
                                const Schedule& schedule = {}, const GroupOptions& options = {}) {
  std::vector<Result<void>> ends(machines.size());
  RunRanks(
      static_cast<uint32_t>(machines.size()), schedule,
      [&](Group& group) {
        Machine& machine = *machines[group.rank()];
        auto shares = Must(ShareCache::Create(*machine.cache, machine.identity, machine.share,
                                              {.vocab = machine.model->config().vocab}));
        Member member({group, shares, *machine.model, *machine.attention, *machine.executor});
        Result<void>& end = ends[group.rank()];
        end = member.Join({1}, 60'000'000);
        if (!end) return;
        if (group.rank() != 0) {
          end = Follow(member, machine.model->config().vocab);
          return;
        }
        LeaderCache cache(member);
        lead(cache, machine);
        end = cache.Stop();
      },
      options);
  return ends;
}

void ExpectAllWell(const std::vector<Result<void>>& ends) {
  for (const Result<void>& end : ends) EXPECT_TRUE(end) << end.error().message;
}

// Computes what the sequence lacks of `tokens`, in steps of `chunk`: logits by position.
using Rows = std::map<uint64_t, std::vector<float>>;
Result<void> Compute(model::StepRunner& steps, Machine& machine, Sequence& sequence,
                     std::span<const TokenId> tokens, uint32_t chunk, Rows& rows) {
  const uint32_t vocab = machine.model->config().vocab;
  for (size_t at = sequence.length(); at < tokens.size();) {
    const auto next = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at));
    std::vector<float> logits(next.size() * vocab);
    const StepItem item = {
        .sequence = &sequence, .tokens = next, .logits = logits.data(), .all_logits = true};
    QUIRE_TRY(steps.Step({&item, 1}, *machine.attention, *machine.executor));
    for (size_t i = 0; i < next.size(); ++i) {
      rows[at + i].assign(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
    }
    at += next.size();
  }
  return {};
}

// One process, the judge.
class OneProcess final : public model::StepRunner {
 public:
  explicit OneProcess(Machine& machine) : machine_(machine) {}
  Result<void> Step(std::span<const StepItem> items, AttentionBackend& attention,
                    Executor& executor) override {
    return machine_.model->Step(items, attention, executor);
  }

 private:
  Machine& machine_;
};

Rows Expected(const Kind& kind, std::span<const TokenId> tokens) {
  Machine machine(kind, LaneShare(0, 1));
  OneProcess steps(machine);
  Rows rows;
  const auto sequence = Must(machine.cache->Open(
      Must(machine.cache->Acquire({.identity = &machine.identity, .tokens = tokens})), {}));
  Must(Compute(steps, machine, *sequence, tokens, 200, rows));
  return rows;
}

// The rows that were computed, and how many tokens were found.
struct Answer {
  Rows rows;
  uint64_t found = 0;
};
Result<Answer> Ask(LeaderCache& cache, Machine& machine, std::span<const TokenId> tokens,
                   uint32_t chunk, TenantId tenant = kDefaultTenant) {
  QUIRE_ASSIGN(Plan plan,
               cache.Acquire({.tenant = tenant, .identity = &machine.identity, .tokens = tokens}));
  QUIRE_ASSIGN(const auto sequence, cache.Open(std::move(plan), {}));
  Answer answer{.rows = {}, .found = sequence->length()};
  QUIRE_TRY(Compute(cache, machine, *sequence, tokens, chunk, answer.rows));
  return answer;
}

void ExpectSame(const Answer& answer, const Rows& expected, uint64_t tokens) {
  EXPECT_EQ(answer.rows.size(), tokens - answer.found);
  for (const auto& [position, row] : answer.rows) {
    ASSERT_EQ(row, expected.at(position)) << "position " << position;
  }
}

class Ranks : public testing::TestWithParam<Kind> {};

TEST_P(Ranks, GiveTheBitsOfOneProcessForMissesAndHits) {
  const auto tokens = model::SomeTokens(1200, model::SmallConfig().vocab, 1);
  const Rows expected = Expected(GetParam(), tokens);
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
    if (ranks == 8 && GetParam().codec != Codec::kF16) continue;
    auto machines = Machines(GetParam(), ranks);
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      // Of two ranks' rows the first half travels while the second is computed.
      const auto miss = Must(Ask(cache, machine, tokens, ranks == 2 ? 401 : 130));
      EXPECT_EQ(miss.found, 0u);
      ExpectSame(miss, expected, tokens.size());
      const auto hit = Must(Ask(cache, machine, tokens, 1));
      EXPECT_GE(hit.found, 1184u - GetParam().residual_tokens) << ranks << " ranks";
      ExpectSame(hit, expected, tokens.size());
      // A prompt that ends inside: the splits of some ranks are not all found.
      const auto shorter = Must(Ask(cache, machine, std::span(tokens).first(700), 64));
      ExpectSame(shorter, expected, 700);
    }));
  }
}

// What only this kind of text shares: own tokens that are equal after other tokens that differ.
TEST_P(Ranks, FindNothingAfterAnotherTextOfOtherRanks) {
  const auto tokens = model::SomeTokens(1200, model::SmallConfig().vocab, 1);
  for (const uint64_t changed : {uint64_t{3}, uint64_t{600}}) {
    auto other = tokens;
    other[changed] = (other[changed] + 1) % static_cast<TokenId>(model::SmallConfig().vocab);
    const Rows expected = Expected(GetParam(), other);
    auto machines = Machines(GetParam(), 4);
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      Must(Ask(cache, machine, tokens, 256));
      const auto answer = Must(Ask(cache, machine, other, 256));
      EXPECT_LE(answer.found, changed);
      ExpectSame(answer, expected, other.size());
    }));
  }
}

TEST_P(Ranks, GiveTheSameBitsWhateverTheTransportDoes) {
  const auto tokens = model::SomeTokens(600, model::SmallConfig().vocab, 2);
  const Rows expected = Expected(GetParam(), tokens);
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    auto machines = Machines(GetParam(), 4);
    ExpectAllWell(RunOn(machines,
                        [&](LeaderCache& cache, Machine& machine) {
                          ExpectSame(Must(Ask(cache, machine, tokens, 300)), expected,
                                     tokens.size());
                        },
                        {.seed = seed, .delay_us_max = 500}));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Ranks,
    testing::Values(Kind{"f32", Codec::kF32}, Kind{"f16", Codec::kF16}, Kind{"bf16", Codec::kBf16},
                    Kind{"fp8_e4m3", Codec::kFp8E4m3}, Kind{"fp8_e5m2", Codec::kFp8E5m2},
                    Kind{"int8", Codec::kInt8}, Kind{"int4", Codec::kInt4},
                    Kind{"nf4", Codec::kNf4}, Kind{"fp4", Codec::kFp4}, Kind{"q25", Codec::kQ25},
                    Kind{"windows", Codec::kF16, true}, Kind{"windows_int8", Codec::kInt8, true},
                    Kind{"residual", Codec::kInt8, false, 40},
                    Kind{"f32_model", Codec::kInt8, false, 0, ComputeType::kF32}),
    [](const auto& kind) { return kind.param.name; });

const Kind kF16{"f16", Codec::kF16};

TEST(SequenceParallel, EachRankHoldsAnNthAndOneSplitAtMost) {
  const auto tokens = model::SomeTokens(3000, model::SmallConfig().vocab, 1);
  const uint64_t token_bytes = model::GeometryOf(model::SmallConfig()).values_per_token() * 2;
  for (const uint32_t ranks : {2u, 4u, 8u}) {
    auto machines = Machines(kF16, ranks);
    std::vector<uint64_t> held(ranks);
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      for (size_t count = 500; count <= tokens.size(); count += 500) {
        const auto prompt = std::span(tokens).first(count);
        const auto sequence = Must(
            cache.Open(Must(cache.Acquire({.identity = &machine.identity, .tokens = prompt})), {}));
        Rows rows;
        Must(Compute(cache, machine, *sequence, prompt, 256, rows));
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const uint64_t bytes =
              machines[rank]->cache->stats().sealed.slots_used * machine.cache->block_bytes();
          EXPECT_LE(bytes, (count / ranks + kSplitTokens) * token_bytes)
              << count << " tokens, rank " << rank << " of " << ranks;
          EXPECT_GT(bytes, 0u);
        }
      }
    }));
  }
}

TEST(SequenceParallel, RanksThatEvictedDifferentBlocksReuseWhatAllHave) {
  const auto tokens = model::SomeTokens(2000, model::SmallConfig().vocab, 1);
  const Rows expected = Expected(kF16, tokens);
  auto machines = Machines(kF16, 4);
  for (const uint32_t victim : {2u, 1u, 3u, 0u}) {
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      Must(Ask(cache, machine, tokens, 400));
    }));
    machines[victim]->cache->Evict(7);
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      const auto answer = Must(Ask(cache, machine, tokens, 400));
      EXPECT_GT(answer.found, 0u);
      EXPECT_LT(answer.found, 1984u);
      ExpectSame(answer, expected, tokens.size());
    }));
  }
}

TEST(SequenceParallel, ARankWithoutRoomRefusesForAllAndNothingIsHeld) {
  const auto tokens = model::SomeTokens(3000, model::SmallConfig().vocab, 1);
  auto machines = Machines(kF16, 2);
  machines[1] = std::make_unique<Machine>(kF16, LaneShare(1, 2), 200'000);
  ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
    auto plan = Must(cache.Acquire({.identity = &machine.identity, .tokens = tokens}));
    const auto opened = cache.Open(std::move(plan), {});
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, testing::HasSubstr("rank 1: open: "));
    // A shorter one fits, grows as far as rank 1 can, and is as it was after the refusal.
    const auto prompt = std::span(tokens).first(200);
    const auto sequence =
        Must(cache.Open(Must(cache.Acquire({.identity = &machine.identity, .tokens = prompt})),
                        {.on_full = OnFull::kHalt}));
    Rows rows;
    const auto end = Compute(cache, machine, *sequence, tokens, 100, rows);
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, ErrorCode::kNoSpace);
    EXPECT_EQ(sequence->length(), rows.size());
    EXPECT_GE(rows.size(), 200u);
    const Rows expected = Expected(kF16, std::span(tokens).first(rows.size()));
    for (const auto& [position, row] : rows) EXPECT_EQ(row, expected.at(position));
  }));
  for (const auto& machine : machines) {
    EXPECT_EQ(machine->cache->stats().sequences, 0u);
  }
}

TEST(SequenceParallel, ForksAndRollbacksTakePlaceOnAllRanks) {
  const auto tokens = model::SomeTokens(900, model::SmallConfig().vocab, 1);
  const Rows expected = Expected(kF16, tokens);
  auto machines = Machines(kF16, 4);
  ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
    const auto sequence = Must(
        cache.Open(Must(cache.Acquire({.identity = &machine.identity, .tokens = tokens})), {}));
    Rows rows;
    auto wrong = tokens;
    wrong[650] ^= 1;
    Must(Compute(cache, machine, *sequence, std::span(wrong).first(800), 150, rows));
    Must(sequence->Rollback(650));
    const auto fork = Must(sequence->Fork());
    EXPECT_EQ(fork->length(), 650u);
    rows.clear();
    Must(Compute(cache, machine, *fork, tokens, 33, rows));
    for (const auto& [position, row] : rows) ASSERT_EQ(row, expected.at(position));
    rows.clear();
    Must(Compute(cache, machine, *sequence, tokens, 77, rows));
    for (const auto& [position, row] : rows) ASSERT_EQ(row, expected.at(position));
    sequence->Reset();
    EXPECT_EQ(sequence->length(), 0u);
  }));
}

// Each rank sends the state of its subtree to each other rank, once per layer, and little besides:
// less than the states of its lanes.
TEST(SequenceParallel, TrafficOfATokenIsOneStateForEachRankHeadAndLayer) {
  const auto tokens = model::SomeTokens(1000, model::SmallConfig().vocab, 1);
  const model::ModelConfig config = model::SmallConfig();
  for (const uint32_t ranks : {2u, 4u}) {
    auto machines = Machines(kF16, ranks);
    uint64_t sent = 0;
    constexpr uint64_t kTokens = 20;
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      const auto sequence = Must(
          cache.Open(Must(cache.Acquire({.identity = &machine.identity, .tokens = tokens})), {}));
      Rows rows;
      const auto prompt = std::span(tokens).first(tokens.size() - kTokens);
      Must(Compute(cache, machine, *sequence, prompt, 256, rows));
      const uint64_t before = cache.traffic().sent_bytes;
      Must(Compute(cache, machine, *sequence, tokens, 1, rows));
      sent = cache.traffic().sent_bytes - before;
    }));
    const uint64_t least =
        config.query_heads * (config.head_dim + 2) * sizeof(float) * config.layers * (ranks - 1);
    EXPECT_GE(sent, kTokens * least);
    EXPECT_LE(sent, kTokens * (least + (ranks - 1) * 512)) << ranks << " ranks";
  }
}

// Queries, K and V of a row go from its rank to all others, and the states of a row to its rank.
TEST(SequenceParallel, TrafficOfAChunkIsWhatOtherRanksNeedOfEachRow) {
  const model::ModelConfig config = model::SmallConfig();
  constexpr uint64_t kRows = 512;
  const auto tokens = model::SomeTokens(kRows, config.vocab, 1);
  for (const uint32_t ranks : {2u, 4u, 8u}) {
    auto machines = Machines(kF16, ranks);
    uint64_t sent = 0;
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      const auto sequence = Must(
          cache.Open(Must(cache.Acquire({.identity = &machine.identity, .tokens = tokens})), {}));
      std::vector<float> logits(config.vocab);
      const StepItem item = {.sequence = sequence.get(), .tokens = tokens, .logits = logits.data()};
      const uint64_t before = cache.traffic().sent_bytes;
      Must(cache.Step({&item, 1}, *machine.attention, *machine.executor));
      sent = cache.traffic().sent_bytes - before;
    }));
    const uint64_t row = config.query_dim() + 2 * config.kv_dim();
    const uint64_t state = config.query_heads * (config.head_dim + 2);
    // What is gathered of a row are values of bf16.
    const uint64_t row_bytes = row * sizeof(uint16_t) + state * sizeof(float);
    const uint64_t least = kRows / ranks * (ranks - 1) * row_bytes * config.layers;
    // The tokens, and the row whose logits are wanted.
    const uint64_t besides =
        (ranks - 1) * (kRows * sizeof(TokenId) + config.hidden * sizeof(float) + 1024);
    EXPECT_GE(sent, least) << ranks << " ranks";
    EXPECT_LE(sent, least + besides) << ranks << " ranks";
  }
}

// Rows of several sequences in one step lie on any of the ranks.
TEST(SequenceParallel, AStepOfManySequencesIsSharedOutRowByRow) {
  const uint32_t vocab = model::SmallConfig().vocab;
  const std::vector<size_t> lengths = {300, 1, 90, 17};
  std::vector<std::vector<TokenId>> texts;
  for (const size_t length : lengths) {
    texts.push_back(model::SomeTokens(length, vocab, static_cast<uint32_t>(texts.size())));
  }
  using Logits = std::vector<std::vector<float>>;
  const auto compute = [&](Machine& machine, model::StepRunner& steps, const auto& open) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<StepItem> items;
    Logits logits(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      sequences.push_back(open(texts[i]));
      logits[i].resize(texts[i].size() * vocab);
      items.push_back({.sequence = sequences.back().get(),
                       .tokens = texts[i],
                       .logits = i == 3 ? nullptr : logits[i].data(),  // nothing is wanted
                       .all_logits = i == 2});
    }
    Must(steps.Step(items, *machine.attention, *machine.executor));
    return logits;
  };
  Machine one(kF16, LaneShare(0, 1));
  OneProcess steps(one);
  const Logits expected = compute(one, steps, [&](const std::vector<TokenId>& tokens) {
    return Must(one.cache->Open(
        Must(one.cache->Acquire({.identity = &one.identity, .tokens = tokens})), {}));
  });
  for (const uint32_t ranks : {2u, 4u, 8u, 16u}) {
    auto machines = Machines(kF16, ranks);
    ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
      const Logits logits = compute(machine, cache, [&](const std::vector<TokenId>& tokens) {
        return Must(
            cache.Open(Must(cache.Acquire({.identity = &machine.identity, .tokens = tokens})), {}));
      });
      EXPECT_EQ(logits, expected) << ranks << " ranks";
    }));
  }
}

TEST(SequenceParallel, RanksThatDifferEndBeforeTheyCompute) {
  RunRanks(3, {}, [](Group& group) {
    Machine machine(kF16, LaneShare(0, 1));
    auto shares = Must(ShareCache::Create(*machine.cache, machine.identity, LaneShare(0, 1),
                                          {.vocab = machine.model->config().vocab}));
    Member member({group, shares, *machine.model, *machine.attention, *machine.executor});
    const auto joined = member.Join({static_cast<uint8_t>(group.rank() == 1)}, 60'000'000);
    ASSERT_FALSE(joined);
    EXPECT_THAT(joined.error().message, testing::HasSubstr("rank 1 differs from rank 0"));
  });
}

// Rank 2 computes with other weights: the first step says so on all ranks.
TEST(SequenceParallel, AStepWhoseResultsDifferIsAnErrorOnAllRanks) {
  const auto tokens = model::SomeTokens(40, model::SmallConfig().vocab, 1);
  auto machines = Machines(kF16, 4);
  machines[2]->model = model::MakeModel(ConfigOf(kF16), ComputeType::kBf16, /*seed=*/2);
  const auto ends = RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
    const auto answer = Ask(cache, machine, tokens, 40);
    ASSERT_FALSE(answer);
    EXPECT_THAT(answer.error().message, testing::HasSubstr("rank 2 differs from rank 0 in step 1"));
  });
  for (const Result<void>& end : ends) {
    ASSERT_FALSE(end);
    EXPECT_THAT(end.error().message, testing::HasSubstr("differs from rank 0 in step 1"));
  }
}

// Whichever rank dies, whenever: the others say which one, and nothing is held afterwards.
TEST(SequenceParallel, ARankThatDiesIsNamedByAllOthers) {
  const auto tokens = model::SomeTokens(600, model::SmallConfig().vocab, 1);
  for (const uint64_t after : {20, 57, 101}) {
    const uint32_t victim = after % 4;
    auto machines = Machines(kF16, 4);
    const auto ends =
        RunOn(machines,
              [&](LeaderCache& cache, Machine& machine) {
                while (ChangeTenant(cache) && Ask(cache, machine, tokens, 50)) {
                }
              },
              {.seed = after, .death = Schedule::Death{victim, after}}, {.deadline_us = 3'000'000});
    // On a busy machine ranks that did not run for so long are named too.
    const std::string name = "rank ([0-3], )*" + std::to_string(victim) + "[ ,]";
    for (uint32_t rank = 0; rank < 4; ++rank) {
      ASSERT_FALSE(ends[rank]) << rank;
      EXPECT_THAT(ends[rank].error().message, testing::ContainsRegex(name)) << "after " << after;
      EXPECT_EQ(machines[rank]->cache->stats().sequences, 0u);
    }
  }
}

// Rank 0 has nothing to ask for longer than the deadline.
TEST(SequenceParallel, RanksThatAreIdleWaitAsLongAsRank0IsThere) {
  const auto tokens = model::SomeTokens(40, model::SmallConfig().vocab, 1);
  constexpr GroupOptions kSoon{.deadline_us = 3'000'000};
  auto machines = Machines(kF16, 2);
  ExpectAllWell(RunOn(
      machines,
      [&](LeaderCache& cache, Machine& machine) {
        for (int i = 0; i < 12; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          ASSERT_TRUE(cache.Beat());
        }
        EXPECT_TRUE(Ask(cache, machine, tokens, 40));
      },
      {}, kSoon));
  const auto silent = RunOn(
      machines,
      [&](LeaderCache& cache, Machine&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3300));
        EXPECT_FALSE(cache.Beat());
      },
      {}, kSoon);
  ASSERT_FALSE(silent[1]);
  EXPECT_THAT(silent[1].error().message, testing::HasSubstr("rank 0 was not heard for 3000 ms"));
}

TEST(SequenceParallel, Rank0HearsWhileItIsIdleThatARankIsGone) {
  auto machines = Machines(kF16, 4);
  Result<void> alive;
  const auto ends = RunOn(machines,
                          [&](LeaderCache& cache, Machine&) {
                            while (alive) alive = cache.Beat();
                          },
                          {.death = Schedule::Death{.rank = 2, .after_messages = 60}},
                          {.deadline_us = 2'000'000});
  ASSERT_FALSE(alive);
  EXPECT_THAT(alive.error().message, testing::ContainsRegex("rank ([1-3], )*2[ ,]"));
  for (const Result<void>& end : ends) EXPECT_FALSE(end);
}

// A session holds a sequence until the engine is gone.
TEST(SequenceParallel, ASequenceMayEndAfterTheRanksWereStopped) {
  const auto tokens = model::SomeTokens(40, model::SmallConfig().vocab, 1);
  auto machines = Machines(kF16, 2);
  ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
    const AcquireRequest request = {.identity = &machine.identity, .tokens = tokens};
    auto sequence = Must(cache.Open(Must(cache.Acquire(request)), {}));
    Must(cache.Stop());
    sequence.reset();
    const auto refused = cache.Acquire(request);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kCancelled);
  }));
  for (const auto& machine : machines) EXPECT_EQ(machine->cache->stats().sequences, 0u);
}

// Stores of its own: what a rank wrote is found after a restart, by as many ranks.
TEST(SequenceParallel, ARestartFindsWhatItsRanksStored) {
  const auto tokens = model::SomeTokens(1300, model::SmallConfig().vocab, 1);
  for (const Kind& kind : {kF16, Kind{"int8", Codec::kInt8}}) {
    const Rows expected = Expected(kind, tokens);
    std::vector<std::unique_ptr<cache::TestStore>> stores;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      stores.push_back(std::make_unique<cache::TestStore>());
    }
    const auto start = [&](uint32_t ranks) {
      auto machines = Machines(kind, ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        Machine& machine = *machines[rank];
        CacheOptions options = OptionsOf(kind, *machine.model, machine.share);
        options.store = stores[rank]->store.get();
        options.clock = &stores[rank]->clock;
        machine.cache = Must(Cache::Create(options));
      }
      return machines;
    };
    const auto run = [&](uint32_t ranks) {
      auto machines = start(ranks);
      Answer answer;
      ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
        answer = Must(Ask(cache, machine, tokens, 256));
      }));
      for (uint32_t rank = 0; rank < ranks; ++rank) Must(stores[rank]->store->Flush());
      ExpectSame(answer, expected, tokens.size());
      return answer.found;
    };
    EXPECT_EQ(run(4), 0u);
    EXPECT_EQ(run(4), 1296u);
    // Of two ranks, rank 0 finds the first split, which was its own; rank 1 the second one.
    EXPECT_EQ(run(2), 512u);
    EXPECT_EQ(run(2), 1296u);
  }
}

TEST(SequenceParallel, TenantsAreApartOnAllRanksAndAreErasedOnAll) {
  const auto tokens = model::SomeTokens(900, model::SmallConfig().vocab, 4);
  const Rows expected = Expected(kF16, tokens);
  auto machines = Machines(kF16, 4);
  ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
    const TenantId a = Must(cache.AddTenant({.name = "a"}));
    Must(cache.AddTenant({.name = "team", .shared = true}));
    const TenantId b = Must(cache.AddTenant({.name = "b", .domain = "team"}));
    const TenantId c = Must(cache.AddTenant({.name = "c", .domain = "team"}));
    const auto ask = [&](TenantId tenant) {
      const auto answer = Must(Ask(cache, machine, tokens, 300, tenant));
      ExpectSame(answer, expected, tokens.size());
      return answer.found;
    };
    EXPECT_EQ(ask(a), 0u);
    EXPECT_EQ(ask(a), 896u);
    EXPECT_EQ(ask(b), 0u);
    EXPECT_EQ(ask(c), 896u);  // of the same domain
    EXPECT_EQ(ask(kDefaultTenant), 0u);
    Must(cache.Erase(a));
    for (const auto& rank : machines) {
      const TenantId own = Must(rank->cache->FindTenant("a"));
      EXPECT_EQ(Must(rank->cache->tenant_stats(own)).bytes_used, 0u);
      const TenantId team = Must(rank->cache->FindTenant("team"));
      EXPECT_GT(Must(rank->cache->tenant_stats(team)).bytes_used, 0u);
    }
    EXPECT_EQ(ask(a), 0u);
    Must(cache.RemoveTenant(a));
    for (const auto& rank : machines) EXPECT_FALSE(rank->cache->FindTenant("a"));
    EXPECT_EQ(cache.RemoveTenant(a).error().code, ErrorCode::kNotFound);
    EXPECT_EQ(Ask(cache, machine, tokens, 300, a).error().code, ErrorCode::kNotFound);
    EXPECT_EQ(ask(b), 896u);
  }));
}

TEST(SequenceParallel, ATenantHasItsQuotaOnEachRank) {
  const auto tokens = model::SomeTokens(1400, model::SmallConfig().vocab, 4);
  auto machines = Machines(kF16, 2);
  const uint64_t block_bytes = machines[0]->cache->block_bytes();
  ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& machine) {
    const TenantId a = Must(cache.AddTenant({.name = "a", .quota_bytes = 40 * block_bytes}));
    const auto refused = Ask(cache, machine, tokens, 300, a);  // 700 tokens of each rank
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("tenant \"a\""));
    Must(cache.SetLimits(a, 100 * block_bytes, 0));
    Must(Ask(cache, machine, tokens, 300, a));
    Must(cache.SetLimits(a, 20 * block_bytes, 0));
    for (const auto& rank : machines) {
      const auto stats = Must(rank->cache->tenant_stats(Must(rank->cache->FindTenant("a"))));
      EXPECT_EQ(stats.quota_bytes, 20 * block_bytes);
      EXPECT_LE(stats.bytes_used, stats.quota_bytes);
    }
  }));
}

TEST(SequenceParallel, LimitsThatOneRankRefusesStayOnAll) {
  auto machines = Machines(kF16, 3 + 1);
  const uint64_t budget = machines[0]->cache->options().hot_bytes;
  Must(machines[2]->cache->AddTenant({.name = "of its own", .floor_bytes = budget / 2}));
  ExpectAllWell(RunOn(machines, [&](LeaderCache& cache, Machine& /*machine*/) {
    const TenantId a = Must(cache.AddTenant({.name = "a", .quota_bytes = budget / 2}));
    const auto refused = cache.SetLimits(a, 0, budget / 4 * 3);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
    EXPECT_THAT(refused.error().message, testing::StartsWith("rank 2: "));
    for (const auto& rank : machines) {
      const auto stats = Must(rank->cache->tenant_stats(Must(rank->cache->FindTenant("a"))));
      EXPECT_EQ(stats.quota_bytes, budget / 2);
      EXPECT_EQ(stats.floor_bytes, 0u);
    }
  }));
}

TEST(SequenceParallel, ATenantThatOneRankAloneRefusesEndsAllRanks) {
  auto machines = Machines(kF16, 2);
  const uint64_t budget = machines[0]->cache->options().hot_bytes;
  Must(machines[1]->cache->AddTenant({.name = "of its own", .floor_bytes = budget / 2}));
  const auto ends = RunOn(machines, [&](LeaderCache& cache, Machine& /*machine*/) {
    // What rank 0 refuses the others never hear of.
    EXPECT_EQ(cache.AddTenant({}).error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(cache.AddTenant({.name = "a", .floor_bytes = budget / 4 * 3}));
  });
  for (const auto& end : ends) {
    ASSERT_FALSE(end);
    EXPECT_THAT(end.error().message, testing::HasSubstr("rank 1: "));
  }
}

}  // namespace
}  // namespace quire::ranks::sequence
