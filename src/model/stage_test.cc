#include "model/stage.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "model/test_cache.h"

namespace quire::model {
namespace {

// Layers with windows and without, so that a cut divides both kinds.
ModelConfig FiveLayers(bool tied) {
  ModelConfig config = SmallConfig();
  config.family = Family::kQwen2;
  config.layers = 5;
  config.window_tokens = 37;
  config.window_layers = {1, 3, 4};
  config.tied_embeddings = tied;
  return config;
}

// Notes whose bytes were read.
class WatchedTensors final : public TensorSource {
 public:
  explicit WatchedTensors(const TensorSource& inner) : inner_(inner) {}

  const std::string& path() const override { return inner_.path(); }
  std::span<const TensorInfo> tensors() const override { return inner_.tensors(); }
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override {
    read.insert(tensor.name);
    return inner_.Read(tensor, offset_bytes, out);
  }

  mutable std::set<std::string> read;

 private:
  const TensorSource& inner_;
};

// A model and its cache, cut into stages that take turns.
class Stages {
 public:
  Stages(const ModelConfig& config, ComputeType type, Codec codec, uint32_t stages)
      : hidden_(config.hidden), vocab_(config.vocab) {
    const RandomTensors tensors(config, type, /*seed=*/1);
    for (uint32_t stage = 0; stage < stages; ++stage) {
      auto model = Model::Create(config, tensors, {.stage = stage, .stages = stages});
      EXPECT_TRUE(model.has_value()) << model.error().message;
      models_.push_back(*std::move(model));
      caches_.push_back(MakeCache(models_.back()->config(), codec));
    }
  }

  void Open(std::span<const TokenId> prompt) {
    sequences_.clear();
    for (size_t i = 0; i < models_.size(); ++i) {
      sequences_.push_back(OpenSequence(*caches_[i], *models_[i], prompt, /*reuse=*/true));
      EXPECT_EQ(sequences_[i]->length(), sequences_[0]->length());
    }
  }

  // Logits of the tokens behind what was found, in steps of `chunk`.
  std::vector<float> Run(std::span<const TokenId> tokens, size_t chunk) {
    const uint64_t first = sequences_[0]->length();
    std::vector<float> logits((tokens.size() - first) * vocab_);
    for (size_t at = first; at < tokens.size(); at += chunk) {
      const auto step = tokens.subspan(at, std::min(chunk, tokens.size() - at));
      std::vector<float> in;
      for (size_t i = 0; i < models_.size(); ++i) {
        const bool is_last = i + 1 == models_.size();
        std::vector<float> out(is_last ? 0 : step.size() * hidden_);
        const StepItem item = {.sequence = sequences_[i].get(),
                               .tokens = step,
                               .logits = is_last ? logits.data() + (at - first) * vocab_ : nullptr,
                               .all_logits = is_last};
        const Result<void> done = models_[i]->StepStage(
            {&item, 1}, {.in = i == 0 ? nullptr : in.data(), .out = is_last ? nullptr : out.data()},
            *attention_, *executor_);
        EXPECT_TRUE(done.has_value()) << done.error().message;
        in = std::move(out);
      }
    }
    return logits;
  }

  uint64_t length() const { return sequences_[0]->length(); }
  Model& model(size_t stage) { return *models_[stage]; }
  Cache& cache(size_t stage) { return *caches_[stage]; }

