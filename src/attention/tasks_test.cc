// Calls of attention that are refused, and how several sequences become the tables of one call.
#include "attention/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

/// Two sequences of 100 and 600 tokens, and a good task of the second.
class TasksTest : public testing::Test {
 protected:
  explicit TasksTest(const TestShape& test = {.group = 2})
      : shape_(MakeShape(test)),
        short_(shape_, 100, false, &prng_),
        long_(shape_, 600, false, &prng_),
        queries_(RandomFloats(size_t{20} * shape_.query_heads * shape_.key.dim, &prng_)),
        out_(size_t{20} * shape_.query_heads * shape_.value.dim),
        states_(out_.size() * kLanes) {}

  AttentionTask Good() {
    AttentionTask task = long_.Task(580, 20, queries_.data(), out_.data());
    task.sequence = 1;
    return task;
  }
  LaneStates States(LaneSet lanes) {
    return {.lanes = lanes, .max = states_.data(), .sum = states_.data(), .out = states_.data()};
  }
  BatchTables Joined() {
    BatchTables joined;
    for (const TestSequence* sequence : {&short_, &long_}) {
      const Result<void> added = joined.Add(sequence->tables());
      QUIRE_CHECK(added.has_value());
    }
    return joined;
  }

  /// All backends refuse the second of two tasks and write nothing.
  void ExpectRefused(const std::string& words,
                     const std::function<void(BlockTables&, AttentionTask&)>& spoil) {
    const BatchTables joined = Joined();
    BlockTables tables = joined.tables();
    AttentionTask tasks[] = {Good(), Good()};
    spoil(tables, tasks[1]);
    std::vector<std::unique_ptr<AttentionBackend>> backends = AllTargets();
    backends.push_back(MakeJudgeAttention());
    for (const auto& backend : backends) {
      std::ranges::fill(out_, 7.0f);
      const Result<void> done = backend->Attend(shape_, tables, tasks, *MakeThreadPool(1));
      ASSERT_FALSE(done.has_value()) << words;
      EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(done.error().message.substr(0, 9), "tasks[1].") << done.error().message;
      EXPECT_NE(done.error().message.find(words), std::string::npos) << done.error().message;
      EXPECT_EQ(out_, std::vector<float>(out_.size(), 7.0f));
    }
  }
  bool IsTaken(const AttentionTask& task) {
    return ValidateTasks(shape_, Joined().tables(), {&task, 1}).has_value();
  }

  Prng prng_{3};
  std::vector<uint32_t> spoiled_;
  AttentionShape shape_;
  TestSequence short_;
  TestSequence long_;
  std::vector<float> queries_;
  std::vector<float> out_;
  std::vector<float> states_;
};

/// Blocks of splits in other lanes may be elsewhere: on another rank.
TEST_F(TasksTest, ABlockNeedsASlotOnlyWhereItsLaneIsAskedFor) {
  const BatchTables joined = Joined();
  const BlockTables tables = joined.tables();
  const uint64_t begin = tables.sealed.indptr[1];
  spoiled_.assign(tables.sealed.slots, tables.sealed.slots + tables.sealed.indptr[2]);
  const uint64_t blocks_per_split = kSplitTokens / shape_.key.block_tokens;
  std::fill_n(spoiled_.begin() + static_cast<int64_t>(begin + blocks_per_split), blocks_per_split,
              kNoSlot);  // split 1
  BlockTables holes = tables;
  holes.sealed.slots = holes.open.slots = spoiled_.data();
  AttentionTask task = Good();
  const auto taken = [&] { return ValidateTasks(shape_, holes, {&task, 1}).has_value(); };
  EXPECT_FALSE(taken());  // `out` takes all lanes
  task.out = nullptr;
  task.to = States(kAllLanes & ~LaneSet{2});
  EXPECT_TRUE(taken());
  task.to = States(LaneSet{2});
  EXPECT_FALSE(taken());
  task.splits = {.begin = 2};
  EXPECT_TRUE(taken());
}

TEST_F(TasksTest, WhatIsMissingOrTooFarIsRefused) {
  EXPECT_TRUE(IsTaken(Good()));
  ExpectRefused("queries is null", [](auto&, auto& task) { task.queries = nullptr; });
  ExpectRefused("out is null, and to has no lanes", [](auto&, auto& task) { task.out = nullptr; });
  ExpectRefused("sequence: 2 of the 2", [](auto&, auto& task) { task.sequence = 2; });
  ExpectRefused("rows: 20 from position 589 on, but sequence 1 has 38 blocks of 16",
                [](auto&, auto& task) { task.first_position = 589; });
  ExpectRefused("rows: 20 from position 580 on, but sequence 0 has 7 blocks",
                [](auto&, auto& task) { task.sequence = 0; });
  ExpectRefused("rows: 20 from position",
                [](auto&, auto& task) { task.first_position = UINT64_MAX - 5; });
  ExpectRefused("rows: 4294967295 from", [](auto&, auto& task) { task.rows = UINT32_MAX; });
}

