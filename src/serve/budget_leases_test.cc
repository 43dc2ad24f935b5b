// Bytes that others lease out of an engine's budget: requests give way, and get them back.
#include "serve/budget_leases.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "serve/driver.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

class BudgetLeasesTest : public EngineTest {
 protected:
  void Start(uint64_t blocks) {
    Make(blocks);
    whole_ = cache_->stats().hot_bytes_limit;
    leases_.emplace(*engine_, *cache_, SystemClock());
    driver_.emplace(*engine_);
  }
  Response Await(RequestId id) {
    std::optional<Response> response;
    while (auto event = engine_->Await(id)) {
      if (auto* const end = std::get_if<Response>(&*event)) response = std::move(*end);
    }
    return std::move(response).value();
  }
  uint64_t limit() const { return cache_->stats().hot_bytes_limit; }

  uint64_t whole_ = 0;
  std::optional<BudgetLeases> leases_;
  std::optional<Driver> driver_;
};

TEST_F(BudgetLeasesTest, TakesBytesChangesThemAndGivesThemBack) {
  Start(64);
  const uint64_t id = leases_->Take("training lora/1", whole_ / 4, 0).value();
  EXPECT_LE(limit(), whole_ - whole_ / 4);
  EXPECT_EQ(leases_->All(), std::vector<BudgetLease>({{id, "training lora/1", whole_ / 4}}));
  const uint64_t other = leases_->Take("training b/1", whole_ / 4, 0).value();
  EXPECT_LE(limit(), whole_ - 2 * (whole_ / 4));
  ASSERT_TRUE(leases_->Change(id, whole_ / 8, 0).has_value());
  EXPECT_GT(limit(), whole_ / 2);
  ASSERT_TRUE(leases_->End(other).has_value());
  EXPECT_EQ(leases_->End(other).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(leases_->Change(other, 1, 0).error().code, ErrorCode::kNotFound);
  {
    const HeldLease held(*leases_, id);
  }
  EXPECT_EQ(limit(), whole_);
  EXPECT_TRUE(leases_->All().empty());
}

TEST_F(BudgetLeasesTest, RefusesWhatIsNotThereAndChangesNothing) {
  Start(64);
  EXPECT_EQ(leases_->Take("a", 0, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(leases_->Take("", 1, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(leases_->Take("a\n", 1, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(leases_->Take(std::string(257, 'a'), 1, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(leases_->Take("a", whole_, 0).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(leases_->Take("a", UINT64_MAX, 0).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(leases_->Take("a", whole_ - 1, 0).error().code, ErrorCode::kNoSpace);  // no block
  EXPECT_EQ(limit(), whole_);
  EXPECT_TRUE(leases_->All().empty());
  const uint64_t id = leases_->Take("a", whole_ / 2, 0).value();
  EXPECT_EQ(leases_->Change(id, whole_, 0).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(leases_->Change(id, 0, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(leases_->All().front().bytes, whole_ / 2);
}

TEST_F(BudgetLeasesTest, AnotherBudgetLeavesLeasesTheirBytes) {
  Start(64);
  const uint64_t id = leases_->Take("a", whole_ / 2, 0).value();
  EXPECT_EQ(leases_->Resize(whole_ / 2).error().code, ErrorCode::kTooLarge);
  ASSERT_TRUE(leases_->Resize(whole_ / 4 * 3).has_value());
  EXPECT_LE(limit(), whole_ / 4);
  ASSERT_TRUE(leases_->End(id).has_value());
  EXPECT_LE(limit(), whole_ / 4 * 3);
  EXPECT_GT(limit(), whole_ / 2);
}

TEST_F(BudgetLeasesTest, TellsItsHolderOfItsEndOnce) {
  Start(64);
  const uint64_t id = leases_->Take("a", whole_ / 2, 0).value();
  int told = 0;
  ASSERT_TRUE(leases_->Listen(id, [&] { ++told; }).has_value());
  ASSERT_TRUE(leases_->End(id).has_value());
  EXPECT_FALSE(leases_->Listen(id, [&] { ++told; }).has_value());
  EXPECT_EQ(told, 1);
}

TEST_F(BudgetLeasesTest, RequestsThatRunGiveWayAndAnswerAsIfNobodyHadAsked) {
  Make(200);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back({.prompt = SomeTokens(200, 10 + i), .max_tokens = 200});
  }
  const std::vector<Response> alone = RunAll(*engine_, requests);
  Start(64);
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine_->Submit(request).value());
  for (int i = 0; i < 20; ++i) {
    const uint64_t id = leases_->Take("training", whole_ / 4 * 3, 60'000'000).value();
    EXPECT_LE(cache_->stats().hot_bytes_used, whole_ - whole_ / 4 * 3);
    ASSERT_TRUE(leases_->End(id).has_value());
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const Response response = Await(ids[i]);
    EXPECT_EQ(response.finish, Finish::kLength) << response.error.message;
    EXPECT_EQ(response.logits_digest, alone[i].logits_digest) << i;
  }
  leases_->Settle();
  EXPECT_EQ(limit(), whole_);
}

TEST_F(BudgetLeasesTest, ARequestThatDoesNotFitBesideALeaseWaitsForItsEnd) {
  Start(64);
  const uint64_t most = leases_->Take("training", whole_ / 8 * 7, 0).value();
  const RequestId id = engine_->Submit({.prompt = SomeTokens(400, 1), .max_tokens = 4}).value();
  for (int i = 0; i < 3; ++i) driver_->Sequences();  // so many ticks
  EXPECT_EQ(driver_->stats().waiting, 1u);
  // Room enough beside a smaller lease.
  ASSERT_TRUE(leases_->Change(most, whole_ / 8, 0).has_value());
  EXPECT_EQ(Await(id).finish, Finish::kLength);
  // What the whole budget does not hold is refused as before, once it is whole.
  const RequestId never = engine_->Submit({.prompt = SomeTokens(2000, 2), .max_tokens = 4}).value();
  for (int i = 0; i < 3; ++i) driver_->Sequences();
  EXPECT_EQ(driver_->stats().waiting, 1u);
  ASSERT_TRUE(leases_->End(most).has_value());
  EXPECT_EQ(Await(never).error.code, ErrorCode::kTooLarge);
}

TEST_F(BudgetLeasesTest, AnyThreadMayTakeChangeAndEnd) {
  Start(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto id = leases_->Take("t" + std::to_string(t), whole_ / 8, 0);
        if (!id) continue;
        (void)leases_->Change(*id, whole_ / 16, 0);
        (void)leases_->All();
        EXPECT_TRUE(leases_->End(*id).has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  leases_->Settle();
  EXPECT_EQ(limit(), whole_);
}

}  // namespace
}  // namespace quire::serve
