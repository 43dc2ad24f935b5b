#include "model/model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "env/file.h"
#include "model/safetensors.h"
#include "model/test_cache.h"

namespace quire::model {
namespace {

// Logits after every token, all tokens in steps of `chunk`.
std::vector<float> RunAlone(Model& model, Cache& cache, std::span<const TokenId> tokens,
                            uint32_t chunk, uint32_t workers, bool reuse = false) {
  const auto attention = MakeAttention();
  const auto executor = MakeThreadPool(workers);
  const auto sequence = OpenSequence(cache, model, tokens, reuse);
  const uint32_t vocab = model.config().vocab;
  std::vector<float> logits(tokens.size() * vocab);
  for (size_t at = sequence->length(); at < tokens.size(); at += chunk) {
    const StepItem item = {
        .sequence = sequence.get(),
        .tokens = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at)),
        .logits = logits.data() + at * vocab,
        .all_logits = true};
    const Result<void> done = model.Step({&item, 1}, *attention, *executor);
    EXPECT_TRUE(done.has_value()) << done.error().message;
  }
  return logits;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

struct Types {
  ComputeType compute;
  Codec codec;
  Family family = Family::kQwen3;
  Arithmetic arithmetic = Arithmetic::kFma32;
};

// Each family with what it alone has, windows shorter than the texts.
ModelConfig ConfigOf(Family family) {
  ModelConfig config = SmallConfig();
  config.family = family;
  switch (family) {
    case Family::kLlama:
      config.attention_bias = true;
      config.mlp_bias = true;
      config.rope.type = RopeType::kLinear;
      config.rope.factor = 2;
      break;
    case Family::kMistral:
      config.window_tokens = 37;
      config.window_layers = {0, 1};
      break;
    case Family::kQwen2:
      config.window_tokens = 20;
      config.window_layers = {1};
      break;
    case Family::kQwen3: break;
  }
  return config;
}

class StepBitsTest : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    if (!IsUsable(GetParam().arithmetic)) {
      GTEST_SKIP() << "this processor has no " << ArithmeticName(GetParam().arithmetic);
    }
  }
  static std::unique_ptr<Model> ModelOf(const ModelConfig& config) {
    return MakeModel(config, GetParam().compute, 1, {.arithmetic = GetParam().arithmetic});
  }
};

TEST_P(StepBitsTest, ChunksAndThreadsDoNotShow) {
  const ModelConfig config = ConfigOf(GetParam().family);
  const auto model = ModelOf(config);
  const std::vector<TokenId> tokens = SomeTokens(600, config.vocab, 5);
  const auto cache = MakeCache(config, GetParam().codec);
  const std::vector<float> whole = RunAlone(*model, *cache, tokens, 600, 1);
  for (const uint32_t chunk : {7u, 16u, 100u, 512u}) {
    for (const uint32_t workers : {1u, 2u}) {
      EXPECT_TRUE(SameBits(whole, RunAlone(*model, *cache, tokens, chunk, workers)))
          << "chunk " << chunk << ", workers " << workers;
    }
  }
}

TEST_P(StepBitsTest, AHitEqualsAMiss) {
  const ModelConfig config = ConfigOf(GetParam().family);
  const auto model = ModelOf(config);
  const auto cache = MakeCache(config, GetParam().codec);
  const std::vector<TokenId> tokens = SomeTokens(100, config.vocab, 6);
  const std::vector<float> miss = RunAlone(*model, *cache, tokens, 33, 1, /*reuse=*/true);
  const uint64_t hits_before = cache->stats().hit_tokens;
  const std::vector<float> hit = RunAlone(*model, *cache, tokens, 33, 1, /*reuse=*/true);
  const uint64_t reused = cache->stats().hit_tokens - hits_before;
  EXPECT_EQ(reused, 96u);
  const size_t skip = reused * config.vocab;
  EXPECT_TRUE(SameBits(std::span(miss).subspan(skip), std::span(hit).subspan(skip)));
}