TEST_F(TasksTest, TablesMustBeThere) {
  const BatchTables joined = Joined();
  const auto message = [&](const BlockTables& tables) {
    const AttentionTask task = Good();
    const Result<void> done = ValidateTasks(shape_, tables, {&task, 1});
    return done ? "" : done.error().message;
  };
  for (const bool open : {false, true}) {
    const std::string of_table = std::string(" of the ") + (open ? "open" : "sealed");
    BlockTables tables = joined.tables();
    BlockTable& table = open ? tables.open : tables.sealed;
    const BlockTable good = table;
    EXPECT_EQ(message(tables), "");
    table.indptr = nullptr;
    EXPECT_EQ(message(tables), "tasks[0].sequence: indptr" + of_table + " table is null");
    table = good;
    table.base = nullptr;
    EXPECT_EQ(message(tables), "tasks[0].sequence: base" + of_table + " table is null");
    table = good;
    table.slots = nullptr;
    EXPECT_EQ(message(tables), "tasks[0].sequence: slots" + of_table + " table is null");
  }
}

TEST_F(TasksTest, StatesMustFit) {
  const auto partial = [this](AttentionTask& task, LaneSet from, LaneSet to) {
    task.out = nullptr;
    task.from = States(from);
    task.to = States(to);
  };
  AttentionTask good = Good();
  partial(good, 0, 0b11);
  EXPECT_TRUE(IsTaken(good));
  ExpectRefused("out is asked for, and to.lanes too",
                [&](auto&, auto& task) { task.to = States(1); });
  ExpectRefused("from.lanes is 0xfff, lacks 0xf000",
                [&](auto&, auto& task) { task.from = States(0xfff); });
  ExpectRefused("from.lanes is 0x1, lacks 0x2", [&](auto&, auto& task) { partial(task, 1, 3); });
  ExpectRefused("to.lanes is 0x10000, there are 16 lanes",
                [&](auto&, auto& task) { partial(task, 0, 0x10000); });
  ExpectRefused("to.max, sum or out is null", [&](auto&, auto& task) {
    partial(task, 0, 1);
    task.to.sum = nullptr;
  });
  ExpectRefused("to has the memory of from, but other lanes",
                [&](auto&, auto& task) { partial(task, 3, 1); });
}

TEST_F(TasksTest, NoSplitsNeedNoBlocksAndNoQueries) {
  AttentionTask task = Good();
  task.from = States(kAllLanes);
  task.queries = nullptr;
  task.splits = {.begin = 3, .end = 9};  // the last one is number 2
  // In every state of the tables.
  const BlockTables nothing{.sealed = {.sequences = 2}, .open = {.sequences = 2}};
  for (const auto& backend : AllTargets()) {
    EXPECT_TRUE(backend->Attend(shape_, nothing, {&task, 1}, *MakeThreadPool(1)).has_value());
  }
  EXPECT_TRUE(
      MakeJudgeAttention()->Attend(shape_, nothing, {&task, 1}, *MakeThreadPool(1)).has_value());
  task.splits.begin = 2;
  EXPECT_FALSE(IsTaken(task));
}

TEST_F(TasksTest, BlocksMustBeThereInTheSplitsThatAreAskedFor) {
  shape_.window_tokens = 100;
  shape_.sink_tokens = 20;
  // Rows 580 to 599 see the tokens [0, 20) and from 481 on.
  const auto without = [this](uint64_t block) {
    return [this, block](BlockTables& tables, auto&) {
      spoiled_.assign(tables.sealed.Row(0), tables.sealed.Row(1) + 38);
      spoiled_[7 + block] = kNoSlot;
      tables.sealed.slots = tables.open.slots = spoiled_.data();
    };
  };
  const auto taken = [&](uint64_t block, SplitRange splits) {
    const BatchTables joined = Joined();
    BlockTables tables = joined.tables();
    AttentionTask task = Good();
    task.splits = splits;
    without(block)(tables, task);
    return ValidateTasks(shape_, tables, {&task, 1}).has_value();
  };
  for (const uint64_t block : {0u, 1u, 30u, 37u}) {
    EXPECT_FALSE(taken(block, {})) << block;
    EXPECT_EQ(taken(block, {.begin = 0, .end = 1}), block >= 16) << block;
    EXPECT_EQ(taken(block, {.begin = 1, .end = 2}), block != 30) << block;
    EXPECT_EQ(taken(block, {.begin = 2}), block != 37) << block;
  }
  for (const uint64_t block : {2u, 16u, 29u}) EXPECT_TRUE(taken(block, {})) << block;
}

