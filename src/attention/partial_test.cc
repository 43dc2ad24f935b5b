// Attention in pieces: a call may be divided into any ascending ranges of splits and any disjoint
// sets of lanes, and the result has the bits of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

constexpr uint64_t kToTheEnd = UINT64_MAX;

/// Lane states with memory of their own, which begins as something that must not be read.
class States {
 public:
  States(const AttentionShape& shape, uint32_t rows, LaneSet lanes)
      : vectors_(size_t{rows} * shape.query_heads * LaneCount(lanes)),
        floats_(vectors_ * (2 + shape.value.dim), std::numeric_limits<float>::quiet_NaN()),
        lanes_(lanes) {}

  LaneStates view() {
    float* const max = floats_.data();
    return {.lanes = lanes_, .max = max, .sum = max + vectors_, .out = max + 2 * vectors_};
  }
  bool SameBits(const States& other) const {
    return floats_.size() == other.floats_.size() &&
           std::memcmp(floats_.data(), other.floats_.data(), floats_.size() * sizeof(float)) == 0;
  }

 private:
  size_t vectors_;
  std::vector<float> floats_;
  LaneSet lanes_;
};

/// The tables of one sequence in which only the blocks of some splits have slots.
class TablesOfSplits {
 public:
  TablesOfSplits(const AttentionShape& shape, BlockTables all, SplitRange splits) : tables_(all) {
    const uint64_t per_split = kSplitTokens / shape.key.block_tokens;
    const uint64_t blocks = all.sealed.BlockCount(0);
    indptr_[1] = std::min(blocks, splits.end > blocks ? blocks : splits.end * per_split);
    for (BlockTable* table : {&tables_.sealed, &tables_.open}) {
      std::vector<uint32_t>& slots = slots_[table == &tables_.open ? 1 : 0];
      slots.assign(table->Row(0), table->Row(0) + indptr_[1]);
      std::fill_n(slots.begin(), std::min(indptr_[1], splits.begin * per_split), kNoSlot);
      table->indptr = indptr_;
      table->slots = slots.data();
    }
  }
  TablesOfSplits(const TablesOfSplits&) = delete;
  TablesOfSplits& operator=(const TablesOfSplits&) = delete;

  const BlockTables& tables() const { return tables_; }

 private:
  BlockTables tables_;
  uint64_t indptr_[2] = {0, 0};
  std::vector<uint32_t> slots_[2];
};

/// The rows at the end of one sequence.
class Rows {
 public:
  Rows(const TestShape& test, uint64_t tokens, uint32_t rows, bool two_forms = false)
      : shape_(MakeShape(test)),
        prng_(tokens + rows),
        sequence_(shape_, tokens, two_forms, &prng_),
        rows_(rows),
        queries_(RandomFloats(size_t{rows} * shape_.query_heads * shape_.key.dim, &prng_)) {
    sequence_.DropInvisible(tokens - rows);
  }

  const AttentionShape& shape() const { return shape_; }
  uint64_t splits() const { return (sequence_.tokens() - 1) / kSplitTokens + 1; }
  States MakeStates(LaneSet lanes) const { return States(shape_, rows_, lanes); }

  std::vector<float> Whole(AttentionBackend& backend, Executor& executor) const {
    std::vector<float> out(outputs());
    const AttentionTask task = Task(out.data());
    Attend(backend, shape_, sequence_.tables(), {&task, 1}, executor);
    return out;
  }

  /// Folds one range into all the sets in one call, each from what it was before.
  void Fold(AttentionBackend& backend, Executor& executor, SplitRange splits, bool first,
            std::span<States> sets) const {
    const TablesOfSplits tables(shape_, sequence_.tables(), splits);
    std::vector<AttentionTask> tasks;
    for (States& set : sets) {
      AttentionTask task = Task(nullptr);
      task.splits = splits;
      task.to = set.view();
      if (!first) task.from = task.to;
      tasks.push_back(task);
    }
    Attend(backend, shape_, tables.tables(), tasks, executor);
  }

  void FoldFrom(AttentionBackend& backend, Executor& executor, SplitRange splits,
                const LaneStates& from, const LaneStates& to) const {
    AttentionTask task = Task(nullptr);
    task.splits = splits;
    task.from = from;
    task.to = to;
    Attend(backend, shape_, sequence_.tables(), {&task, 1}, executor);
  }

