// What adapters add to a pass: against its judge, against a model with the same change in its
// weights, and with the same bits in any company.
#include "model/adapter_pass.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "model/test_cache.h"

namespace quire::model {
namespace {

constexpr double kAlpha = 3;  // so that the scale is no power of two

std::unique_ptr<Adapter> AdapterOf(const ModelConfig& config, uint32_t rank, ComputeType type,
                                   uint64_t seed) {
  auto adapter = Adapter::Create({.rank = rank, .alpha = kAlpha},
                                 RandomTensors(AdapterTensorsOf(config, rank), type, seed), config);
  EXPECT_TRUE(adapter.has_value()) << adapter.error().message;
  return *std::move(adapter);
}

// Value (n, k) of a matrix.
float At(const PackedMatrix& matrix, uint32_t n, uint32_t k) {
  const uint64_t panel = PackedBytes(kPanelColumns, matrix.k, matrix.type);
  return LoadValue(matrix.type,
                   matrix.panels + n / kPanelColumns * panel +
                       (uint64_t{k} * kPanelColumns + n % kPanelColumns) * TypeBytes(matrix.type));
}

// One row in plain loops, in the order of docs/numerics.md.
void Judge(const LowRank& low_rank, const float* x, ComputeType round, float* y) {
  std::vector<float> inner(low_rank.down.n);
  for (uint32_t r = 0; r < low_rank.down.n; ++r) {
    float sum = 0;
    for (uint32_t k = 0; k < low_rank.down.k; ++k)
      sum = std::fma(x[k], At(low_rank.down, r, k), sum);
    inner[r] = sum * low_rank.scale;
  }
  for (uint32_t n = 0; n < low_rank.up.n; ++n) {
    float sum = 0;
    for (uint32_t r = 0; r < low_rank.up.k; ++r)
      sum = std::fma(inner[r], At(low_rank.up, n, r), sum);
    y[low_rank.first_column + n] = RoundValue(round, y[low_rank.first_column + n] + sum);
  }
}

TEST(AdapterPass, EveryRowIsItsJudges) {
  ModelConfig config = SmallConfig();
  config.intermediate = 1100;  // its products are cut into pieces
  for (const ComputeType type : {ComputeType::kF32, ComputeType::kF16, ComputeType::kBf16}) {
    const auto one = AdapterOf(config, 16, type, 1);
    const auto other = AdapterOf(config, 7, type, 2);
    for (const uint32_t rows : {1u, 2u, 60u}) {
      Prng prng(rows);
      std::vector<const Adapter*> adapters(rows);
      for (auto& adapter : adapters) {
        const Adapter* const some[] = {nullptr, one.get(), other.get()};
        adapter = some[prng.NextBelow(3)];
      }
      adapters.back() = one.get();
      std::vector<float> x(uint64_t{rows} * config.hidden);
      std::vector<float> y(uint64_t{rows} * 2 * config.intermediate);
      for (float& value : x) value = prng.NextFloat(-1, 1);
      for (float& value : y) value = RoundValue(type, prng.NextFloat(-1, 1));
      std::vector<float> expected = y;
      for (uint32_t row = 0; row < rows; ++row) {
        if (adapters[row] == nullptr) continue;
        for (const LowRank& low_rank : adapters[row]->layers()[1].gate_up) {
          Judge(low_rank, x.data() + uint64_t{row} * config.hidden, type,
                expected.data() + uint64_t{row} * 2 * config.intermediate);
        }
      }
      AdapterPass pass;
      pass.Begin(adapters);
      const auto executor = MakeThreadPool(3);
      pass.Add(1, &AdapterLayer::gate_up, {x.data(), config.hidden},
               {y.data(), 2 * config.intermediate}, type, *executor);
      EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
          << rows << " rows";
    }
  }
}

// The base model's tensors with an adapter's change in them.
class MergedTensors final : public TensorSource {
 public:
  MergedTensors(const ModelConfig& config, uint64_t seed, uint32_t rank, uint64_t adapter_seed)
      : base_(config, ComputeType::kF32, seed),
        change_(AdapterTensorsOf(config, rank), ComputeType::kF32, adapter_seed),
        rank_(rank) {}
  const std::string& path() const override { return base_.path(); }
  std::span<const TensorInfo> tensors() const override { return base_.tensors(); }
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override {
    QUIRE_TRY(base_.Read(tensor, offset_bytes, out));
    const std::string module = "base_model.model." + tensor.name.substr(0, tensor.name.rfind('.'));
    const TensorInfo* const down = change_.Find(module + ".lora_A.weight");
    const TensorInfo* const up = change_.Find(module + ".lora_B.weight");
    if (down == nullptr || tensor.shape.size() != 2) return {};  // none, or a bias
    std::vector<float> a(down->bytes / 4), b(up->bytes / 4);
    QUIRE_TRY(change_.Read(*down, 0, std::as_writable_bytes(std::span(a))));
    QUIRE_TRY(change_.Read(*up, 0, std::as_writable_bytes(std::span(b))));
    const uint64_t k_count = tensor.shape[1];
    for (size_t i = 0; i < out.size() / 4; ++i) {
      const uint64_t n = (offset_bytes / 4 + i) / k_count;
      const uint64_t k = (offset_bytes / 4 + i) % k_count;
      double sum = 0;
      for (uint32_t r = 0; r < rank_; ++r) sum += double{b[n * rank_ + r]} * a[r * k_count + k];
      float value = 0;
      std::memcpy(&value, out.data() + i * 4, 4);
      value = static_cast<float>(value + sum * kAlpha / rank_);
      std::memcpy(out.data() + i * 4, &value, 4);
    }
    return {};
  }

