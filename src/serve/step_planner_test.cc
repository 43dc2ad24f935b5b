// What a step computes: how a chunk is divided, and what becomes of it where there is no room.
#include "serve/step_planner.h"

#include <gtest/gtest.h>

#include <numeric>

#include "serve/state_test_util.h"

namespace quire::serve {
namespace {

class StepPlannerTest : public StateTest {
 protected:
  void Make(uint64_t slots, const EngineOptions& options) {
    StateTest::Make(slots, options);
    waiting_.emplace(*state_);
    preemption_.emplace(*state_, *waiting_);
    planner_.emplace(*state_, *waiting_, *preemption_);
  }
  Task& Run(uint64_t prompt_tokens, uint64_t computed = 0, TenantId tenant = kDefaultTenant) {
    return AddRunning(
        {.prompt = Tokens(prompt_tokens, ++seed_), .max_tokens = 50, .tenant = tenant}, computed);
  }
  /// What each of those that run gets, oldest first.
  std::vector<uint64_t> Divide(uint64_t tokens) {
    std::vector<BatchEntry> entries;
    for (Task* const task : state_->tasks.running()) entries.push_back({.task = task});
    DivideChunk(entries, tokens, *state_);
    std::vector<uint64_t> given;
    for (const BatchEntry& entry : entries) given.push_back(entry.tokens);
    return given;
  }
  std::vector<uint64_t> Plan() {
    entries_ = planner_->Plan();
    std::vector<uint64_t> tokens;
    for (const BatchEntry& entry : entries_) tokens.push_back(entry.tokens);
    return tokens;
  }

  std::optional<Waiting> waiting_;
  std::optional<Preemption> preemption_;
  std::optional<StepPlanner> planner_;
  std::vector<BatchEntry> entries_;
  uint64_t seed_ = 0;
};

using Given = std::vector<uint64_t>;

TEST_F(StepPlannerTest, OfOneTenantTheOldestAlikePromptHasAll) {
  Make(64, {.chunk_tokens_min = 64, .chunk_tokens_max = 64});
  Run(100);
  Run(100);
  EXPECT_EQ(Divide(64), (Given{64, 0}));
  EXPECT_EQ(Divide(128), (Given{100, 28}));
  EXPECT_EQ(Divide(1000), (Given{100, 100}));
}

TEST_F(StepPlannerTest, APromptWithLittleLeftGoesBeforeOneWithTwiceAsMuch) {
  Make(64, {.chunk_tokens_min = 32, .chunk_tokens_max = 32});
  Run(200);
  Run(70);
  EXPECT_EQ(Divide(32), (Given{0, 32}));
  EXPECT_EQ(Divide(128), (Given{58, 70}));
  Task& long_one = *state_->tasks.running()[0];
  Compute(long_one, 140);  // 60 left: alike, and older
  EXPECT_EQ(Divide(32), (Given{32, 0}));
}

TEST_F(StepPlannerTest, TenantsTakePiecesInTurnByWhatTheyWereServed) {
  Make(64, {.chunk_tokens_min = 64, .chunk_tokens_max = 64});
  const TenantId a = test_->cache->AddTenant({.name = "a"}).value();
  const TenantId b = test_->cache->AddTenant({.name = "b"}).value();
  Run(100, 0, a);
  Run(100, 0, b);
  EXPECT_EQ(Divide(64), (Given{32, 32}));  // in pieces of 8
  EXPECT_EQ(Divide(72), (Given{36, 36}));
  state_->shares.Charge(a, 16);
  EXPECT_EQ(Divide(64), (Given{24, 40}));
  state_->shares.Charge(a, 1000);
  EXPECT_EQ(Divide(64), (Given{0, 64}));
  state_->shares.SetWeight(a, 3);
  state_->shares.Charge(b, 1016);
  EXPECT_EQ(Divide(64), (Given{48, 16}));
}

TEST_F(StepPlannerTest, AChunkThatIsSmallerThanItsPiecesIsDividedByTokens) {
  Make(64, {.chunk_tokens_min = 3, .chunk_tokens_max = 3});
  Run(100, 0, test_->cache->AddTenant({.name = "a"}).value());
  Run(100, 0, test_->cache->AddTenant({.name = "b"}).value());
  EXPECT_EQ(Divide(3), (Given{2, 1}));
}

// Whatever is drawn: all of a chunk is given while there is anything to read, to none more than
// it has, and those of one tenant get it one after another.
TEST_F(StepPlannerTest, AllOfAChunkIsGiven) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Make(128, {.chunk_tokens_min = 32, .chunk_tokens_max = 32});
    Prng prng(seed);
    const TenantId tenants[] = {test_->cache->AddTenant({.name = "a"}).value(),
                                test_->cache->AddTenant({.name = "b"}).value()};
    uint64_t left = 0;
    for (int i = 0; i < 5; ++i) {
      const Task& task = Run(1 + prng.NextBelow(100), 0, tenants[prng.NextBelow(2)]);
      left += task.text().goal();
    }
    const uint64_t tokens = 1 + prng.NextBelow(300);
    const Given given = Divide(tokens);
    EXPECT_EQ(std::accumulate(given.begin(), given.end(), uint64_t{0}), std::min(tokens, left));
    std::map<TenantId, uint64_t> unfinished;
    for (size_t i = 0; i < given.size(); ++i) {
      const Task& task = *state_->tasks.running()[i];
      EXPECT_LE(given[i], task.text().goal());
      if (given[i] > 0 && given[i] < task.text().goal()) ++unfinished[task.tenant()];
    }
    for (const auto& [tenant, count] : unfinished) EXPECT_LE(count, 1u) << seed;
  }
}

