#include "model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/test_cache.h"

namespace quire::model {
namespace {

constexpr uint32_t kPairs[] = {1, 5, 6};  // rotary pairs that become outliers
constexpr float kOutlier = 32.0f;

bool IsPlanted(uint32_t channel, uint32_t head_dim) {
  return std::ranges::count(kPairs, channel % head_dim % (head_dim / 2)) != 0;
}

// Random weights whose keys have outliers, and whose queries are as much smaller there: the same
// model.
class PlantedTensors final : public TensorSource {
 public:
  explicit PlantedTensors(const ModelConfig& config)
      : config_(config), random_(config, ComputeType::kF32, 1) {}

  const std::string& path() const override { return random_.path(); }
  std::span<const TensorInfo> tensors() const override { return random_.tensors(); }

  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override {
    QUIRE_TRY(random_.Read(tensor, offset_bytes, out));
    const std::string_view name = tensor.name;
    // Either the norms of heads or what comes before them.
    const char* const kind = config_.head_norms() ? "_norm." : "_proj.";
    float factor = 1.0f;
    if (name.contains(std::string("self_attn.k") + kind)) factor = kOutlier;
    if (name.contains(std::string("self_attn.q") + kind)) factor = 1 / kOutlier;
    const uint64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    for (uint64_t at = 0; factor != 1.0f && at < out.size(); at += sizeof(float)) {
      const uint64_t row = (offset_bytes + at) / sizeof(float) / columns;
      if (!IsPlanted(static_cast<uint32_t>(row), config_.head_dim)) continue;
      float value;
      std::memcpy(&value, out.data() + at, sizeof(value));
      value *= factor;
      std::memcpy(out.data() + at, &value, sizeof(value));
    }
    return {};
  }

 private:
  const ModelConfig config_;
  const RandomTensors random_;
};

ModelConfig ConfigOf(Family family) {
  ModelConfig config = SmallConfig();
  config.family = family;
  config.attention_bias = family == Family::kLlama;
  return config;
}

class KeyFactorsTest : public testing::TestWithParam<Family> {
 protected:
  const ModelConfig config_ = ConfigOf(GetParam());
  const RandomTensors plain_{config_, ComputeType::kF32, 1};
  const PlantedTensors planted_{config_};

  std::vector<float> Logits(const TensorSource& source, Codec codec) const {
    const auto model = Model::Create(config_, source, {}).value();
    CacheOptions options{.geometry = GeometryOf(config_), .hot_bytes = 1 << 24};
    options.profile = NumericProfile::Uniform(Codec::kF32);
    for (CodecRule& rule : options.profile.codecs) rule.codec = codec;
    const auto cache = Cache::Create(options).value();
    const auto attention = MakeAttention();
    const auto executor = MakeThreadPool(1);
    const std::vector<TokenId> tokens = SomeTokens(100, config_.vocab, 5);
    const auto sequence = OpenSequence(*cache, *model, tokens);
    std::vector<float> logits(tokens.size() * config_.vocab);
    const StepItem item = {
        .sequence = sequence.get(), .tokens = tokens, .logits = logits.data(), .all_logits = true};
    EXPECT_TRUE(model->Step({&item, 1}, *attention, *executor).has_value());
    return logits;
  }
};

TEST_P(KeyFactorsTest, ArePowersOfTwoThatTurnAndGroupKeep) {
  const auto weights = Weights::Load(planted_, config_, {}).value();
  const uint32_t dim = config_.head_dim;
  const uint32_t group = config_.query_heads / config_.kv_heads;
  for (const LayerWeights& layer : weights->layers()) {
    ASSERT_EQ(layer.key_factors.size(), config_.kv_dim());
    ASSERT_EQ(layer.query_factors.size(), config_.query_dim());
    for (uint32_t i = 0; i < config_.query_dim(); ++i) {
      const uint32_t head = i / dim;
      const float key = layer.key_factors[head / group * dim + i % dim];
      int exponent = 0;
      EXPECT_EQ(std::frexp(key, &exponent), 0.5f);
      EXPECT_EQ(key * layer.query_factors[i], 1.0f);
      // A rotation mixes the two channels of a pair.
      EXPECT_EQ(layer.query_factors[i], layer.query_factors[head * dim + i % (dim / 2)]);
    }
  }
}

TEST_P(KeyFactorsTest, AnOutlierIsFoundAsItIs) {
  const auto plain = Weights::Load(plain_, config_, {}).value();
  const auto planted = Weights::Load(planted_, config_, {}).value();
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    for (uint32_t d = 0; d < config_.kv_dim(); ++d) {
      const float want = IsPlanted(d, config_.head_dim) ? 1 / kOutlier : 1.0f;
      EXPECT_EQ(planted->layers()[layer].key_factors[d],
                plain->layers()[layer].key_factors[d] * want)
          << d;
    }
  }
}

// Powers of two move no bit in f32, with factors or without.
TEST_P(KeyFactorsTest, OutliersDoNotShowInAnyBit) {
  for (const Codec codec :
       {Codec::kF32, Codec::kFp8E4m3, Codec::kInt8, Codec::kInt4, Codec::kNf4, Codec::kQ25}) {
    const std::vector<float> plain = Logits(plain_, codec);
    const std::vector<float> planted = Logits(planted_, codec);
    EXPECT_EQ(std::memcmp(plain.data(), planted.data(), plain.size() * sizeof(float)), 0)
        << CodecName(codec);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, KeyFactorsTest,
                         testing::Values(Family::kQwen3, Family::kQwen2, Family::kLlama),
                         [](const auto& param) { return std::string(FamilyName(param.param)); });

// Values no ratio of which is a number: the factor is one, not a NaN.
TEST(KeyFactors, DeadAndBrokenChannelsAreLeftAlone) {
  const ModelConfig config = SmallConfig();
  for (const float broken :
       {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<std::byte> panels(
        PackedBytes(config.query_dim() + 2 * config.kv_dim(), config.hidden, ComputeType::kF32));
    LayerWeights layer;
    layer.input_norm.assign(config.hidden, 1.0f);
    layer.q_norm.assign(config.head_dim, 1.0f);
    layer.k_norm.assign(config.head_dim, 1.0f);
    layer.k_norm[3] = layer.k_norm[3 + config.head_dim / 2] = broken;
    layer.qkv = {.panels = panels.data(),
                 .n = config.query_dim() + 2 * config.kv_dim(),
                 .k = config.hidden,
                 .type = ComputeType::kF32};
    const std::vector<float> row(config.hidden, 0.5f);
    for (uint32_t n = 0; n < layer.qkv.n; ++n) {
      PackRows(layer.qkv, reinterpret_cast<const std::byte*>(row.data()), n, 1, panels.data());
    }
    FindKeyFactors(config, layer);
    for (const float factor : layer.key_factors) EXPECT_EQ(factor, 1.0f);
  }
}

}  // namespace
}  // namespace quire::model
