// How a call of attention is cut: which tiles merge their own states, and which blocks they have.
#include "cuda/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attention/test_sequence.h"

namespace quire::cuda {
namespace {

using attention::MakeShape;

class AttendPlanTest : public testing::Test {
 protected:
  /// One call of `rows` rows that see `tokens` tokens at least.
  AttentionTask Task(uint64_t tokens, uint32_t rows = 1) {
    return {.queries = floats_.data(),
            .out = floats_.data(),
            .rows = rows,
            .first_position = tokens - 1};
  }
  Wave Plan(const AttentionTask& task) {
    const AttendPlan plan = MakePlan(shape_, {}, {&task, 1}, limits_);
    EXPECT_EQ(plan.waves.size(), 1u);
    for (const Wave& wave : plan.waves) ExpectBlocksOfTiles(wave);
    return plan.waves.front();
  }
  static bool AllMerge(const Wave& wave) {
    return wave.vectors.empty() &&
           std::ranges::all_of(wave.tiles, [](const Tile& tile) { return tile.merges; });
  }
  static bool NoneMerge(const Wave& wave) {
    return !wave.vectors.empty() &&
           std::ranges::none_of(wave.tiles, [](const Tile& tile) { return tile.merges; });
  }

  AttentionShape shape_ = MakeShape({.kv_heads = 2, .group = 4});
  PlanLimits limits_{.states = uint64_t{1} << 30, .blocks_wanted = 1, .tiles_merge = true};

 private:
  /// A tile's last block is found by counting, so a wave has as many as its tiles say.
  static void ExpectBlocksOfTiles(const Wave& wave) {
    for (uint32_t number = 0; number < wave.tiles.size(); ++number) {
      const auto is_of_tile = [&](const BlockWork& work) { return work.tile == number; };
      EXPECT_EQ(std::ranges::count_if(wave.work, is_of_tile),
                wave.tiles[number].blocks(wave.splits_per_block))
          << number;
    }
  }

  std::vector<float> floats_ = std::vector<float>(4096);
};

TEST_F(AttendPlanTest, TilesMergeWhatHasAStateForEachLaneAtMost) {
  EXPECT_TRUE(AllMerge(Plan(Task(1))));
  EXPECT_TRUE(AllMerge(Plan(Task(kLanes * kSplitTokens))));
  EXPECT_TRUE(AllMerge(Plan(Task(100, 9))));
  EXPECT_TRUE(NoneMerge(Plan(Task(kLanes * kSplitTokens + 1))));
}

TEST_F(AttendPlanTest, TilesMergeWhatBlocksHaveFoldedByLanes) {
  limits_.lane_blocks_wanted = 1;
  const Wave wave = Plan(Task(100 * kSplitTokens));
  EXPECT_TRUE(AllMerge(wave));
  EXPECT_EQ(wave.work.size(), wave.tiles.size() * kLanes);
  EXPECT_EQ(wave.states, shape_.query_heads * kLanes);
}

TEST_F(AttendPlanTest, StatesThatGoElsewhereAreNotMergedByTiles) {
  float states[64];
  const LaneStates lanes{.lanes = 1, .max = states, .sum = states, .out = states};
  AttentionTask task = Task(100);
  task.from = lanes;
  EXPECT_TRUE(NoneMerge(Plan(task)));
  task = Task(100);
  task.to = lanes;
  task.out = nullptr;
  EXPECT_TRUE(NoneMerge(Plan(task)));
  limits_.tiles_merge = false;
  EXPECT_TRUE(NoneMerge(Plan(Task(100))));
}

TEST_F(AttendPlanTest, SinksAndWindowAreMergedByTilesWhereTheyTouch) {
  shape_.window_tokens = 2 * kSplitTokens;
  EXPECT_TRUE(AllMerge(Plan(Task(100 * kSplitTokens)))) << "a window alone";
  shape_.sink_tokens = 4;
  EXPECT_TRUE(AllMerge(Plan(Task(kSplitTokens))));
  EXPECT_TRUE(NoneMerge(Plan(Task(100 * kSplitTokens)))) << "two ranges";
}

// Rows that see nothing of what is asked have an output too.
TEST_F(AttendPlanTest, RowsThatSeeNothingAreFoldedByTheirOwnBlocks) {
  AttentionTask task = Task(100);
  task.splits = {5, 9};
  const Wave wave = Plan(task);
  EXPECT_TRUE(wave.tiles.empty());
  EXPECT_EQ(wave.vectors.size(), shape_.query_heads);
}

}  // namespace
}  // namespace quire::cuda