TEST_P(StepBitsTest, CompanyDoesNotShow) {
  const ModelConfig config = ConfigOf(GetParam().family);
  const auto model = ModelOf(config);
  const auto cache = MakeCache(config, GetParam().codec);
  const auto attention = MakeAttention();
  const auto executor = MakeThreadPool(2);
  constexpr size_t kItems = 8;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<float>> alone;
  std::vector<std::vector<float>> together;
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t i = 0; i < kItems; ++i) {
    tokens.push_back(SomeTokens(40 + 13 * i, config.vocab, 10 + i));
    alone.push_back(RunAlone(*model, *cache, tokens[i], 64, 1));
    together.emplace_back(alone[i].size());
    sequences.push_back(OpenSequence(*cache, *model, tokens[i]));
  }
  // Steps of different lengths, so that prompts and single tokens meet in one batch.
  for (bool more = true; more;) {
    more = false;
    std::vector<StepItem> items;
    for (size_t i = 0; i < kItems; ++i) {
      const size_t at = sequences[i]->length();
      const size_t count = std::min(tokens[i].size() - at, at == 0 ? 20 + 5 * i : i + 1);
      if (count == 0) continue;
      more = true;
      items.push_back({.sequence = sequences[i].get(),
                       .tokens = std::span(tokens[i]).subspan(at, count),
                       .logits = together[i].data() + at * config.vocab,
                       .all_logits = true});
    }
    if (!more) break;
    const Result<void> done = model->Step(items, *attention, *executor);
    ASSERT_TRUE(done.has_value()) << done.error().message;
  }
  for (size_t i = 0; i < kItems; ++i) EXPECT_TRUE(SameBits(alone[i], together[i])) << "item " << i;
}

INSTANTIATE_TEST_SUITE_P(
    All, StepBitsTest,
    testing::Values(
        Types{ComputeType::kF32, Codec::kF32}, Types{ComputeType::kBf16, Codec::kBf16},
        Types{ComputeType::kF16, Codec::kF16}, Types{ComputeType::kBf16, Codec::kF16},
        Types{ComputeType::kF32, Codec::kF32, Family::kLlama},
        Types{ComputeType::kBf16, Codec::kBf16, Family::kLlama},
        Types{ComputeType::kF32, Codec::kF16, Family::kMistral},
        Types{ComputeType::kF16, Codec::kF16, Family::kQwen2},
        Types{ComputeType::kBf16, Codec::kBf16, Family::kQwen3, Arithmetic::kDot16Amx},
        Types{ComputeType::kBf16, Codec::kF16, Family::kLlama, Arithmetic::kDot16Amx},
        Types{ComputeType::kBf16, Codec::kBf16, Family::kQwen3, Arithmetic::kDot16Avx512},
        Types{ComputeType::kBf16, Codec::kBf16, Family::kMistral, Arithmetic::kDot16Avx512}));

TEST(StepTest, LastLogitsAreTheLastRowOfAll) {
  const ModelConfig config = SmallConfig();
  const auto model = MakeModel(config, ComputeType::kBf16);
  const auto cache = MakeCache(config, Codec::kBf16);
  const std::vector<TokenId> tokens = SomeTokens(30, config.vocab, 7);
  const std::vector<float> all = RunAlone(*model, *cache, tokens, 30, 1);
  const auto attention = MakeAttention();
  const auto executor = MakeThreadPool(1);
  const auto a = OpenSequence(*cache, *model, tokens);
  const auto b = OpenSequence(*cache, *model, tokens);
  std::vector<float> last(config.vocab);
  const StepItem items[] = {{.sequence = a.get(), .tokens = tokens},
                            {.sequence = b.get(), .tokens = tokens, .logits = last.data()}};
  ASSERT_TRUE(model->Step(items, *attention, *executor).has_value());
  EXPECT_TRUE(SameBits(std::span(all).last(config.vocab), last));
  EXPECT_EQ(a->length(), 30u);
}