  /// The last call: the splits that are left, if any.
  std::vector<float> Finish(AttentionBackend& backend, Executor& executor, SplitRange splits,
                            const LaneStates& from) const {
    std::vector<float> out(outputs());
    const TablesOfSplits tables(shape_, sequence_.tables(), splits);
    AttentionTask task = Task(out.data());
    task.splits = splits;
    task.from = from;
    if (splits.begin >= splits.end) task.queries = nullptr;
    Attend(backend, shape_, tables.tables(), {&task, 1}, executor);
    return out;
  }

  States Merged(std::vector<States>& sets) const {
    States merged = sets.front();
    LaneSet lanes = merged.view().lanes;
    for (States& set : std::span(sets).subspan(1)) {
      lanes |= set.view().lanes;
      States both = MakeStates(lanes);
      const Result<void> done = MergeLanes(shape_, rows_, merged.view(), set.view(), both.view());
      QUIRE_CHECK_MSG(done.has_value(), done.error().message);
      merged = both;
    }
    return merged;
  }

  /// `ends` ascend to the last split. With `finish_alone` the last call has no splits of its own,
  /// else those of the last range.
  std::vector<float> InPieces(AttentionBackend& backend, Executor& executor,
                              std::span<const uint64_t> ends, std::span<const LaneSet> partition,
                              bool finish_alone) const {
    std::vector<States> sets;
    for (const LaneSet lanes : partition) sets.push_back(MakeStates(lanes));
    const size_t folded = ends.size() - (finish_alone ? 0 : 1);
    uint64_t begin = 0;
    for (size_t i = 0; i < folded; ++i) {
      Fold(backend, executor, {begin, ends[i]}, i == 0, sets);
      begin = ends[i];
    }
    if (folded == 0) return Finish(backend, executor, {0, kToTheEnd}, {});
    States merged = Merged(sets);
    return Finish(backend, executor, {begin, finish_alone ? begin : kToTheEnd}, merged.view());
  }

 private:
  size_t outputs() const { return size_t{rows_} * shape_.query_heads * shape_.value.dim; }
  AttentionTask Task(float* out) const {
    return sequence_.Task(sequence_.tokens() - rows_, rows_, queries_.data(), out);
  }

  AttentionShape shape_;
  Prng prng_;
  TestSequence sequence_;
  uint32_t rows_;
  std::vector<float> queries_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Every ascending list of ends up to `splits`.
std::vector<std::vector<uint64_t>> Chains(uint64_t splits) {
  std::vector<std::vector<uint64_t>> chains;
  for (uint32_t cuts = 0; cuts < 1u << (splits - 1); ++cuts) {
    std::vector<uint64_t>& ends = chains.emplace_back();
    for (uint64_t end = 1; end < splits; ++end) {
      if ((cuts >> (end - 1) & 1) != 0) ends.push_back(end);
    }
    ends.push_back(splits);
  }
  return chains;
}

/// Every partition of lanes [0, lanes); the lanes above are in the first set.
void ExtendPartition(uint32_t lane, uint32_t lanes, std::vector<LaneSet>& sets,
                     std::vector<std::vector<LaneSet>>& all) {
  if (lane == lanes) {
    all.push_back(sets);
    all.back()[0] |= kAllLanes & ~((LaneSet{1} << lanes) - 1);
    return;
  }
  for (size_t i = 0; i < sets.size(); ++i) {
    sets[i] |= LaneSet{1} << lane;
    ExtendPartition(lane + 1, lanes, sets, all);
    sets[i] &= ~(LaneSet{1} << lane);
  }
  sets.push_back(LaneSet{1} << lane);
  ExtendPartition(lane + 1, lanes, sets, all);
  sets.pop_back();
}

std::vector<std::vector<LaneSet>> Partitions(uint32_t lanes) {
  std::vector<std::vector<LaneSet>> all;
  std::vector<LaneSet> sets;
  ExtendPartition(0, lanes, sets, all);
  return all;
}

std::vector<LaneSet> RandomPartition(Prng* prng) {
  std::vector<LaneSet> sets(1 + prng->NextBelow(kLanes), 0);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    sets[prng->NextBelow(sets.size())] |= LaneSet{1} << lane;
  }
  std::erase(sets, LaneSet{0});
  return sets;
}

