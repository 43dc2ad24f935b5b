// Layers that look back a window: constant memory, sinks, prefixes that are still found, and the
// same values as a cache that keeps everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/sequence/block_list.h"
#include "cache/sequence/reach.h"
#include "cache/test_util.h"
#include "env/machine.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

LayerGroup WindowGroup(uint32_t window, uint32_t sinks, std::vector<uint32_t> layers) {
  LayerGroup group = Geometry::Uniform(1, 2, 4).groups[0];
  group.kind = LayerKind::kWindow;
  group.window_tokens = window;
  group.sink_tokens = sinks;
  group.layers = std::move(layers);
  return group;
}

/// Both layers look back `window` tokens.
Geometry Windowed(uint32_t window, uint32_t sinks = 0) {
  return {.groups = {WindowGroup(window, sinks, {0, 1})}};
}

/// Layer 0 sees everything, layer 1 a window.
Geometry Mixed(uint32_t window, uint32_t sinks = 0) {
  Geometry geometry = Geometry::Uniform(1, 2, 4);
  geometry.groups.push_back(WindowGroup(window, sinks, {1}));
  return geometry;
}

/// What the list of a sequence under windows takes for so many blocks, besides its slots.
uint64_t EntryBytes(uint64_t blocks, bool publish) {
  return BlockList(1, kBlock, /*keeps_tokens=*/publish).BytesToGrow(blocks);
}

/// Empty if every token that a query at the sequence's end or later sees is there and right in
/// every layer; else a description of the difference.
std::string VisibleDiffers(const FakeModel& model, const Sequence& sequence,
                           std::span<const TokenId> history) {
  for (uint32_t layer = 0; layer < model.geometry().layer_count(); ++layer) {
    const LayerGroup& group = model.GroupOf(layer);
    const uint64_t window = group.kind == LayerKind::kWindow ? group.window_tokens : UINT64_MAX;
    const uint64_t n = history.size();
    const uint64_t first = window > n ? 0 : n + 1 - window;
    for (const Stream& stream : group.streams) {
      const auto want = FakeModel::HeadsFirst(model.Rows(history, 0, layer, stream), stream);
      const auto check = [&](uint64_t begin, uint64_t end) -> std::string {
        std::vector<float> out((end - begin) * stream.heads * stream.dim);
        const auto gathered = sequence.Gather(layer, stream.role, begin, end, out);
        if (!gathered) return gathered.error().message;
        for (uint32_t head = 0; head < stream.heads; ++head) {
          const auto from = want.begin() + static_cast<int64_t>((head * n + begin) * stream.dim);
          if (!std::equal(from, from + static_cast<int64_t>((end - begin) * stream.dim),
                          out.begin() + static_cast<int64_t>(head * (end - begin) * stream.dim))) {
            return "wrong values in layer " + std::to_string(layer);
          }
        }
        return {};
      };
      for (const auto& [begin, end] :
           {std::pair(first, n),
            std::pair(uint64_t{0}, std::min<uint64_t>(group.sink_tokens, n))}) {
        if (const std::string wrong = check(begin, end); !wrong.empty()) return wrong;
      }
    }
  }
  return {};
}

/// Feeds `history` in steps of `step` tokens and checks after each.
void FeedInSteps(TestCache& cache, Sequence& sequence, std::span<const TokenId> history,
                 uint64_t step) {
  while (sequence.length() < history.size()) {
    const uint64_t end = std::min<uint64_t>(sequence.length() + step, history.size());
    Must(cache.model.Feed(sequence, history.first(end)));
    ASSERT_EQ(VisibleDiffers(cache.model, sequence, history.first(end)), "") << end;
  }
}