TEST(StepTest, ComputeTypeRoundsAndF32DoesNot) {
  const ModelConfig config = SmallConfig();
  const std::vector<TokenId> tokens = SomeTokens(20, config.vocab, 8);
  const auto cache = MakeCache(config, Codec::kF32);
  const auto rounded = MakeModel(config, ComputeType::kBf16, 1);
  const auto wide = MakeModel(config, ComputeType::kBf16, 1, {.compute_f32 = true});
  EXPECT_EQ(rounded->compute(), ComputeType::kBf16);
  EXPECT_EQ(wide->compute(), ComputeType::kF32);
  EXPECT_EQ(rounded->fingerprint(), wide->fingerprint());
  EXPECT_FALSE(
      SameBits(RunAlone(*rounded, *cache, tokens, 20, 1), RunAlone(*wide, *cache, tokens, 20, 1)));
}

TEST(StepTest, EveryArithmeticClassHasBitsOfItsOwnCloseToTheOthers) {
  const ModelConfig config = SmallConfig();
  const std::vector<TokenId> tokens = SomeTokens(20, config.vocab, 8);
  const auto cache = MakeCache(config, Codec::kBf16);
  const auto fma32 = MakeModel(config, ComputeType::kBf16);
  const std::vector<float> logits = RunAlone(*fma32, *cache, tokens, 20, 1);
  for (const Arithmetic arithmetic : {Arithmetic::kDot16Amx, Arithmetic::kDot16Avx512}) {
    if (!IsUsable(arithmetic)) continue;
    const auto model = MakeModel(config, ComputeType::kBf16, 1, {.arithmetic = arithmetic});
    EXPECT_EQ(model->arithmetic(), arithmetic);
    EXPECT_EQ(model->fingerprint(), fma32->fingerprint()) << "the weights are the same";
    const std::vector<float> others = RunAlone(*model, *cache, tokens, 20, 1);
    EXPECT_FALSE(SameBits(logits, others)) << ArithmeticName(arithmetic);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], others[i], 0.1) << i;
  }
}

TEST(StepTest, Dot16WithoutBf16IsRefusedWithWhatToDo) {
  const ModelConfig config = SmallConfig();
  const auto refused = [&](ComputeType type, const LoadOptions& options) {
    const auto model = Model::Create(config, RandomTensors(config, type, 1), options);
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
    EXPECT_TRUE(model.error().message.contains("--arithmetic fma32")) << model.error().message;
  };
  for (const Arithmetic arithmetic : {Arithmetic::kDot16Amx, Arithmetic::kDot16Avx512}) {
    refused(ComputeType::kF16, {.arithmetic = arithmetic});
    refused(ComputeType::kF32, {.arithmetic = arithmetic});
    refused(ComputeType::kBf16, {.compute_f32 = true, .arithmetic = arithmetic});
    refused(ComputeType::kBf16, {.operators = MakeCpuOperators, .arithmetic = arithmetic});
  }
}

class StepErrorTest : public testing::Test {
 protected:
  Result<void> Step(std::span<const StepItem> items, const std::atomic<bool>* cancel = nullptr) {
    return model_->Step(items, *attention_, *executor_, cancel);
  }
  void ExpectInvalid(std::span<const StepItem> items, std::string_view mentions) {
    const Result<void> done = Step(items);
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(done.error().message.contains(mentions)) << done.error().message;
  }

  ModelConfig config_ = SmallConfig();
  std::unique_ptr<Model> model_ = MakeModel(config_, ComputeType::kF32);
  std::unique_ptr<Cache> cache_ = MakeCache(config_, Codec::kF32);
  std::unique_ptr<AttentionBackend> attention_ = MakeAttention();
  std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
  std::vector<TokenId> tokens_ = SomeTokens(40, config_.vocab, 9);
};

