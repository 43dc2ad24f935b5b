// The whole forward pass against the same model written naively in fp64: full attention over plain
// arrays, no cache, no blocks, no rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "model/rope.h"
#include "model/tensor_source.h"
#include "model/test_cache.h"

namespace quire::model {
namespace {

using Row = std::vector<double>;

class NaiveModel {
 public:
  NaiveModel(const ModelConfig& config, const TensorSource& source)
      : config_(config), source_(source), rope_(config.rope, config.head_dim) {}

  // [tokens][vocab]
  std::vector<Row> Logits(std::span<const TokenId> tokens) const {
    const std::vector<double> embedding = Read("model.embed_tokens.weight");
    std::vector<Row> hidden;
    for (const TokenId token : tokens) {
      const auto at = embedding.begin() + int64_t{token} * config_.hidden;
      hidden.emplace_back(at, at + config_.hidden);
    }
    for (uint32_t layer = 0; layer < config_.layers; ++layer) Layer(layer, hidden);
    const std::vector<double> norm = Read("model.norm.weight");
    const std::vector<double> head = config_.tied_embeddings ? embedding : Read("lm_head.weight");
    for (Row& row : hidden) row = Times(head, Norm(row, norm));
    return hidden;
  }

 private:
  std::vector<double> Read(const std::string& name) const {
    const TensorInfo* tensor = source_.Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<std::byte> bytes(tensor->bytes);
    EXPECT_TRUE(source_.Read(*tensor, 0, bytes).has_value());
    std::vector<double> values;
    for (size_t at = 0; at < bytes.size(); at += TypeBytes(tensor->type)) {
      values.push_back(LoadValue(tensor->type, bytes.data() + at));
    }
    return values;
  }

  // Products with the matrix and the bias of one name; no bias: zeros.
  struct Linear {
    std::vector<double> matrix;
    std::vector<double> bias;
    Row operator()(const Row& x) const {
      Row y = Times(matrix, x);
      for (size_t n = 0; n < bias.size(); ++n) y[n] += bias[n];
      return y;
    }
  };

  Linear ReadLinear(const std::string& name, bool bias) const {
    return {Read(name + ".weight"), bias ? Read(name + ".bias") : std::vector<double>()};
  }

  static Row Times(const std::vector<double>& matrix, const Row& x) {
    Row y(matrix.size() / x.size());
    for (size_t n = 0; n < y.size(); ++n) {
      for (size_t k = 0; k < x.size(); ++k) y[n] += matrix[n * x.size() + k] * x[k];
    }
    return y;
  }

  Row Norm(const Row& x, const std::vector<double>& weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_eps);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
    return y;
  }

  // Heads of one row, normed if the model does that, and rotated.
  std::vector<Row> Heads(const Row& x, const std::vector<double>& weight, size_t position) const {
    const size_t dim = config_.head_dim;
    std::vector<float> angles(dim);
    rope_.Angles(position, angles.data());
    std::vector<Row> heads;
    for (size_t at = 0; at < x.size(); at += dim) {
      Row in(x.begin() + static_cast<int64_t>(at), x.begin() + static_cast<int64_t>(at + dim));
      if (config_.head_norms()) in = Norm(in, weight);
      Row head(dim);
      for (size_t i = 0; i < dim / 2; ++i) {
        const double c = angles[i];
        const double s = angles[dim / 2 + i];
        head[i] = in[i] * c - in[i + dim / 2] * s;
        head[i + dim / 2] = in[i + dim / 2] * c + in[i] * s;
      }
      heads.push_back(head);
    }
    return heads;
  }

  void Layer(uint32_t layer, std::vector<Row>& hidden) const {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const auto weight = [&](const char* name) { return Read(at + name + ".weight"); };
    const auto linear = [&](const char* name, bool bias) { return ReadLinear(at + name, bias); };
    const auto add = [](Row& x, const Row& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    };
    const bool bias = config_.family == Family::kQwen2 || config_.attention_bias;
    const auto q = linear("self_attn.q_proj", bias), k = linear("self_attn.k_proj", bias),
               v = linear("self_attn.v_proj", bias),
               o = linear("self_attn.o_proj", config_.attention_bias),
               gate = linear("mlp.gate_proj", config_.mlp_bias),
               up = linear("mlp.up_proj", config_.mlp_bias),
               down = linear("mlp.down_proj", config_.mlp_bias);
    const auto input_norm = weight("input_layernorm"),
               post_norm = weight("post_attention_layernorm");
    std::vector<double> q_norm;
    std::vector<double> k_norm;
    if (config_.family == Family::kQwen3) {
      q_norm = weight("self_attn.q_norm");
      k_norm = weight("self_attn.k_norm");
    }
    std::vector<std::vector<Row>> keys;
    std::vector<Row> values;
    for (size_t p = 0; p < hidden.size(); ++p) {
      const Row x = Norm(hidden[p], input_norm);
      keys.push_back(Heads(k(x), k_norm, p));
      values.push_back(v(x));
      add(hidden[p], o(Attend(Heads(q(x), q_norm, p), keys, values, SeenBy(p, layer))));
    }
    for (Row& row : hidden) {
      const Row x = Norm(row, post_norm);
      Row g = gate(x);
      const Row u = up(x);
      for (size_t i = 0; i < g.size(); ++i) g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
      add(row, down(g));
    }
  }

