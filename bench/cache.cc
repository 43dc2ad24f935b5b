// Calls on a live cache, one thread: finding a prompt beside comparing its tokens, writing rows
// beside copying them, publishing them beside reading them, as their checksum does, a token behind
// many beside one behind few; and how long the cache's lock is held meanwhile.
#include "quire/cache.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/cache_long.h"
#include "bench/must.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "bench/roofline.h"

namespace quire::bench {
namespace {

constexpr uint32_t kPromptTokens = 8192;
constexpr uint32_t kPrompts = 16;  // all cached

/// A full cache of prompts, with as few bytes of rows as a model can have.
class Prompts {
 public:
  Prompts() {
    Prng prng(1);
    for (TokenId& token : tokens_) token = static_cast<TokenId>(prng.NextBelow(150'000));
    const std::vector<uint16_t> zeros(uint64_t{kPromptTokens} * kHeadDim);
    const RowsView rows{.data = zeros.data(), .dtype = Codec::kF16, .token_stride = kHeadDim};
    for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
      const auto sequence = Must(cache_->Open(Acquire(prompt), {.step_tokens = kPromptTokens}));
      Must(sequence->Append(0, {.key = rows, .value = rows, .tokens = kPromptTokens}));
      Must(sequence->Commit(TokensOf(prompt)));
    }
  }

  Plan Acquire(uint32_t prompt) {
    return Must(cache_->Acquire({.identity = &identity_, .tokens = TokensOf(prompt)}));
  }

  /// Finds every prompt and lets go of it.
  double AcquireAll() {
    return SecondsOf(*alone_, [&] {
      for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
        QUIRE_CHECK(Acquire(prompt).missing_tokens() <= kBlockTokens);
      }
    });
  }

  /// Opens a sequence on every prompt and ends it.
  double OpenAll() {
    return SecondsOf(*alone_, [&] {
      for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
        QUIRE_CHECK(Must(cache_->Open(Acquire(prompt), {}))->length() > 0);
      }
    });
  }

  double CompareAll() {
    return SecondsOf(*alone_, [&] {
      QUIRE_CHECK(std::memcmp(copy_.data(), tokens_.data(), tokens_.size() * sizeof(TokenId)) == 0);
    });
  }

  /// What is compared lies elsewhere.
  void Copy() { copy_ = tokens_; }

 private:
  static constexpr uint32_t kHeadDim = 8;
  static constexpr uint32_t kBlockTokens = 16;

  std::span<const TokenId> TokensOf(uint32_t prompt) const {
    return std::span(tokens_).subspan(uint64_t{prompt} * kPromptTokens, kPromptTokens);
  }

  const std::unique_ptr<Executor> alone_ = MakePinnedPool(1);
  const std::unique_ptr<Cache> cache_ =
      Must(Cache::Create({.geometry = Geometry::Uniform(1, 1, kHeadDim),
                          .profile = NumericProfile::Uniform(Codec::kF16, kBlockTokens),
                          .hot_bytes = uint64_t{64} << 20}));
  const Identity identity_{};
  std::vector<TokenId> tokens_ = std::vector<TokenId>(uint64_t{kPrompts} * kPromptTokens);
  std::vector<TokenId> copy_;
};

Case FindingCase(const std::string& name, double (Prompts::*work)()) {
  return {.name = name, .prepare = [=]() -> Result<Subject> {
            const auto prompts = std::make_shared<Prompts>();
            prompts->Copy();
            return Timed{.unit = "us",
                         .less_is_better = true,
                         .amount = 1e6 / kPrompts,
                         .slice = fmt::format("{} prompts of {} tokens", kPrompts, kPromptTokens),
                         .work = [=](uint32_t) { return ((*prompts).*work)(); },
                         .floor = [=](uint32_t) { return prompts->CompareAll(); }};
          }};
}

constexpr uint32_t kStepTokens = 512;

/// A sequence of one layer of Qwen3-0.6B that grows by steps, in a cache that holds it twice.
class Writer {
 public:
  static constexpr uint32_t kSteps = 32;

