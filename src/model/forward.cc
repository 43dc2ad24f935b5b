#include "model/forward.h"

#include <algorithm>
#include <cmath>

#include "attention/importance.h"
#include "base/bits.h"

namespace quire::model {
namespace {

constexpr uint32_t kRowsPerItem = 8;  // of row-wise operators, so that an item outweighs its start

void MultiplyRow(const std::vector<float>& factors, float* x) {
  for (size_t i = 0; i < factors.size(); ++i) x[i] *= factors[i];
}

class Pass {
 public:
  Pass(const ForwardModel& model, std::span<const StepItem> items, AttentionBackend& attention,
       Executor& executor, ForwardScratch& scratch)
      : config_(model.config),
        weights_(model.weights),
        rope_(model.rope),
        round_(model.compute),
        items_(items),
        attention_(attention),
        executor_(executor),
        scratch_(scratch),
        qkv_dim_(config_.query_dim() + 2 * config_.kv_dim()) {}

  Result<void> Run(const std::atomic<bool>* cancel) {
    Prepare();
    Embed();
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
        return Fail(ErrorCode::kCancelled, "step cancelled");
      }
      const LayerWeights& weights = weights_.layers()[layer];
      QUIRE_TRY(Attention(layer, weights));
      FeedForward(weights);
    }
    Logits();
    return {};
  }

 private:
  // Rows of all items, one after the other, with their tokens and positions.
  void Prepare() {
    scratch_.tokens.clear();
    scratch_.positions.clear();
    for (const StepItem& item : items_) {
      const uint64_t first = item.sequence->length() + item.sequence->dropped_tokens();
      for (size_t i = 0; i < item.tokens.size(); ++i) {
        scratch_.tokens.push_back(item.tokens[i]);
        scratch_.positions.push_back(first + i);
      }
    }
    rows_ = static_cast<uint32_t>(scratch_.tokens.size());
    Grow(scratch_.hidden, config_.hidden);
    Grow(scratch_.normed, config_.hidden);
    Grow(scratch_.qkv, qkv_dim_);
    Grow(scratch_.queries, config_.query_dim());
    Grow(scratch_.attended, config_.query_dim());
    Grow(scratch_.gate_up, 2 * uint64_t{config_.intermediate});
    Grow(scratch_.gated, config_.intermediate);
    Grow(scratch_.added, config_.hidden);
    Grow(scratch_.angles, config_.head_dim);
  }

  void Embed() {
    ForRows([&](uint32_t row) {
      const auto token = static_cast<uint32_t>(scratch_.tokens[row]);
      UnpackRow(weights_.embedding(), token, Row(scratch_.hidden, row, config_.hidden));
      rope_.Angles(scratch_.positions[row], Row(scratch_.angles, row, config_.head_dim));
    });
  }

  Result<void> Attention(uint32_t layer, const LayerWeights& weights) {
    NormRows(weights.input_norm);
    Multiply(weights.qkv, weights.qkv_bias, scratch_.normed, scratch_.qkv);
    const bool k_encoded = !IsIdentity(items_.front().sequence->Blocks(layer).key.codec);
    ForRows([&](uint32_t row) {
      RotateRow(weights, row);
      if (!k_encoded) return;
      MultiplyRow(weights.key_factors, Row(scratch_.qkv, row, qkv_dim_) + config_.query_dim());
      MultiplyRow(weights.query_factors, Row(scratch_.queries, row, config_.query_dim()));
    });
    QUIRE_TRY(AppendRows(layer));
    QUIRE_TRY(Attend(layer));
    ForRows([&](uint32_t row) {
      RoundValues(config_.query_dim(), round_, Row(scratch_.attended, row, config_.query_dim()));
    });
    Multiply(weights.out, weights.out_bias, scratch_.attended, scratch_.added);
    AddRows();
    return {};
  }

