// One history with budgets of 1, 2, 3 ... slots, until all of it fits: a call that is refused
// changes nothing, and works once there is room.
#include <gtest/gtest.h>

#include <functional>

#include "cache/test_util.h"

namespace quire::cache {
namespace {

struct FailureSweepWorld {
  explicit FailureSweepWorld(uint64_t slots) : cache(slots) {}

  // Stats, map, and what every sequence holds.
  std::string Everything() const {
    std::string all = cache.Snapshot();
    for (const auto& [sequence, history] :
         {std::pair(&a, &a_history), std::pair(&b, &b_history), std::pair(&c, &c_history)}) {
      if (*sequence == nullptr) continue;
      all += ToJson((*sequence)->stats()) + std::to_string((*sequence)->cursor(0)) + " " +
             std::to_string((*sequence)->cursor(1)) + "\n";
      EXPECT_EQ(cache.model.Differs(**sequence, *history), "");
    }
    return all;
  }

  // Computes up to `history`, one layer after the other.
  Result<void> Feed(Sequence& sequence, std::vector<TokenId>& history,
                    const std::vector<TokenId>& longer) {
    QUIRE_TRY(cache.model.Feed(sequence, longer));
    history = longer;
    return {};
  }

  Result<void> OpenInto(std::unique_ptr<Sequence>& to, std::vector<TokenId>& history,
                        const std::vector<TokenId>& prompt, const SequenceOptions& options) {
    QUIRE_ASSIGN(to, cache.TryOpen(prompt, options));
    history.assign(prompt.begin(), prompt.begin() + static_cast<int64_t>(to->length()));
    return {};
  }

  TestCache cache;
  std::unique_ptr<Sequence> a, b, c, bystander;
  std::vector<TokenId> a_history{}, b_history{}, c_history{};
};

using Step = std::function<Result<void>(FailureSweepWorld&)>;

std::vector<Step> Steps() {
  const auto prompt = SomeTokens(2 * kBlock + 3, 1);
  const auto left = Join(prompt, SomeTokens(2 * kBlock, 2));
  const auto right = Join(prompt, SomeTokens(kBlock, 3));
  const auto cut = std::vector<TokenId>(left.begin(), left.begin() + kBlock + 7);
  const auto detour = Join(cut, SomeTokens(kBlock, 4));
  return {
      [](FailureSweepWorld& w) -> Result<void> {
        QUIRE_ASSIGN(w.bystander, w.cache.TryOpen(SomeTokens(kBlock + 1, 9)));
        return {};
      },
      [=](FailureSweepWorld& w) {
        return w.OpenInto(w.a, w.a_history, prompt, {.on_full = OnFull::kHalt});
      },
      [=](FailureSweepWorld& w) { return w.Feed(*w.a, w.a_history, prompt); },
      [=](FailureSweepWorld& w) -> Result<void> {
        QUIRE_ASSIGN(w.b, w.a->Fork());
        w.b_history = prompt;
        return {};
      },
      [=](FailureSweepWorld& w) { return w.Feed(*w.a, w.a_history, left); },
      [=](FailureSweepWorld& w) { return w.Feed(*w.b, w.b_history, right); },
      [=](FailureSweepWorld& w) -> Result<void> {
        QUIRE_TRY(w.a->Rollback(cut.size()));
        w.a_history = cut;
        return {};
      },
      [=](FailureSweepWorld& w) { return w.Feed(*w.a, w.a_history, detour); },
      [=](FailureSweepWorld& w) {
        return w.OpenInto(w.c, w.c_history, left, {.reserve_tokens = 5 * kBlock});
      },
      [=](FailureSweepWorld& w) { return w.Feed(*w.c, w.c_history, left); },
      [=](FailureSweepWorld& w) { return w.c->Reserve(7 * kBlock); },
  };
}

TEST(FailureSweep, EveryBudgetFromOneSlotUp) {
  const std::vector<Step> steps = Steps();
  uint64_t refusals = 0;
  uint64_t continued = 0;
  for (uint64_t slots = 1;; ++slots) {
    ASSERT_LT(slots, 40u) << "it never fits";
    SCOPED_TRACE("slots " + std::to_string(slots));
    FailureSweepWorld world(slots);
    bool all_fit = true;
    for (size_t step = 0; step < steps.size(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      // A refused Open has used its prompt's blocks: Acquire looks up the hit before.
      const std::string before = world.Everything();
      auto done = steps[step](world);
      if (!done) {
        all_fit = false;
        ++refusals;
        const ErrorCode code = done.error().code;
        ASSERT_TRUE(code == ErrorCode::kNoSpace || code == ErrorCode::kTooLarge)
            << done.error().message;
        const std::string after = world.Everything();
        const bool opens = step == 0 || step == 1 || step == 8;
        // An Open counts a lookup; a layer that had room keeps its rows until the next Append.
        if (!opens) {
          EXPECT_EQ(after, before);
        } else {
          EXPECT_EQ(world.cache.cache->BlockMap(),
                    before.substr(before.find('\n') + 1, world.cache.cache->BlockMap().size()));
        }
        // Room comes free, and the history goes on where it stopped.
        world.bystander.reset();
        if (step > 5) world.b.reset();
        if (step > 7) world.a.reset();
        done = steps[step](world);
        if (!done) break;
        ++continued;
      }
      world.Everything();
    }
    EXPECT_LE(world.cache.cache->stats().hot_bytes_peak,
              world.cache.cache->stats().hot_bytes_limit);
    for (auto* sequence : {&world.a, &world.b, &world.c, &world.bystander}) sequence->reset();
    world.cache.cache->Evict(1000);
    EXPECT_EQ(world.cache.slots_used(), 0u);
    if (all_fit) break;
  }
  EXPECT_GT(refusals, 5u);
  EXPECT_GT(continued, 3u);
}

}  // namespace
}  // namespace quire::cache