TEST_F(StepErrorTest, BadItemsAreNamed) {
  const auto sequence = OpenSequence(*cache_, *model_, tokens_);
  const StepItem good = {.sequence = sequence.get(), .tokens = tokens_};
  ExpectInvalid({}, "no items");
  ExpectInvalid(std::vector<StepItem>{good, {.tokens = tokens_}}, "item 1: no sequence");
  ExpectInvalid(std::vector<StepItem>{{.sequence = sequence.get()}}, "item 0: no tokens");
  ExpectInvalid(std::vector<StepItem>{good, good}, "one sequence in two items");
  const std::vector<TokenId> outside = {3, static_cast<TokenId>(config_.vocab)};
  ExpectInvalid(std::vector<StepItem>{{.sequence = sequence.get(), .tokens = outside}},
                "token 96 at 1");
  const std::vector<TokenId> negative = {-1};
  ExpectInvalid(std::vector<StepItem>{{.sequence = sequence.get(), .tokens = negative}},
                "token -1");
  EXPECT_EQ(sequence->length(), 0u);
}

TEST_F(StepErrorTest, ACacheOfAnotherShapeIsRefused) {
  ModelConfig other = config_;
  other.head_dim = 16;
  const auto cache = MakeCache(other, Codec::kF32);
  const auto sequence = OpenSequence(*cache, *model_, tokens_);
  ExpectInvalid(std::vector<StepItem>{{.sequence = sequence.get(), .tokens = tokens_}},
                "the cache has 2 heads of 16");
}

TEST_F(StepErrorTest, ItemsOfTwoCachesAreRefused) {
  const auto other = MakeCache(config_, Codec::kF32);
  const auto a = OpenSequence(*cache_, *model_, tokens_);
  const auto b = OpenSequence(*other, *model_, tokens_);
  ExpectInvalid(std::vector<StepItem>{{.sequence = a.get(), .tokens = tokens_},
                                      {.sequence = b.get(), .tokens = tokens_}},
                "item 1: its cache is another than that of item 0");
  EXPECT_EQ(a->length(), 0u);
  EXPECT_EQ(b->length(), 0u);
}

TEST_F(StepErrorTest, UncommittedRowsAreRefused) {
  const auto sequence = OpenSequence(*cache_, *model_, tokens_);
  const std::vector<float> row(64);
  const RowsView view = {
      .data = row.data(), .dtype = Codec::kF32, .token_stride = 64, .head_stride = 32};
  ASSERT_TRUE(sequence->Append(1, {.key = view, .value = view, .tokens = 1}).has_value());
  ExpectInvalid(std::vector<StepItem>{{.sequence = sequence.get(), .tokens = tokens_}},
                "layer 1 has 1 tokens, 0 are committed");
}

TEST_F(StepErrorTest, NoRoomLeavesEverySequenceAsItWas) {
  const uint64_t block_bytes = MakeCache(config_, Codec::kF32)->block_bytes();
  const auto cache = MakeCache(config_, Codec::kF32, 5 * block_bytes);
  const auto a = OpenSequence(*cache, *model_, std::span(tokens_).first(2));
  const auto b = OpenSequence(*cache, *model_, std::span(tokens_).first(2));
  const StepItem small[] = {{.sequence = a.get(), .tokens = std::span(tokens_).first(2)},
                            {.sequence = b.get(), .tokens = std::span(tokens_).first(2)}};
  ASSERT_TRUE(Step(small).has_value());
  const StepItem large[] = {{.sequence = a.get(), .tokens = std::span(tokens_).first(17)},
                            {.sequence = b.get(), .tokens = tokens_}};
  const Result<void> done = Step(large);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, ErrorCode::kNoSpace);
  for (const Sequence* sequence : {a.get(), b.get()}) {
    EXPECT_EQ(sequence->length(), 2u);
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      EXPECT_EQ(sequence->cursor(layer), 2u);
    }
  }
  ASSERT_TRUE(Step(small).has_value());  // and goes on
}

