// What a replay says is what a cache does: the same requests through both.
#include "apps/quire/replayer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/prng.h"
#include "bench/trace_tokens.h"
#include "cache/test_util.h"
#include "evict/policies.h"
#include "quire/identity.h"

namespace quire::app {
namespace {

using bench::kTraceBlockTokens;

constexpr uint64_t kCapacityBlocks = 300;

// Conversations that begin with one of three system prompts, are continued after some time or not,
// and now and then asked again. Long answers are read and continued, short ones mostly are not.
Trace Conversations(uint64_t requests) {
  Prng prng(7);
  Trace trace;
  std::vector<std::vector<uint64_t>> systems;
  uint64_t next_id = 1;
  for (int i = 0; i < 3; ++i) {
    systems.emplace_back();
    for (int block = 0; block <= i; ++block) systems.back().push_back(next_id++);
  }
  std::vector<std::vector<uint64_t>> open;
  uint64_t now_ms = 0;
  while (trace.size() < requests) {
    now_ms += prng.NextBelow(400);
    std::vector<uint64_t> path = systems[prng.NextBelow(3)];
    if (!open.empty() && prng.NextChance(2)) {
      const auto which = open.begin() + static_cast<int64_t>(prng.NextBelow(open.size()));
      path = *which;
      open.erase(which);
    }
    for (uint64_t added = 1 + prng.NextBelow(8); added > 0; --added) path.push_back(next_id++);
    const bool goes_on = prng.NextChance(2);
    // It all fits into the block that the prompt begins: see Replay.
    const uint64_t output = goes_on ? 8 + prng.NextBelow(6) : 1 + prng.NextBelow(3);
    trace.push_back({.timestamp_ms = now_ms,
                     .input_tokens = path.size() * kTraceBlockTokens + 1,
                     .output_tokens = output,
                     .block_ids = path});
    if (goes_on) open.push_back(path);
    if (open.size() > 40) open.erase(open.begin());
  }
  return trace;
}

std::vector<TokenId> TokensOf(std::span<const uint64_t> ids) {
  std::vector<TokenId> tokens;
  for (const uint64_t id : ids) bench::AppendTraceBlock(id, tokens);
  return tokens;
}

uint64_t PolicyKey(const Digest& digest) {
  uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof(key));
  return key;
}

// What a cache did with a trace.
struct Served {
  std::vector<uint32_t> hits;   // [requests] blocks
  uint64_t evicted = 0;         // blocks
  std::vector<uint32_t> stays;  // [requests] first blocks of its prompt that are there at the end
};

// One layer with slots of 64 KiB, so that their charges pay for policies that learn.
class Live {
 public:
  explicit Live(const std::string& policy) {
    CacheOptions options{.geometry = Geometry::Uniform(/*layers=*/1, kHeads, kDim),
                         .profile = NumericProfile::Uniform(Codec::kF16, kTraceBlockTokens),
                         .policy = policy};
    options.hot_bytes = uint64_t{1} << 30;
    const uint64_t charge = ChargeOf(options);
    // One more, for the end of the prompt that fills no block, and what a sequence takes besides.
    options.hot_bytes = (kCapacityBlocks + 2) * charge - 1;
    options.clock = &clock_;
    cache_ = cache::Must(Cache::Create(options));
  }

  // As the cache shares it out.
  uint64_t history_bytes() const {
    return (kCapacityBlocks + 1) * evict::HistoryBytesPerSlot(cache_->stats().sealed.slot_bytes);
  }

  // The keys that the cache gives to the blocks of a trace.
  std::map<uint64_t, uint64_t> KeysOf(const Trace& trace) const {
    std::map<uint64_t, uint64_t> keys;
    for (const TraceRequest& request : trace) {
      Digest key = RootKey(identity_, cache_->options().geometry, cache_->options().profile);
      for (const uint64_t id : request.block_ids) {
        const std::vector<TokenId> tokens = TokensOf({&id, 1});
        key = ChildKey(identity_.domain, key, tokens.data(), kTraceBlockTokens);
        keys[id] = PolicyKey(key);
      }
    }
    return keys;
  }