std::vector<uint64_t> RandomChain(uint64_t splits, Prng* prng) {
  std::vector<uint64_t> ends = {splits};
  for (uint64_t cuts = prng->NextBelow(6); cuts > 0; --cuts) {
    ends.push_back(prng->NextBelow(splits + 1));  // some ranges are empty
  }
  std::ranges::sort(ends);
  return ends;
}

class PartialTest : public testing::TestWithParam<Codec> {
 protected:
  void SetUp() override {
    if (backends_.empty()) GTEST_SKIP() << "this processor has no fused multiply-add";
  }

  std::vector<std::unique_ptr<AttentionBackend>> backends_ = AllTargets();
  std::unique_ptr<AttentionBackend> judge_ = MakeJudgeAttention();
  std::unique_ptr<Executor> one_ = MakeThreadPool(1);
  std::unique_ptr<Executor> three_ = MakeThreadPool(3);
};
INSTANTIATE_TEST_SUITE_P(Codecs, PartialTest, testing::ValuesIn(kCodecs),
                         [](const auto& test) { return std::string(CodecName(test.param)); });

TEST_P(PartialTest, EveryChainTimesEveryPartitionOfFewSplits) {
  ASSERT_EQ(Chains(5).size(), 16u);
  ASSERT_EQ(Partitions(5).size(), 52u);
  for (const auto& [tokens, rows] : {std::pair{1270u, 1u}, {1000u, 3u}}) {
    const Rows pieces({.group = 2, .key_codec = GetParam(), .value_codec = GetParam()}, tokens,
                      rows);
    const auto splits = static_cast<uint32_t>(pieces.splits());
    ASSERT_EQ(splits, rows == 1 ? 5u : 4u);
    AttentionBackend& backend = *backends_.back();
    const std::vector<float> want = pieces.Whole(backend, *one_);
    for (const std::vector<uint64_t>& ends : Chains(splits)) {
      for (const std::vector<LaneSet>& partition : Partitions(splits)) {
        for (const bool finish_alone : {false, true}) {
          EXPECT_TRUE(
              SameBits(pieces.InPieces(backend, *one_, ends, partition, finish_alone), want))
              << rows << " rows, " << ends.size() << " ranges, " << partition.size() << " sets";
        }
      }
    }
  }
}

// Lanes of more than one split, windows that see sinks and a gap, blocks that are read open, K and
// V of other codecs, several KV heads.
TEST_P(PartialTest, ManyChainsAndPartitionsOfLongContexts) {
  struct Setup {
    TestShape shape;
    uint64_t tokens;
    uint32_t rows;
    bool two_forms = false;
  };
  const Codec codec = GetParam();
  const Setup setups[] = {
      {{.kv_heads = 2, .group = 3, .key_dim = 24, .value_dim = 40, .key_codec = codec}, 9001, 1},
      {{.value_codec = codec, .rotated = true, .open_blocks = 3}, 4800, 5, true},
      {{.kv_heads = 2, .block_tokens = 64, .key_codec = codec, .value_codec = codec}, 5000, 40},
      {{.group = 2,
        .key_codec = codec,
        .value_codec = codec,
        .window_tokens = 2000,
        .sink_tokens = 300,
        .open_blocks = 20},
       6000,
       30},
      {{.block_tokens = 256, .key_codec = codec, .value_codec = codec, .window_tokens = 700},
       4500,
       1},
      {{.kv_heads = 2,
        .group = 3,
        .key_codec = codec,
        .value_codec = codec,
        .has_sinks = true,
        .has_slopes = true},
       4700,
       3}};
  Prng prng(7);
  for (const Setup& setup : setups) {
    const Rows pieces(setup.shape, setup.tokens, setup.rows, setup.two_forms);
    for (const auto& backend : backends_) {
      const std::vector<float> want = pieces.Whole(*backend, *one_);
      for (uint32_t round = 0; round < 12; ++round) {
        const std::vector<uint64_t> ends = RandomChain(pieces.splits(), &prng);
        const std::vector<LaneSet> partition = RandomPartition(&prng);
        Executor& executor = round % 2 == 0 ? *one_ : *three_;
        EXPECT_TRUE(
            SameBits(pieces.InPieces(*backend, executor, ends, partition, round % 3 == 0), want))
            << setup.tokens << " tokens, " << ends.size() << " ranges, " << partition.size()
            << " sets";
      }
    }
  }
}