// A backend that asks to stop in the middle of the step.
class CancellingAttention final : public AttentionBackend {
 public:
  CancellingAttention(AttentionBackend& inner, std::atomic<bool>& cancel)
      : inner_(inner), cancel_(cancel) {}
  std::string_view name() const override { return inner_.name(); }
  std::string_view target() const override { return inner_.target(); }
  Result<void> Supports(const AttentionShape& shape) const override {
    return inner_.Supports(shape);
  }
  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override {
    cancel_ = true;
    return inner_.Attend(shape, tables, tasks, executor);
  }

 private:
  AttentionBackend& inner_;
  std::atomic<bool>& cancel_;
};

TEST_F(StepErrorTest, CancelRollsBackAndTheNextStepIsAsIfNothingHappened) {
  const std::vector<float> whole = RunAlone(*model_, *cache_, tokens_, 20, 1);
  const auto sequence = OpenSequence(*cache_, *model_, tokens_);
  std::vector<float> logits(whole.size());
  const size_t half = logits.size() / 2;
  const StepItem first = {.sequence = sequence.get(),
                          .tokens = std::span(tokens_).first(20),
                          .logits = logits.data(),
                          .all_logits = true};
  const StepItem second = {.sequence = sequence.get(),
                           .tokens = std::span(tokens_).subspan(20),
                           .logits = logits.data() + half,
                           .all_logits = true};
  ASSERT_TRUE(Step({&first, 1}).has_value());
  std::atomic<bool> cancel = false;
  CancellingAttention cancelling(*attention_, cancel);
  const Result<void> done = model_->Step({&second, 1}, cancelling, *executor_, &cancel);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(sequence->length(), 20u);
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    EXPECT_EQ(sequence->cursor(layer), 20u);
  }
  ASSERT_TRUE(Step({&second, 1}).has_value());
  EXPECT_TRUE(SameBits(whole, logits));
}

// A backend that counts its calls.
class CountingAttention final : public AttentionBackend {
 public:
  explicit CountingAttention(AttentionBackend& inner) : inner_(inner) {}
  std::string_view name() const override { return inner_.name(); }
  std::string_view target() const override { return inner_.target(); }
  Result<void> Supports(const AttentionShape& shape) const override {
    return inner_.Supports(shape);
  }
  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override {
    ++calls;
    return inner_.Attend(shape, tables, tasks, executor);
  }
  Result<std::unique_ptr<AttentionPlan>> Prepare(const AttentionShape& shape,
                                                 const BlockTables& tables,
                                                 std::span<const AttentionTask> tasks,
                                                 Executor& executor) override {
    ++plans;
    return inner_.Prepare(shape, tables, tasks, executor);
  }

  uint32_t calls = 0;
  uint32_t plans = 0;

 private:
  AttentionBackend& inner_;
};

TEST(StepPlansTest, OnceForAllLayersThatLookBackEquallyFar) {
  ModelConfig config = SmallConfig();
  config.family = Family::kMistral;
  config.layers = 6;
  config.window_tokens = 37;
  config.window_layers = {0, 2, 4};
  const auto model = MakeModel(config, ComputeType::kF32);
  const std::vector<TokenId> tokens = SomeTokens(40, config.vocab, 9);
  const auto inner = MakeAttention();
  const auto executor = MakeThreadPool(1);
  // A cache may keep what a window has passed: then all layers have one arena, and two windows.
  ModelConfig no_windows = config;
  no_windows.window_layers.clear();
  for (const ModelConfig& kept : {config, no_windows}) {
    const auto cache = MakeCache(kept, Codec::kF32);
    const auto sequence = OpenSequence(*cache, *model, tokens);
    const StepItem item = {.sequence = sequence.get(), .tokens = tokens};
    CountingAttention counting(*inner);
    ASSERT_TRUE(model->Step({&item, 1}, counting, *executor).has_value());
    EXPECT_EQ(counting.plans, 2u);
    EXPECT_EQ(counting.calls, 0u);
  }
}

class LoadTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "/quire_model_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    config_.dtype = ComputeType::kBf16;
    config_.eos = {5};
    ASSERT_TRUE(
        WriteModel(config_, RandomTensors(config_, ComputeType::kBf16, 1), directory_).has_value());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void ExpectError(ErrorCode code, std::string_view mentions) {
    const auto model = Model::Load(directory_, {});
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_TRUE(model.error().message.contains(mentions)) << model.error().message;
  }

  static std::vector<std::byte> Zeros(size_t bytes) { return std::vector<std::byte>(bytes); }

  // What SetUp wrote.
  std::vector<TensorData> Tensors() const {
    std::vector<TensorData> data;
    const RandomTensors source(config_, ComputeType::kBf16, 1);
    for (const TensorInfo& tensor : source.tensors()) {
      data.push_back({tensor.name, tensor.type, tensor.shape, Zeros(tensor.bytes)});
      EXPECT_TRUE(source.Read(tensor, 0, data.back().bytes).has_value());
    }
    return data;
  }

  // The directory's weights with tensors changed by `edit`, which returns false to drop one.
  template <typename Edit>
  void Rewrite(const Edit& edit) {
    std::vector<TensorData> data;
    for (TensorData& tensor : Tensors()) {
      if (edit(tensor)) data.push_back(std::move(tensor));
    }
    ASSERT_TRUE(WriteFile(directory_ + "/model.safetensors", SafetensorsBytes(data)).has_value());
  }

  ModelConfig config_ = SmallConfig();
  std::string directory_;
};

TEST_F(LoadTest, ADirectoryIsTheModelInMemory) {
  uint64_t last_done = 0;
  uint64_t last_total = 0;
  auto loaded = Model::Load(directory_, {.progress = [&](uint64_t done, uint64_t total) {
                              EXPECT_GT(done, last_done);
                              last_done = done;
                              last_total = total;
                            }});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ(last_done, last_total);
  EXPECT_EQ((*loaded)->config(), config_);
  EXPECT_EQ((*loaded)->compute(), ComputeType::kBf16);
  EXPECT_EQ((*loaded)->position_encoding(), "rope:theta=10000");
  const auto made = MakeModel(config_, ComputeType::kBf16);
  EXPECT_EQ((*loaded)->fingerprint(), made->fingerprint());
  const auto cache = MakeCache(config_, Codec::kBf16);
  const std::vector<TokenId> tokens = SomeTokens(20, config_.vocab, 1);
  EXPECT_TRUE(
      SameBits(RunAlone(**loaded, *cache, tokens, 20, 1), RunAlone(*made, *cache, tokens, 20, 1)));
}

TEST_F(LoadTest, TheFingerprintCoversEveryByteAndTheConfig) {
  const Digest digest = Model::Load(directory_, {}).value()->fingerprint();
  Rewrite([](TensorData& tensor) {
    if (tensor.name == "model.layers.1.mlp.down_proj.weight") tensor.bytes.back() ^= std::byte{1};
    return true;
  });
  EXPECT_NE(Model::Load(directory_, {}).value()->fingerprint(), digest);
  Rewrite([](TensorData&) { return true; });
  EXPECT_EQ(Model::Load(directory_, {}).value()->fingerprint(), digest);
  config_.rope.theta = 20'000;
  ASSERT_TRUE(WriteFile(directory_ + "/config.json", ConfigJson(config_)).has_value());
  EXPECT_NE(Model::Load(directory_, {}).value()->fingerprint(), digest);
}

TEST_F(LoadTest, MissingFilesAreNamed) {
  std::filesystem::rename(directory_ + "/model.safetensors",
                          directory_ + "/model-00001-of-00002.safetensors");
  ExpectError(ErrorCode::kNotFound, "model.safetensors");
  ASSERT_TRUE(WriteFile(directory_ + "/model.safetensors.index.json", "{}").has_value());
  ExpectError(ErrorCode::kCorrupt, "model.safetensors.index.json");
  std::filesystem::remove(directory_ + "/config.json");
  ExpectError(ErrorCode::kNotFound, "config.json");
}