  // Of the tokens up to `position`.
  std::vector<size_t> SeenBy(size_t position, uint32_t layer) const {
    const size_t window = config_.window_of(layer);
    std::vector<size_t> seen;
    for (size_t t = 0; t <= position; ++t) {
      if (window == 0 || t < config_.sink_tokens || position - t < window) seen.push_back(t);
    }
    return seen;
  }

  Row Attend(const std::vector<Row>& queries, const std::vector<std::vector<Row>>& keys,
             const std::vector<Row>& values, const std::vector<size_t>& seen) const {
    const size_t dim = config_.head_dim;
    Row out;
    for (size_t h = 0; h < queries.size(); ++h) {
      const size_t g = h / (config_.query_heads / config_.kv_heads);
      Row weights;
      double total = 0;
      for (const size_t t : seen) {
        double score = 0;
        for (size_t i = 0; i < dim; ++i) score += queries[h][i] * keys[t][g][i];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        total += weights.back();
      }
      for (size_t i = 0; i < dim; ++i) {
        double sum = 0;
        for (size_t n = 0; n < seen.size(); ++n) {
          sum += weights[n] * values[seen[n]][g * dim + i];
        }
        out.push_back(sum / total);
      }
    }
    return out;
  }

  const ModelConfig& config_;
  const TensorSource& source_;
  const Rope rope_;
};

void ExpectClose(const ModelConfig& config, ComputeType type, size_t token_count, uint32_t chunk) {
  const RandomTensors source(config, type, 3);
  const std::unique_ptr<Model> model = MakeModel(config, type, 3, {.compute_f32 = true});
  const std::unique_ptr<Cache> cache = MakeCache(config, Codec::kF32);
  const std::unique_ptr<AttentionBackend> attention = MakeAttention();
  const std::unique_ptr<Executor> executor = MakeThreadPool(2);
  const std::vector<TokenId> tokens = SomeTokens(token_count, config.vocab, 4);
  const std::unique_ptr<Sequence> sequence = OpenSequence(*cache, *model, tokens);
  std::vector<float> logits(token_count * config.vocab);
  for (size_t at = 0; at < token_count; at += chunk) {
    const StepItem item = {
        .sequence = sequence.get(),
        .tokens = std::span(tokens).subspan(at, std::min<size_t>(chunk, token_count - at)),
        .logits = logits.data() + at * config.vocab,
        .all_logits = true};
    const Result<void> done = model->Step({&item, 1}, *attention, *executor);
    ASSERT_TRUE(done.has_value()) << done.error().message;
  }
  EXPECT_EQ(sequence->length(), token_count);
  const std::vector<Row> naive = NaiveModel(config, source).Logits(tokens);
  double worst = 0;
  double largest = 0;
  for (size_t p = 0; p < token_count; ++p) {
    for (uint32_t id = 0; id < config.vocab; ++id) {
      worst = std::max(worst, std::fabs(naive[p][id] - logits[p * config.vocab + id]));
      largest = std::max(largest, std::fabs(naive[p][id]));
    }
  }
  EXPECT_LE(worst, 1e-3);
  EXPECT_GT(largest, 1.0);  // else the bound would say nothing
  testing::Test::RecordProperty("max_difference", std::to_string(worst));
}

TEST(ForwardTest, GroupedQueries) { ExpectClose(SmallConfig(), ComputeType::kF32, 300, 128); }

TEST(ForwardTest, OneKvHeadAndUntiedHead) {
  ModelConfig config = SmallConfig();
  config.kv_heads = 1;
  config.query_heads = 3;
  config.head_dim = 24;
  config.tied_embeddings = false;
  ExpectClose(config, ComputeType::kBf16, 70, 70);
}

TEST(ForwardTest, AsManyKvHeadsAndOddWidths) {
  ModelConfig config = SmallConfig();
  config.kv_heads = 4;
  config.hidden = 50;
  config.intermediate = 77;
  config.vocab = 61;
  config.layers = 3;
  ExpectClose(config, ComputeType::kF16, 40, 17);
}

TEST(ForwardTest, LlamaWithEveryBias) {
  ModelConfig config = SmallConfig();
  config.family = Family::kLlama;
  config.attention_bias = true;
  config.mlp_bias = true;
  config.tied_embeddings = false;
  config.rope = {.type = RopeType::kYarn,
                 .theta = 1e4,
                 .factor = 4,
                 .original_positions = 64,
                 .beta_fast = 32,
                 .beta_slow = 1,
                 .truncate = true,
                 .attention_factor = 1.138629436111989};
  ExpectClose(config, ComputeType::kF32, 90, 40);
}

TEST(ForwardTest, MistralSeesItsWindow) {
  ModelConfig config = SmallConfig();
  config.family = Family::kMistral;
  config.window_tokens = 37;
  config.window_layers = {0, 1};
  ExpectClose(config, ComputeType::kF32, 300, 64);
}

TEST(ForwardTest, AWindowThatTheUserGivesHasSinks) {
  ModelConfig config = SmallConfig();
  ASSERT_TRUE(SetWindow({.window_tokens = 40, .sink_tokens = 5}, config).has_value());
  ExpectClose(config, ComputeType::kF32, 300, 64);
}

TEST(ForwardTest, Qwen2WithAWindowInTheLastLayerAndSevenQueriesToAHead) {
  ModelConfig config = SmallConfig();
  config.family = Family::kQwen2;
  config.layers = 3;
  config.query_heads = 7;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.window_tokens = 16;
  config.window_layers = {2};
  ExpectClose(config, ComputeType::kBf16, 100, 33);
}

}  // namespace
}  // namespace quire::model