  Served Run(const Trace& trace) {
    Served served;
    for (const TraceRequest& request : trace) {
      clock_.Advance(request.timestamp_ms * 1000 - clock_.NowMicros());
      std::vector<TokenId> history = PromptOf(request);
      auto plan = cache::Must(cache_->Acquire({.identity = &identity_, .tokens = history}));
      served.hits.push_back(HitBlocks(plan));
      const auto sequence = cache::Must(cache_->Open(std::move(plan), {}));
      Feed(*sequence, history);
      history.insert(history.end(), request.output_tokens, TokenId{2});
      Feed(*sequence, history);
    }
    served.evicted = cache_->stats().evicted_total;
    for (const TraceRequest& request : trace) {
      const std::vector<TokenId> prompt = PromptOf(request);
      served.stays.push_back(
          HitBlocks(cache::Must(cache_->Acquire({.identity = &identity_, .tokens = prompt}))));
    }
    return served;
  }

 private:
  static constexpr uint32_t kHeads = 8;
  static constexpr uint32_t kDim = 128;

  static uint64_t ChargeOf(const CacheOptions& options) {
    const auto cache = cache::Must(Cache::Create(options));
    const Identity identity = cache::SomeIdentity();
    const std::vector<TokenId> prompt = {1};
    const auto sequence = cache::Must(
        cache->Open(cache::Must(cache->Acquire({.identity = &identity, .tokens = prompt})), {}));
    return cache::SlotCharges(cache->stats());
  }

  static std::vector<TokenId> PromptOf(const TraceRequest& request) {
    std::vector<TokenId> prompt = TokensOf(request.block_ids);
    prompt.push_back(1);
    return prompt;
  }

  static uint32_t HitBlocks(const Plan& plan) {
    return static_cast<uint32_t>(plan.resident_tokens() / kTraceBlockTokens);
  }

  // What is in the blocks decides nothing.
  static void Feed(Sequence& sequence, std::span<const TokenId> history) {
    const uint64_t added = history.size() - sequence.length();
    const std::vector<float> rows(added * kHeads * kDim);
    const RowsView view = {.data = rows.data(),
                           .dtype = Codec::kF32,
                           .token_stride = int64_t{kHeads} * kDim,
                           .head_stride = kDim};
    cache::Must(
        sequence.Append(0, {.key = view, .value = view, .tokens = static_cast<uint32_t>(added)}));
    cache::Must(sequence.Commit(history.subspan(sequence.length())));
  }

