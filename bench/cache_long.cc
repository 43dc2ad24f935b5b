#include "bench/cache_long.h"

#include <fmt/format.h>

#include <algorithm>
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

namespace {

constexpr uint64_t kLongBlocks = 12'500;
constexpr uint32_t kLongBlockTokens = 16;
constexpr uint64_t kLongTokens = kLongBlocks * kLongBlockTokens;

/// A cached prompt of 200,000 tokens, with as few bytes of rows as a model can have.
class LongPrompt {
 public:
  explicit LongPrompt(const std::string& policy)
      : cache_(
            Must(Cache::Create({.geometry = Geometry::Uniform(1, 1, kHeadDim),
                                .profile = NumericProfile::Uniform(Codec::kF16, kLongBlockTokens),
                                .hot_bytes = uint64_t{64} << 20,
                                .policy = policy}))) {
    Draw();
    Must(Written()->Commit(std::span(tokens_).first(kLongTokens)));
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
    QUIRE_CHECK(sequence->length() == kLongTokens);
    return Seconds([&] { sequence.reset(); });
  }
  // Of other tokens than before.
  double CommitOne() {
    Draw();
    const auto sequence = Written();
    return Seconds([&] { Must(sequence->Commit(std::span(tokens_).first(kLongTokens))); });
  }
  double PinOne() {
    const double seconds = Seconds([&] {
      QUIRE_CHECK(Must(cache_->Pin({.identity = &identity_, .tokens = tokens_}, 0)) == kLongBlocks);
    });
    Must(cache_->Unpin({.identity = &identity_, .tokens = tokens_}));
    return seconds;
  }
  double ViewOne() {
    const auto sequence = Must(cache_->Open(Acquire(), {}));
    return Seconds([&] { Must(sequence->View(0, StreamRole::kKey)); });
  }
  double Compare() {
    return SecondsOf(*alone_, [&] {
      QUIRE_CHECK(std::memcmp(copy_.data(), tokens_.data(), kLongTokens * sizeof(TokenId)) == 0);
    });
  }
  double Copy() {
    return SecondsOf(*alone_, [&] { std::ranges::copy(tokens_, copy_.begin()); });
  }

 private:
  static constexpr uint32_t kHeadDim = 8;

  void Draw() {
    for (TokenId& token : tokens_) token = static_cast<TokenId>(prng_.NextBelow(150'000));
  }
  // A sequence with rows for all tokens, of which none is committed.
  std::unique_ptr<Sequence> Written() {
    auto sequence = Must(cache_->Open(Acquire(), {.step_tokens = kLongTokens}));
    const std::vector<uint16_t> zeros(kLongTokens * kHeadDim);
    const RowsView rows{.data = zeros.data(), .dtype = Codec::kF16, .token_stride = kHeadDim};
    Must(sequence->Append(0, {.key = rows, .value = rows, .tokens = kLongTokens}));
    return sequence;
  }
  Plan Acquire() { return Must(cache_->Acquire({.identity = &identity_, .tokens = tokens_})); }
  double Seconds(const std::function<void()>& call) { return SecondsOf(*alone_, call); }

  const std::unique_ptr<Executor> alone_ = MakePinnedPool(1);
  const std::unique_ptr<Cache> cache_;
  const Identity identity_{};
  Prng prng_{1};
  // The last token of a prompt is never looked up.
  std::vector<TokenId> tokens_ = std::vector<TokenId>(kLongTokens + 1);
  std::vector<TokenId> copy_ = tokens_;
};

using Round = double (LongPrompt::*)();

Case LongCase(const std::string& verb, const std::string& policy, Round work, Round floor) {
  const std::string of_policy = policy == "lru" ? "" : policy + "/";
  return {.name = fmt::format("{}/{}{}_blocks/t1", verb, of_policy, kLongBlocks),
          .prepare = [=]() -> Result<Subject> {
            const auto prompt = std::make_shared<LongPrompt>(policy);
            prompt->Copy();  // what is compared lies elsewhere
            return Timed{.unit = "calls/s",
                         .slice = fmt::format("one call on a path of {} blocks", kLongBlocks),
                         .work = [=](uint32_t) { return ((*prompt).*work)(); },
                         .floor = [=](uint32_t) { return ((*prompt).*floor)(); }};
          }};
}

}  // namespace

void AddLongCases(std::vector<Case>& cases) {
  for (const char* const policy : {"lru", "quire"}) {
    cases.push_back(LongCase("acquire", policy, &LongPrompt::AcquireOne, &LongPrompt::Compare));
    cases.push_back(LongCase("open", policy, &LongPrompt::OpenOne, &LongPrompt::Copy));
    cases.push_back(LongCase("end", policy, &LongPrompt::EndOne, &LongPrompt::Copy));
  }
  cases.push_back(LongCase("commit", "quire", &LongPrompt::CommitOne, &LongPrompt::Copy));
  cases.push_back(LongCase("pin", "quire", &LongPrompt::PinOne, &LongPrompt::Compare));
  cases.push_back(LongCase("view", "quire", &LongPrompt::ViewOne, &LongPrompt::Copy));
}

}  // namespace quire::bench
