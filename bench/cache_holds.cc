#include "bench/cache_holds.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "bench/must.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "quire/sequence.h"

namespace quire::bench {

HoldTimes::HoldTimes(Cache& cache) : core_(static_cast<cache::Core&>(cache)) {
  held_ns_.reserve(kHoldsMax);  // no memory is taken under the lock
  core_.state().Watch(this);
}

HoldTimes::~HoldTimes() { core_.state().Watch(nullptr); }

void HoldTimes::Begin() { begin_ = Clock::now(); }

void HoldTimes::End() {
  if (!counts_ || held_ns_.size() == kHoldsMax) return;
  held_ns_.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin_).count());
}

std::string HoldTimes::ToText() {
  if (held_ns_.empty()) return "the lock was never held";
  std::ranges::sort(held_ns_);
  const auto at = [&](double share) {
    const auto last = static_cast<double>(held_ns_.size() - 1);
    return held_ns_[static_cast<size_t>(share * last)] / 1000;
  };
  return fmt::format(
      "lock held {:.1f} times a call, p50 {:.2f} us, p99 {:.2f} us, longest {:.2f} us",
      static_cast<double>(held_ns_.size()) / static_cast<double>(calls_), at(0.5), at(0.99), at(1));
}

namespace {

constexpr uint64_t kHeldBlocks = 12'500;
constexpr uint32_t kHeldBlockTokens = 16;
constexpr uint64_t kHeldTokens = kHeldBlocks * kHeldBlockTokens;

/// A cached prompt of 200,000 tokens, with as few bytes of rows as a model can have.
class LongPrompt {
 public:
  LongPrompt() {
    Prng prng(1);
    for (TokenId& token : tokens_) token = static_cast<TokenId>(prng.NextBelow(150'000));
    constexpr uint64_t kFillTokens = 8000;
    const std::vector<uint16_t> zeros(kFillTokens * kHeadDim);
    const RowsView rows{.data = zeros.data(), .dtype = Codec::kF16, .token_stride = kHeadDim};
    const auto sequence = Must(cache_->Open(Acquire(), {.step_tokens = kFillTokens}));
    for (uint64_t at = 0; at < kHeldTokens; at += kFillTokens) {
      Must(sequence->Append(0, {.key = rows, .value = rows, .tokens = kFillTokens}));
      Must(sequence->Commit(std::span(tokens_).subspan(at, kFillTokens)));
    }
  }

  double AcquireOne() {
    std::optional<Plan> plan;
    return Seconds([&] { plan = Acquire(); });
  }
  double OpenOne() {
    Plan plan = Acquire();
    std::unique_ptr<Sequence> sequence;
    return Seconds([&] { sequence = Must(cache_->Open(std::move(plan), {})); });
  }
  double EndOne() {
    auto sequence = Must(cache_->Open(Acquire(), {}));
    QUIRE_CHECK(sequence->length() == kHeldTokens);
    return Seconds([&] { sequence.reset(); });
  }
  double Compare() {
    return SecondsOf(*alone_, [&] {
      QUIRE_CHECK(std::memcmp(copy_.data(), tokens_.data(), kHeldTokens * sizeof(TokenId)) == 0);
    });
  }
  double Copy() {
    return SecondsOf(*alone_, [&] { std::ranges::copy(tokens_, copy_.begin()); });
  }

  std::string HeldText() { return holds_.ToText(); }

 private:
  static constexpr uint32_t kHeadDim = 8;

  Plan Acquire() { return Must(cache_->Acquire({.identity = &identity_, .tokens = tokens_})); }
  double Seconds(const std::function<void()>& call) {
    return SecondsOf(*alone_, [&] { holds_.Of(call); });
  }

  const std::unique_ptr<Executor> alone_ = MakePinnedPool(1);
  const std::unique_ptr<Cache> cache_ =
      Must(Cache::Create({.geometry = Geometry::Uniform(1, 1, kHeadDim),
                          .profile = NumericProfile::Uniform(Codec::kF16, kHeldBlockTokens),
                          .hot_bytes = uint64_t{64} << 20}));
  HoldTimes holds_{*cache_};
  const Identity identity_{};
  // The last token of a prompt is never looked up.
  std::vector<TokenId> tokens_ = std::vector<TokenId>(kHeldTokens + 1);
  std::vector<TokenId> copy_ = tokens_;
};

Case LongCase(const std::string& verb, double (LongPrompt::*work)(),
              double (LongPrompt::*floor)()) {
  return {.name = fmt::format("{}/{}_blocks/t1", verb, kHeldBlocks),
          .prepare = [=]() -> Result<Subject> {
            const auto prompt = std::make_shared<LongPrompt>();
            prompt->Copy();  // what is compared lies elsewhere
            return Timed{.unit = "calls/s",
                         .slice = fmt::format("one call on a path of {} blocks", kHeldBlocks),
                         .work = [=](uint32_t) { return ((*prompt).*work)(); },
                         .floor = [=](uint32_t) { return ((*prompt).*floor)(); },
                         .note = [=] { return prompt->HeldText(); }};
          }};
}

}  // namespace

void AddHoldCases(std::vector<Case>& cases) {
  cases.push_back(LongCase("acquire", &LongPrompt::AcquireOne, &LongPrompt::Compare));
  cases.push_back(LongCase("open", &LongPrompt::OpenOne, &LongPrompt::Copy));
  cases.push_back(LongCase("end", &LongPrompt::EndOne, &LongPrompt::Copy));
}

}  // namespace quire::bench
