// Hints: what they keep, for how long, and that they lock no tenant out.
#include "serve/retainer.h"

#include <gtest/gtest.h>

#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

constexpr uint64_t kMinuteUs = 60'000'000;

class RetainerTest : public EngineTest {
 protected:
  static Request Of(uint64_t seed, uint64_t tokens, std::vector<RetainHint> retain = {}) {
    return {.prompt = SomeTokens(tokens, seed), .max_tokens = 4, .retain = std::move(retain)};
  }
  uint64_t Reused(uint64_t seed, uint64_t tokens) { return RunOne(Of(seed, tokens)).reused_tokens; }
  uint64_t pinned() const { return cache_->stats().pinned_blocks; }
};

TEST_F(RetainerTest, WhatIsHintedOutlivesWhatIsNot) {
  engine_options_.retain.share = 0.5;
  Make(20);
  const Response hinted = RunOne(Of(1, 64, {{.ttl_us = kMinuteUs}}));
  ASSERT_EQ(hinted.retained.size(), 1);
  EXPECT_EQ(hinted.retained[0].what, Retained::kAccepted) << hinted.retained[0].why;
  EXPECT_EQ(hinted.retained[0].tokens, 64);  // of 64 and 3
  EXPECT_EQ(hinted.retained[0].ttl_us, kMinuteUs);
  EXPECT_TRUE(RunOne(Of(2, 64)).retained.empty());
  for (uint64_t seed = 10; seed < 20; ++seed) RunOne(Of(seed, 120));
  EXPECT_EQ(Reused(2, 64), 0);
  EXPECT_EQ(Reused(1, 65), 64);
  clock_.Advance(kMinuteUs);
  for (uint64_t seed = 20; seed < 30; ++seed) RunOne(Of(seed, 120));
  EXPECT_EQ(Reused(1, 65), 0);
  EXPECT_EQ(pinned(), 0);
}

TEST_F(RetainerTest, NoMoreThanTheShareAndItsFront) {
  Make(40);
  const Response clipped = RunOne(Of(1, 320, {{.tokens = 320, .ttl_us = kMinuteUs}}));
  EXPECT_EQ(clipped.retained[0].what, Retained::kClipped);
  EXPECT_EQ(clipped.retained[0].tokens, 160);  // a quarter of 40 blocks
  EXPECT_EQ(pinned(), 10);
  const Response ignored = RunOne(Of(2, 64, {{.ttl_us = kMinuteUs}}));
  EXPECT_EQ(ignored.retained[0].what, Retained::kIgnored);
  EXPECT_FALSE(ignored.retained[0].why.empty());
  EXPECT_EQ(pinned(), 10);
  // What is kept already costs nothing once more.
  EXPECT_EQ(RunOne(Of(1, 100, {{.tokens = 100, .ttl_us = kMinuteUs}})).retained[0].what,
            Retained::kAccepted);
  // The others have all the rest.
  EXPECT_EQ(RunOne(Of(3, 440)).finish, Finish::kLength);
}

TEST_F(RetainerTest, NoLongerThanTheLongest) {
  engine_options_.retain.ttl_us_max = 5 * kMinuteUs;
  Make(40);
  const Response clipped = RunOne(Of(1, 64, {{.ttl_us = 60 * kMinuteUs}}));
  EXPECT_EQ(clipped.retained[0].what, Retained::kClipped);
  EXPECT_EQ(clipped.retained[0].ttl_us, 5 * kMinuteUs);
  EXPECT_EQ(pinned(), 4);
  clock_.Advance(5 * kMinuteUs);
  RunOne(Of(2, 20));
  EXPECT_EQ(pinned(), 0);
}

TEST_F(RetainerTest, SeveralHintsOfOneCall) {
  Make(80);
  const Response response = RunOne(Of(1, 200,
                                      {{.tokens = 40, .ttl_us = 2 * kMinuteUs},
                                       {.tokens = 10, .ttl_us = kMinuteUs},
                                       {.ttl_us = kMinuteUs}}));
  ASSERT_EQ(response.retained.size(), 3);
  EXPECT_EQ(response.retained[0].tokens, 32);
  EXPECT_EQ(response.retained[1].what, Retained::kIgnored);  // not a block
  EXPECT_EQ(response.retained[2].tokens, 192);
  EXPECT_EQ(pinned(), 12);
  clock_.Advance(kMinuteUs);
  RunOne(Of(2, 20));
  EXPECT_EQ(pinned(), 2);
}

TEST_F(RetainerTest, WhatIsSharedByNobodyIsNotKept) {
  Make(40);
  Request request = Of(1, 200, {{.ttl_us = kMinuteUs}});
  request.keep.share = 0.5;
  EXPECT_EQ(RunOne(request).retained[0].what, Retained::kIgnored);
  EXPECT_EQ(pinned(), 0);
}

// One tenant's hints are within its own quota, a member's within the domain's.
TEST_F(RetainerTest, EachTenantHasAShareOfItsOwn) {
  Make(80);
  const uint64_t charge = cache_->stats().hot_bytes_limit / 80;
  const TenantId small = cache_->AddTenant({.name = "small", .quota_bytes = 17 * charge}).value();
  const TenantId house = cache_->AddTenant({.name = "house", .shared = true}).value();
  const TenantId member = cache_->AddTenant({.name = "member", .domain = "house"}).value();
  engine_->SetTenant({.tenant = member, .domain = house});
  Request request = Of(1, 160, {{.tokens = 160, .ttl_us = kMinuteUs}});
  request.tenant = small;
  EXPECT_EQ(RunOne(request).retained[0].tokens, 64);
  request.tenant = member;
  EXPECT_EQ(RunOne(request).retained[0].tokens, 160);
  request = Of(2, 300, {{.tokens = 300, .ttl_us = kMinuteUs}});
  request.tenant = member;
  const Response clipped = RunOne(request);
  EXPECT_EQ(clipped.retained[0].what, Retained::kClipped);
  EXPECT_EQ(clipped.retained[0].tokens, 160);  // 20 blocks of 80 are the domain's, 10 were kept
}

TEST_F(RetainerTest, AFailedCallKeepsNothing) {
  Make(40);
  Request request = Of(1, 100, {{.ttl_us = kMinuteUs}});
  clock_.Advance(10);
  request.deadline_us = 1;
  const Response response = RunOne(request);
  EXPECT_EQ(response.finish, Finish::kFailed);
  EXPECT_TRUE(response.retained.empty());
  EXPECT_EQ(pinned(), 0);
}

}  // namespace
}  // namespace quire::serve
