// The operators of a pass on the processor: each row by itself, rows on any worker.
#include <algorithm>
#include <array>
#include <vector>

#include "base/bits.h"
#include "model/layers.h"
#include "model/matmul.h"
#include "model/matmul_amx.h"
#include "model/operators.h"

namespace quire::model {
namespace {

constexpr uint32_t kRowsPerItem = 8;  // of row-wise operators, so that an item outweighs its start

void MultiplyRow(const std::vector<float>& factors, float* x) {
  for (size_t i = 0; i < factors.size(); ++i) x[i] *= factors[i];
}

class CpuOperators final : public Operators {
 public:
  explicit CpuOperators(const ForwardModel& model) : model_(model) {}

  bool on_host() const override { return true; }

  Result<void> Begin(std::span<const TokenId> tokens, std::span<const uint64_t> positions,
                     Executor& executor) override {
    executor_ = &executor;
    rows_ = static_cast<uint32_t>(tokens.size());
    for (size_t kind = 0; kind < kRowsKinds; ++kind) {
      Grow(buffers_[kind], RowValues(config(), static_cast<Rows>(kind)));
    }
    Grow(angles_, config().head_dim);
    const PackedMatrix& embedding = model_.weights.embedding();
    ForRows([&](uint32_t row) {
      if (embedding.panels != nullptr) {
        UnpackRow(embedding, static_cast<uint32_t>(tokens[row]), Row(Rows::kHidden, row));
      }
      model_.rope.Angles(positions[row], AnglesOf(row));
    });
    return {};
  }

  float* Data(Rows rows) override { return buffers_[static_cast<size_t>(rows)].data(); }

  void Norm(const std::vector<float>& weight) override {
    ForRows(
        [&](uint32_t row) { NormTo(Row(Rows::kHidden, row), weight, Row(Rows::kNormed, row)); });
  }

  void Multiply(const PackedMatrix& matrix, const std::vector<float>& bias, Rows x,
                Rows y) override {
    outputs_.resize(rows_);
    for (uint32_t row = 0; row < rows_; ++row) outputs_[row] = Row(y, row);
    const ComputeType round = bias.empty() ? model_.compute : ComputeType::kF32;
    Product(matrix, Data(x), outputs_, round);
    if (bias.empty()) return;
    ForRows([&](uint32_t row) { AddRow(bias.data(), matrix.n, model_.compute, Row(y, row)); });
  }

  void Rotate(const LayerWeights& layer, bool factors) override {
    ForRows([&](uint32_t row) {
      float* const queries = Row(Rows::kQkv, row);
      float* const keys = queries + config().query_dim();
      RotateHeads(HeadsOf(config().query_heads, layer.q_norm), queries, AnglesOf(row),
                  Row(Rows::kQueries, row));
      RotateHeads(HeadsOf(config().kv_heads, layer.k_norm), keys, AnglesOf(row), keys);
      if (!factors) return;
      MultiplyRow(layer.key_factors, keys);
      MultiplyRow(layer.query_factors, Row(Rows::kQueries, row));
    });
  }

  void RoundAttended() override {
    ForRows([&](uint32_t row) {
      RoundValues(config().query_dim(), model_.compute, Row(Rows::kAttended, row));
    });
  }

  void Gate() override {
    const uint32_t wide = config().intermediate;
    ForRows([&](uint32_t row) {
      const float* const gate = Row(Rows::kGateUp, row);
      SwiGlu(gate, gate + wide, wide, model_.compute, Row(Rows::kGated, row));
    });
  }

  void Add() override {
    ForRows([&](uint32_t row) { AddTo(Row(Rows::kHidden, row), row); });
  }

  void AddNorm(const std::vector<float>& weight) override {
    ForRows([&](uint32_t row) {
      float* const hidden = Row(Rows::kHidden, row);
      AddTo(hidden, row);
      NormTo(hidden, weight, Row(Rows::kNormed, row));
    });
  }

  Result<void> Logits(std::span<const uint32_t> rows, std::span<float* const> outputs) override {
    ForRows(static_cast<uint32_t>(rows.size()), [&](uint32_t i) {
      NormTo(Row(Rows::kHidden, rows[i]), model_.weights.final_norm(), Row(Rows::kNormed, i));
    });
    Product(model_.weights.head(), Data(Rows::kNormed), outputs, ComputeType::kF32);
    return {};
  }

 private:
  const ModelConfig& config() const { return model_.config; }

  void Product(const PackedMatrix& matrix, const float* x, std::span<float* const> y,
               ComputeType round) {
    const auto product = model_.arithmetic == Arithmetic::kDot16Amx ? MatmulAmx : Matmul;
    product(matrix, x, y, round, matmul_, *executor_);
  }

  HeadsOp HeadsOf(uint32_t heads, const std::vector<float>& norm) const {
    return {.heads = heads,
            .head_dim = config().head_dim,
            .norm_weight = config().head_norms() ? norm.data() : nullptr,
            .norm_eps = config().norm_eps,
            .round = model_.compute};
  }

  void AddTo(float* hidden, uint32_t row) {
    AddRow(Row(Rows::kAdded, row), config().hidden, model_.compute, hidden);
  }
  void NormTo(const float* x, const std::vector<float>& weight, float* out) const {
    RmsNorm(x, weight.data(), config().hidden, config().norm_eps, model_.compute, out);
  }

  template <typename Work>
  void ForRows(const Work& work) {
    ForRows(rows_, work);
  }
  template <typename Work>
  void ForRows(uint32_t rows, const Work& work) {
    executor_->ParallelFor(DivUp(rows, kRowsPerItem), [&](uint32_t item, uint32_t) {
      const uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
      for (uint32_t row = item * kRowsPerItem; row < end; ++row) work(row);
    });
  }

  float* Row(Rows rows, uint32_t row) { return Data(rows) + row * RowValues(config(), rows); }
  float* AnglesOf(uint32_t row) { return angles_.data() + uint64_t{row} * config().head_dim; }

  void Grow(std::vector<float>& values, uint64_t width) const {
    if (values.size() < rows_ * width) values.resize(rows_ * width);
  }

  const ForwardModel model_;
  Executor* executor_ = nullptr;  // of the pass
  uint32_t rows_ = 0;
  std::array<std::vector<float>, kRowsKinds> buffers_;  // [rows, row values]
  std::vector<float> angles_;                           // [rows, head_dim]
  std::vector<float*> outputs_;                         // [rows] of the product under way
  MatmulScratch matmul_;
};

}  // namespace

Result<std::unique_ptr<Operators>> MakeCpuOperators(const ForwardModel& model) {
  return std::make_unique<CpuOperators>(model);
}

}  // namespace quire::model