 private:
  RandomTensors base_;
  RandomTensors change_;
  uint32_t rank_;
};

// What the last token of a text says, alone.
std::vector<float> LogitsOf(Model& model, const Adapter* adapter, std::span<const TokenId> tokens) {
  const auto cache = MakeCache(model.config(), Codec::kF32);
  const auto attention = MakeAttention();
  const auto executor = MakeThreadPool(1);
  const auto sequence = OpenSequence(*cache, model, tokens);
  std::vector<float> logits(model.config().vocab);
  const StepItem item{
      .sequence = sequence.get(), .tokens = tokens, .logits = logits.data(), .adapter = adapter};
  EXPECT_TRUE(model.Step({&item, 1}, *attention, *executor).has_value());
  return logits;
}

TEST(AdapterPass, ItIsTheModelWithTheChangeInItsWeights) {
  for (const Family family : {Family::kQwen3, Family::kQwen2}) {
    ModelConfig config = SmallConfig();
    config.family = family;
    const auto model = MakeModel(config, ComputeType::kF32);
    const auto adapter = AdapterOf(config, 8, ComputeType::kF32, 5);
    auto merged = Model::Create(config, MergedTensors(config, 1, 8, 5), {.progress = {}});
    ASSERT_TRUE(merged.has_value()) << merged.error().message;
    const auto tokens = SomeTokens(40, config.vocab, 1);
    const auto base = LogitsOf(*model, nullptr, tokens);
    const auto adapted = LogitsOf(*model, adapter.get(), tokens);
    const auto expected = LogitsOf(**merged, nullptr, tokens);
    double change = 0;
    for (uint32_t i = 0; i < config.vocab; ++i) {
      EXPECT_NEAR(adapted[i], expected[i], 1e-4);
      change = std::max<double>(change, std::abs(adapted[i] - base[i]));
    }
    EXPECT_GT(change, 0.1);
  }
}

// B is zero where training begins.
class ZeroUps final : public TensorSource {
 public:
  explicit ZeroUps(const ModelConfig& config)
      : tensors_(AdapterTensorsOf(config, 4), ComputeType::kF32, 1) {}
  const std::string& path() const override { return tensors_.path(); }
  std::span<const TensorInfo> tensors() const override { return tensors_.tensors(); }
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override {
    if (!tensor.name.contains("lora_B")) return tensors_.Read(tensor, offset_bytes, out);
    std::ranges::fill(out, std::byte{});
    return {};
  }