// States go from one implementation to another: from rank to rank, from a device to the host.
TEST_P(PartialTest, StatesAreThoseOfTheJudge) {
  const Rows pieces({.group = 2,
                     .key_dim = 24,
                     .value_dim = 24,
                     .key_codec = GetParam(),
                     .value_codec = GetParam(),
                     .open_blocks = 1},
                    4700, 4);
  const LaneSet lanes = 0b1000'0001'0000'0111;
  std::vector<States> want(1, pieces.MakeStates(lanes));
  pieces.Fold(*judge_, *one_, {1, 17}, true, want);
  States after = want[0];
  pieces.Fold(*judge_, *one_, {17, kToTheEnd}, false, std::span(&after, 1));
  for (const auto& backend : backends_) {
    std::vector<States> got(1, pieces.MakeStates(lanes));
    pieces.Fold(*backend, *three_, {1, 17}, true, got);
    EXPECT_TRUE(got[0].SameBits(want[0])) << backend->target();
    pieces.Fold(*backend, *three_, {17, kToTheEnd}, false, got);
    EXPECT_TRUE(got[0].SameBits(after)) << backend->target();
  }
  const std::vector<float> whole = pieces.Whole(*judge_, *one_);
  const LaneSet partition[] = {lanes, kAllLanes & ~lanes};
  const uint64_t ends[] = {5, 6, pieces.splits()};
  for (const bool finish_alone : {false, true}) {
    EXPECT_TRUE(SameBits(pieces.InPieces(*judge_, *one_, ends, partition, finish_alone), whole));
  }
}

// A state of all lanes may be passed on for some lanes only.
TEST_P(PartialTest, SomeLanesGoOnFromTheStatesOfMore) {
  const Rows pieces({.key_codec = GetParam(), .value_codec = GetParam()}, 5000, 1);
  for (const auto& backend : backends_) {
    std::vector<States> all(1, pieces.MakeStates(kAllLanes));
    pieces.Fold(*backend, *one_, {0, 9}, true, all);
    States even = pieces.MakeStates(0x5555);
    States odd = pieces.MakeStates(0xaaaa);
    States both = pieces.MakeStates(kAllLanes);
    for (States* some : {&even, &odd}) {
      pieces.FoldFrom(*backend, *three_, {9, kToTheEnd}, all[0].view(), some->view());
    }
    ASSERT_TRUE(MergeLanes(pieces.shape(), 1, odd.view(), even.view(), both.view()).has_value());
    EXPECT_TRUE(SameBits(pieces.Finish(*backend, *one_, {20, 20}, both.view()),
                         pieces.Whole(*backend, *one_)));
  }
}

TEST(Partial, ARowThatSeesNoTokenIsZeros) {
  const Rows pieces({.value_dim = 3}, 300, 2);
  std::vector<std::unique_ptr<AttentionBackend>> backends = AllTargets();
  backends.push_back(MakeJudgeAttention());
  const auto one = MakeThreadPool(1);
  for (const auto& backend : backends) {
    std::vector<States> sets(1, pieces.MakeStates(kAllLanes));
    pieces.Fold(*backend, *one, {2, kToTheEnd}, true, sets);
    EXPECT_EQ(sets[0].view().max[0], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(sets[0].view().sum[0], 0.0f);
    EXPECT_EQ(pieces.Finish(*backend, *one, {2, 2}, sets[0].view()), std::vector<float>(6, 0.0f));
  }
}

TEST(Partial, MergeRefusesSetsThatAreNotDisjoint) {
  const Rows rows({}, 20, 1);
  States a = rows.MakeStates(0b0011);
  States b = rows.MakeStates(0b0110);
  States to = rows.MakeStates(0b0111);
  const auto refused = [&](const LaneStates& x, const LaneStates& y, const LaneStates& z,
                           const std::string& words) {
    const Result<void> done = MergeLanes(rows.shape(), 1, x, y, z);
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(done.error().message.find(words), std::string::npos) << done.error().message;
  };
  refused(a.view(), b.view(), to.view(), "both have lanes 0x2");
  States c = rows.MakeStates(0b1100);
  refused(a.view(), c.view(), to.view(), "to.lanes is 0x7, not 0xf");
  LaneStates null = c.view();
  null.sum = nullptr;
  States four = rows.MakeStates(0b1111);
  refused(a.view(), null, four.view(), "null");
  LaneStates beyond = c.view();
  beyond.lanes = 0x10000;
  refused(a.view(), beyond, four.view(), "there are 16");
}

}  // namespace
}  // namespace quire::attention