class TwoFormsTest : public TasksTest {
 protected:
  TwoFormsTest()
      : TasksTest({.group = 2,
                   .key_codec = Codec::kInt8,
                   .value_codec = Codec::kInt8,
                   .open_blocks = 2}) {}
};

TEST_F(TwoFormsTest, EachBlockInTheFormsThatRowsRead) {
  // Rows 580 to 599 stand in blocks 36 and 37: they read 34 to 37 open and up to 34 sealed.
  const auto taken = [&](bool open, uint64_t block) {
    const BatchTables joined = Joined();
    BlockTables tables = joined.tables();
    BlockTable& table = open ? tables.open : tables.sealed;
    std::vector<uint32_t> slots(table.slots, table.slots + table.indptr[2]);
    slots[7 + block] = kNoSlot;
    table.slots = slots.data();
    const AttentionTask task = Good();
    return ValidateTasks(shape_, tables, {&task, 1}).has_value();
  };
  for (uint64_t block = 0; block < 38; ++block) {
    EXPECT_EQ(taken(true, block), block < 34) << block;
    EXPECT_EQ(taken(false, block), block > 34) << block;
  }
}

TEST_F(TwoFormsTest, WhatIsEncodedOnlyIsSaidToBe) {
  const BatchTables joined = Joined();
  BlockTables tables = joined.tables();
  const std::vector<uint32_t> none(tables.open.indptr[2], kNoSlot);
  tables.open.slots = none.data();
  const AttentionTask task = Good();
  const Result<void> done = ValidateTasks(shape_, tables, {&task, 1});
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().message,
            "tasks[0].first_position: 20 rows from 580 on see block 34 of sequence 1 as it was "
            "written, but it is encoded only");
}

TEST_F(TasksTest, BatchTablesKeepEveryRow) {
  const BatchTables joined = Joined();
  const BlockTables tables = joined.tables();
  ASSERT_EQ(tables.sealed.sequences, 2u);
  ASSERT_EQ(tables.sealed.BlockCount(0), 7u);
  ASSERT_EQ(tables.sealed.BlockCount(1), 38u);
  for (uint64_t block = 0; block < 38; ++block) {
    EXPECT_EQ(tables.sealed.BlockAt(1, block), long_.tables().sealed.BlockAt(0, block));
    EXPECT_EQ(tables.open.BlockAt(1, block), long_.tables().open.BlockAt(0, block));
  }
  BatchTables again;
  ASSERT_TRUE(again.Add(tables).has_value());
  EXPECT_EQ(again.tables().sealed.sequences, 2u);
  again.Clear();
  EXPECT_EQ(again.tables().sealed.sequences, 0u);
  ASSERT_TRUE(again.Add(short_.tables()).has_value());
  EXPECT_EQ(again.tables().sealed.BlockCount(0), 7u);
}

TEST_F(TasksTest, BatchTablesTakeOneTableForBothForms) {
  BlockTables same = short_.tables();
  same.open = same.sealed;
  BatchTables joined;
  ASSERT_TRUE(joined.Add(same).has_value());
  ASSERT_TRUE(joined.Add(same).has_value());
  EXPECT_EQ(joined.tables().open.slots, joined.tables().sealed.slots);
  EXPECT_EQ(joined.tables().open.sequences, 2u);
  // Those of a cache have all of them two forms, or one.
  EXPECT_FALSE(joined.Add(long_.tables()).has_value());
}

TEST_F(TasksTest, BatchTablesRefuseAnotherArena) {
  BatchTables joined = Joined();
  for (const bool open : {false, true}) {
    BlockTables other = short_.tables();
    BlockTable& table = open ? other.open : other.sealed;
    table.base += 64;
    const Result<void> added = joined.Add(other);
    ASSERT_FALSE(added.has_value());
    EXPECT_EQ(added.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(added.error().message,
              "batch tables: sequence 2 has its slots in other arenas than those before it");
    table.base -= 64;
    table.slot_stride_bytes += 64;
    EXPECT_FALSE(joined.Add(other).has_value());
  }
  EXPECT_EQ(joined.tables().sealed.sequences, 2u);
}

}  // namespace
}  // namespace quire::attention
