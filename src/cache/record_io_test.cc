// Writes of a sequence that streams, as the mover turns them.
#include "cache/record_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cache/test_memory_store.h"
#include "env/clock.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;
using tier::StoreOutcome;

/// What a run of writes was asked, in order.
struct Asked {
  std::vector<std::pair<int, uint64_t>> puts;  // of which write, under which tag
  std::vector<std::pair<int, StoreOutcome>> ends;
  bool no_memory = false;
};

class NumberedWrite final : public RecordWrite {
 public:
  NumberedWrite(int number, Asked& asked) : number_(number), asked_(asked) {}
  bool Put(tier::Store&, uint64_t tag) override {
    if (asked_.no_memory) throw std::bad_alloc();
    asked_.puts.emplace_back(number_, tag);
    return true;
  }
  void End(StoreOutcome outcome) override { asked_.ends.emplace_back(number_, outcome); }

 private:
  const int number_;
  Asked& asked_;
};

struct RecordIoTest : ::testing::Test {
  std::weak_ptr<RecordWrite> Write(int number) {
    auto write = std::make_shared<NumberedWrite>(number, asked);
    io.Write(write);
    return write;
  }
  std::vector<int> Put() const {
    std::vector<int> numbers;
    for (const auto& [number, tag] : asked.puts) numbers.push_back(number);
    return numbers;
  }

  MemoryStore store;
  ManualClock clock;
  uint64_t next_tag = 1;
  Asked asked;
  RecordIo io{store, clock, next_tag};
};

TEST_F(RecordIoTest, NothingIsLeftOfAWriteThatEnded) {
  const auto write = Write(1);
  EXPECT_TRUE(io.has_waiting());
  EXPECT_TRUE(io.Advance(/*hurries=*/false));
  EXPECT_FALSE(io.has_waiting());
  ASSERT_THAT(Put(), ElementsAre(1));
  const uint64_t tag = asked.puts[0].second;
  EXPECT_TRUE(io.Has(tag));
  EXPECT_FALSE(write.expired());
  io.End({.tag = tag, .outcome = StoreOutcome::kOk});
  EXPECT_THAT(asked.ends, ElementsAre(std::pair(1, StoreOutcome::kOk)));
  EXPECT_FALSE(io.Has(tag));
  EXPECT_TRUE(write.expired());
}

TEST_F(RecordIoTest, WhatTheStoreCannotTakeJustNowIsPutAgainInItsOrder) {
  Write(1);
  Write(2);
  io.Advance(false);
  ASSERT_THAT(Put(), ElementsAre(1, 2));
  io.End({.tag = asked.puts[0].second, .outcome = StoreOutcome::kBusy});
  EXPECT_TRUE(asked.ends.empty());
  Write(3);
  io.Advance(false);
  EXPECT_THAT(Put(), ElementsAre(1, 2)) << "not before some time has passed";
  clock.Advance(500);
  io.Advance(false);
  EXPECT_THAT(Put(), ElementsAre(1, 2, 1, 3));
}

TEST_F(RecordIoTest, WithoutMemoryAWriteGoesOnWaiting) {
  const auto write = Write(1);
  asked.no_memory = true;
  EXPECT_THROW(io.Advance(false), std::bad_alloc);
  EXPECT_TRUE(io.has_waiting());
  EXPECT_FALSE(io.Has(next_tag - 1));
  asked.no_memory = false;
  io.Advance(false);
  EXPECT_THAT(Put(), ElementsAre(1));
}

TEST_F(RecordIoTest, WhatIsForgottenHearsNothing) {
  const auto first = Write(1);
  const auto second = Write(2);
  io.Forget(*second.lock());
  io.Advance(false);
  ASSERT_THAT(Put(), ElementsAre(1));
  io.Forget(*first.lock());
  const uint64_t tag = asked.puts[0].second;
  EXPECT_TRUE(io.Has(tag)) << "the store still has it";
  io.End({.tag = tag, .outcome = StoreOutcome::kBusy});
  EXPECT_FALSE(io.Has(tag));
  EXPECT_FALSE(io.has_waiting());
  EXPECT_TRUE(asked.ends.empty());
  EXPECT_TRUE(first.expired() && second.expired());
}

}  // namespace
}  // namespace quire::cache
