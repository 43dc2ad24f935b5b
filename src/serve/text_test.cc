// Which of a text is fed next, and where its tokens came from.
#include "serve/text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace quire::serve {
namespace {

std::vector<TokenId> Fed(const Text& text, uint64_t position, uint64_t tokens_max = 100) {
  const auto next = text.Next(position, tokens_max);
  return {next.begin(), next.end()};
}

using Tokens = std::vector<TokenId>;

TEST(Text, ThePromptIsFedThenEachTokenThatIsGenerated) {
  Request request{.prompt = {5, 6, 7}, .max_tokens = 4};
  Text text(request);
  EXPECT_EQ(text.goal(), 3u);
  EXPECT_EQ(text.tokens_at_most(), 6u);  // the last of four is never fed
  EXPECT_EQ(Fed(text, 0), (Tokens{5, 6, 7}));
  EXPECT_EQ(Fed(text, 1, 1), (Tokens{6}));
  EXPECT_EQ(text.LogitsOf(0, 2), 0u);
  EXPECT_EQ(text.LogitsOf(1, 2), 1u);
  EXPECT_EQ(Fed(text, 3), Tokens{});
  text.Append(9);
  EXPECT_EQ(text.goal(), 4u);
  EXPECT_EQ(text.generated_tokens(), 1u);
  EXPECT_EQ(text.prompt_tokens(), 3u);
  EXPECT_EQ(Fed(text, 3), (Tokens{9}));
  // After a preemption all of it is read again, in one step if there is room.
  EXPECT_EQ(Fed(text, 0), (Tokens{5, 6, 7, 9}));
}

TEST(Text, AStepEndsWithAPromptOfWhichPartIsKept) {
  Request request{.prompt = {5, 6, 7}, .keep = {.share = 0.5}};
  Text text(request);
  text.Append(9);
  EXPECT_EQ(Fed(text, 0), (Tokens{5, 6, 7}));
  EXPECT_EQ(Fed(text, 3), (Tokens{9}));
}

TEST(Text, ATurnThatGeneratesNothingLeavesItsLastTokenToTheNext) {
  Request request{.prompt = {5, 6}, .max_tokens = 0, .session = SessionId(1)};
  Text text(request);
  text.PutBefore(Tokens{1, 2, 3});
  EXPECT_EQ(text.goal(), 4u);
  EXPECT_EQ(text.tokens_at_most(), 5u);
  EXPECT_EQ(text.prompt_tokens(), 5u);
  EXPECT_EQ(Fed(text, 2), (Tokens{3, 5}));
  EXPECT_EQ(text.LogitsOf(2, 2), 0u);
  Request alone{.prompt = {5, 6}, .max_tokens = 0};
  EXPECT_EQ(Text(alone).goal(), 2u);
}

TEST(Text, ATurnThatIsUndoneLeavesTheTextBeforeIt) {
  Request request{.prompt = {5, 6}, .session = SessionId(1)};
  Text text(request);
  text.PutBefore(Tokens{1, 2, 3});
  text.Append(9);
  EXPECT_EQ(text.generated_tokens(), 1u);
  text.Undo();
  EXPECT_EQ(text.Take(), (Tokens{1, 2, 3}));
}

TEST(Text, ItStopsWhereTheRestIsLoaded) {
  Request request{.prompt = {5, 6, 7, 8}};
  Text text(request);
  text.StopAt(3);
  EXPECT_EQ(Fed(text, 0), (Tokens{5, 6, 7}));
  EXPECT_EQ(Fed(text, 3), Tokens{});
  text.StopAt(2);  // it is further than that already
  EXPECT_EQ(Fed(text, 3), Tokens{});
  text.StopAt(UINT64_MAX);
  EXPECT_EQ(Fed(text, 3), (Tokens{8}));
}

TEST(Text, WhoAsksForAllLogitsGetsARowForEachToken) {
  Request request{.prompt = {5, 6, 7}, .all_logits = true};
  const Text text(request);
  EXPECT_EQ(text.LogitsOf(0, 2), 2u);
  EXPECT_EQ(text.LogitsOf(0, 3), 3u);
}

Response Told(Origins origins) {
  Response response;
  std::move(origins).Tell(response);
  return response;
}

TEST(Origins, WhatIsFoundFirstIsReusedAndTheRestComputed) {
  Origins origins;
  origins.Start(32, {{.reason = MissReason::kEvicted, .tokens = 18}}, 16);
  EXPECT_EQ(origins.Advance(10, 42), 10u);
  EXPECT_EQ(origins.Advance(8, 50), 8u);
  origins.Generate();
  EXPECT_EQ(origins.Advance(1, 51), 1u);
  const Response told = Told(origins);
  EXPECT_EQ(told.reused_tokens, 32u);
  EXPECT_EQ(told.loaded_tokens, 16u);
  EXPECT_EQ(told.computed_tokens, 18u);
  EXPECT_EQ(told.recomputed_tokens, 0u);
  EXPECT_EQ(told.miss_reason, MissReason::kEvicted);
}

TEST(Origins, AStepOverTokensThatItHadCountsTheOthersOnly) {
  Origins origins;
  origins.Start(0, {}, 0);
  EXPECT_EQ(origins.Advance(20, 20), 20u);
  origins.Preempt();
  origins.Start(16, {{.reason = MissReason::kEvicted, .tokens = 99}}, 7);
  EXPECT_EQ(origins.Advance(10, 26), 6u);
  const Response told = Told(origins);
  EXPECT_EQ(told.reused_tokens, 0u);
  EXPECT_EQ(told.loaded_tokens, 0u);  // counted by the first start alone
  EXPECT_EQ(told.computed_tokens, 26u);
  EXPECT_EQ(told.recomputed_tokens, 4u);
  EXPECT_EQ(told.preemptions, 1u);
  EXPECT_EQ(told.miss_reason, MissReason::kNeverSeen);
}

TEST(Origins, WhatComesWhileItGeneratesIsNotOfThePrompt) {
  Origins origins;
  origins.Start(0, {}, 0);
  origins.Advance(20, 20);
  origins.Generate();
  origins.Preempt();
  origins.Start(32, {}, 0);
  EXPECT_EQ(Told(origins).reused_tokens, 0u);
}

TEST(Origins, WhyTokensWereMissingIsToldByTheJoinUnlessItWasPreempted) {
  for (const bool preempted : {false, true}) {
    Origins origins;
    origins.Start(0, {{.reason = MissReason::kNeverSeen, .tokens = 64}}, 0);
    if (preempted) origins.Preempt();
    origins.Join(48, {{.reason = MissReason::kNotLoaded, .tokens = 16}});
    const Response told = Told(origins);
    EXPECT_EQ(told.loaded_tokens, 48u);
    EXPECT_EQ(told.miss_reason, preempted ? MissReason::kNeverSeen : MissReason::kNotLoaded);
  }
}

// Random ways through a prompt, against a label for each of its tokens.
TEST(Origins, EveryTokenIsCountedByWhatBroughtItFirst) {
  enum Label : uint8_t { kNone, kReused, kComputed };
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Prng prng(seed);
    const uint64_t prompt = 1 + prng.NextBelow(60);
    std::vector<Label> labels(prompt, kNone);
    uint64_t position = 0;
    uint64_t loaded = 0;
    uint64_t again = 0;
    Origins origins;
    bool runs = false;
    const auto label = [&](uint64_t begin, uint64_t end, Label by) {
      uint64_t fresh = 0;
      for (uint64_t i = begin; i < end; ++i) {
        if (labels[i] != kNone) continue;
        labels[i] = by;
        ++fresh;
      }
      return fresh;
    };
    while (position < prompt) {
      if (!runs) {
        position = prng.NextBelow(prompt);
        label(0, position, kReused);
        origins.Start(position, {}, 0);
        runs = true;
      } else if (prng.NextBelow(4) == 0) {
        origins.Preempt();
        runs = false;
      } else if (prng.NextBelow(4) == 0) {
        const uint64_t to = position + prng.NextBelow(prompt - position);
        loaded += label(position, to, kReused);
        position = to;
        origins.Join(position, {});
      } else {
        const uint64_t tokens = 1 + prng.NextBelow(prompt - position);
        const uint64_t fresh = label(position, position + tokens, kComputed);
        again += tokens - fresh;
        position += tokens;
        EXPECT_EQ(origins.Advance(tokens, position), fresh) << seed;
      }
    }
    const Response told = Told(origins);
    EXPECT_EQ(told.reused_tokens, std::ranges::count(labels, kReused)) << seed;
    EXPECT_EQ(told.computed_tokens, std::ranges::count(labels, kComputed)) << seed;
    EXPECT_EQ(told.loaded_tokens, loaded) << seed;
    EXPECT_EQ(told.recomputed_tokens, again) << seed;
  }
}

}  // namespace
}  // namespace quire::serve