  explicit Writer(Codec codec)
      : cache_(Must(Cache::Create({.geometry = Geometry::Uniform(1, kHeads, kHeadDim),
                                   .profile = ProfileOf(codec),
                                   .hot_bytes = 2 * kSteps * kStepBytes + (16 << 20)}))),
        stored_share_(CodecBitsPerValue(codec) / CodecBitsPerValue(Codec::kF16)) {
    Prng prng(1);
    for (float& value : rows_) value = prng.NextFloat(-1.0f, 1.0f);
  }

  /// Seconds to append one step. Steps come in order; every sequence is another.
  double Append(uint32_t step) {
    Begin(step);
    const double seconds = SecondsOf(*alone_, [&] { AppendStep(); });
    CommitStep();
    return seconds;
  }

  /// Seconds to commit one step.
  double Commit(uint32_t step) {
    Begin(step);
    AppendStep();
    return SecondsOf(*alone_, [&] { CommitStep(); });
  }

  /// Reads as many bytes as a step stores, from the cache: those of the step were just written.
  double Read(uint32_t) {
    ReadSeconds(stream_.runs(), *alone_);
    return ReadSeconds(stream_.runs(), *alone_) * stored_share_;
  }

  /// The rows of K and V as f16, to memory that has left the cache.
  double Copy(uint32_t step) {
    return SecondsOf(*alone_, [&] {
      std::memcpy(copy_.data() + step * kStepBytes, copy_.data() + copy_.size() - kStepBytes,
                  kStepBytes);
    });
  }

 private:
  static constexpr TokenId kVocabulary = 150'000;
  static constexpr uint32_t kHeads = 8;
  static constexpr uint32_t kHeadDim = 128;
  static constexpr uint64_t kStepBytes = uint64_t{kStepTokens} * kHeads * kHeadDim * 2 * 2;

  static NumericProfile ProfileOf(Codec codec) {
    NumericProfile profile = NumericProfile::Uniform(codec);
    profile.open_dtype = Codec::kF16;
    return profile;
  }

  void Begin(uint32_t step) {
    if (step == 0) {
      sequence_.reset();
      const TokenId first = next_token_ % kVocabulary;
      auto plan = Must(cache_->Acquire({.identity = &identity_, .tokens = {&first, 1}}));
      sequence_ = Must(cache_->Open(std::move(plan), {.reserve_tokens = kSteps * kStepTokens}));
    }
    for (TokenId& token : tokens_) token = next_token_++ % kVocabulary;
  }

  void AppendStep() {
    const RowsView rows{
        .data = rows_.data(), .token_stride = kHeads * kHeadDim, .head_stride = kHeadDim};
    Must(sequence_->Append(0, {.key = rows, .value = rows, .tokens = kStepTokens}));
  }

  void CommitStep() { Must(sequence_->Commit(tokens_)); }

  const std::unique_ptr<Executor> alone_ = MakePinnedPool(1);
  const std::unique_ptr<Cache> cache_;
  const double stored_share_;  // of f16
  const Stream stream_{kStepBytes};
  const Identity identity_{};
  std::vector<float> rows_ = std::vector<float>(uint64_t{kStepTokens} * kHeads * kHeadDim);
  std::vector<TokenId> tokens_ = std::vector<TokenId>(kStepTokens);
  std::vector<std::byte> copy_ = std::vector<std::byte>((kSteps + 1) * kStepBytes);
  std::unique_ptr<Sequence> sequence_;
  TokenId next_token_ = 0;
};

Case WritingCase(const std::string& verb, Codec codec, double (Writer::*work)(uint32_t),
                 double (Writer::*floor)(uint32_t)) {
  return {.name = fmt::format("{}/{}/{}/t1", verb, CodecName(codec), kStepTokens),
          .prepare = [=]() -> Result<Subject> {
            const auto writer = std::make_shared<Writer>(codec);
            return Timed{.unit = "us",
                         .less_is_better = true,
                         .amount = 1e6 / Writer::kSteps,
                         .places = Writer::kSteps,
                         .slice = fmt::format("{} tokens, 1 layer, f32 rows", kStepTokens),
                         .work = [=](uint32_t step) { return ((*writer).*work)(step); },
                         .floor = [=](uint32_t step) { return ((*writer).*floor)(step); }};
          }};
}

/// A sequence that grows by a token at a time behind so many others, of as few bytes as can be.
class Grower {
 public:
  static constexpr uint32_t kTokens = 256;  // of a slice

