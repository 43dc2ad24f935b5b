#include "apps/quire/replay_resample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace quire::app {
namespace {

// Ten sessions of three turns below a block that all share; session s begins with block 100 s.
Trace TenSessions() {
  Trace trace;
  for (uint64_t turn = 0; turn < 3; ++turn) {
    for (uint64_t session = 1; session <= 10; ++session) {
      TraceRequest request{.timestamp_ms = turn * 1000 + session * 10,
                           .input_tokens = session,
                           .output_tokens = turn,
                           .block_ids = {7}};
      for (uint64_t block = 0; block <= turn; ++block) {
        request.block_ids.push_back(session * 100 + block);
      }
      trace.push_back(request);
    }
  }
  return trace;
}

bool Equal(const Trace& a, const Trace& b) {
  return std::ranges::equal(a, b, [](const TraceRequest& x, const TraceRequest& y) {
    return x.timestamp_ms == y.timestamp_ms && x.block_ids == y.block_ids;
  });
}

TEST(Resample, DrawsWholeSessionsWithReplacement) {
  const Trace trace = TenSessions();
  bool some_twice = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Trace drawn = Resample(trace, seed, 0).value();
    ASSERT_EQ(drawn.size(), trace.size());
    EXPECT_TRUE(std::ranges::is_sorted(drawn, {}, &TraceRequest::timestamp_ms));
    // By root: input_tokens says which session it was.
    std::map<uint64_t, std::vector<const TraceRequest*>> copies;
    for (const TraceRequest& request : drawn) {
      EXPECT_EQ(request.block_ids[0], 0u) << "what all share stays shared";
      EXPECT_LE(request.timestamp_ms, 2100u) << "within the trace";
      EXPECT_GE(request.timestamp_ms, 10u);
      copies[request.block_ids[1]].push_back(&request);
    }
    ASSERT_EQ(copies.size(), 10u);
    std::set<uint64_t> sessions;
    std::set<uint64_t> ids;
    for (const auto& [root, requests] : copies) {
      ASSERT_EQ(requests.size(), 3u);
      const uint64_t session = requests[0]->input_tokens;
      const bool is_first = sessions.insert(session).second;
      some_twice = some_twice || !is_first;
      for (uint64_t turn = 0; turn < 3; ++turn) {
        EXPECT_EQ(requests[turn]->input_tokens, session);
        EXPECT_EQ(requests[turn]->output_tokens, turn);
        EXPECT_EQ(requests[turn]->timestamp_ms - requests[0]->timestamp_ms, turn * 1000);
        ASSERT_EQ(requests[turn]->block_ids.size(), 2 + turn);
      }
      for (size_t block = 1; block < 4; ++block) {
        EXPECT_TRUE(ids.insert(requests[2]->block_ids[block]).second) << "copies share nothing";
      }
      const std::vector<uint64_t>& earlier = requests[1]->block_ids;
      EXPECT_TRUE(std::equal(earlier.begin(), earlier.end(), requests[2]->block_ids.begin()));
    }
  }
  EXPECT_TRUE(some_twice);
}

TEST(Resample, TheSeedDecidesAlone) {
  const Trace trace = TenSessions();
  EXPECT_TRUE(Equal(Resample(trace, 5, 0).value(), Resample(trace, 5, 0).value()));
  EXPECT_FALSE(Equal(Resample(trace, 5, 0).value(), Resample(trace, 6, 0).value()));
  EXPECT_EQ(Resample(trace, 5, 4)->size(), 12u);
  EXPECT_TRUE(Resample({}, 5, 0)->empty());
}

TEST(Resample, DrawsNoMoreThanATraceMayHold) {
  const auto drawn = Resample(TenSessions(), 1, uint64_t{1} << 40);
  ASSERT_FALSE(drawn.has_value());
  EXPECT_EQ(drawn.error().code, ErrorCode::kTooLarge);
}

}  // namespace
}  // namespace quire::app