 private:
  RandomTensors tensors_;
};

TEST(AdapterPass, OneOfZerosChangesNothing) {
  const ModelConfig config = SmallConfig();
  const auto model = MakeModel(config, ComputeType::kBf16);
  const auto zeros = Adapter::Create({.rank = 4, .alpha = 8}, ZeroUps(config), config);
  ASSERT_TRUE(zeros.has_value());
  const auto tokens = SomeTokens(40, config.vocab, 1);
  EXPECT_EQ(LogitsOf(*model, zeros->get(), tokens), LogitsOf(*model, nullptr, tokens));
}

// Texts of the base model and of two adapters, cut anywhere, in steps of any of them, on any number
// of threads: every logit is that of its text alone.
RC_GTEST_PROP(AdapterPassProp, NoCompanyChangesABit, ()) {
  ModelConfig config = SmallConfig();
  const auto type = *rc::gen::element(ComputeType::kF32, ComputeType::kBf16);
  const auto model = MakeModel(config, type);
  const auto one = AdapterOf(config, *rc::gen::inRange(1u, 40u), type, 1);
  const auto other = AdapterOf(config, *rc::gen::inRange(1u, 40u), ComputeType::kF32, 2);
  const Adapter* const some[] = {nullptr, one.get(), other.get()};
  struct Running {
    const Adapter* adapter;
    std::vector<TokenId> tokens;
    std::unique_ptr<Sequence> sequence;
    std::vector<float> logits;
  };
  const auto cache = MakeCache(config, Codec::kF32);
  const auto attention = MakeAttention();
  const auto executor = MakeThreadPool(*rc::gen::inRange(1u, 4u));
  std::vector<Running> texts(*rc::gen::inRange(1u, 6u));
  for (size_t i = 0; i < texts.size(); ++i) {
    Running& text = texts[i];
    text.adapter = some[*rc::gen::inRange(0, 3)];
    text.tokens = SomeTokens(*rc::gen::inRange(1u, 70u), config.vocab, i);
    text.sequence = OpenSequence(*cache, *model, text.tokens);
    text.logits.resize(config.vocab);
  }
  while (true) {
    std::vector<StepItem> items;
    bool all_done = true;
    for (Running& text : texts) {
      const uint64_t left = text.tokens.size() - text.sequence->length();
      if (left == 0) continue;
      all_done = false;
      if (!*rc::gen::arbitrary<bool>()) continue;
      items.push_back({.sequence = text.sequence.get(),
                       .tokens = std::span(text.tokens)
                                     .subspan(text.sequence->length(),
                                              *rc::gen::inRange<uint64_t>(1, left + 1)),
                       .logits = text.logits.data(),
                       .adapter = text.adapter});
    }
    if (all_done) break;
    if (!items.empty()) RC_ASSERT(model->Step(items, *attention, *executor).has_value());
  }
  for (const Running& text : texts) {
    RC_ASSERT(text.logits == LogitsOf(*model, text.adapter, text.tokens));
  }
}

TEST(AdapterPass, OneOfAnotherModelIsRefused) {
  ModelConfig config = SmallConfig();
  const auto model = MakeModel(config, ComputeType::kF32);
  config.layers = 3;
  const auto adapter = AdapterOf(config, 4, ComputeType::kF32, 1);
  const auto cache = MakeCache(model->config(), Codec::kF32);
  const auto tokens = SomeTokens(4, config.vocab, 1);
  const auto sequence = OpenSequence(*cache, *model, tokens);
  const StepItem item{.sequence = sequence.get(), .tokens = tokens, .adapter = adapter.get()};
  const auto executor = MakeThreadPool(1);
  const auto attention = MakeAttention();
  EXPECT_EQ(model->Step({&item, 1}, *attention, *executor).error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire::model