TEST_F(LoadTest, AMissingTensorIsNamed) {
  Rewrite([](const TensorData& tensor) { return tensor.name != "model.norm.weight"; });
  ExpectError(ErrorCode::kCorrupt, "tensor model.norm.weight: missing; expected shape [64]");
}

TEST_F(LoadTest, AMisshapenTensorIsNamed) {
  Rewrite([](TensorData& tensor) {
    if (tensor.name == "model.layers.0.mlp.up_proj.weight")
      std::swap(tensor.shape[0], tensor.shape[1]);
    return true;
  });
  ExpectError(ErrorCode::kCorrupt,
              "tensor model.layers.0.mlp.up_proj.weight: has shape [64, 96], expected [96, 64]");
}

TEST_F(LoadTest, MixedMatrixTypesAreNamed) {
  Rewrite([](TensorData& tensor) {
    if (tensor.name == "model.layers.0.mlp.up_proj.weight") tensor.type = ComputeType::kF16;
    return true;
  });
  ExpectError(ErrorCode::kUnsupported, "tensor model.layers.0.mlp.up_proj.weight: is F16");
}

TEST_F(LoadTest, AHugeConfigOnASmallFileAsksForNoMemory) {
  config_.layers = 4096;
  config_.hidden = 1 << 20;
  config_.intermediate = 1 << 20;
  ASSERT_TRUE(WriteFile(directory_ + "/config.json", ConfigJson(config_)).has_value());
  ExpectError(ErrorCode::kCorrupt, "tensor model.embed_tokens.weight: has shape [96, 64]");
}

// Weights whose k-th read fails.
class FailingSource final : public TensorSource {
 public:
  FailingSource(const TensorSource& inner, uint32_t reads_left)
      : inner_(inner), reads_left_(reads_left) {}
  const std::string& path() const override { return inner_.path(); }
  std::span<const TensorInfo> tensors() const override { return inner_.tensors(); }
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override {
    if (reads_left_-- == 0) return Fail(ErrorCode::kIo, "planted");
    return inner_.Read(tensor, offset_bytes, out);
  }

 private:
  const TensorSource& inner_;
  mutable uint32_t reads_left_;
};

TEST(WeightsTest, EveryFailedReadIsAnError) {
  const ModelConfig config = SmallConfig();
  const RandomTensors source(config, ComputeType::kBf16, 1);
  uint32_t failures = 0;
  for (uint32_t k = 0;; ++k) {
    const auto weights = Weights::Load(FailingSource(source, k), config, {});
    if (weights.has_value()) break;
    EXPECT_EQ(weights.error().code, ErrorCode::kIo);
    ++failures;
  }
  EXPECT_EQ(failures, source.tensors().size());
}

TEST_F(LoadTest, TensorsWithoutAPlaceAreNamedUnlessHarmless) {
  const auto with = [this](const TensorData& added) {
    std::vector<TensorData> data = Tensors();
    data.push_back(added);
    ASSERT_TRUE(WriteFile(directory_ + "/model.safetensors", SafetensorsBytes(data)).has_value());
  };
  const Digest digest = Model::Load(directory_, {}).value()->fingerprint();
  with({"model.layers.0.self_attn.q_proj.bias", ComputeType::kF32, {2}, Zeros(8)});
  ExpectError(ErrorCode::kUnsupported, "tensor model.layers.0.self_attn.q_proj.bias");
  with({"model.layers.0.self_attn.rotary_emb.inv_freq", ComputeType::kF32, {2}, Zeros(8)});
  EXPECT_EQ(Model::Load(directory_, {}).value()->fingerprint(), digest);
}

