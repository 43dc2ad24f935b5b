// One pass of a batch through the layers. What it reads is the model; what it changes are
// sequences, logits and scratch.
#ifndef QUIRE_MODEL_FORWARD_H_
#define QUIRE_MODEL_FORWARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/adapter_pass.h"
#include "model/config.h"
#include "model/operators.h"
#include "model/weights.h"
#include "quire/attention.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/identity.h"
#include "quire/sequence.h"

namespace quire::model {

/// Looks at what layers attend to.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  /// `task` has been computed; it, `shape` and `tables` are valid during the call.
  virtual void OnAttention(uint32_t layer, const AttentionShape& shape, const BlockTables& tables,
                           const AttentionTask& task, Executor& executor) = 0;
};

/// Next tokens of one sequence.
struct StepItem {
  Sequence* sequence = nullptr;  // nothing uncommitted in it
  std::span<const TokenId> tokens = {};
  float* logits = nullptr;  // [1, vocab] of the last token, or [tokens, vocab]; null: none wanted
  bool all_logits = false;  // of every token
  AttentionObserver* observer = nullptr;  // of this sequence; may be null
  // Whose values the sequence has, and no others': identities must tell them apart. Null: the base
  // model's.
  const Adapter* adapter = nullptr;
};

/// What a stage is given and gives. Of the first one nothing comes in, of the last one nothing goes
/// out but the logits.
/// Shape: both [rows of all items, hidden], null: the stage has none
struct StageRows {
  const float* in = nullptr;  // of the stage before
  float* out = nullptr;       // for the stage behind
};

/// Attention of layers whose blocks lie in the same slots.
struct GroupScratch {
  BatchTables tables;                // [items]
  std::vector<AttentionTask> tasks;  // [items]
};

/// What a pass notes down; it grows to the largest one and stays.
struct ForwardScratch {
  std::vector<TokenId> tokens;      // [rows]
  std::vector<uint64_t> positions;  // [rows]
  std::vector<uint32_t> wanted;     // rows whose logits are asked for
  std::vector<float*> outputs;      // of these
  std::vector<GroupScratch> groups;
  std::vector<AttentionTask> tasks;        // [items]: of the layer under way
  std::vector<StreamedContext*> streamed;  // [items]; null: all of it is in memory
  std::vector<const Adapter*> adapters;    // [rows]; null: the base model
  AdapterPass adapted;
};

/// What all attention tasks of a layer share.
AttentionShape AttentionShapeOf(const ModelConfig& config, uint32_t layer,
                                const LayerStreams& streams);

/// A pass that can be put aside while it waits for what the store has of a context, or a load
/// brings of it.
///
/// Lifetime: what it is made with must outlive it
class ForwardPass {
 public:
  ForwardPass(const ForwardModel& model, std::span<const StepItem> items, Operators& operators,
              AttentionBackend& attention, Executor& executor, const std::atomic<bool>* cancel,
              ForwardScratch& scratch, const StageRows& rows = {});
  ~ForwardPass();
  /// True: it is done, as RunForward. False: it is to be gone on with.
  /// Errors: as RunForward
  Result<bool> GoOn(const Patience& patience);
  /// Of its time, by the clock of the patience, what it waited for loads.
  uint64_t waited_us() const;

 private:
  class Layers;
  const std::unique_ptr<Layers> layers_;
};

/// Appends K and V of every item's tokens to all layers of its sequence and writes the logits asked
/// for. Items and caches have been checked and room is reserved. Commits nothing.
///
/// Operators, attention and the cache's block operations are those of one device. A stage's `rows`
/// are the host's, so only the processor computes stages.
///
/// Errors: kCancelled; what Append and the operators say. Sequences then hold uncommitted rows
Result<void> RunForward(const ForwardModel& model, std::span<const StepItem> items,
                        Operators& operators, AttentionBackend& attention, Executor& executor,
                        const std::atomic<bool>* cancel, ForwardScratch& scratch,
                        const StageRows& rows = {});

/// Attention that the tokens of one sequence from a position on pay to each block, all layers
/// together (attention/importance.h).
class ImportanceObserver final : public AttentionObserver {
 public:
  explicit ImportanceObserver(uint64_t from_position) : from_(from_position) {}

  void OnAttention(uint32_t layer, const AttentionShape& shape, const BlockTables& tables,
                   const AttentionTask& task, Executor& executor) override;
  /// By block; those not looked at yet are missing.
  std::span<const double> importance() const { return importance_; }
  /// Its sequence goes on with these of its blocks, all of them whole.
  void Keep(std::span<const uint64_t> blocks);

 private:
  const uint64_t from_;
  std::vector<double> importance_;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_FORWARD_H_
