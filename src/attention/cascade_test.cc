#include "attention/plan.h"

#include <gtest/gtest.h>
// gtest before rapidcheck
#include <rapidcheck/gtest.h>

#include <cstring>

#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

/// Sequences of which some begin with the blocks of an earlier one, each with one row at its end.
class Company {
 public:
  explicit Company(const TestShape& shape) : shape_(MakeShape(shape)), prng_(5) {}

  void Add(uint64_t tokens) {
    sequences_.push_back(std::make_unique<TestSequence>(shape_, tokens, false, &prng_));
    const size_t floats = size_t{shape_.query_heads} * shape_.key.dim;
    queries_.push_back(RandomFloats(floats, &prng_));
  }
  void Add(uint64_t tokens, size_t other, uint64_t shared_blocks) {
    Add(tokens);
    sequences_.back()->ShareFirst(*sequences_[other], shared_blocks);
  }

  const AttentionShape& shape() const { return shape_; }
  size_t size() const { return sequences_.size(); }
  uint64_t blocks(size_t i) const {
    return (sequences_[i]->tokens() + shape_.key.block_tokens - 1) / shape_.key.block_tokens;
  }
  size_t outputs() const { return size_t{shape_.query_heads} * shape_.value.dim; }

  /// One task each; `out` has outputs() floats each.
  std::vector<AttentionTask> Tasks(std::vector<float>* out) const {
    out->assign(size() * outputs(), -7.0f);
    std::vector<AttentionTask> tasks;
    for (size_t i = 0; i < size(); ++i) {
      tasks.push_back(sequences_[i]->Task(sequences_[i]->tokens() - 1, 1, queries_[i].data(),
                                          out->data() + i * outputs()));
      tasks.back().sequence = static_cast<uint32_t>(i);
    }
    return tasks;
  }

  BatchTables Joined() const {
    BatchTables joined;
    for (const auto& sequence : sequences_) {
      const Result<void> added = joined.Add(sequence->tables());
      QUIRE_CHECK(added.has_value());
    }
    return joined;
  }

  std::vector<Cascade> Find() const {
    std::vector<float> out;
    const std::vector<AttentionTask> tasks = Tasks(&out);
    return FindCascades(shape_, Joined().tables().sealed, tasks);
  }

  /// Whether all together get the bits that the judge gives each of them alone.
  void ExpectJudged(uint32_t threads) const {
    const auto one = MakeThreadPool(1);
    const auto executor = MakeThreadPool(threads);
    std::vector<float> want;
    const auto judge = MakeJudgeAttention();
    const BatchTables joined = Joined();
    for (const AttentionTask& task : Tasks(&want)) {
      Attend(*judge, shape_, joined.tables(), {&task, 1}, *one);
    }
    for (const auto& backend : AllTargets()) {
      std::vector<float> got;
      const std::vector<AttentionTask> tasks = Tasks(&got);
      Attend(*backend, shape_, joined.tables(), tasks, *executor);
      RC_ASSERT(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
    }
  }

 private:
  AttentionShape shape_;
  Prng prng_;
  std::vector<std::unique_ptr<TestSequence>> sequences_;
  std::vector<std::vector<float>> queries_;
};

TEST(CascadeTest, WholeSharedSplitsBeforeTheOwnBlock) {
  Company company({});
  company.Add(1000);
  company.Add(800, 0, 40);  // 640 tokens
  company.Add(600, 0, 10);  // less than a split
  const std::vector<Cascade> found = company.Find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tasks, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(found[0].splits, 2u);
}

TEST(CascadeTest, TheOwnBlockIsNeverShared) {
  Company company({});
  company.Add(1024);
  company.Add(512, 0, 32);  // its row stands in the last shared block
  ASSERT_EQ(company.Find().size(), 1u);
  EXPECT_EQ(company.Find()[0].splits, 1u);
}

TEST(CascadeTest, BlocksReadOpenAreNeverShared) {
  for (const auto& [open_blocks, splits] : {std::pair{1u, 2u}, {14u, 2u}, {15u, 1u}, {31u, 0u}}) {
    Company company({.open_blocks = open_blocks});
    company.Add(1000);
    company.Add(745, 0, 46);  // its row stands in block 46
    const std::vector<Cascade> found = company.Find();
    ASSERT_EQ(found.size(), splits == 0 ? 0u : 1u) << open_blocks;
    if (splits > 0) {
      EXPECT_EQ(found[0].splits, splits) << open_blocks;
    }
    company.ExpectJudged(2);
  }
}

TEST(CascadeTest, ASequenceThatSharesLittleDoesNotShortenTheRest) {
  Company company({});
  company.Add(4200);
  company.Add(600, 0, 16);
  company.Add(4100, 0, 256);
  company.Add(4150, 0, 256);
  const std::vector<Cascade> found = company.Find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tasks, (std::vector<uint32_t>{0, 2, 3}));
  EXPECT_EQ(found[0].splits, 16u);
}

TEST(CascadeTest, TwoFamilies) {
  Company company({});
  company.Add(600);
  company.Add(600);
  company.Add(600, 0, 32);
  company.Add(600, 1, 32);
  const std::vector<Cascade> found = company.Find();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].tasks, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(found[1].tasks, (std::vector<uint32_t>{1, 3}));
}

TEST(CascadeTest, NoneUnderAWindow) {
  Company company({.window_tokens = 300, .sink_tokens = 4});
  company.Add(1000);
  company.Add(1000, 0, 62);
  EXPECT_TRUE(company.Find().empty());
}

TEST(CascadeTest, ManySequencesFillSeveralTiles) {
  Company company({.kv_heads = 2, .group = 2, .key_dim = 24, .value_dim = 24});
  company.Add(1100);
  for (uint64_t i = 1; i < 30; ++i) company.Add(1030 + i, 0, 64);
  company.ExpectJudged(1);
  company.ExpectJudged(3);
}

RC_GTEST_PROP(CascadeProp, EverySequenceGetsWhatItGetsAlone, ()) {
  TestShape shape{
      .kv_heads = *rc::gen::inRange(1u, 4u),
      .group = *rc::gen::element(1u, 2u, 3u),
      .key_dim = *rc::gen::element(8u, 24u, 64u),
      .value_dim = *rc::gen::element(8u, 40u, 64u),
      .block_tokens = *rc::gen::element(16u, 32u, 256u),
      .key_codec = *rc::gen::elementOf(std::vector<Codec>(kCodecs.begin(), kCodecs.end())),
      .value_codec = *rc::gen::elementOf(std::vector<Codec>(kCodecs.begin(), kCodecs.end())),
      .open_blocks = *rc::gen::element(0u, 0u, 1u, 8u, 40u),
      .has_sinks = *rc::gen::inRange(0, 3) == 0,
      .has_slopes = *rc::gen::inRange(0, 3) == 0};
  Company company(shape);
  const auto draw_tokens = [] { return 1 + *rc::gen::inRange<uint64_t>(0, 1600); };
  company.Add(draw_tokens());
  const auto count = *rc::gen::inRange<size_t>(2, 7);
  while (company.size() < count) {
    const uint64_t tokens = draw_tokens();
    const auto other = *rc::gen::inRange<size_t>(0, company.size());
    const uint64_t blocks = (tokens + shape.block_tokens - 1) / shape.block_tokens;
    // A block is shared whole, and a row's own is its own.
    const uint64_t most = std::min(blocks, company.blocks(other)) - 1;
    company.Add(tokens, other, *rc::gen::inRange<uint64_t>(0, most + 1));
  }
  company.ExpectJudged(*rc::gen::element(1u, 2u, 5u));
}

}  // namespace
}  // namespace quire::attention