  void FeedForward(const LayerWeights& weights) {
    NormRows(weights.attention_norm);
    Multiply(weights.gate_up, weights.gate_up_bias, scratch_.normed, scratch_.gate_up);
    const uint32_t wide = config_.intermediate;
    ForRows([&](uint32_t row) {
      const float* gate = Row(scratch_.gate_up, row, 2 * uint64_t{wide});
      SwiGlu(gate, gate + wide, wide, round_, Row(scratch_.gated, row, wide));
    });
    Multiply(weights.down, weights.down_bias, scratch_.gated, scratch_.added);
    AddRows();
  }

  // Queries go to their own rows, as attention reads them; keys stay where they are.
  void RotateRow(const LayerWeights& weights, uint32_t row) {
    HeadsOp op = {.heads = config_.query_heads,
                  .head_dim = config_.head_dim,
                  .norm_weight = config_.head_norms() ? weights.q_norm.data() : nullptr,
                  .norm_eps = config_.norm_eps,
                  .round = round_};
    const float* angles = Row(scratch_.angles, row, config_.head_dim);
    float* qkv = Row(scratch_.qkv, row, qkv_dim_);
    RotateHeads(op, qkv, angles, Row(scratch_.queries, row, config_.query_dim()));
    op.heads = config_.kv_heads;
    if (config_.head_norms()) op.norm_weight = weights.k_norm.data();
    float* keys = qkv + config_.query_dim();
    RotateHeads(op, keys, angles, keys);
  }

  Result<void> AppendRows(uint32_t layer) {
    const float* keys = scratch_.qkv.data() + config_.query_dim();
    const auto view = [&](const float* data) {
      return RowsView{.data = data,
                      .dtype = Codec::kF32,
                      .token_stride = qkv_dim_,
                      .head_stride = config_.head_dim};
    };
    for (const StepItem& item : items_) {
      const LayerRows rows = {.key = view(keys),
                              .value = view(keys + config_.kv_dim()),
                              .tokens = static_cast<uint32_t>(item.tokens.size())};
      QUIRE_TRY(item.sequence->Append(layer, rows));
      keys += item.tokens.size() * qkv_dim_;
    }
    return {};
  }

