#include "remote/tools.h"

#include <gtest/gtest.h>

#include "remote/test_fleet.h"

namespace quire::remote {
namespace {

/// A clock that goes on with each look, for what waits.
class GoingClock final : public Clock {
 public:
  uint64_t NowMicros() const override { return now_us_ += 20; }

 private:
  mutable uint64_t now_us_ = 1'000'000;
};

class RemoteToolsTest : public testing::Test {
 protected:
  void Put(const tier::TestRecord& record) {
    PutRecord(*machine_.store, record, ++tag_);
    std::vector<tier::StoreCompletion> done;
    while (done.empty()) machine_.store->Tick(done, 0);
    EXPECT_EQ(done[0].outcome, tier::StoreOutcome::kOk);
  }

  GoingClock clock_;
  MemoryService service_;
  TestMachine machine_{service_, clock_};
  const tier::RecordLayout layout_ = tier::TestLayout(16, 2, 3000);
  uint64_t tag_ = 0;
};

TEST_F(RemoteToolsTest, CountsWhatTheKeyOpens) {
  for (uint64_t i = 0; i < 600; ++i) Put(tier::TestRecord(i, layout_));
  Put(tier::TestRecord(1, layout_, "tenant"));
  TestMachine other(service_, clock_, false, TestFleetKey(8));
  MemoryObjects objects(service_, clock_);
  uint64_t visited = 0;
  const auto report = StatRemote(objects, TestFleetKey(), clock_,
                                 [&](std::string_view, const SealedHead&) { ++visited; });
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->records, 601u);
  EXPECT_EQ(visited, 601u);
  EXPECT_EQ(report->publishers, 2u);
  EXPECT_EQ(report->bytes, 601 * Seal::ObjectBytes(layout_));
  EXPECT_EQ(report->others, 1u) << "the other fleet's epochs";
  EXPECT_EQ(StatRemote(objects, TestFleetKey(9), clock_).error().code, ErrorCode::kNotFound);
  objects.SetScript([](const ObjectRequest&) { return ObjectFault{ObjectFault::kRefuse}; });
  EXPECT_EQ(StatRemote(objects, TestFleetKey(), clock_).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(RemoteToolsTest, RemovesWhatOnePublisherHas) {
  for (uint64_t i = 0; i < 5; ++i) Put(tier::TestRecord(i, layout_, "gone"));
  for (uint64_t i = 0; i < 3; ++i) Put(tier::TestRecord(i, layout_, "stays"));
  const auto removed = RemoveFromRemote(std::make_unique<MemoryObjects>(service_, clock_),
                                        TestFleetKey(), "gone", clock_);
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(removed->removed, 5u);
  EXPECT_EQ(removed->records, 3u);
  EXPECT_EQ(service_.objects.size(), 4u);
  TestMachine later(service_, clock_);
  EXPECT_EQ(later.store->EpochOf(tier::PublisherOf("gone")), 1u);
}

}  // namespace
}  // namespace quire::remote
