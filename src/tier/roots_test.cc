#include "tier/roots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/prng.h"
#include "tier/test_records.h"

namespace quire::tier {
namespace {

RecordRoot Root(uint64_t number) {
  return {.key = TestDigest("root", number),
          .block_tokens = 16 + static_cast<uint32_t>(number % 2)};
}

// In lock step with a list of all that was added and not forgotten.
TEST(RootTable, KnowsWhatItsSegmentsHave) {
  Prng prng(5);
  RootTable table;
  struct Had {
    PublisherId publisher;
    std::vector<RecordRoot> roots;
  };
  std::map<uint32_t, Had> model;
  for (int step = 0; step < 5000; ++step) {
    const auto segment = static_cast<uint32_t>(prng.NextBelow(12));
    if (prng.NextChance(6)) {
      table.Forget(segment);
      model.erase(segment);
    } else {
      // A segment is one publisher's until it is forgotten.
      const PublisherId publisher = model.contains(segment)
                                        ? model[segment].publisher
                                        : PublisherOf(prng.NextChance(2) ? "a" : "b");
      const RecordRoot root = Root(prng.NextBelow(30));
      table.Add(segment, publisher, root);
      Had& had = model[segment];
      had.publisher = publisher;
      if (had.roots.size() < RootTable::kOfSegmentMax && std::ranges::count(had.roots, root) == 0) {
        had.roots.push_back(root);
      }
    }
    ASSERT_EQ(table.OfSegment(segment),
              model.contains(segment) ? model[segment].roots : std::vector<RecordRoot>());
    for (const char* name : {"a", "b", "c"}) {
      std::set<RecordRoot> want;
      for (const auto& [number, had] : model) {
        if (had.publisher == PublisherOf(name)) want.insert(had.roots.begin(), had.roots.end());
      }
      const auto have = table.Of(PublisherOf(name));
      ASSERT_EQ(std::set(have.begin(), have.end()), want);
      ASSERT_EQ(have.size(), want.size());
    }
  }
}

TEST(RootTable, TellsSoManyAtMost) {
  RootTable table;
  for (uint64_t i = 0; i < 2 * RootTable::kOfPublisherMax; ++i) {
    table.Add(static_cast<uint32_t>(i / 4), PublisherOf("a"), Root(i));
  }
  EXPECT_EQ(table.Of(PublisherOf("a")).size(), RootTable::kOfPublisherMax);
}

}  // namespace
}  // namespace quire::tier
