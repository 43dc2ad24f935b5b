#include "evict/least_worth.h"

#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace quire::evict {
namespace {

TEST(LeastWorth, TakesTheOldestOrNewestLeafOfAClass) {
  ReturnModel model;
  LeafOrder order(ReturnModel::kClasses);
  LeastWorth least_worth;
  EXPECT_TRUE(least_worth.Find(order, model, 100).is_none());
  for (int i = 0; i < 400; ++i) model.CountReturn(0, 60'000);
  for (int i = 0; i < 400; ++i) model.CountLost(7, 86'400'000);
  std::vector<double> scores(100, 0);
  model.Refit(scores, {});
  order.Add(BlockId(1), BlockId::None(), {.queue = 0, .weight = 0, .stamp = 1});
  order.Add(BlockId(2), BlockId::None(), {.queue = 7, .weight = 59'000, .stamp = 2});
  EXPECT_EQ(least_worth.Find(order, model, 60'000), BlockId(2)) << "newer, and never returns";
  order.Remove(BlockId(2));
  EXPECT_EQ(least_worth.Find(order, model, 60'000), BlockId(1));
}

// Paths without branches under a model that changes: what is remembered is never stale.
TEST(LeastWorth, EqualsASearchThroughAllClasses) {
  Prng prng(5);
  ReturnModel model;
  LeafOrder order(ReturnModel::kClasses);
  LeastWorth least_worth;
  std::vector<bool> present(64);
  uint64_t now_ms = 0;
  uint64_t by_worth = 0;
  for (uint64_t stamp = 1; stamp < 20'000; ++stamp) {
    if (prng.NextChance(4)) now_ms += prng.NextBelow(5000);
    if (prng.NextChance(50)) {
      const auto of_class = static_cast<uint32_t>(prng.NextBelow(ReturnModel::kClasses));
      for (int i = 0; i < 50; ++i) model.CountReturn(of_class, prng.NextBelow(20'000));
      std::vector<double> scores(100, 0);
      model.Refit(scores, {});
    }
    // A block goes, from wherever it stands, or comes behind the one before it.
    const auto number = static_cast<uint32_t>(prng.NextBelow(present.size()));
    const BlockId parent = number % 4 == 0 ? BlockId::None() : BlockId(number - 1);
    if (present[number]) {
      order.Remove(BlockId(number));
    } else {
      const auto queue = static_cast<uint32_t>(prng.NextBelow(ReturnModel::kClasses));
      order.Add(BlockId(number), parent, {.queue = queue, .weight = now_ms, .stamp = stamp});
    }
    present[number] = !present[number];

    using Worth = std::tuple<double, uint64_t, uint64_t>;
    std::optional<std::pair<Worth, BlockId>> least;
    std::optional<std::pair<uint64_t, BlockId>> oldest;
    for (uint32_t queue = 0; queue < ReturnModel::kClasses; ++queue) {
      for (const LeafOrder::Leaf* leaf : {order.FirstOf(queue), order.LastOf(queue)}) {
        if (leaf == nullptr) continue;
        const Worth worth(model.Worth(queue, now_ms - leaf->weight), leaf->weight, leaf->stamp);
        if (!least || worth < least->first) least = {worth, leaf->block};
        if (!oldest || leaf->stamp < oldest->first) oldest = {leaf->stamp, leaf->block};
      }
    }
    const BlockId wanted = least ? least->second : BlockId::None();
    ASSERT_EQ(least_worth.Find(order, model, now_ms), wanted) << "step " << stamp;
    ASSERT_EQ(least_worth.Find(order, model, now_ms), wanted) << "again, step " << stamp;
    if (oldest && wanted != oldest->second) ++by_worth;
    if (!prng.NextChance(10)) continue;
    ASSERT_EQ(least_worth.FindOldest(order), oldest ? oldest->second : BlockId::None());
  }
  EXPECT_GT(by_worth, 1000u) << "else an order by age would pass";
}

}  // namespace
}  // namespace quire::evict
