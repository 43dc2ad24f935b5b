#include "pool/slot_set.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

namespace quire::pool {
namespace {

// A set over memory of its own.
struct Subject {
  Subject(uint32_t universe, SlotSet::Start start)
      : words(SlotSet::Bytes(universe) / sizeof(uint64_t)),
        set(reinterpret_cast<std::byte*>(words.data()), universe, start) {}

  std::vector<uint64_t> words;
  SlotSet set;
};

uint32_t NaiveFirstRun(const std::vector<bool>& members, uint32_t from, uint32_t count) {
  uint32_t length = 0;
  for (uint32_t number = from; number < members.size(); ++number) {
    length = members[number] ? length + 1 : 0;
    if (length == count) return number + 1 - count;
  }
  return static_cast<uint32_t>(members.size());
}

TEST(SlotSet, EmptyAndFullNeedNoWrites) {
  for (const uint32_t universe : {1u, 64u, 65u, 4096u, 4097u, 300'000u}) {
    Subject empty(universe, SlotSet::Start::kEmpty);
    EXPECT_TRUE(empty.set.empty());
    EXPECT_EQ(empty.set.First(0), universe);
    EXPECT_EQ(empty.set.FirstRun(1), universe);
    EXPECT_EQ(empty.words, std::vector<uint64_t>(empty.words.size()));
    Subject full(universe, SlotSet::Start::kFull);
    EXPECT_FALSE(full.set.empty());
    EXPECT_EQ(full.set.First(universe - 1), universe - 1);
    EXPECT_EQ(full.set.FirstRun(universe), 0u);
    EXPECT_EQ(full.set.FirstRun(universe + 1), universe);
    EXPECT_FALSE(full.set.Contains(universe));
  }
}

TEST(SlotSet, OfNothing) {
  SlotSet set;
  EXPECT_EQ(SlotSet::Bytes(0), 0u);
  EXPECT_TRUE(set.empty());
  EXPECT_FALSE(set.Contains(0));
  EXPECT_EQ(set.First(0), 0u);
}

TEST(SlotSet, FindsWhatIsFarAway) {
  Subject subject(10'000'000, SlotSet::Start::kEmpty);
  subject.set.Insert(9'999'999);
  EXPECT_EQ(subject.set.First(0), 9'999'999u);
  EXPECT_EQ(subject.set.First(9'999'999), 9'999'999u);
  subject.set.Insert(70);
  EXPECT_EQ(subject.set.First(0), 70u);
  EXPECT_EQ(subject.set.First(71), 9'999'999u);
  subject.set.Erase(9'999'999);
  subject.set.Erase(70);
  EXPECT_TRUE(subject.set.empty());
}

RC_GTEST_PROP(SlotSetProperty, EqualsAVectorOfBool, ()) {
  const auto universe =
      *rc::gen::oneOf(rc::gen::inRange<uint32_t>(1, 200), rc::gen::inRange<uint32_t>(4000, 9000));
  const bool full = *rc::gen::arbitrary<bool>();
  Subject subject(universe, full ? SlotSet::Start::kFull : SlotSet::Start::kEmpty);
  std::vector<bool> members(universe, full);
  const auto steps = *rc::gen::inRange(1, 40);
  for (int step = 0; step < steps; ++step) {
    // A stretch of numbers changes sides, so that words become full and empty.
    const auto begin = *rc::gen::inRange<uint32_t>(0, universe);
    const auto length =
        *rc::gen::oneOf(rc::gen::inRange<uint32_t>(1, 4), rc::gen::inRange<uint32_t>(1, 3000));
    for (uint32_t i = begin; i < universe && i - begin < length; ++i) {
      members[i] ? subject.set.Erase(i) : subject.set.Insert(i);
      members[i] = !members[i];
    }
    const auto from = *rc::gen::inRange<uint32_t>(0, universe + 100);
    RC_ASSERT(subject.set.First(from) == NaiveFirstRun(members, from, 1));
    const auto count =
        *rc::gen::oneOf(rc::gen::inRange<uint32_t>(1, 130), rc::gen::inRange<uint32_t>(1, 3000));
    RC_ASSERT(subject.set.FirstRun(count) == NaiveFirstRun(members, 0, count));
    RC_ASSERT(subject.set.empty() == (NaiveFirstRun(members, 0, 1) == universe));
    RC_ASSERT(subject.set.Contains(begin) == members[begin]);
  }
}

}  // namespace
}  // namespace quire::pool
