// A decoder on the cache: tokens in, logits out, K and V appended to sequences on the way.
//
//   auto model = Model::Load("models/tiny", {});
//   StepItem item{.sequence = sequence.get(), .tokens = prompt, .logits = logits.data()};
//   (*model)->Step({&item, 1}, *attention, *executor);   // item's sequence is longer by the prompt
#ifndef QUIRE_MODEL_MODEL_H_
#define QUIRE_MODEL_MODEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/arithmetic.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/operators.h"
#include "model/rope.h"
#include "model/stage.h"
#include "model/tensor_source.h"
#include "model/weights.h"
#include "quire/attention.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

struct LoadOptions {
  /// Activations are not rounded to the file's type; weights keep it, since widening is exact.
  bool compute_f32 = false;
  /// For a model without windows; its fingerprint is another one then.
  Window window{};
  /// Bytes of weights read so far; may be empty.
  LoadProgress progress = {};
  /// Where passes are computed; empty: on the processor.
  OperatorsFactory operators = {};
  /// How the processor multiplies matrices: dot16 those of bf16, with activations of bf16.
  Arithmetic arithmetic = Arithmetic::kFma32;
  /// Of a model that is cut into so many stages, this one alone (LayersOfStage).
  uint32_t stage = 0;
  uint32_t stages = 1;
};

class Model;

/// A step of one sequence that can be put aside while it waits for what the store has of its
/// context (SequenceOptions::resident_tokens), or a load brings of it (Ticket::Arriving), and other
/// steps are computed meanwhile. The bits are those of Model::Step.
///
/// Threads:  as Model::Step, in turn with it
/// Lifetime: what Model::BeginAside was given must outlive it
class StepAside {
 public:
  /// What it appended and did not commit is gone then.
  ~StepAside();

  /// True: it is done, and committed. False: it is to be gone on with.
  /// Errors: as Model::Step; then it is over
  Result<bool> GoOn(const Patience& patience);
  uint64_t tokens() const { return tokens_.size(); }
  /// As ForwardPass.
  uint64_t waited_us() const { return pass_->waited_us(); }
  /// Once it is done: of each row that was asked for.
  /// Shape: [rows, vocab]
  std::span<const float> logits() const { return logits_; }

 private:
  friend class Model;
  StepAside(Model& model, const StepItem& item, std::unique_ptr<Operators> operators);

  Model& model_;
  const std::vector<TokenId> tokens_;
  std::vector<float> logits_;
  StepItem item_;
  std::unique_ptr<Operators> operators_;
  ForwardScratch scratch_;
  std::optional<ForwardPass> pass_;
  bool is_done_ = false;
};

/// Threads: one Step at a time; the rest from any thread
class Model {
 public:
  /// Reads config.json and the weights, in one file or several, of a directory in Hugging Face
  /// form.
  /// Errors: those of ParseConfig, OpenWeights, LayersOfStage and Weights::Load, naming the file;
  ///         kUnsupported a CPU without fused multiply-add or what the arithmetic needs, a stage on
  ///         a device, dot16 there or with activations in f32
  static Result<std::unique_ptr<Model>> Load(const std::string& directory,
                                             const LoadOptions& options);

  /// The same from any source of weights.
  static Result<std::unique_ptr<Model>> Create(const ModelConfig& config,
                                               const TensorSource& source,
                                               const LoadOptions& options);

  /// Of its layers (ConfigOfLayers).
  const ModelConfig& config() const { return config_; }
  const LayerRange& layers() const { return layers_; }
  /// Type of activations: the file's, or f32 as the options asked.
  ComputeType compute() const { return compute_; }
  /// Of the processor's passes; that of a cache is NumericProfile::arithmetic.
  Arithmetic arithmetic() const { return arithmetic_; }
  const Digest& fingerprint() const { return weights_->fingerprint(); }
  /// Bytes of all matrices.
  uint64_t weight_bytes() const { return weights_->bytes(); }
  /// RopeText of the config, for Identity.
  std::string position_encoding() const { return RopeText(config_.rope); }

  /// Runs the model over the tokens of all items and commits them. Items share the matrix products
  /// and nothing else: the bits of each are those it would have alone, cut in any way.
  ///
  /// Errors:  kInvalidArgument names the item: no sequence or tokens, a token outside the
  ///          vocabulary, an adapter of another model, a sequence twice, uncommitted
  ///          rows, a cache of another shape or other
  ///          than that of item 0; kNoSpace no room; kUnsupported the backend's, or an
  ///          observer where passes are a device's; kCancelled
  /// Effects: on error every sequence has its committed length and nothing else; logits are
  ///          undefined
  /// Threads: work runs on `executor`; a sequence must not be used meanwhile. `cancel` may be set
  ///          by any thread and is looked at once a layer
  Result<void> Step(std::span<const StepItem> items, AttentionBackend& attention,
                    Executor& executor, const std::atomic<bool>* cancel = nullptr);
  /// The same of a stage: the bits are those of the whole model, where each stage is given what the
  /// one before it gave. Sequences are those of the stage's own cache. Logits are the last stage's.
  ///
  /// Errors: as Step; kInvalidArgument `rows` lacks what the stage is given, or has what it is not;
  ///         kUnsupported an item has an adapter or is observed
  Result<void> StepStage(std::span<const StepItem> items, const StageRows& rows,
                         AttentionBackend& attention, Executor& executor);

  /// Operators like the model's own, for StepWith.
  /// Errors: kNoSpace no memory for them
  Result<std::unique_ptr<Operators>> MakeOperators() const { return make_operators_(forward()); }
  /// Step with operators of the caller's, which have the bits of the model's own.
  Result<void> StepWith(Operators& operators, std::span<const StepItem> items,
                        AttentionBackend& attention, Executor& executor);

  /// Whether BeginAside can be: passes are the processor's, and it has all layers.
  bool may_step_aside() const { return operators_->on_host() && layers_.is_whole(); }
  /// A step of one item that can be put aside; `item.logits` says whether any are wanted, and is
  /// not written to. Its rows have room then.
  ///
  /// Errors: as Step; kUnsupported where passes are a device's
  Result<std::unique_ptr<StepAside>> BeginAside(const StepItem& item, AttentionBackend& attention,
                                                Executor& executor);

 private:
  friend class StepAside;
  Model(const ModelConfig& config, const LayerRange& layers, std::unique_ptr<Weights> weights,
        const LoadOptions& options);
  ForwardModel forward() const {
    return {.config = config_,
            .weights = *weights_,
            .rope = rope_,
            .compute = compute_,
            .arithmetic = arithmetic_};
  }
  Result<void> Compute(Operators& operators, std::span<const StepItem> items, const StageRows& rows,
                       AttentionBackend& attention, Executor& executor,
                       const std::atomic<bool>* cancel);
  Result<void> CheckStage(std::span<const StepItem> items, const StageRows& rows) const;
  Result<void> CheckItems(std::span<const StepItem> items) const;
  Result<void> CheckCaches(std::span<const StepItem> items,
                           const AttentionBackend& attention) const;

  const ModelConfig config_;
  const LayerRange layers_;
  const std::unique_ptr<Weights> weights_;
  const ComputeType compute_;
  const Arithmetic arithmetic_;
  const Rope rope_;
  OperatorsFactory make_operators_;             // set once, by Create
  std::unique_ptr<Operators> operators_;        // likewise
  std::unique_ptr<Operators> spare_operators_;  // of the last step aside, for the next one
  ForwardScratch scratch_;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_MODEL_H_