  ManualClock clock_;
  const Identity identity_ = cache::SomeIdentity();
  std::unique_ptr<Cache> cache_;
};

// Of each request the first blocks that have come and not gone again. Each victim is one life less.
std::vector<uint32_t> StaysOf(const Trace& trace, const ReplayLog& log,
                              const std::map<uint64_t, uint64_t>& keys) {
  std::map<uint64_t, int64_t> lives;  // by key: how often it came, less how often it went
  for (size_t i = 0; i < trace.size(); ++i) {
    const std::vector<uint64_t>& ids = trace[i].block_ids;
    for (size_t block = log.hits[i]; block < ids.size(); ++block) ++lives[keys.at(ids[block])];
  }
  for (const uint64_t key : log.victims) --lives[key];
  std::vector<uint32_t> stays;
  for (const TraceRequest& request : trace) {
    uint32_t blocks = 0;
    while (blocks < request.block_ids.size() && lives[keys.at(request.block_ids[blocks])] > 0) {
      ++blocks;
    }
    stays.push_back(blocks);
  }
  return stays;
}

class ReplayAndCache : public testing::TestWithParam<std::string_view> {};

// The victims of each moment are what later requests miss, and what is not there at an end: so the
// trace is cut at some.
TEST_P(ReplayAndCache, HitAndEvictTheSame) {
  const std::string policy(GetParam());
  const Trace whole = Conversations(/*requests=*/2500);
  for (const size_t requests : {800U, 1700U, 2500U}) {
    SCOPED_TRACE(requests);
    const Trace trace(whole.begin(), whole.begin() + static_cast<int64_t>(requests));
    Live live(policy);
    const auto keys = live.KeysOf(trace);
    const ReplayInput input(trace, [&](uint64_t id) { return keys.at(id); });
    ReplayLog replayed;
    ReplayOptions options{.log = &replayed};
    options.history_bytes = live.history_bytes();
    Replay(input, kCapacityBlocks, policy, options);
    const Served served = live.Run(trace);
    ASSERT_GT(replayed.victims.size(), 2 * requests);
    EXPECT_EQ(served.hits, replayed.hits);
    EXPECT_EQ(served.evicted, replayed.victims.size());
    EXPECT_EQ(served.stays, StaysOf(trace, replayed, keys));
    if (policy == "lru" || requests < whole.size()) continue;
    ReplayLog by_recency;
    Replay(input, kCapacityBlocks, "lru", {.log = &by_recency});
    EXPECT_NE(replayed.victims, by_recency.victims) << "the policy must matter here";
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReplayAndCache, testing::ValuesIn(evict::PolicyNames()),
                         [](const auto& name) { return std::string(name.param); });

// A conversation waits for a tool while others come, and goes on.
TEST(ReplayHints, WhatIsHintedIsThereWhenItGoesOn) {
  const auto of = [](uint64_t time_ms, std::vector<uint64_t> ids) {
    return TraceRequest{.timestamp_ms = time_ms,
                        .input_tokens = ids.size() * kTraceBlockTokens,
                        .output_tokens = 1,
                        .block_ids = std::move(ids)};
  };
  Trace trace = {of(0, {1, 2, 3, 4})};
  for (uint64_t i = 0; i < 8; ++i) trace.push_back(of(100 + i, {100 + 2 * i, 101 + 2 * i}));
  trace.push_back(of(1000, {1, 2, 3, 4, 5}));
  for (uint64_t i = 8; i < 16; ++i) trace.push_back(of(2000 + i, {100 + 2 * i, 101 + 2 * i}));
  trace.push_back(of(4'000'000, {1, 2, 3, 4, 5, 6}));  // too late: it is not said
  const ReplayInput input(trace);
  for (const std::string& policy : ReplayPolicies()) {
    SCOPED_TRACE(policy);
    const ReplayResult hinted = Replay(input, 8, policy, {.hint_share = 0.5});
    EXPECT_EQ(hinted.hints, 1);
    EXPECT_EQ(hinted.hints_clipped, 0);
    EXPECT_GE(hinted.hit_blocks, 4);
    // Half of it has room within the share.
    const ReplayResult clipped = Replay(input, 8, policy, {.hint_share = 0.25});
    EXPECT_EQ(clipped.hints_clipped, 1);
    EXPECT_GE(clipped.hit_blocks, 2);
  }
  EXPECT_EQ(Replay(input, 8, "lru").hit_blocks, 0);
  EXPECT_EQ(Replay(input, 8, "lru", {.hint_share = 0.5}).hit_blocks, 4);
  EXPECT_EQ(Replay(input, 8, "lru", {.hint_share = 0.25}).hit_blocks, 2);
}

// Ten prompts, twice: more than memory and store have room for, each in the first codec.
TEST(ReplayLadders, AStoreHasRoomForMoreInItsOwnStep) {
  Trace trace;
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t first = 4 * (i % 10);
    trace.push_back({.block_ids = {first, first + 1, first + 2, first + 3}});
  }
  const ReplayInput input(trace);
  const auto replay = [&](std::optional<ReplayLadder> ladder) {
    return Replay(input, 5, "lru", {.store_blocks = 16, .segment_blocks = 4, .ladder = ladder});
  };
  EXPECT_EQ(replay({}).hit_blocks, 0u);
  EXPECT_EQ(replay(ReplayLadder{.memory = 0.5, .store = 0.5}).hit_blocks, 0u);
  const ReplayResult three = replay(ReplayLadder{.memory = 0.5, .store = 0.25});
  EXPECT_EQ(three.hit_blocks, 40u);
  EXPECT_EQ(three.store_hit_blocks, three.hit_blocks);
  // What comes from the store has no form that is exact.
  EXPECT_EQ(three.approximate_hit_blocks, three.hit_blocks);
}

// Four blocks in memory, two segments of four below; two machines, asked in turn.
TEST(ReplayRemotes, WhatIsWrittenIsHitByTheOtherMachine) {
  const Trace trace = {{.block_ids = {1, 2, 3}},  // of the first machine
                       {.block_ids = {1, 2, 3}},  // of the second
                       {.block_ids = {1, 2, 4}},  // which the first one uses again
                       {.block_ids = {1, 2, 3, 10}}, {.block_ids = {5, 6, 7, 8}},
                       {.block_ids = {1, 2, 4, 9}}};
  const ReplayInput input(trace);
  const auto replay = [&](std::optional<ReplayRemoteWrites> writes, uint32_t machines) {
    return Replay(
        input, 4, "lru",
        {.store_blocks = 8, .segment_blocks = 4, .remote_writes = writes, .machines = machines});
  };
  const ReplayResult none = replay({}, 2);
  EXPECT_EQ(none.remote_hit_blocks, 0u);
  EXPECT_EQ(none.remote_written_blocks, 0u);
  const ReplayResult all = replay(ReplayRemoteWrites::kAll, 2);
  EXPECT_EQ(all.remote_written_blocks, input.unique_blocks());
  // 3 of the second request; of the sixth, to the second machine, all but 9.
  EXPECT_EQ(all.remote_hit_blocks, 3u + 1u);
  EXPECT_EQ(all.hit_blocks, none.hit_blocks + all.remote_hit_blocks);
  // 1, 2 when the first machine uses them again, and 3 when the second does.
  const ReplayResult reused = replay(ReplayRemoteWrites::kReused, 2);
  EXPECT_EQ(reused.remote_written_blocks, 3u);
  EXPECT_EQ(reused.remote_hit_blocks, 0u);
  const ReplayResult recycled = replay(ReplayRemoteWrites::kRecycled, 2);
  EXPECT_GE(recycled.remote_written_blocks, reused.remote_written_blocks);
}

TEST(ReplayRemotes, OneMachineFindsThereWhatItsStoreLost) {
  Trace trace;
  for (const uint64_t round : {0, 1}) {
    (void)round;
    for (uint64_t prompt = 0; prompt < 10; ++prompt) {
      trace.push_back({.block_ids = {4 * prompt, 4 * prompt + 1, 4 * prompt + 2, 4 * prompt + 3}});
    }
  }
  const ReplayInput input(trace);
  const auto replay = [&](ReplayRemoteWrites writes) {
    return Replay(input, 4, "lru",
                  {.store_blocks = 8, .segment_blocks = 4, .remote_writes = writes});
  };
  // Nothing is used again while it is here.
  EXPECT_EQ(replay(ReplayRemoteWrites::kReused).remote_written_blocks, 0u);
  EXPECT_EQ(replay(ReplayRemoteWrites::kReused).hit_blocks, 0u);
  EXPECT_EQ(replay(ReplayRemoteWrites::kRecycled).hit_blocks, 40u);
  EXPECT_EQ(replay(ReplayRemoteWrites::kRecycled).remote_written_blocks, 40u);
  EXPECT_EQ(replay(ReplayRemoteWrites::kAll).hit_blocks, 40u);
}

}  // namespace
}  // namespace quire::app