TEST(WindowReach, NeedsExactlyWhatAQueryCanSee) {
  for (const uint32_t window : {1u, 2u, 15u, 16u, 17u, 33u, 100u}) {
    for (const uint32_t sinks : {0u, 1u, 16u, 20u}) {
      const WindowReach reach(WindowGroup(window, sinks, {0}), kBlock);
      for (uint64_t position = 0; position < 200; ++position) {
        for (uint64_t block = 0; block * kBlock < position; ++block) {
          bool seen = block == (position - 1) / kBlock;  // the last, or by a query from here on
          for (uint64_t token = block * kBlock; token < (block + 1) * kBlock; ++token) {
            seen = seen || token < sinks || token + window > position;
          }
          EXPECT_EQ(block < reach.sink_blocks() || block >= reach.first_needed(position), seen)
              << window << " " << sinks << " " << position << " " << block;
        }
      }
    }
  }
}

TEST(Window, KeepsWhatQueriesSeeAtEveryStep) {
  const auto tokens = SomeTokens(300, 1);
  for (const Geometry& geometry : {Windowed(40), Windowed(40, 4), Windowed(1), Windowed(7, 20),
                                   Mixed(40), Mixed(33, 17), Mixed(1)}) {
    for (const uint64_t step : {1, 5, 16, 64}) {
      TestCache cache(64, geometry);
      const auto sequence = cache.Open(tokens, {.step_tokens = step});
      FeedInSteps(cache, *sequence, tokens, step);
    }
  }
}

TEST(Window, HoldsNoMoreThanWindowSinksAndAStep) {
  constexpr uint64_t kTokens = 4000;
  const auto tokens = SomeTokens(kTokens, 1);
  for (const bool publish : {true, false}) {
    TestCache cache(64, Windowed(100, 4));
    const auto sequence =
        cache.Open(std::span(tokens).first(1),
                   {.reserve_tokens = kTokens, .step_tokens = 32, .publish = publish});
    const uint64_t most = WindowReach(WindowGroup(100, 4, {0}), kBlock).blocks_max(32);
    EXPECT_EQ(most, 1u + 9 + 1);
    const uint64_t slot_bytes = cache.cache->block_bytes();
    while (sequence->length() < kTokens) {
      Must(cache.model.Feed(*sequence, std::span(tokens).first(sequence->length() + 32)));
      EXPECT_LE(sequence->stats().bytes, most * slot_bytes);
      EXPECT_LE(cache.cache->stats().hot_bytes_peak, cache.cache->stats().hot_bytes_limit);
    }
    EXPECT_EQ(VisibleDiffers(cache.model, *sequence, tokens), "");
  }
}

TEST(Window, OneThatReservedNeverLacksRoom) {
  // A budget of just the window: every passed slot must be reused at once.
  const auto tokens = SomeTokens(2000, 1);
  for (const bool publish : {true, false}) {
    const uint64_t most = WindowReach(WindowGroup(60, 4, {0}), kBlock).blocks_max(16);
    TestCache cache(2 * most, Windowed(60, 4));
    Must(cache.cache->Resize(cache.BytesFor(most) + EntryBytes(2000 / kBlock, publish)));
    const auto sequence =
        cache.Open(tokens, {.step_tokens = 16, .on_full = OnFull::kReject, .publish = publish});
    FeedInSteps(cache, *sequence, tokens, 16);
    EXPECT_EQ(sequence->length(), 2000u);
    EXPECT_LE(cache.cache->stats().hollow_blocks, 7 * cache.cache->stats().sealed.slots_max);
  }
}

// Slots are released while entries stay, so where all layers have windows the entries are charged
// separately: at Open as much as by a sequence that grows to the same room later.
TEST(Window, ALongReservationPaysForItsEntriesAtOpen) {
  constexpr uint64_t kBlocks = 10'000;
  const auto prompt = SomeTokens(1, 1);
  for (const bool publish : {true, false}) {
    TestCache cache(500, Windowed(100, 4));
    const uint64_t entry_bytes = EntryBytes(kBlocks, publish);
    const auto metadata_bytes = [&] { return cache.cache->stats().sequence_bytes; };
    auto sequence = cache.Open(prompt, {.step_tokens = 32, .publish = publish});
    const uint64_t short_bytes = metadata_bytes();
    EXPECT_LT(short_bytes, 2000u) << "the slots pay for the first entries";
    Must(sequence->Reserve(kBlocks * kBlock));
    EXPECT_GE(metadata_bytes(), entry_bytes);
    sequence.reset();

    const uint64_t before = cache.cache->stats().hot_bytes_used;
    sequence = cache.Open(
        prompt, {.reserve_tokens = kBlocks * kBlock, .step_tokens = 32, .publish = publish});
    EXPECT_EQ(metadata_bytes(), short_bytes + entry_bytes);
    sequence->Reset();
    EXPECT_EQ(metadata_bytes(), short_bytes) << "they went with the entries";
    sequence.reset();
    EXPECT_EQ(metadata_bytes(), 0u);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, before);
  }
}

