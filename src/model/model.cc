#include "model/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/bits.h"
#include "base/check.h"
#include "env/file.h"
#include "model/forward.h"
#include "model/layers.h"
#include "model/shards.h"

namespace quire::model {
namespace {

constexpr uint64_t kConfigBytesMax = 16 << 20;

std::unexpected<Error> BadItem(size_t item, std::string_view why) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("step item {}: {}", item, why));
}

// Of what can be known before the weights are read.
Result<void> CheckArithmetic(const LoadOptions& options) {
  if (options.arithmetic == Arithmetic::kFma32) return {};
  const std::string_view name = ArithmeticName(options.arithmetic);
  QUIRE_TRY(ChooseArithmetic(name));
  if (options.operators) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("arithmetic {}: the processor's alone, a device computes in classes of "
                            "its own; use --arithmetic fma32",
                            name));
  }
  if (options.compute_f32) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("arithmetic {}: multiplies numbers of bf16, but activations are to be "
                            "f32; leave that out or use --arithmetic fma32",
                            name));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::string& directory,
                                           const LoadOptions& options) {
  const std::string config_path = directory + "/config.json";
  QUIRE_ASSIGN(const std::string text, ReadFile(config_path, kConfigBytesMax));
  QUIRE_ASSIGN(ModelConfig config, ParseConfig(text, config_path));
  QUIRE_TRY(SetWindow(options.window, config));
  QUIRE_ASSIGN(const auto source, OpenWeights(directory));
  return Create(config, *source, options);
}

Result<std::unique_ptr<Model>> Model::Create(const ModelConfig& config, const TensorSource& source,
                                             const LoadOptions& options) {
  if (!CpuIsSupported()) {
    return Fail(ErrorCode::kUnsupported,
                "this CPU has no fused multiply-add (x86 needs AVX2); its results would differ");
  }
  QUIRE_ASSIGN(const LayerRange layers, LayersOfStage(config, options.stage, options.stages));
  QUIRE_TRY(CheckArithmetic(options));
  const bool pairs = options.arithmetic != Arithmetic::kFma32;
  QUIRE_ASSIGN(auto weights,
               Weights::Load(source, config, layers,
                             {.order = pairs ? PanelOrder::kPairs : PanelOrder::kSingles,
                              .progress = options.progress}));
  std::unique_ptr<Model> model(
      new Model(ConfigOfLayers(config, layers), layers, std::move(weights), options));
  const OperatorsFactory& make = options.operators ? options.operators : MakeCpuOperators;
  model->make_operators_ = make;
  QUIRE_ASSIGN(model->operators_, make(model->forward()));
  return model;
}

Model::Model(const ModelConfig& config, const LayerRange& layers, std::unique_ptr<Weights> weights,
             const LoadOptions& options)
    : config_(config),
      layers_(layers),
      weights_(std::move(weights)),
      compute_(options.compute_f32 ? ComputeType::kF32 : weights_->type()),
      arithmetic_(options.arithmetic),
      rope_(config.rope, config.head_dim) {}

Result<void> Model::CheckItems(std::span<const StepItem> items) const {
  if (items.empty()) return Fail(ErrorCode::kInvalidArgument, "step: no items");
  std::vector<const Sequence*> sequences;
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    if (item.sequence == nullptr) return BadItem(i, "no sequence");
    if (item.tokens.empty()) return BadItem(i, "no tokens");
    if (item.observer != nullptr && !operators_->on_host()) {
      return Fail(
          ErrorCode::kUnsupported,
          fmt::format("step item {}: on a device attention cannot be observed; use the processor",
                      i));
    }
    if (item.observer != nullptr && item.sequence->streamed() != nullptr) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("step item {}: attention to a context that streams cannot be "
                              "observed; open the sequence without resident_tokens",
                              i));
    }
    if (item.adapter != nullptr && !operators_->on_host()) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("step item {}: devices compute no adapters; use the processor", i));
    }
    if (item.adapter != nullptr && item.adapter->layers().size() != config_.layers) {
      return BadItem(i, fmt::format("its adapter has {} layers, the model {}",
                                    item.adapter->layers().size(), config_.layers));
    }
    for (size_t t = 0; t < item.tokens.size(); ++t) {
      if (item.tokens[t] < 0 || static_cast<uint32_t>(item.tokens[t]) >= config_.vocab) {
        return BadItem(i, fmt::format("token {} at {} is outside the vocabulary of {}",
                                      item.tokens[t], t, config_.vocab));
      }
    }
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      if (item.sequence->cursor(layer) != item.sequence->length()) {
        return BadItem(i, fmt::format("layer {} has {} tokens, {} are committed", layer,
                                      item.sequence->cursor(layer), item.sequence->length()));
      }
    }
    sequences.push_back(item.sequence);
  }
  std::ranges::sort(sequences);
  if (std::ranges::adjacent_find(sequences) != sequences.end()) {
    return Fail(ErrorCode::kInvalidArgument, "step: one sequence in two items");
  }
  return {};
}

// All items go through attention together, over one pair of block tables.
Result<void> Model::CheckCaches(std::span<const StepItem> items,
                                const AttentionBackend& attention) const {
  for (size_t i = 1; i < items.size(); ++i) {
    if (items[i].sequence->Streams(0).arena != items.front().sequence->Streams(0).arena) {
      return BadItem(i, "its cache is another than that of item 0");
    }
  }
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    const LayerStreams first = items.front().sequence->Streams(layer);
    for (const StreamLayout* stream : {&first.key, &first.value}) {
      if (stream->heads != config_.kv_heads || stream->dim != config_.head_dim) {
        return BadItem(
            0, fmt::format("the cache has {} heads of {}, the model {} of {}", stream->heads,
                           stream->dim, config_.kv_heads, config_.head_dim));
      }
    }
    QUIRE_TRY(attention.Supports(AttentionShapeOf(config_, layer, first)));
  }
  return {};
}

