// Contexts that do not fit into memory: the same model gives the same bits as with enough of it,
// whatever stays resident, however steps are cut, and whatever the store does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cache/below/test_store.h"
#include "model/model.h"
#include "model/test_cache.h"

namespace quire::model {
namespace {

using cache::Must;
using cache::TestStore;

struct Kind {
  std::string name;
  Codec codec = Codec::kF16;
  Family family = Family::kQwen3;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

ModelConfig ConfigOf(Family family) {
  ModelConfig config = SmallConfig();
  config.family = family;
  config.positions_max = 1 << 16;
  if (family == Family::kQwen2) {  // one layer looks through a window
    config.window_tokens = 70;
    config.window_layers = {1};
  }
  return config;
}

class Streamed : public testing::TestWithParam<Kind> {
 protected:
  Streamed()
      : model_(MakeModel(ConfigOf(GetParam().family), ComputeType::kBf16)),
        attention_(MakeAttention()),
        executor_(MakeThreadPool(2)) {
    identity_ = {.weights = model_->fingerprint(),
                 .adapter = {},
                 .position_encoding = model_->position_encoding(),
                 .domain = {.name = "test", .secret = {3}}};
  }

  CacheOptions OptionsOf(uint64_t hot_bytes, DiskStore* store) {
    CacheOptions options;
    options.geometry = GeometryOf(model_->config());
    options.profile = NumericProfile::Uniform(GetParam().codec);
    if (!IsIdentity(GetParam().codec)) options.profile.open_dtype = Codec::kBf16;
    options.hot_bytes = hot_bytes;
    options.store = store;
    options.clock = &store_->clock;
    return options;
  }
  /// For blocks of two bytes per value.
  static uint64_t Bytes(uint64_t kib) {
    return (GetParam().codec == Codec::kF32 ? 2 * kib : kib) << 10;
  }
  /// Memory for less than a third of the contexts here, with what a stream takes besides.
  std::unique_ptr<Cache> MakeStreamCache(uint64_t hot_kib = 1500) {
    return Must(Cache::Create(OptionsOf(Bytes(hot_kib), Store())));
  }
  SequenceOptions OptionsFor(uint64_t tokens, uint64_t resident, uint32_t chunk) const {
    return {.reserve_tokens = tokens,
            .step_tokens = chunk,
            .resident_tokens = resident,
            .query_heads = model_->config().query_heads};
  }
  Result<std::unique_ptr<Sequence>> TryOpen(Cache& cache, std::span<const TokenId> tokens,
                                            const SequenceOptions& options) {
    return cache.Open(Must(cache.Acquire({.identity = &identity_, .tokens = tokens})), options);
  }
  DiskStore* Store() const { return store_->store.get(); }
  /// What a sequence that streams takes at Open, and a little more.
  uint64_t RoomFor(std::span<const TokenId> tokens, const SequenceOptions& options) {
    const auto cache = Must(Cache::Create(OptionsOf(1 << 26, Store())));
    const auto sequence = Must(TryOpen(*cache, tokens, options));
    return cache->stats().hot_bytes_used * 51 / 50;
  }
  /// Opens to stream and computes all of it, in steps of 64.
  std::unique_ptr<Sequence> OpenAndRun(Cache& cache, std::span<const TokenId> tokens,
                                       uint64_t resident = 256) {
    auto sequence = Must(TryOpen(cache, tokens, OptionsFor(tokens.size() + 64, resident, 64)));
    Must(Run(*sequence, tokens, 64));
    return sequence;
  }

  /// Computes what the sequence lacks of `tokens`, in steps of `chunk`; logits after each of them.
  Result<std::vector<float>> Run(Sequence& sequence, std::span<const TokenId> tokens,
                                 uint32_t chunk) {
    const uint32_t vocab = model_->config().vocab;
    std::vector<float> logits;
    for (size_t at = sequence.length(); at < tokens.size(); at += chunk) {
      const auto next = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at));
      logits.resize(logits.size() + next.size() * vocab);
      const StepItem item = {.sequence = &sequence,
                             .tokens = next,
                             .logits = logits.data() + logits.size() - next.size() * vocab,
                             .all_logits = true};
      QUIRE_TRY(model_->Step({&item, 1}, *attention_, *executor_));
    }
    return logits;
  }
  /// The naive judge: enough memory, and no store.
  std::vector<float> Whole(std::span<const TokenId> tokens) {
    const auto cache = Must(Cache::Create(OptionsOf(1 << 28, nullptr)));
    const auto sequence = Must(TryOpen(*cache, tokens, {}));
    return Must(Run(*sequence, tokens, 256));
  }
  std::vector<TokenId> Tokens(size_t count, uint64_t seed = 7) const {
    return SomeTokens(count, model_->config().vocab, seed);
  }
  /// Whether `logits` are the last ones of `whole`, bit for bit.
  static bool IsEndOf(std::span<const float> logits, std::span<const float> whole) {
    return !logits.empty() && logits.size() <= whole.size() &&
           std::memcmp(logits.data(), whole.data() + whole.size() - logits.size(),
                       logits.size_bytes()) == 0;
  }