  explicit Grower(uint32_t before) : before_(before) {
    std::vector<TokenId> tokens(before);
    for (TokenId& token : tokens) token = next_token_++;
    Grow(tokens);
  }

  /// Seconds to append and commit a slice's tokens, which go again.
  double GrowSlice() {
    for (TokenId& token : tokens_) token = next_token_++;
    const double seconds = SecondsOf(*alone_, [&] {
      for (const TokenId& token : tokens_) Grow({&token, 1});
    });
    Must(sequence_->Rollback(before_));
    return seconds;
  }

 private:
  static constexpr uint32_t kHeadDim = 8;

  void Grow(std::span<const TokenId> tokens) {
    const RowsView rows{.data = zeros_.data(), .dtype = Codec::kF16, .token_stride = kHeadDim};
    Must(sequence_->Append(
        0, {.key = rows, .value = rows, .tokens = static_cast<uint32_t>(tokens.size())}));
    Must(sequence_->Commit(tokens));
  }

  const std::unique_ptr<Executor> alone_ = MakePinnedPool(1);
  const uint32_t before_;
  const std::unique_ptr<Cache> cache_ =
      Must(Cache::Create({.geometry = Geometry::Uniform(1, 1, kHeadDim),
                          .profile = NumericProfile::Uniform(Codec::kF16, 16),
                          .hot_bytes = uint64_t{64} << 20}));
  const Identity identity_{};
  TokenId next_token_ = 1;
  std::vector<uint16_t> zeros_ = std::vector<uint16_t>((uint64_t{before_} + 1) * kHeadDim);
  std::vector<TokenId> tokens_ = std::vector<TokenId>(kTokens);
  const std::unique_ptr<Sequence> sequence_ = Must(cache_->Open(
      Must(cache_->Acquire({.identity = &identity_, .tokens = std::span(&tokens_[0], 1)})),
      {.reserve_tokens = before_ + uint64_t{kTokens}}));
};

Case GrowingCase(uint32_t before) {
  return {.name = fmt::format("grow/{}/t1", before), .prepare = [=]() -> Result<Subject> {
            const auto behind_many = std::make_shared<Grower>(before);
            const auto behind_few = std::make_shared<Grower>(Grower::kTokens);
            return Timed{.unit = "ns a token",
                         .less_is_better = true,
                         .amount = 1e9 / Grower::kTokens,
                         .slice = fmt::format("{} tokens, one at a time", Grower::kTokens),
                         .work = [=](uint32_t) { return behind_many->GrowSlice(); },
                         .floor = [=](uint32_t) { return behind_few->GrowSlice(); }};
          }};
}

}  // namespace

std::vector<Case> CacheCases(const Options&) {
  std::vector<Case> cases;
  cases.push_back(FindingCase(fmt::format("acquire/{}/t1", kPromptTokens), &Prompts::AcquireAll));
  cases.push_back(FindingCase(fmt::format("open/{}/t1", kPromptTokens), &Prompts::OpenAll));
  for (const Codec codec : {Codec::kF16, Codec::kInt8}) {
    cases.push_back(WritingCase("append", codec, &Writer::Append, &Writer::Copy));
    cases.push_back(WritingCase("commit", codec, &Writer::Commit, &Writer::Read));
  }
  cases.push_back(GrowingCase(65'536));
  AddLongCases(cases);
  return cases;
}

}  // namespace quire::bench