  Result<void> Attend(uint32_t layer) {
    scratch_.tasks.clear();
    scratch_.tables.Clear();
    uint32_t row = 0;
    AttentionShape shape;
    for (const StepItem& item : items_) {
      const LayerBlocks blocks = item.sequence->Blocks(layer);
      QUIRE_TRY(scratch_.tables.Add(blocks.tables));
      shape = AttentionShapeOf(config_, layer, blocks);
      scratch_.tasks.push_back({.queries = Row(scratch_.queries, row, config_.query_dim()),
                                .out = Row(scratch_.attended, row, config_.query_dim()),
                                .rows = static_cast<uint32_t>(item.tokens.size()),
                                .first_position = item.sequence->length(),
                                .sequence = static_cast<uint32_t>(scratch_.tasks.size())});
      row += static_cast<uint32_t>(item.tokens.size());
    }
    const BlockTables tables = scratch_.tables.tables();
    QUIRE_TRY(attention_.Attend(shape, tables, scratch_.tasks, executor_));
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].observer == nullptr) continue;
      items_[i].observer->OnAttention(layer, shape, tables, scratch_.tasks[i], executor_);
    }
    return {};
  }

  // Only the rows asked for pass the last norm and the output matrix.
  void Logits() {
    scratch_.outputs.clear();
    std::vector<uint32_t>& wanted = scratch_.wanted;
    wanted.clear();
    uint32_t row = 0;
    for (const StepItem& item : items_) {
      const auto tokens = static_cast<uint32_t>(item.tokens.size());
      const uint32_t first = item.all_logits ? 0 : tokens - 1;
      for (uint32_t i = first; item.logits != nullptr && i < tokens; ++i) {
        wanted.push_back(row + i);
        scratch_.outputs.push_back(item.logits + uint64_t{i - first} * config_.vocab);
      }
      row += tokens;
    }
    ForRows(static_cast<uint32_t>(wanted.size()), [&](uint32_t i) {
      RmsNorm(Row(scratch_.hidden, wanted[i], config_.hidden), weights_.final_norm().data(),
              config_.hidden, config_.norm_eps, round_, Row(scratch_.normed, i, config_.hidden));
    });
    Matmul(weights_.head(), scratch_.normed.data(), scratch_.outputs, ComputeType::kF32,
           scratch_.matmul, executor_);
  }

  void NormRows(const std::vector<float>& weight) {
    ForRows([&](uint32_t row) {
      RmsNorm(Row(scratch_.hidden, row, config_.hidden), weight.data(), config_.hidden,
              config_.norm_eps, round_, Row(scratch_.normed, row, config_.hidden));
    });
  }

  void AddRows() {
    ForRows([&](uint32_t row) {
      AddRow(Row(scratch_.added, row, config_.hidden), config_.hidden, round_,
             Row(scratch_.hidden, row, config_.hidden));
    });
  }

  // A bias joins the unrounded product; empty: none.
  void Multiply(const PackedMatrix& matrix, const std::vector<float>& bias,
                const std::vector<float>& x, std::vector<float>& y) {
    scratch_.outputs.resize(rows_);
    for (uint32_t row = 0; row < rows_; ++row) scratch_.outputs[row] = Row(y, row, matrix.n);
    const ComputeType round = bias.empty() ? round_ : ComputeType::kF32;
    Matmul(matrix, x.data(), scratch_.outputs, round, scratch_.matmul, executor_);
    if (bias.empty()) return;
    ForRows([&](uint32_t row) { AddRow(bias.data(), matrix.n, round_, Row(y, row, matrix.n)); });
  }

  template <typename Work>
  void ForRows(const Work& work) {
    ForRows(rows_, work);
  }

  template <typename Work>
  void ForRows(uint32_t rows, const Work& work) {
    executor_.ParallelFor(DivUp(rows, kRowsPerItem), [&](uint32_t item, uint32_t) {
      const uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
      for (uint32_t row = item * kRowsPerItem; row < end; ++row) work(row);
    });
  }

  static float* Row(std::vector<float>& values, uint32_t row, uint64_t width) {
    return values.data() + row * width;
  }

  void Grow(std::vector<float>& values, uint64_t width) const {
    if (values.size() < rows_ * width) values.resize(rows_ * width);
  }

  const ModelConfig& config_;
  const Weights& weights_;
  const Rope& rope_;
  const ComputeType round_;
  const std::span<const StepItem> items_;
  AttentionBackend& attention_;
  Executor& executor_;
  ForwardScratch& scratch_;
  const uint32_t qkv_dim_;
  uint32_t rows_ = 0;
};

}  // namespace

AttentionShape AttentionShapeOf(const ModelConfig& config, uint32_t layer,
                                const LayerBlocks& blocks) {
  AttentionShape shape;
  shape.query_heads = config.query_heads;
  shape.key = blocks.key;
  shape.value = blocks.value;
  shape.open_key = blocks.open_key;
  shape.open_value = blocks.open_value;
  shape.open_blocks = blocks.open_blocks;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  shape.window_tokens = config.window_of(layer);
  return shape;
}

Result<void> RunForward(const ForwardModel& model, std::span<const StepItem> items,
                        AttentionBackend& attention, Executor& executor,
                        const std::atomic<bool>* cancel, ForwardScratch& scratch) {
  return Pass(model, items, attention, executor, scratch).Run(cancel);
}

void ImportanceObserver::OnAttention(uint32_t, const AttentionShape& shape,
                                     const BlockTables& tables, const AttentionTask& task,
                                     Executor& executor) {
  const uint64_t end = task.first_position + task.rows;
  if (end <= from_) return;
  AttentionTask counted = task;
  const uint64_t skipped = from_ - std::min(from_, task.first_position);
  counted.queries += skipped * shape.query_heads * shape.key.dim;
  counted.first_position += skipped;
  counted.rows -= static_cast<uint32_t>(skipped);
  importance_.resize(std::max<size_t>(importance_.size(), DivUp(end, shape.key.block_tokens)));
  attention::AddImportance(shape, tables, counted, executor, importance_);
}

}  // namespace quire::model
