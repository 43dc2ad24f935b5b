#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "attention/importance.h"
#include "base/bits.h"

namespace quire::model {

class ForwardPass::Layers {
 public:
  Layers(const ForwardModel& model, std::span<const StepItem> items, Operators& operators,
         AttentionBackend& attention, Executor& executor, const std::atomic<bool>* cancel,
         ForwardScratch& scratch, const StageRows& rows)
      : config_(model.config),
        weights_(model.weights),
        compute_(model.compute),
        items_(items),
        operators_(operators),
        attention_(attention),
        executor_(executor),
        cancel_(cancel),
        scratch_(scratch),
        rows_(rows),
        qkv_dim_(RowValues(config_, Rows::kQkv)) {}

  uint64_t waited_us() const { return waited_us_; }

  Result<bool> GoOn(const Patience& patience) {
    if (!begun_) {
      FindRows();
      QUIRE_TRY(operators_.Begin(scratch_.tokens, scratch_.positions, executor_));
      const auto streams = [](const StreamedContext* context) { return context != nullptr; };
      if (std::ranges::any_of(scratch_.streamed, streams)) operators_.StopWaiting();
      if (rows_.in != nullptr) operators_.PutHidden({rows_.in, HiddenValues()});
      begun_ = true;
    }
    while (layer_ < config_.layers) {
      QUIRE_TRY(CheckCancel());
      const LayerWeights& weights = weights_.layers()[layer_];
      if (!fronts_) QUIRE_TRY(BeginAttention(weights));
      QUIRE_ASSIGN(const bool is_there, AwaitLayer(patience));
      if (!is_there) return false;
      QUIRE_ASSIGN(const bool through, fronts_->GoOn(attention_, executor_, patience, cancel_));
      if (!through) return false;
      fronts_.reset();
      QUIRE_TRY(EndAttention(weights));
      FeedForward(weights);
      ++layer_;
      if (layer_ < config_.layers && patience.IsOver()) return false;
    }
    operators_.Add();
    if (rows_.out == nullptr) {
      QUIRE_TRY(Logits());
    } else {
      QUIRE_TRY(operators_.TakeHidden({rows_.out, HiddenValues()}));
    }
    return true;
  }

 private:
  static constexpr uint64_t kLookAtCancelUs = 10'000;  // at least so often, in a wait

  Result<void> CheckCancel() const {
    if (cancel_ == nullptr || !cancel_->load(std::memory_order_relaxed)) return {};
    return Fail(ErrorCode::kCancelled, "step cancelled");
  }

  uint64_t HiddenValues() const { return scratch_.tokens.size() * config_.hidden; }

  // Rows of all items, one after the other, with their tokens and positions.
  void FindRows() {
    scratch_.tokens.clear();
    scratch_.positions.clear();
    scratch_.streamed.clear();
    scratch_.adapters.clear();
    for (const StepItem& item : items_) {
      const uint64_t first = item.sequence->length() + item.sequence->dropped_tokens();
      for (size_t i = 0; i < item.tokens.size(); ++i) {
        scratch_.tokens.push_back(item.tokens[i]);
        scratch_.positions.push_back(first + i);
        scratch_.adapters.push_back(item.adapter);
      }
      scratch_.streamed.push_back(item.sequence->streamed());
    }
    scratch_.adapted.Begin(scratch_.adapters);
  }

  // A product of the base model for all rows, then what adapters add to it for theirs.
  void Multiply(const PackedMatrix& matrix, const std::vector<float>& bias, Rows x, Rows y,
                std::vector<LowRank> AdapterLayer::* adapted) {
    operators_.Multiply(matrix, bias, x, y);
    if (scratch_.adapted.empty()) return;
    scratch_.adapted.Add(layer_, adapted, {operators_.Data(x), RowValues(config_, x)},
                         {operators_.Data(y), RowValues(config_, y)}, compute_, executor_);
  }

