// Every launch starts once, in order and with the arguments that it was added with, whether alone
// or in a graph; lists that come again are graphs, of which only what changed is set.
#include "cuda/pass_launches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"

namespace quire::cuda {
namespace {

struct alignas(64) Args {
  uint32_t value = 0;  // beside it there may be anything

  friend bool operator==(const Args&, const Args&) = default;
};

// Kernels are told from each other by their addresses alone.
void KernelA() {}
void KernelB() {}

/// What started, by value; how, by count.
class Watched final : public LaunchStarter {
 public:
  class Graph final : public LaunchGraph {
   public:
    Graph(Watched& of, const LaunchList& launches) : of_(of), launches_(launches) {}
    bool Set(uint32_t at, const KernelLaunch& launch) override {
      EXPECT_EQ(launch.kernel, launches_[at].kernel);
      ++of_.changes;
      if (of_.refuses_changes) return false;
      launches_.Set(at, launch);
      return true;
    }
    bool Start() override {
      if (of_.refuses_starts) return false;
      ++of_.graph_starts;
      for (uint32_t i = 0; i < launches_.size(); ++i) of_.Note(launches_[i]);
      return true;
    }

   private:
    Watched& of_;
    LaunchList launches_;
  };

  void StartNow(const KernelLaunch& launch, Stream stream) override {
    EXPECT_EQ(stream, Stream::kCompute);
    ++single_starts;
    Note(launch);
  }
  std::unique_ptr<LaunchGraph> MakeGraph(const LaunchList& launches) override {
    if (!has_graphs) return nullptr;
    ++graphs;
    return std::make_unique<Graph>(*this, launches);
  }

  std::vector<uint32_t> started;
  uint32_t single_starts = 0;
  uint32_t graphs = 0;
  uint32_t graph_starts = 0;
  uint32_t changes = 0;
  bool has_graphs = true;
  bool refuses_changes = false;
  bool refuses_starts = false;

 private:
  void Note(const KernelLaunch& launch) {
    const auto* const args = static_cast<const Args*>(launch.args);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(args) % alignof(Args), 0u);
    EXPECT_EQ(launch.grid.blocks, args->value + 1);
    started.push_back(args->value);
  }
};

class PassLaunchesTest : public testing::Test {
 protected:
  void Add(uint32_t value, AnyKernel kernel = KernelA) {
    wanted_.push_back(value);
    const Args args{.value = value};
    pass_.Add(LaunchOf("", kernel, {.blocks = value + 1}, args), device_);
  }
  /// Launches `values`, all of one kernel, as one pass.
  void Pass(const std::vector<uint32_t>& values, AnyKernel kernel = KernelA,
            const void* model = nullptr) {
    pass_.Begin(model);
    for (const uint32_t value : values) Add(value, kernel);
    pass_.StartAll(device_, /*cut=*/false);
    EXPECT_EQ(device_.started, wanted_);
  }

  Watched device_;
  PassLaunches pass_;
  std::vector<uint32_t> wanted_;
};

TEST_F(PassLaunchesTest, AListThatComesAgainIsAGraph) {
  Pass({1, 2, 3});
  EXPECT_EQ(device_.graphs, 0u) << "a shape that comes once";
  EXPECT_EQ(device_.single_starts, 3u);
  Pass({1, 2, 3});
  EXPECT_EQ(device_.graphs, 1u);
  Pass({1, 2, 3});
  Pass({1, 7, 3});
  Pass({1, 7, 3});
  EXPECT_EQ(device_.graphs, 1u);
  EXPECT_EQ(device_.graph_starts, 4u);
  EXPECT_EQ(device_.single_starts, 3u);
  EXPECT_EQ(device_.changes, 1u) << "only what differs is set, once";
}

TEST_F(PassLaunchesTest, AnotherShapeLeavesTheGraph) {
  Pass({1, 2, 3});
  Pass({1, 2, 3});
  Pass({1, 2});              // fewer launches
  Pass({1, 2, 3}, KernelB);  // other kernels
  Pass({1, 2, 3});
  EXPECT_EQ(device_.graphs, 1u);
  EXPECT_EQ(device_.graph_starts, 2u);
  Pass({4, 5, 6}, KernelB);
  Pass({4, 5, 6}, KernelB);  // this one repeats: its graph takes the place
  EXPECT_EQ(device_.graphs, 2u);
  EXPECT_EQ(device_.graph_starts, 3u);
}

TEST_F(PassLaunchesTest, ModelsThatTakeTurnsHaveGraphsOfTheirOwn) {
  const int models[2] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    Pass({1, 2, 3}, KernelA, &models[0]);
    Pass({4, 5}, KernelB, &models[1]);
  }
  EXPECT_EQ(device_.graphs, 2u);
  EXPECT_EQ(device_.graph_starts, 4u);
  EXPECT_EQ(device_.single_starts, 5u);
  EXPECT_EQ(device_.changes, 0u);
}