 private:
  const uint64_t hidden_;
  const uint64_t vocab_;
  const std::unique_ptr<AttentionBackend> attention_ = MakeAttention();
  const std::unique_ptr<Executor> executor_ = MakeThreadPool(2);
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::unique_ptr<Cache>> caches_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST(LayersOfStage, CoverTheModelOnceAndDifferByOneAtMost) {
  ModelConfig config = SmallConfig();
  for (config.layers = 1; config.layers <= 33; ++config.layers) {
    for (uint32_t stages = 1; stages <= config.layers; ++stages) {
      uint32_t next = 0;
      for (uint32_t stage = 0; stage < stages; ++stage) {
        const LayerRange layers = LayersOfStage(config, stage, stages).value();
        EXPECT_EQ(layers.first, next);
        EXPECT_GE(layers.count, config.layers / stages);
        EXPECT_LE(layers.count, (config.layers + stages - 1) / stages);
        EXPECT_EQ(layers.is_first(), stage == 0);
        EXPECT_EQ(layers.is_last(), stage + 1 == stages);
        next = layers.end();
      }
      EXPECT_EQ(next, config.layers);
    }
  }
}

TEST(LayersOfStage, RefusesMoreStagesThanLayers) {
  const auto refused = LayersOfStage(SmallConfig(), 0, 3);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("at most 2 ranks"), std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(LayersOfStage(SmallConfig(), 0, 0).has_value());
  EXPECT_FALSE(LayersOfStage(SmallConfig(), 2, 2).has_value());
}

TEST(ConfigOfLayers, CountsWindowsFromItsFirstLayer) {
  const ModelConfig whole = FiveLayers(true);
  const ModelConfig stage = ConfigOfLayers(whole, {.first = 3, .count = 2, .of = 5});
  EXPECT_EQ(stage.layers, 2u);
  EXPECT_EQ(stage.window_layers, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(ConfigOfLayers(whole, AllLayers(whole)), whole);
}

class StageBitsTest : public testing::TestWithParam<Codec> {};

// Every second codec with a head of its own.
TEST_P(StageBitsTest, AreThoseOfTheWholeModelHitAndMiss) {
  const ModelConfig config = FiveLayers(/*tied=*/static_cast<int>(GetParam()) % 2 == 0);
  const std::vector<TokenId> tokens = SomeTokens(100, config.vocab, 5);
  Stages whole(config, ComputeType::kBf16, GetParam(), 1);
  whole.Open(tokens);
  const std::vector<float> expected = whole.Run(tokens, 100);
  for (const uint32_t stages : {2u, 3u, 4u, 5u}) {
    Stages cut(config, ComputeType::kBf16, GetParam(), stages);
    cut.Open(tokens);
    EXPECT_EQ(cut.length(), 0u);
    EXPECT_TRUE(SameBits(expected, cut.Run(tokens, 33))) << stages << " stages, miss";
    cut.Open(tokens);
    ASSERT_EQ(cut.length(), 96u);
    EXPECT_TRUE(SameBits(std::span(expected).subspan(96 * config.vocab), cut.Run(tokens, 2)))
        << stages << " stages, hit";
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, StageBitsTest, testing::ValuesIn(kCodecs),
                         [](const auto& each) { return std::string(CodecName(each.param)); });

TEST(Stage, ReadsAndKeepsWhatItHasAlone) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = FiveLayers(tied);
    const RandomTensors tensors(config, ComputeType::kF16, 3);
    std::set<std::string> all;
    for (uint32_t stage = 0; stage < 3; ++stage) {
      const WatchedTensors watched(tensors);
      const auto model = Model::Create(config, watched, {.stage = stage, .stages = 3}).value();
      const LayerRange layers = model->layers();
      EXPECT_EQ(model->weight_bytes(), MatrixBytes(config, layers, ComputeType::kF16));
      for (uint32_t layer = 0; layer < config.layers; ++layer) {
        const std::string name = "model.layers." + std::to_string(layer) + ".mlp.down_proj.weight";
        EXPECT_EQ(watched.read.contains(name), layer >= layers.first && layer < layers.end());
      }
      EXPECT_EQ(watched.read.contains("model.embed_tokens.weight"),
                layers.is_first() || (layers.is_last() && tied));
      EXPECT_EQ(watched.read.contains("lm_head.weight"), layers.is_last() && !tied);
      EXPECT_EQ(watched.read.contains("model.norm.weight"), layers.is_last());
      all.insert(watched.read.begin(), watched.read.end());
    }
    EXPECT_EQ(all.size(), TensorsOf(config).size());
  }
}

TEST(Stage, WhatItLacksIsCheckedAllTheSame) {
  const ModelConfig config = FiveLayers(false);
  std::vector<TensorSpec> specs = TensorsOf(config);
  std::erase_if(specs, [](const TensorSpec& spec) {
    return spec.name == "model.layers.4.mlp.up_proj.weight";
  });
  const RandomTensors tensors(specs, ComputeType::kF16, 3);
  const auto model = Model::Create(config, tensors, {.stage = 0, .stages = 2});
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::kCorrupt);
}

TEST(Stage, FingerprintsDifferByLayersAndByWeightsOfAnyStage) {
  const ModelConfig config = FiveLayers(true);
  std::set<Digest> seen;
  for (const uint64_t seed : {1, 2}) {
    const RandomTensors tensors(config, ComputeType::kF16, seed);
    for (const uint32_t stages : {1u, 2u, 5u}) {
      std::vector<Digest> each;
      for (uint32_t stage = 0; stage < stages; ++stage) {
        each.push_back(Model::Create(config, tensors, {.stage = stage, .stages = stages})
                           .value()
                           ->fingerprint());
      }
      for (uint32_t stage = 0; stage < stages; ++stage) {
        const LayerRange layers = LayersOfStage(config, stage, stages).value();
        const Digest digest = StageFingerprint(each, layers);
        EXPECT_TRUE(seen.insert(digest).second) << stage << " of " << stages;
        if (stages == 1) {
          EXPECT_EQ(digest, each[0]);
        }
        for (Digest& other : each) {
          other[0] ^= 1;
          if (stages > 1) {
            EXPECT_NE(StageFingerprint(each, layers), digest);
          }
          other[0] ^= 1;
        }
      }
    }
  }
}

TEST(Stage, RefusesWhatItCannotCompute) {
  const ModelConfig config = FiveLayers(true);
  const std::vector<TokenId> tokens = SomeTokens(8, config.vocab, 5);
  Stages cut(config, ComputeType::kF32, Codec::kF32, 2);
  cut.Open(tokens);
  const auto attention = MakeAttention();
  const auto executor = MakeThreadPool(1);
  std::vector<float> rows(8 * config.hidden);
  std::vector<float> logits(config.vocab);
  const auto sequence = OpenSequence(cut.cache(0), cut.model(0), tokens);
  StepItem item = {.sequence = sequence.get(), .tokens = tokens};
  const auto refusal = [&](const StageRows& given) {
    const auto done = cut.model(0).StepStage({&item, 1}, given, *attention, *executor);
    return done ? std::string() : done.error().message;
  };
  EXPECT_NE(refusal({}).find("place to go to"), std::string::npos);
  EXPECT_NE(refusal({.in = rows.data(), .out = rows.data()}).find("no stage is before"),
            std::string::npos);
  item.logits = logits.data();
  EXPECT_NE(refusal({.out = rows.data()}).find("last stage has the logits"), std::string::npos);
  item.logits = nullptr;
  const auto step = cut.model(0).Step({&item, 1}, *attention, *executor);
  ASSERT_FALSE(step.has_value());
  EXPECT_NE(step.error().message.find("layers 0 to 2 of 5"), std::string::npos)
      << step.error().message;
  EXPECT_FALSE(cut.model(0).BeginAside(item, *attention, *executor).has_value());
  const auto adapter = RandomAdapter(cut.model(0).config(), 4, ComputeType::kF32, 1);
  item.adapter = adapter.get();
  EXPECT_NE(refusal({.out = rows.data()}).find("no adapters"), std::string::npos);
  EXPECT_EQ(sequence->length(), 0u);
  item.adapter = nullptr;
  EXPECT_EQ(refusal({.out = rows.data()}), "");
}

}  // namespace
}  // namespace quire::model