Result<void> Model::Step(std::span<const StepItem> items, AttentionBackend& attention,
                         Executor& executor, const std::atomic<bool>* cancel) {
  QUIRE_TRY(CheckStage(items, {}));
  return Compute(*operators_, items, {}, attention, executor, cancel);
}

Result<void> Model::StepWith(Operators& operators, std::span<const StepItem> items,
                             AttentionBackend& attention, Executor& executor) {
  QUIRE_TRY(CheckStage(items, {}));
  return Compute(operators, items, {}, attention, executor, /*cancel=*/nullptr);
}

Result<void> Model::StepStage(std::span<const StepItem> items, const StageRows& rows,
                              AttentionBackend& attention, Executor& executor) {
  QUIRE_TRY(CheckStage(items, rows));
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].adapter == nullptr && items[i].observer == nullptr) continue;
    return Fail(ErrorCode::kUnsupported,
                fmt::format("step item {}: stages compute no adapters, and their attention cannot "
                            "be observed; use a process that has the whole model",
                            i));
  }
  return Compute(*operators_, items, rows, attention, executor, /*cancel=*/nullptr);
}

Result<void> Model::CheckStage(std::span<const StepItem> items, const StageRows& rows) const {
  const auto bad = [this](std::string_view why) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("step: the model has layers {} to {} of {}: {}", layers_.first,
                            layers_.end() - 1, layers_.of, why));
  };
  if (layers_.is_first() != (rows.in == nullptr)) {
    return bad(layers_.is_first() ? "no stage is before it"
                                  : "it needs the rows of the one before");
  }
  if (layers_.is_last() != (rows.out == nullptr)) {
    return bad(layers_.is_last() ? "no stage is behind it" : "its rows need a place to go to");
  }
  const auto has_logits = [](const StepItem& item) { return item.logits != nullptr; };
  if (!layers_.is_last() && std::ranges::any_of(items, has_logits)) {
    return bad("the last stage has the logits");
  }
  return {};
}

Result<void> Model::Compute(Operators& operators, std::span<const StepItem> items,
                            const StageRows& rows, AttentionBackend& attention, Executor& executor,
                            const std::atomic<bool>* cancel) {
  QUIRE_TRY(CheckItems(items));
  QUIRE_TRY(CheckCaches(items, attention));
  const auto run = [&]() -> Result<void> {
    for (const StepItem& item : items) {
      QUIRE_TRY(item.sequence->Reserve(item.sequence->length() + item.tokens.size()));
    }
    return RunForward(forward(), items, operators, attention, executor, cancel, scratch_, rows);
  };
  if (Result<void> done = run(); !done) {
    for (const StepItem& item : items) {
      // Without room for the copy of a block that a view holds the rows stay, uncommitted: the next
      // step of this sequence is refused, and its owner can roll back later or end it.
      const Result<void> rolled_back = item.sequence->Rollback(item.sequence->length());
      if (!rolled_back) done.error().message += "; " + rolled_back.error().message;
    }
    return done;
  }
  for (const StepItem& item : items) QUIRE_TRY(item.sequence->Commit(item.tokens));
  return {};
}

Result<std::unique_ptr<StepAside>> Model::BeginAside(const StepItem& item,
                                                     AttentionBackend& attention,
                                                     Executor& executor) {
  if (!may_step_aside()) {
    return Fail(ErrorCode::kUnsupported,
                "step: passes of a device, or of a stage, are not put aside");
  }
  QUIRE_TRY(CheckItems({&item, 1}));
  QUIRE_TRY(CheckCaches({&item, 1}, attention));
  QUIRE_TRY(item.sequence->Reserve(item.sequence->length() + item.tokens.size()));
  std::unique_ptr<Operators> operators = std::move(spare_operators_);
  if (operators == nullptr) {
    QUIRE_ASSIGN(operators, MakeOperators());
  }
  std::unique_ptr<StepAside> step(new StepAside(*this, item, std::move(operators)));
  step->pass_.emplace(forward(), std::span(&step->item_, 1), *step->operators_, attention, executor,
                      /*cancel=*/nullptr, step->scratch_);
  return step;
}

StepAside::StepAside(Model& model, const StepItem& item, std::unique_ptr<Operators> operators)
    : model_(model),
      tokens_(item.tokens.begin(), item.tokens.end()),
      item_(item),
      operators_(std::move(operators)) {
  item_.tokens = tokens_;
  if (item.logits == nullptr) return;
  logits_.resize((item.all_logits ? tokens_.size() : 1) * model.config().vocab);
  item_.logits = logits_.data();
}

StepAside::~StepAside() {
  pass_.reset();
  model_.spare_operators_ = std::move(operators_);
  if (is_done_) return;
  // Where that has no room the rows stay, uncommitted: the next step is refused.
  static_cast<void>(item_.sequence->Rollback(item_.sequence->length()));
}

Result<bool> StepAside::GoOn(const Patience& patience) {
  QUIRE_ASSIGN(const bool through, pass_->GoOn(patience));
  if (!through) return false;
  QUIRE_TRY(item_.sequence->Commit(item_.tokens));
  is_done_ = true;
  return true;
}

}  // namespace quire::model