  std::unique_ptr<TestStore> store_ = std::make_unique<TestStore>(uint64_t{64} << 20);
  std::unique_ptr<Model> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<Executor> executor_;
  Identity identity_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, Streamed,
                         testing::Values(Kind{"f16"}, Kind{"f32", Codec::kF32},
                                         Kind{"int8", Codec::kInt8}, Kind{"int4", Codec::kInt4},
                                         Kind{"fp8", Codec::kFp8E4m3}, Kind{"q25", Codec::kQ25},
                                         Kind{"window", Codec::kInt8, Family::kQwen2}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(Streamed, HasTheBitsOfAContextInMemory) {
  constexpr uint64_t kTokens = 3900;
  const std::vector<TokenId> tokens = Tokens(kTokens);
  const std::vector<float> whole = Whole(tokens);
  for (const auto& [resident, chunk] : {std::pair{256u, 16u}, {600u, 13u}, {1u, 16u}}) {
    store_ = std::make_unique<TestStore>(uint64_t{64} << 20);
    const SequenceOptions options = OptionsFor(kTokens, resident, chunk);
    const auto cache = Must(Cache::Create(OptionsOf(RoomFor(tokens, options), Store())));
    const auto in_memory = TryOpen(*cache, tokens, {});
    ASSERT_FALSE(in_memory.has_value());
    EXPECT_EQ(in_memory.error().code, ErrorCode::kTooLarge);
    const auto sequence = Must(TryOpen(*cache, tokens, options));
    const auto logits = Must(Run(*sequence, tokens, chunk));
    EXPECT_EQ(logits.size(), whole.size());
    EXPECT_TRUE(IsEndOf(logits, whole)) << "resident " << resident << ", chunk " << chunk;
    EXPECT_GE(sequence->streamed()->tokens() + resident + kSplitTokens, kTokens);
    EXPECT_LE(sequence->streamed()->tokens() + resident, kTokens);
    EXPECT_EQ(sequence->stats().tokens_streamed, sequence->streamed()->tokens());
    EXPECT_EQ(sequence->streamed()->PieceCount(1) == 0, GetParam().family == Family::kQwen2);
    const CacheStats stats = cache->stats();
    EXPECT_GT(stats.streamed_bytes_total, 0);
    EXPECT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
  }
}

TEST_P(Streamed, TheRoomItTakesDoesNotGrowWithTheContext) {
  const std::vector<TokenId> tokens = Tokens(2600);
  const auto cache = MakeStreamCache(8 << 10);
  const auto sequence = Must(TryOpen(*cache, tokens, OptionsFor(2600, 256, 64)));
  const uint64_t at_first = cache->stats().hot_bytes_used;
  Must(Run(*sequence, tokens, 64));
  EXPECT_LE(cache->stats().hot_bytes_peak, at_first);
}

TEST_P(Streamed, ALaterProcessStreamsWhatTheStoreHas) {
  const std::vector<TokenId> tokens = Tokens(1500);
  const std::vector<float> whole = Whole(tokens);
  {
    const auto cache = MakeStreamCache();
    OpenAndRun(*cache, std::span(tokens).first(1300));
  }
  store_->Restart();
  const auto cache = MakeStreamCache();
  const auto sequence = Must(TryOpen(*cache, tokens, OptionsFor(1500, 300, 64)));
  EXPECT_EQ(sequence->length(), 1296);
  EXPECT_EQ(sequence->stats().tokens_streamed, 768);  // whole splits before the last 300 tokens
  auto logits = Must(Run(*sequence, std::span(tokens).first(1450), 64));
  for (size_t token = 1450; token < 1500; ++token) {  // and then as when it generates
    const auto next = Must(Run(*sequence, std::span(tokens).first(token + 1), 1));
    logits.insert(logits.end(), next.begin(), next.end());
  }
  EXPECT_TRUE(IsEndOf(logits, whole));
  EXPECT_LE(cache->stats().hot_bytes_peak, cache->stats().hot_bytes_limit);
}

TEST_P(Streamed, WhatMemoryHasIsStreamedTooWhenTheStoreHasIt) {
  const std::vector<TokenId> tokens = Tokens(1500);
  const std::vector<float> whole = Whole(tokens);
  const auto cache = MakeStreamCache(3 << 10);
  {
    const auto published = Must(TryOpen(*cache, std::span(tokens).first(700), {}));
    Must(Run(*published, std::span(tokens).first(700), 100));
  }
  Must(Store()->Flush());
  const auto sequence = Must(TryOpen(*cache, tokens, OptionsFor(1500, 256, 64)));
  EXPECT_EQ(sequence->length(), 688);
  EXPECT_TRUE(IsEndOf(Must(Run(*sequence, tokens, 64)), whole));
}

TEST_P(Streamed, OthersInTheBatchAreInMemory) {
  const std::vector<TokenId> tokens = Tokens(1200, 1);
  const std::vector<TokenId> others = Tokens(240, 2);
  const auto cache = MakeStreamCache(3 << 10);
  const auto streamed = OpenAndRun(*cache, std::span(tokens).first(960));
  const auto second = OpenAndRun(*cache, std::span(tokens).first(1000));
  const auto resident = Must(TryOpen(*cache, others, {}));
  const uint32_t vocab = model_->config().vocab;
  std::vector<std::vector<float>> logits(3, std::vector<float>(40 * 6 * vocab));
  for (size_t step = 0; step < 6; ++step) {
    const auto item = [&](size_t i, Sequence& sequence, std::span<const TokenId> text) {
      return StepItem{.sequence = &sequence,
                      .tokens = text.subspan(sequence.length(), i == 1 ? 40 : 7),
                      .logits = logits[i].data(),
                      .all_logits = true};
    };
    const StepItem items[] = {item(0, *streamed, tokens), item(1, *resident, others),
                              item(2, *second, tokens)};
    Must(model_->Step(items, *attention_, *executor_));
    const std::vector<float> whole = Whole(std::span(tokens).first(streamed->length()));
    EXPECT_TRUE(IsEndOf(std::span(logits[0]).first(7 * vocab), whole)) << step;
    EXPECT_TRUE(IsEndOf(std::span(logits[1]).first(40 * vocab),
                        Whole(std::span(others).first(resident->length()))))
        << step;
    EXPECT_TRUE(IsEndOf(std::span(logits[2]).first(7 * vocab),
                        Whole(std::span(tokens).first(second->length()))))
        << step;
  }
}

TEST_P(Streamed, ADamagedBlockIsNamedAndComputedAgain) {
  const std::vector<TokenId> tokens = Tokens(1300);
  const std::vector<float> whole = Whole(tokens);
  const auto cache = MakeStreamCache();
  auto sequence = OpenAndRun(*cache, std::span(tokens).first(1250));
  store_->DamageSegments(20'000);
  const auto failed = Run(*sequence, tokens, 25);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kCorrupt) << failed.error().message;
  EXPECT_NE(failed.error().message.find("stream: block "), std::string::npos)
      << failed.error().message;
  // As it was before the step; what was on its way when the disk changed may have served one.
  EXPECT_THAT(sequence->length(), testing::AnyOf(1250, 1275));
  // A request that begins again begins before the damage, and may find more of it.
  for (int attempt = 0; attempt < 40; ++attempt) {
    sequence.reset();
    sequence = Must(TryOpen(*cache, tokens, OptionsFor(1300, 256, 64)));
    const auto again = Run(*sequence, tokens, 64);
    if (!again) {
      ASSERT_EQ(again.error().code, ErrorCode::kCorrupt) << again.error().message;
      continue;
    }
    EXPECT_TRUE(IsEndOf(*again, whole));
    return;
  }
  FAIL() << "damage without end";
}

TEST_P(Streamed, ADiskThatFailsIsAnErrorAndAnotherTryMaySucceed) {
  const std::vector<TokenId> tokens = Tokens(1300);
  const std::vector<float> whole = Whole(tokens);
  const auto cache = MakeStreamCache();
  auto sequence = OpenAndRun(*cache, std::span(tokens).first(1250));
  store_->files.set_rates({.read_error = 1});
  const auto failed = Run(*sequence, tokens, 25);
  ASSERT_FALSE(failed.has_value());
  // A record that two reads ahead failed to bring is forgotten before the step asks for it.
  const bool is_forgotten = failed.error().code == ErrorCode::kCorrupt &&
                            failed.error().message.find("(absent)") != std::string::npos;
  EXPECT_TRUE(failed.error().code == ErrorCode::kIo || is_forgotten) << failed.error().message;
  // What was on its way before may have served one step.
  EXPECT_THAT(sequence->length(), testing::AnyOf(1250, 1275));
  store_->files.set_rates({});
  auto again = Run(*sequence, tokens, 25);
  if (!again) {  // what it could not read twice was forgotten
    EXPECT_EQ(again.error().code, ErrorCode::kCorrupt) << again.error().message;
    sequence.reset();
    sequence = Must(TryOpen(*cache, tokens, OptionsFor(1300, 256, 64)));
    again = Run(*sequence, tokens, 64);
  }
  EXPECT_TRUE(IsEndOf(Must(std::move(again)), whole));
}

TEST_P(Streamed, WhatIsErasedMeanwhileIsNotReadAnyMore) {
  const std::vector<TokenId> tokens = Tokens(1300);
  const auto cache = MakeStreamCache();
  auto sequence = OpenAndRun(*cache, std::span(tokens).first(1250));
  Must(cache->Erase(kDefaultTenant));
  const auto failed = Run(*sequence, tokens, 25);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound) << failed.error().message;
  EXPECT_NE(failed.error().message.find("erased"), std::string::npos) << failed.error().message;
  // Nothing of it is found again, and it can be computed anew.
  sequence.reset();
  const auto anew = Must(TryOpen(*cache, tokens, OptionsFor(1300, 256, 64)));
  EXPECT_EQ(anew->length(), 0);
}

TEST_P(Streamed, ADiskThatIsFullKeepsBlocksInMemory) {
  const std::vector<TokenId> tokens = Tokens(1600);
  const std::vector<float> whole = Whole(tokens);
  store_->files.set_disk_bytes(store_->files.bytes_used() + (64 << 10));
  {
    const auto cache = MakeStreamCache(8 << 10);  // there is room for all of it
    const auto sequence = Must(TryOpen(*cache, tokens, OptionsFor(1600, 256, 64)));
    EXPECT_TRUE(IsEndOf(Must(Run(*sequence, tokens, 64)), whole));
    EXPECT_LT(sequence->streamed()->tokens(), 1000);
  }
  const SequenceOptions options = OptionsFor(1600, 256, 64);
  const auto cache = Must(Cache::Create(OptionsOf(RoomFor(tokens, options), Store())));
  const auto sequence = Must(TryOpen(*cache, tokens, options));
  const auto failed = Run(*sequence, tokens, 64);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(failed.error().message.find("the store does not take block"), std::string::npos)
      << failed.error().message;
  EXPECT_LE(cache->stats().hot_bytes_peak, cache->stats().hot_bytes_limit);
}

TEST_P(Streamed, GoesBackWithinWhatIsResident) {
  const std::vector<TokenId> tokens = Tokens(1300);
  // The other layer's window has passed what is further back.
  const size_t to = GetParam().family == Family::kQwen2 ? 1296 : 1200;
  std::vector<TokenId> other = tokens;
  for (size_t i = to; i < other.size(); ++i) other[i] = (other[i] + 1) % 90;
  const auto cache = MakeStreamCache();
  const auto sequence = OpenAndRun(*cache, tokens);
  const auto refused = sequence->Rollback(400);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("store alone"), std::string::npos);
  Must(sequence->Rollback(to));
  EXPECT_TRUE(IsEndOf(Must(Run(*sequence, other, 64)), Whole(other)));
  Must(sequence->Rollback(0));
  EXPECT_EQ(sequence->streamed()->tokens(), 0);
  EXPECT_TRUE(IsEndOf(Must(Run(*sequence, tokens, 64)), Whole(tokens)));
}

TEST_P(Streamed, CancelIsHeardWhileItReads) {
  const std::vector<TokenId> tokens = Tokens(1300);
  const auto cache = MakeStreamCache();
  const auto sequence = OpenAndRun(*cache, std::span(tokens).first(1299));
  std::atomic<bool> cancel = true;
  const StepItem item = {.sequence = sequence.get(), .tokens = std::span(tokens).last(1)};
  const auto cancelled = model_->Step({&item, 1}, *attention_, *executor_, &cancel);
  ASSERT_FALSE(cancelled.has_value());
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  cancel = false;
  Must(model_->Step({&item, 1}, *attention_, *executor_, &cancel));
  EXPECT_EQ(sequence->length(), 1300);
}

TEST_P(Streamed, WhatCannotBeSaysWhatToDo) {
  const std::vector<TokenId> tokens = Tokens(20'000);
  const auto message_of = [&](Cache& cache, SequenceOptions options, ErrorCode code) {
    const auto refused = TryOpen(cache, tokens, options);
    EXPECT_FALSE(refused.has_value());
    if (refused) return std::string();
    EXPECT_EQ(refused.error().code, code) << refused.error().message;
    return refused.error().message;
  };
  using testing::HasSubstr;
  const SequenceOptions good = OptionsFor(20'000, 256, 64);
  const auto cache = MakeStreamCache();
  EXPECT_THAT(message_of(*cache, {}, ErrorCode::kTooLarge), HasSubstr("can never fit"));
  SequenceOptions options = good;
  options.publish = false;
  EXPECT_THAT(message_of(*cache, options, ErrorCode::kUnsupported), HasSubstr("leave publish on"));
  options = good;
  options.query_heads = 0;
  EXPECT_THAT(message_of(*cache, options, ErrorCode::kInvalidArgument), HasSubstr("query_heads"));
  options = OptionsFor(20'000, 15'000, 64);
  EXPECT_THAT(message_of(*cache, options, ErrorCode::kTooLarge),
              HasSubstr("lower resident_tokens or step_tokens, or raise hot_bytes"));
  const auto alone = Must(Cache::Create(OptionsOf(Bytes(1500), nullptr)));
  EXPECT_THAT(message_of(*alone, good, ErrorCode::kUnsupported), HasSubstr("has no store"));
  CacheOptions layered = OptionsOf(Bytes(1500), Store());
  if (IsIdentity(GetParam().codec)) {
    layered.layout = ArenaLayout::kLayerMajor;
    const auto by_layer = Must(Cache::Create(layered));
    EXPECT_THAT(message_of(*by_layer, good, ErrorCode::kUnsupported), HasSubstr("block_major"));
  }
  TestStore little(uint64_t{1} << 20);
  CacheOptions on_little = OptionsOf(Bytes(3 << 10), little.store.get());
  on_little.clock = &little.clock;
  const auto small = Must(Cache::Create(on_little));
  EXPECT_THAT(message_of(*small, good, ErrorCode::kTooLarge), HasSubstr("raise its cap"));
}

TEST_P(Streamed, WhateverTheSizes) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Prng prng(seed);
    store_ = std::make_unique<TestStore>(uint64_t{64} << 20);
    const std::vector<TokenId> tokens = Tokens(700 + prng.NextBelow(900), seed);
    const std::vector<float> whole = Whole(tokens);
    const auto cache = MakeStreamCache(2500);
    uint64_t done = 0;
    while (done < tokens.size()) {
      const uint64_t resident = 1 + prng.NextBelow(700);
      const auto chunk = static_cast<uint32_t>(1 + prng.NextBelow(80));
      auto sequence = Must(TryOpen(*cache, tokens, OptionsFor(tokens.size(), resident, chunk)));
      ASSERT_LE(sequence->length(), done);
      const uint64_t end = std::min<uint64_t>(tokens.size(), done + 1 + prng.NextBelow(600));
      const auto logits = Must(Run(*sequence, std::span(tokens).first(end), chunk));
      ASSERT_TRUE(IsEndOf(logits, std::span(whole).first(end * model_->config().vocab)))
          << "seed " << seed << ", resident " << resident << ", chunk " << chunk;
      done = end;
      EXPECT_LE(cache->stats().hot_bytes_peak, cache->stats().hot_bytes_limit);
    }
  }
}

/// A store with a thread of its own, in every tier.
TEST_P(Streamed, FromEveryTier) {
  const std::vector<TokenId> tokens = Tokens(1300);
  const std::vector<float> whole = Whole(tokens);
  const auto directory = std::filesystem::temp_directory_path() /
                         ("quire_streamed_" + GetParam().name + std::to_string(::getpid()));
  for (const auto& [on_disk, warm_bytes] :
       {std::pair{false, 16 << 20}, {true, 0}, {true, 16 << 20}}) {
    std::filesystem::remove_all(directory);
    const auto store = Must(DiskStore::Open({.directory = on_disk ? directory.string() : "",
                                             .bytes_cap = uint64_t{64} << 20,
                                             .commit_interval_us = 40'000,
                                             .warm_bytes = static_cast<uint64_t>(warm_bytes),
                                             .staging_bytes = 4 << 20}));
    const SequenceOptions options = OptionsFor(1300, 256, 50);
    auto cache = Must(Cache::Create(OptionsOf(Bytes(1800), store.get())));
    {
      const auto sequence = Must(TryOpen(*cache, std::span(tokens).first(1000), options));
      EXPECT_TRUE(IsEndOf(Must(Run(*sequence, std::span(tokens).first(1000), 50)),
                          std::span(whole).first(1000 * model_->config().vocab)));
    }
    const auto sequence = Must(TryOpen(*cache, tokens, options));
    EXPECT_EQ(sequence->length(), 992);
    EXPECT_TRUE(IsEndOf(Must(Run(*sequence, tokens, 50)), whole));
    EXPECT_GT(sequence->streamed()->stats().pieces, 0);
  }
  std::filesystem::remove_all(directory);
}

// A step that is put aside whenever it would wait, with steps of another sequence between: the bits
// of both are those of steps that wait.
TEST_P(Streamed, StepsArePutAsideAndGoneOnWith) {
  const auto tokens = Tokens(1300);
  const auto other_tokens = Tokens(200, 8);
  const auto cache = MakeStreamCache(2500);
  const auto sequence = Must(TryOpen(*cache, tokens, OptionsFor(tokens.size() + 64, 256, 64)));
  const auto other = Must(TryOpen(*cache, other_tokens, {.reserve_tokens = 600}));
  sequence->streamed()->Defer();
  std::vector<float> logits;
  std::vector<float> other_logits;
  uint64_t asides = 0;
  uint64_t dropped = 0;
  while (sequence->length() < tokens.size()) {
    while (!sequence->streamed()->MayStep(0)) store_->clock.Advance(500);
    const size_t at = sequence->length();
    const auto next = std::span(tokens).subspan(at, std::min<size_t>(64, tokens.size() - at));
    float wanted = 0;
    auto step = Must(model_->BeginAside(
        {.sequence = sequence.get(), .tokens = next, .logits = &wanted, .all_logits = true},
        *attention_, *executor_));
    const auto go_on = [&] { return Must(step->GoOn({.wait_us = 0})); };
    uint64_t before = asides;
    while (!go_on()) {
      ++asides;
      if (asides == before + 3 && dropped < 3) break;  // it is given up, and taken again
      store_->clock.Advance(10);
      if (other->length() == other_tokens.size()) continue;
      const auto more = Must(Run(*other, std::span(other_tokens).first(other->length() + 1), 1));
      other_logits.insert(other_logits.end(), more.begin(), more.end());
    }
    if (sequence->length() == at) {
      ++dropped;
      step = nullptr;
      EXPECT_EQ(sequence->cursor(0), at);
      continue;
    }
    logits.insert(logits.end(), step->logits().begin(), step->logits().end());
  }
  EXPECT_GT(asides, 20);
  EXPECT_EQ(dropped, 3);
  EXPECT_GT(sequence->streamed()->tokens(), 500);
  EXPECT_TRUE(IsEndOf(logits, Whole(tokens)));
  const auto rest = Must(Run(*other, other_tokens, 64));
  other_logits.insert(other_logits.end(), rest.begin(), rest.end());
  EXPECT_TRUE(IsEndOf(other_logits, Whole(other_tokens)));
}

// What keeps a step from going on is not the store alone: a time that it may take.
TEST_P(Streamed, AStepIsPutAsideWhenItsTimeIsOver) {
  const auto tokens = Tokens(900);
  const auto cache = MakeStreamCache();
  const auto sequence = OpenAndRun(*cache, std::span(tokens).first(899));
  float wanted = 0;
  const auto step = Must(model_->BeginAside(
      {.sequence = sequence.get(), .tokens = std::span(tokens).last(1), .logits = &wanted},
      *attention_, *executor_));
  EXPECT_FALSE(Must(step->GoOn({.clock = &store_->clock, .until_us = 0})));
  EXPECT_FALSE(Must(step->GoOn({.clock = &store_->clock, .until_us = 0})));
  EXPECT_TRUE(Must(step->GoOn({})));
  EXPECT_EQ(sequence->length(), 900);
  EXPECT_TRUE(IsEndOf(step->logits(), Whole(tokens)));
}

}  // namespace
}  // namespace quire::model