TEST_F(StepPlannerTest, ChunksAreSmallWhileAnybodyGenerates) {
  Make(64, {.chunk_tokens_min = 16, .chunk_tokens_max = 64});
  const Task& reads = Run(200);
  EXPECT_EQ(Plan(), (Given{16}));
  Compute(*entries_[0].task, 16);
  planner_->TakeIn(entries_);  // there is much room: chunks grow
  EXPECT_EQ(planner_->chunk_tokens(), 32u);
  EXPECT_EQ(Plan(), (Given{32}));
  const Task& generates = Run(5, 5);
  ASSERT_TRUE(generates.decoding());
  EXPECT_EQ(Plan(), (Given{16, 1}));  // by age
  EXPECT_EQ(entries_[0].task, &reads);
  EXPECT_FALSE(entries_[0].decoded);
  EXPECT_TRUE(entries_[1].decoded);
}

// Each stage has some of what is to be read, in steps that shrink as less is left of it.
TEST_F(StepPlannerTest, StagesShareWhatIsToBeRead) {
  stages_ = 2;
  Make(400, {.chunk_tokens_min = 512, .chunk_tokens_max = 512});
  Run(2000);
  Run(800);
  EXPECT_EQ(Plan(), (Given{175}));  // 2,800 tokens in 16 steps: the shorter prompt first
  stages_ = 4;
  Make(400, {.chunk_tokens_min = 512, .chunk_tokens_max = 512});
  Run(4000);
  EXPECT_EQ(Plan(), (Given{125}));
  // Neither below what keeps a stage busy, nor above a chunk.
  Make(400, {.chunk_tokens_min = 512, .chunk_tokens_max = 512});
  Run(300);
  EXPECT_EQ(Plan(), (Given{64}));
  Make(400, {.chunk_tokens_min = 32, .chunk_tokens_max = 32});
  Run(3000);
  EXPECT_EQ(Plan(), (Given{32}));
}

TEST_F(StepPlannerTest, WhoStandsStillTakesNoPart) {
  Make(64, {.chunk_tokens_min = 16, .chunk_tokens_max = 16});
  Task& slow = Run(100);
  Task& loads = Run(100, 16);
  Run(100);
  slow.SetPaused(1);
  loads.StopAt(16);
  EXPECT_EQ(Plan(), (Given{16}));
  EXPECT_EQ(entries_[0].task, state_->tasks.running()[2]);
}

// It holds one block, and would read into the third: it reads half, then half of that.
TEST_F(StepPlannerTest, WhoIsShortOfRoomReadsLessAndChunksShrink) {
  Make(4, {.chunk_tokens_min = 8, .chunk_tokens_max = 64});
  for (int i = 0; i < 2; ++i) {  // chunks grow while there is room
    Task& other = Run(8);
    Plan();
    planner_->TakeIn(entries_);
    other.End(Finish::kCancelled);
    waiting_->RemoveEnded();
  }
  ASSERT_EQ(planner_->chunk_tokens(), 32u);
  Task& task = Add({.prompt = Tokens(60, 1), .max_tokens = 1});
  state_->tasks.Start(task, test_->Open(task.text().tokens().first(8), {.on_full = OnFull::kHalt}),
                      {}, 0);
  const auto rest = test_->Open(Tokens(3 * kBlock, 2));  // all other room
  Compute(task, 8);
  EXPECT_EQ(Plan(), (Given{8}));            // to the end of its block
  EXPECT_EQ(planner_->chunk_tokens(), 8u);  // halved twice
  Compute(task, 8);
  const RequestId id = task.id();
  EXPECT_EQ(Plan(), Given{});  // not for one token, and none gives any
  EXPECT_EQ(ResponseOf(id)->error.code, ErrorCode::kNoSpace);
}

TEST_F(StepPlannerTest, TheOldestTakesRoomFromTheLatest) {
  Make(2, {.chunk_tokens_min = 16, .chunk_tokens_max = 16});
  const Task& oldest = Run(kBlock, kBlock);
  const Task& latest = Run(kBlock, 3);
  EXPECT_EQ(Plan(), (Given{1}));
  EXPECT_EQ(entries_[0].task, &oldest);
  EXPECT_FALSE(latest.running());
  EXPECT_EQ(latest.wait().what, Waits::kRoom);
}

TEST_F(StepPlannerTest, AStepIsCountedAndCharged) {
  Make(64, {.chunk_tokens_min = 16, .chunk_tokens_max = 16});
  Task& reads = Run(100);
  Task& generates = Run(5, 5);
  const double served = state_->shares.served(kDefaultTenant);
  std::vector<BatchEntry> entries = {
      {.task = &reads, .tokens = 10, .fresh_tokens = 7},
      {.task = &generates, .tokens = 1, .decoded = true, .fresh_tokens = 1}};
  planner_->TakeIn(entries);
  EXPECT_EQ(state_->stats.steps, 1u);
  EXPECT_EQ(state_->stats.prompt_tokens, 10u);
  EXPECT_EQ(state_->stats.decode_tokens, 1u);
  EXPECT_EQ(state_->stats.recomputed_tokens, 3u);
  EXPECT_EQ(state_->shares.served(kDefaultTenant), served + 8);
  planner_->TakeIn({});
  EXPECT_EQ(state_->stats.steps, 1u);
}

}  // namespace
}  // namespace quire::serve