TEST_F(PassLaunchesTest, ALongPassStartsInLists) {
  std::vector<uint32_t> values(3 * PassLaunches::kListMax + 5);
  for (uint32_t i = 0; i < values.size(); ++i) values[i] = i;
  pass_.Begin(nullptr);
  uint32_t started = 0;
  for (uint32_t i = 0; i < values.size(); ++i) {
    Add(values[i]);
    if (std::set{16u, 32u, 64u, 128u, 192u}.contains(i + 1)) started = i + 1;
    EXPECT_EQ(device_.started.size(), started);
  }
  pass_.StartAll(device_, false);
  Pass(values);
  EXPECT_EQ(device_.graphs, 6u);
  EXPECT_EQ(device_.graph_starts, 6u);
}

// What another thread asks for comes at any place of a pass.
TEST_F(PassLaunchesTest, ACutListIsNoGraphAndLaterListsAre) {
  std::vector<uint32_t> values(2 * PassLaunches::kListMax);
  Pass(values);
  Pass(values);
  ASSERT_EQ(device_.graphs, 4u);
  const uint32_t singles = device_.single_starts;
  for (const uint32_t cut : {40u, 50u, 50u, 60u}) {
    pass_.Begin(nullptr);
    for (uint32_t i = 0; i < values.size(); ++i) {
      if (i == cut) pass_.StartAll(device_, /*cut=*/true);
      Add(values[i]);
    }
  }
  EXPECT_EQ(device_.started, wanted_);
  EXPECT_EQ(device_.single_starts, singles + 4 * 32);
  EXPECT_EQ(device_.graphs, 4u);
  EXPECT_EQ(device_.graph_starts, 4u + 4 * 3u) << "the lists beside the cut one are what they were";
}

TEST_F(PassLaunchesTest, WithoutGraphsAllStartAlone) {
  device_.has_graphs = false;
  for (int i = 0; i < 4; ++i) Pass({1, 2, 3});
  EXPECT_EQ(device_.single_starts, 12u);
}

TEST_F(PassLaunchesTest, AGraphThatCannotBeChangedIsGivenUp) {
  Pass({1, 2, 3});
  Pass({1, 2, 3});
  device_.refuses_changes = true;
  Pass({1, 2, 4});
  EXPECT_EQ(device_.graph_starts, 1u);
  EXPECT_EQ(device_.single_starts, 6u);
  Pass({1, 2, 4});
  Pass({1, 2, 4});
  EXPECT_EQ(device_.graphs, 2u) << "the shape repeats, so there is another one";
}

TEST_F(PassLaunchesTest, WhatDoesNotStartAsAGraphStartsAlone) {
  Pass({1, 2, 3});
  device_.refuses_starts = true;
  Pass({1, 2, 3});
  EXPECT_EQ(device_.graphs, 1u);
  EXPECT_EQ(device_.single_starts, 6u);
}

TEST_F(PassLaunchesTest, WhateverComesEveryLaunchStartsOnceInOrder) {
  Prng prng(7);
  for (int pass = 0; pass < 400; ++pass) {
    pass_.Begin(nullptr);
    device_.refuses_changes = prng.NextChance(20);
    device_.refuses_starts = prng.NextChance(20);
    const auto count = static_cast<uint32_t>(70 + prng.NextBelow(3) * 40);
    for (uint32_t i = 0; i < count; ++i) {
      if (prng.NextChance(200)) pass_.StartAll(device_, /*cut=*/prng.NextChance(2));
      Add(static_cast<uint32_t>(prng.NextBelow(4)), prng.NextChance(500) ? KernelB : KernelA);
    }
    pass_.StartAll(device_, false);
    ASSERT_EQ(device_.started, wanted_);
  }
  EXPECT_GT(device_.graph_starts, 50u);
}

}  // namespace
}  // namespace quire::cuda