// What transformers does with an output matrix in the file of a model that should have none.
TEST_F(LoadTest, ATiedModelTakesTheOutputMatrixOfItsFile) {
  std::vector<TensorData> data = Tensors();
  TensorData head = data.front();
  ASSERT_EQ(head.name, "model.embed_tokens.weight");
  head.name = "lm_head.weight";
  const auto load_with_head = [&] {
    std::vector<TensorData> all = data;
    all.push_back(head);
    EXPECT_TRUE(WriteFile(directory_ + "/model.safetensors", SafetensorsBytes(all)).has_value());
    return Model::Load(directory_, {});
  };
  const auto tied = Model::Load(directory_, {}).value();
  const auto same = load_with_head().value();
  EXPECT_EQ(same->fingerprint(), tied->fingerprint());
  EXPECT_EQ(same->weight_bytes(), tied->weight_bytes());

  head.bytes.back() ^= std::byte{1};
  const auto other = load_with_head().value();
  EXPECT_NE(other->fingerprint(), tied->fingerprint());
  EXPECT_GT(other->weight_bytes(), tied->weight_bytes());
  const auto cache = MakeCache(config_, Codec::kF32);
  const std::vector<TokenId> tokens = SomeTokens(20, config_.vocab, 1);
  EXPECT_FALSE(
      SameBits(RunAlone(*tied, *cache, tokens, 20, 1), RunAlone(*other, *cache, tokens, 20, 1)));

  head.shape = {head.shape[0] * head.shape[1]};
  ASSERT_FALSE(load_with_head().has_value());
  ExpectError(ErrorCode::kCorrupt, "tensor lm_head.weight: has shape");
}

// Two models that differ in one field that shapes values never share a block.
TEST(WeightsTest, TheFingerprintCoversEveryFieldThatShapesValues) {
  std::set<Digest> digests;
  size_t configs = 0;
  const auto add = [&](const ModelConfig& config) {
    const RandomTensors source(config, ComputeType::kBf16, 1);
    digests.insert(Weights::Load(source, config, {}).value()->fingerprint());
    ++configs;
  };
  ModelConfig base = SmallConfig();
  base.family = Family::kLlama;
  add(base);
  for (const Family family : {Family::kMistral, Family::kQwen2, Family::kQwen3}) {
    ModelConfig config = base;
    config.family = family;
    add(config);
  }
  const auto changed = [&](const auto& change) {
    ModelConfig config = base;
    change(config);
    add(config);
  };
  changed([](ModelConfig& config) { config.attention_bias = true; });
  changed([](ModelConfig& config) { config.mlp_bias = true; });
  changed([](ModelConfig& config) { config.norm_eps = 1e-5f; });
  changed([](ModelConfig& config) { config.rope.theta = 20'000; });
  for (const uint32_t window : {8u, 9u}) {
    for (const std::vector<uint32_t>& layers : {std::vector<uint32_t>{0}, {1}, {0, 1}}) {
      changed([&](ModelConfig& config) {
        config.window_tokens = window;
        config.window_layers = layers;
      });
    }
  }
  RopeConfig rope = {.type = RopeType::kYarn,
                     .theta = 10'000,
                     .factor = 4,
                     .original_positions = 64,
                     .beta_fast = 32,
                     .beta_slow = 1,
                     .truncate = true,
                     .attention_factor = 1.1};
  const auto add_rope = [&](const auto& change) {
    change(rope);
    changed([&](ModelConfig& config) { config.rope = rope; });
  };
  add_rope([](RopeConfig&) {});
  add_rope([](RopeConfig& r) { r.factor = 4.000000000000001; });
  add_rope([](RopeConfig& r) { r.original_positions = 65; });
  add_rope([](RopeConfig& r) { r.beta_fast = 31; });
  add_rope([](RopeConfig& r) { r.beta_slow = 2; });
  add_rope([](RopeConfig& r) { r.truncate = false; });
  add_rope([](RopeConfig& r) { r.attention_factor = 1.2; });
  add_rope([](RopeConfig& r) { r.type = RopeType::kLlama3; });
  add_rope([](RopeConfig& r) { r.low_freq_factor = 1; });
  add_rope([](RopeConfig& r) { r.high_freq_factor = 4; });
  add_rope([](RopeConfig& r) { r.type = RopeType::kLinear; });
  add_rope([](RopeConfig& r) { r.factor = 5; });
  EXPECT_EQ(digests.size(), configs);
}

}  // namespace
}  // namespace quire::model