  // Up to what each item attends to in front of what memory has of it.
  Result<void> BeginAttention(const LayerWeights& weights) {
    const LayerStreams streams = items_.front().sequence->Streams(layer_);
    if (layer_ == 0) {
      operators_.Norm(weights.input_norm);
    } else {
      operators_.AddNorm(weights.input_norm);  // what the layer before gave
    }
    Multiply(weights.qkv, weights.qkv_bias, Rows::kNormed, Rows::kQkv, &AdapterLayer::qkv);
    operators_.Rotate(weights, !IsIdentity(streams.key.codec));
    QUIRE_TRY(AppendRows(layer_));
    QUIRE_ASSIGN(group_, GroupOf(layer_, streams.arena));
    scratch_.tasks = scratch_.groups[group_].tasks;
    shape_ = AttentionShapeOf(config_, layer_, streams);
    fronts_.emplace(layer_, shape_, scratch_.tasks, scratch_.streamed);
    return {};
  }

  // What loads still bring of the contexts.
  Result<bool> AwaitLayer(const Patience& patience) {
    for (const StepItem& item : items_) {
      if (!item.sequence->arrives()) continue;
      const uint64_t begin_us = patience.clock != nullptr ? patience.clock->NowMicros() : 0;
      uint64_t left_us = patience.wait_us;
      bool is_there = false;
      while (true) {
        const uint64_t wait_us = std::min(left_us, kLookAtCancelUs);
        QUIRE_ASSIGN(is_there, item.sequence->AwaitLayer(layer_, wait_us));
        if (is_there) break;
        QUIRE_TRY(CheckCancel());
        if (left_us != UINT64_MAX) left_us -= wait_us;
        if (left_us == 0) break;
      }
      if (patience.clock != nullptr) waited_us_ += patience.clock->NowMicros() - begin_us;
      if (!is_there) return false;
    }
    return true;
  }

  Result<void> EndAttention(const LayerWeights& weights) {
    QUIRE_TRY(Attend());
    operators_.RoundAttended();
    Multiply(weights.out, weights.out_bias, Rows::kAttended, Rows::kAdded, &AdapterLayer::out);
    return {};
  }

  void FeedForward(const LayerWeights& weights) {
    operators_.AddNorm(weights.attention_norm);
    Multiply(weights.gate_up, weights.gate_up_bias, Rows::kNormed, Rows::kGateUp,
             &AdapterLayer::gate_up);
    operators_.Gate();
    Multiply(weights.down, weights.down_bias, Rows::kGated, Rows::kAdded, &AdapterLayer::down);
  }

  Result<void> AppendRows(uint32_t layer) {
    const float* keys = operators_.Data(Rows::kQkv) + config_.query_dim();
    const auto view = [&](const float* data) {
      return RowsView{.data = data,
                      .dtype = Codec::kF32,
                      .token_stride = static_cast<int64_t>(qkv_dim_),
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

  // Attention of the layers that have one arena and one window.
  struct Group {
    const std::byte* arena = nullptr;
    uint32_t window_tokens = 0;
    std::unique_ptr<AttentionPlan> plan{};  // null: none of its layers has attended yet
  };

  Result<void> Attend() {
    std::unique_ptr<AttentionPlan>& plan = groups_[group_].plan;
    const BlockTables tables = scratch_.groups[group_].tables.tables();
    if (plan == nullptr) {
      QUIRE_ASSIGN(plan, attention_.Prepare(shape_, tables, scratch_.tasks, executor_));
    }
    QUIRE_TRY(plan->Run(shape_, executor_));
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].observer == nullptr) continue;
      items_[i].observer->OnAttention(layer_, shape_, tables, scratch_.tasks[i], executor_);
    }
    return {};
  }

