#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "base/prng.h"
#include "env/machine.h"
#include "tier/cold_index.h"
#include "tier/test_records.h"

namespace quire::tier {
namespace {

KeyPrefix KeyOf(uint64_t number) {
  Prng prng(number);
  KeyPrefix key;
  for (size_t i = 0; i < 2; ++i) {
    const uint64_t word = prng.Next64();
    std::memcpy(&key[i * 8], &word, 8);
  }
  return key;
}

TEST(ColdIndex, AMillionRecordsTakeAtMost80BytesEach) {
  constexpr uint32_t kRecords = 1'000'000;
  constexpr uint32_t kPerSegment = 64;
  const auto heap_bytes = [] {
    const auto info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = heap_bytes();
  ColdIndex index;
  for (uint32_t i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(index.Insert(
        {.key = KeyOf(i), .segment = i / kPerSegment, .page = i % kPerSegment, .pages = 1}));
  }
  const auto heap_each = static_cast<double>(heap_bytes() - before) / kRecords;
  const auto counted_each = static_cast<double>(index.memory_bytes()) / kRecords;
  RecordProperty("heap_bytes_per_record", std::to_string(heap_each));
  EXPECT_EQ(index.Find(KeyOf(123'456))->segment, 123'456 / kPerSegment);
  EXPECT_LE(counted_each, 80);
  if (kResidentBytesIncludeShadow) GTEST_SKIP() << "sanitizers have a heap of their own";
  EXPECT_LE(heap_each, 80);
  EXPECT_GE(heap_each, 36);  // it was measured
  EXPECT_NEAR(counted_each, heap_each, 2);
}

// In lock step with a map, through everything that changes it.
TEST(ColdIndex, DoesWhatAMapDoes) {
  Prng prng(3);
  ColdIndex index;
  std::map<KeyPrefix, ColdEntry> model;
  std::vector<bool> hidden(8);
  for (int step = 0; step < 20'000; ++step) {
    const KeyPrefix key = KeyOf(prng.NextBelow(500));
    const auto segment = static_cast<uint32_t>(prng.NextBelow(8));
    const auto found = model.find(key);
    switch (prng.NextBelow(20)) {
      case 0:
        ASSERT_EQ(index.RemoveSegment(segment), std::erase_if(model, [&](const auto& entry) {
                    return entry.second.segment == segment;
                  }));
        hidden[segment] = false;
        break;
      case 1:
        index.Hide(segment);
        hidden[segment] = true;
        break;
      case 2:
      case 3:
        if (found != model.end()) {
          const ColdEntry entry = found->second;
          ASSERT_FALSE(index.Remove(key, entry.segment, entry.page + 1));
          ASSERT_TRUE(index.Remove(key, entry.segment, entry.page));
          model.erase(found);
        }
        break;
      default: {
        const ColdEntry entry = {
            .key = key, .segment = segment, .page = static_cast<uint32_t>(step), .pages = 2};
        if (found != model.end() && hidden[found->second.segment]) model.erase(found);
        ASSERT_EQ(index.Insert(entry), model.try_emplace(key, entry).second);
      }
    }
    const auto now = index.Find(key);
    const auto expected = model.find(key);
    ASSERT_EQ(now.has_value(), expected != model.end() && !hidden[expected->second.segment]);
    if (now) {
      ASSERT_EQ(now->page, expected->second.page);
    }
    ASSERT_EQ(index.records(), model.size());
  }
  const auto entries = index.EntriesOf(2);
  ASSERT_EQ(entries.size(), static_cast<size_t>(std::ranges::count_if(model, [](const auto& entry) {
              return entry.second.segment == 2;
            })));
  EXPECT_TRUE(std::ranges::is_sorted(entries, {}, &ColdEntry::page));
}

TEST(ColdIndex, IsAskedWhileItChanges) {
  ColdIndex index;
  std::thread writer([&] {
    for (uint32_t i = 0; i < 20'000; ++i) {
      index.Insert({.key = KeyOf(i), .segment = i % 16, .page = i, .pages = 1});
      if (i % 1000 == 0) index.RemoveSegment(i / 1000 % 16);
    }
  });
  Digest key = {};
  const KeyPrefix prefix = KeyOf(19'999);
  std::copy(prefix.begin(), prefix.end(), key.begin());
  Presence presence = Presence::kUnknown;
  while (presence != Presence::kPresent) index.Find({&key, 1}, {&presence, 1});
  writer.join();
}

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