// The same where a prompt's first blocks are cached, which are paid for once, and where a sequence
// takes as many tokens as fit.
TEST(Window, AReservationAfterAHitAndOneOfFewerBlocksPayForTheirEntries) {
  constexpr uint64_t kBlocks = 40'000;
  const auto prompt = SomeTokens(200 * kBlock + 1, 1);
  TestCache cache(300, Windowed(100, 4));
  cache.Run(prompt).reset();
  const auto hit = cache.Open(prompt, {.reserve_tokens = 5'000 * kBlock});
  ASSERT_GT(hit->length(), 100u * kBlock);
  const uint64_t hit_bytes = cache.cache->stats().sequence_bytes;
  EXPECT_GE(hit_bytes, EntryBytes(5'000, true));
  EXPECT_LT(hit_bytes, EntryBytes(5'000, true) + 2'000);

  const AcquireRequest request{.identity = &cache.identity, .tokens = std::span(prompt).first(1)};
  const auto whole =
      cache.cache->Open(Must(cache.cache->Acquire(request)), {.reserve_tokens = kBlocks * kBlock});
  ASSERT_FALSE(whole.has_value());
  EXPECT_EQ(whole.error().code, ErrorCode::kTooLarge);
  const auto fewer =
      Must(cache.cache->Open(Must(cache.cache->Acquire(request)),
                             {.reserve_tokens = kBlocks * kBlock, .on_full = OnFull::kFewer}));
  const uint64_t blocks = fewer->stats().tokens_reserved / kBlock;
  const CacheStats stats = cache.cache->stats();
  EXPECT_GE(stats.sequence_bytes - hit_bytes, EntryBytes(blocks, true));
  EXPECT_LE(stats.hot_bytes_used, stats.hot_bytes_limit);
  EXPECT_GT(blocks, 1'000u);
  EXPECT_LT(blocks, kBlocks);
}

TEST(Window, ALengthWhoseEntriesNoNumberCountsIsTooLarge) {
  const auto prompt = SomeTokens(1, 1);
  TestCache cache(100, Windowed(100), NumericProfile::Uniform(Codec::kF16), 0,
                  {.tokens_max = UINT64_MAX});
  for (const uint64_t tokens : {UINT64_MAX, uint64_t{1} << 63, (uint64_t{1} << 63) / 9}) {
    const auto opened = cache.TryOpen(prompt, {.reserve_tokens = tokens});
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::kTooLarge);
    const auto sequence = cache.Open(prompt);
    EXPECT_EQ(sequence->Reserve(tokens).error().code, ErrorCode::kNoSpace);
  }
}

TEST(Window, RefusesWhatNeverFits) {
  const auto tokens = SomeTokens(1000, 1);
  TestCache cache(4, Windowed(100));
  const auto opened = cache.TryOpen(tokens, {.step_tokens = 16});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(opened.error().message, HasSubstr("can never fit"));
}

TEST(Window, PrefixesAreFoundAgain) {
  const auto tokens = SomeTokens(20 * kBlock + 1, 1);
  for (const Geometry& geometry : {Windowed(50), Windowed(50, 4), Mixed(50), Mixed(50, 4)}) {
    TestCache cache(200, geometry);
    {
      const auto first = cache.Run(tokens, {.step_tokens = 320});
    }
    // The whole prompt, also after the sequence has ended that passed most of it.
    const auto again = cache.Open(tokens);
    EXPECT_EQ(again->length(), 20u * kBlock);
    EXPECT_EQ(VisibleDiffers(cache.model, *again, std::span(tokens).first(20 * kBlock)), "");
    // And from the middle of it, where another prompt parts.
    const auto fork = Join(std::span(tokens).first(9 * kBlock), SomeTokens(40, 2));
    const auto branch = cache.Open(fork);
    EXPECT_EQ(branch->length(), 9u * kBlock);
    Must(cache.model.Feed(*branch, fork));
    EXPECT_EQ(VisibleDiffers(cache.model, *branch, fork), "");
  }
}

TEST(Window, WhatIsPassedGoesFirstComeFirstGoneAndSaysSo) {
  const auto tokens = SomeTokens(20 * kBlock + 1, 1);
  TestCache cache(200, Windowed(2 * kBlock, 4));
  const auto sequence = cache.Run(tokens, {.step_tokens = kBlock});
  const CacheStats before = cache.cache->stats();
  EXPECT_EQ(before.evictable_blocks, 0u);  // all lead to leased ones
  EXPECT_EQ(before.passed_blocks, 20u - 2 - 1);
  EXPECT_EQ(cache.cache->Evict(5), 5u);
  const CacheStats after = cache.cache->stats();
  EXPECT_EQ(after.passed_blocks, before.passed_blocks - 5);
  EXPECT_EQ(after.evicted_passed_total, 5u);
  EXPECT_EQ(after.hollow_blocks, 5u);
  EXPECT_EQ(after.published_blocks, 20u);
  EXPECT_EQ(after.hot_bytes_used, before.hot_bytes_used - 5 * cache.charge_bytes);
  // Blocks 1..5 have no bytes: a prompt that parts right after them cannot start there.
  Plan branches_early = cache.Acquire(Join(std::span(tokens).first(6 * kBlock), SomeTokens(30, 2)));
  EXPECT_EQ(branches_early.resident_tokens(), uint64_t{kBlock});
  EXPECT_EQ(branches_early.reason(), MissReason::kWindowPassed);
  Plan branches_late = cache.Acquire(Join(std::span(tokens).first(8 * kBlock), SomeTokens(30, 3)));
  EXPECT_EQ(branches_late.resident_tokens(), 8u * kBlock);
  EXPECT_EQ(branches_late.reason(), MissReason::kNeverSeen);
  EXPECT_EQ(cache.Resident(tokens), 20u * kBlock);
}

TEST(Window, AComputedBlockFillsAHollowOne) {
  const auto tokens = SomeTokens(20 * kBlock + 1, 1);
  TestCache cache(200, Windowed(2 * kBlock));
  const auto sequence = cache.Run(tokens, {.step_tokens = kBlock});
  EXPECT_EQ(cache.cache->Evict(100), 18u);
  EXPECT_EQ(cache.cache->stats().hollow_blocks, 18u);
  // Another sequence computes the first blocks again: a third one finds them at once.
  const auto part = Join(std::span(tokens).first(6 * kBlock), SomeTokens(1, 2));
  const auto second = cache.Run(part);
  EXPECT_EQ(cache.cache->stats().published_blocks, 20u);
  EXPECT_EQ(cache.cache->stats().hollow_blocks, 12u);
  EXPECT_EQ(cache.Resident(part), 6u * kBlock);
  EXPECT_EQ(VisibleDiffers(cache.model, *second, part), "");
  EXPECT_EQ(cache.cache->Verify().damaged, 0u);
}

TEST(Window, GoesBackOnlyWhereTheWindowStillIs) {
  const auto tokens = SomeTokens(300, 1);
  for (const Geometry& geometry : {Windowed(60, 4), Mixed(60, 4)}) {
    for (uint64_t position = 0; position <= 300; ++position) {
      TestCache cache(200, geometry);
      const auto sequence = cache.Open(tokens, {.step_tokens = 50});
      for (uint64_t end = 50; end <= 300; end += 50) {
        Must(cache.model.Feed(*sequence, std::span(tokens).first(end)));
      }
      const auto rolled = sequence->Rollback(position);
      // 300 + 1 - 60 is in block 15: a query must see nothing older than its start.
      const bool possible = position == 0 || position >= 15 * kBlock + 60 - 1;
      const bool only_sinks = position <= kBlock;
      ASSERT_EQ(rolled.has_value(), possible || only_sinks) << position;
      if (!rolled) {
        EXPECT_EQ(rolled.error().code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(rolled.error().message, HasSubstr("window"));
        EXPECT_EQ(VisibleDiffers(cache.model, *sequence, tokens), "");
        continue;
      }
      const auto other = Join(std::span(tokens).first(position), SomeTokens(100, 2));
      FeedInSteps(cache, *sequence, other, 30);
    }
  }
}

TEST(Window, ForksShareAndPart) {
  const auto tokens = SomeTokens(200, 1);
  for (const Geometry& geometry : {Windowed(60, 4), Mixed(60, 4)}) {
    for (const bool publish : {true, false}) {
      TestCache cache(200, geometry);
      const auto sequence = cache.Run(tokens, {.publish = publish});
      const auto fork = Must(sequence->Fork());
      const auto left = Join(tokens, SomeTokens(150, 2));
      const auto right = Join(tokens, SomeTokens(150, 3));
      FeedInSteps(cache, *sequence, left, 20);
      FeedInSteps(cache, *fork, right, 30);
      EXPECT_EQ(VisibleDiffers(cache.model, *sequence, left), "");
    }
  }
}

TEST(Window, GatherAndViewsSayWhatIsGone) {
  const auto tokens = SomeTokens(200, 1);
  TestCache cache(200, Mixed(60));
  const auto sequence = cache.Run(tokens);
  std::vector<float> out(200 * 2 * 4);
  EXPECT_TRUE(sequence->Gather(0, StreamRole::kKey, 0, 200, out).has_value());
  const auto gone = sequence->Gather(1, StreamRole::kKey, 100, 200, out);
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(gone.error().message, HasSubstr("window"));
  const BlockListView view = Must(sequence->View(1, StreamRole::kKey));
  EXPECT_EQ(view.slots()[0], nullptr);
  EXPECT_NE(view.slots()[9], nullptr);
  const Sequence* const batch[] = {sequence.get()};
  out.assign(out.size(), 5.0f);
  Must(GatherPadded(batch, 1, StreamRole::kKey, 200, out));
  const auto want =
      FakeModel::HeadsFirst(cache.model.Rows(tokens, 0, 1, cache.model.GroupOf(1).streams[0]),
                            cache.model.GroupOf(1).streams[0]);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[199 * 4], want[199 * 4]);
}

TEST(Window, AViewKeepsWhatTheWindowPasses) {
  const auto tokens = SomeTokens(400, 1);
  TestCache cache(200, Windowed(40));
  const auto sequence = cache.Open(tokens, {.step_tokens = 40});
  Must(cache.model.Feed(*sequence, std::span(tokens).first(40)));
  const BlockListView view = Must(sequence->View(0, StreamRole::kValue));
  FeedInSteps(cache, *sequence, tokens, 40);
  cache.cache->Evict(1000);
  const Stream& stream = cache.model.GroupOf(0).streams[1];
  const auto want = cache.model.Rows(std::span(tokens).first(40), 0, 0, stream);
  const TensorView block = view.block(0);
  EXPECT_EQ(block.shape[1], 16);
  EXPECT_EQ(OnHost(static_cast<const _Float16*>(block.data))[5],
            static_cast<_Float16>(want[8 + 1]));
}

TEST(Window, MillionTokensInConstantMemory) {
  // 4,096 tokens back and 4 sinks, as SPEC M11 has it; values do not matter here, bytes do.
  constexpr uint64_t kTokens = 1'000'000;
  constexpr uint64_t kStep = 512;
  const Geometry geometry = Windowed(4096, 4);
  for (const bool publish : {true, false}) {
    const uint64_t blocks = WindowReach(geometry.groups[0], kBlock).blocks_max(kStep);
    TestCache cache(2 * blocks, geometry, NumericProfile::Uniform(Codec::kF16), 6 * blocks);
    Must(cache.cache->Resize(cache.BytesFor(2 * blocks) + EntryBytes(kTokens / kBlock, publish)));
    const auto tokens = SomeTokens(kStep, 1);
    const std::vector<float> rows(kStep * 2 * 4, 1.0f);
    const LayerRows layer{.key = FakeModel::Packed(rows, geometry.groups[0].streams[0]),
                          .value = FakeModel::Packed(rows, geometry.groups[0].streams[1]),
                          .tokens = kStep};
    const auto sequence =
        cache.Open(tokens, {.reserve_tokens = kTokens, .step_tokens = kStep, .publish = publish});
    uint64_t bytes_early = 0;
    uint64_t resident_early = 0;
    while (sequence->length() + kStep <= kTokens) {
      for (const uint32_t l : {0u, 1u}) Must(sequence->Append(l, layer));
      Must(sequence->Commit(tokens));
      if (sequence->length() == 64 * kStep) {
        bytes_early = sequence->stats().bytes;
        resident_early = Must(ResidentBytes());
      }
    }
    EXPECT_LE(sequence->stats().bytes, bytes_early);
    EXPECT_LE(bytes_early, blocks * cache.cache->block_bytes());
    const CacheStats stats = cache.cache->stats();
    EXPECT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
    // The list of blocks has been there from the start. Published, there is also the index of
    // blocks without bytes, which the slots' charge has paid for.
    EXPECT_LE(stats.hollow_blocks, 7 * stats.sealed.slots_max);
    if (!kResidentBytesIncludeShadow) {
      EXPECT_LT(Must(ResidentBytes()), resident_early + 10'000'000);
    }
  }
}

TEST(Window, RandomCallsAgainstACacheThatKeepsEverything) {
  uint64_t found = 0;
  uint64_t passed = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const auto window = static_cast<uint32_t>(1 + prng.NextBelow(80));
    const auto sinks = static_cast<uint32_t>(prng.NextBelow(3) * prng.NextBelow(20));
    TestCache cache(12 + prng.NextBelow(40),
                    prng.NextChance(2) ? Windowed(window, sinks) : Mixed(window, sinks));
    struct Open {
      std::unique_ptr<Sequence> sequence;
      std::vector<TokenId> history;
    };
    std::vector<Open> open;
    for (int step = 0; step < 80; ++step) {
      const uint64_t pick = prng.NextBelow(10);
      if (pick < 3 && open.size() < 4) {
        std::vector<TokenId> prompt(1 + prng.NextBelow(200));
        const TokenId script = static_cast<TokenId>(prng.NextBelow(3));
        for (size_t i = 0; i < prompt.size(); ++i) {
          prompt[i] = static_cast<TokenId>(10 * i) + (i > 60 ? script : 0);
        }
        auto opened = cache.TryOpen(
            prompt, {.step_tokens = 1 + prng.NextBelow(64), .publish = !prng.NextChance(5)});
        if (!opened) continue;
        found += (*opened)->length();
        prompt.resize((*opened)->length());
        open.push_back({*std::move(opened), std::move(prompt)});
      } else if (open.empty()) {
        continue;
      } else if (pick < 8) {
        Open& one = open[prng.NextBelow(open.size())];
        auto longer = one.history;
        const TokenId script = static_cast<TokenId>(prng.NextBelow(3));
        for (uint64_t n = 1 + prng.NextBelow(70); n > 0; --n) {
          const size_t i = longer.size();
          longer.push_back(static_cast<TokenId>(10 * i) + (i > 60 ? script : 0));
        }
        if (cache.model.Feed(*one.sequence, longer)) {
          one.history = std::move(longer);
        } else {
          Must(one.sequence->Rollback(one.history.size()));
        }
      } else if (pick == 8) {
        Open& one = open[prng.NextBelow(open.size())];
        const uint64_t position = prng.NextBelow(one.history.size() + 1);
        if (one.sequence->Rollback(position)) one.history.resize(position);
      } else if (prng.NextChance(2)) {
        open.erase(open.begin() + static_cast<int64_t>(prng.NextBelow(open.size())));
      } else if (open.size() < 4) {
        Open& one = open[prng.NextBelow(open.size())];
        if (auto fork = one.sequence->Fork()) {
          auto history = one.history;
          open.push_back({*std::move(fork), std::move(history)});
        }
      } else {
        cache.cache->Evict(prng.NextBelow(5));
      }
      for (const Open& one : open) {
        ASSERT_EQ(one.sequence->length(), one.history.size()) << step;
        ASSERT_EQ(VisibleDiffers(cache.model, *one.sequence, one.history), "") << step;
      }
      const CacheStats stats = cache.cache->stats();
      ASSERT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
      passed += stats.passed_blocks;
    }
    open.clear();
    EXPECT_EQ(cache.cache->Verify().damaged, 0u);
    cache.cache->Evict(100'000);
    EXPECT_EQ(cache.cache->stats().hot_bytes_used, 0u);
    EXPECT_EQ(cache.cache->stats().published_blocks, 0u);
    EXPECT_EQ(cache.cache->stats().hollow_blocks, 0u);
  }
  EXPECT_GT(found, 1000u);
  EXPECT_GT(passed, 1000u);
}

TEST(Window, ThreeDifferentReachesAreRefused) {
  Geometry geometry = Mixed(40);
  geometry.groups.push_back(WindowGroup(80, 0, {2}));
  const auto cache = Cache::Create({.geometry = geometry,
                                    .profile = NumericProfile::Uniform(Codec::kF16),
                                    .hot_bytes = 1 << 24});
  ASSERT_FALSE(cache.has_value());
  EXPECT_EQ(cache.error().code, ErrorCode::kUnsupported);
}

// A step that is longer than any sequence is as long as the sequence.
TEST(Window, AStepOfAnyLengthReservesNoMoreThanTheSequence) {
  for (const bool encoded : {false, true}) {
    Geometry geometry = SmallGeometry();
    NumericProfile profile = NumericProfile::Uniform(Codec::kF32);
    if (encoded) {
      for (CodecRule& rule : profile.codecs) rule.codec = Codec::kInt8;
    } else {
      geometry.groups[0].kind = LayerKind::kWindow;
      geometry.groups[0].window_tokens = 64;
    }
    const auto prompt = SomeTokens(40 * kBlock, 1);
    std::vector<CacheStats> stats;
    for (const uint64_t step : {prompt.size(), UINT64_MAX - 30, UINT64_MAX}) {
      TestCache cache(200, geometry, profile);
      const auto sequence = cache.Run(prompt, {.step_tokens = step});
      EXPECT_EQ(sequence->length(), prompt.size());
      stats.push_back(cache.cache->stats());
    }
    for (const CacheStats& one : stats) {
      EXPECT_EQ(one.sealed.slots_used_peak, stats[0].sealed.slots_used_peak);
      EXPECT_EQ(one.open.slots_used_peak, stats[0].open.slots_used_peak);
    }
  }
}

// Each slot pays for seven blocks without bytes: exactly so many are kept.
TEST(Window, AsManyHollowBlocksAreKeptAsSlotsPayFor) {
  Geometry geometry = SmallGeometry();
  geometry.groups[0].kind = LayerKind::kWindow;
  geometry.groups[0].window_tokens = kBlock;
  constexpr uint64_t kSlots = 10;
  TestCache cache(kSlots, geometry);
  const auto prompt = SomeTokens(100 * kBlock, 1);
  const auto sequence = cache.Open(prompt, {.step_tokens = kBlock});
  uint64_t most = 0;
  for (uint64_t end = kBlock; end <= prompt.size(); end += kBlock) {
    Must(cache.model.Feed(*sequence, std::span(prompt).first(end)));
    cache.cache->Evict(1);  // what the window has just passed
    most = std::max(most, cache.cache->stats().hollow_blocks);
  }
  EXPECT_EQ(most, 7 * kSlots + 1) << "one more ends the path, which the sequence still leases";
  EXPECT_LT(cache.cache->stats().hollow_blocks, 7 * kSlots);
}

}  // namespace
}  // namespace quire::cache