  // The group of a layer whose rows are appended. Its first layer lists its blocks and tasks.
  Result<size_t> GroupOf(uint32_t layer, const std::byte* arena) {
    const uint32_t window_tokens = config_.window_of(layer);
    size_t at = 0;
    while (at < groups_.size() &&
           (groups_[at].arena != arena || groups_[at].window_tokens != window_tokens)) {
      ++at;
    }
    if (at < groups_.size()) return at;
    if (at == scratch_.groups.size()) scratch_.groups.emplace_back();
    GroupScratch& lists = scratch_.groups[at];
    lists.tables.Clear();
    lists.tasks.clear();
    const uint64_t query_dim = config_.query_dim();
    uint64_t row = 0;
    for (const StepItem& item : items_) {
      QUIRE_TRY(lists.tables.Add(item.sequence->Blocks(layer).tables));
      lists.tasks.push_back({.queries = operators_.Data(Rows::kQueries) + row * query_dim,
                             .out = operators_.Data(Rows::kAttended) + row * query_dim,
                             .rows = static_cast<uint32_t>(item.tokens.size()),
                             .first_position = item.sequence->length(),
                             .sequence = static_cast<uint32_t>(lists.tasks.size())});
      row += item.tokens.size();
    }
    groups_.push_back({.arena = arena, .window_tokens = window_tokens});
    return at;
  }

  // Only the rows asked for pass the last norm and the output matrix.
  Result<void> Logits() {
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
    return operators_.Logits(wanted, scratch_.outputs);
  }

  const ModelConfig& config_;
  const Weights& weights_;
  const ComputeType compute_;
  const std::span<const StepItem> items_;
  Operators& operators_;
  AttentionBackend& attention_;
  Executor& executor_;
  const std::atomic<bool>* const cancel_;  // may be null
  ForwardScratch& scratch_;
  const StageRows rows_;
  const uint64_t qkv_dim_;
  std::vector<Group> groups_;  // lists of each: scratch_.groups

  // How far it is.
  bool begun_ = false;
  uint32_t layer_ = 0;
  uint64_t waited_us_ = 0;
  size_t group_ = 0;                   // of the layer whose attention has begun
  AttentionShape shape_{};             // of it
  std::optional<FrontPass> fronts_{};  // of it
};

ForwardPass::ForwardPass(const ForwardModel& model, std::span<const StepItem> items,
                         Operators& operators, AttentionBackend& attention, Executor& executor,
                         const std::atomic<bool>* cancel, ForwardScratch& scratch,
                         const StageRows& rows)
    : layers_(std::make_unique<Layers>(model, items, operators, attention, executor, cancel,
                                       scratch, rows)) {}
ForwardPass::~ForwardPass() = default;
Result<bool> ForwardPass::GoOn(const Patience& patience) { return layers_->GoOn(patience); }
uint64_t ForwardPass::waited_us() const { return layers_->waited_us(); }

AttentionShape AttentionShapeOf(const ModelConfig& config, uint32_t layer,
                                const LayerStreams& streams) {
  AttentionShape shape;
  shape.query_heads = config.query_heads;
  shape.key = streams.key;
  shape.value = streams.value;
  shape.open_key = streams.open_key;
  shape.open_value = streams.open_value;
  shape.open_blocks = streams.open_blocks;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  shape.window_tokens = config.window_of(layer);
  shape.sink_tokens = shape.window_tokens == 0 ? 0 : config.sink_tokens;
  return shape;
}

Result<void> RunForward(const ForwardModel& model, std::span<const StepItem> items,
                        Operators& operators, AttentionBackend& attention, Executor& executor,
                        const std::atomic<bool>* cancel, ForwardScratch& scratch,
                        const StageRows& rows) {
  const Result<bool> done =
      ForwardPass(model, items, operators, attention, executor, cancel, scratch, rows).GoOn({});
  if (done) return {};
  operators.StopWaiting();
  return std::unexpected(done.error());
}

void ImportanceObserver::Keep(std::span<const uint64_t> blocks) {
  std::vector<double> kept;
  for (const uint64_t block : blocks) {
    kept.push_back(block < importance_.size() ? importance_[block] : 0.0);
  }
  importance_ = std::move(kept);
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
