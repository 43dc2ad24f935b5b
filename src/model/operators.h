// What a pass computes between attention calls, on one kind of device: the rows of a batch lie in
// buffers there, and a pass says in which order what happens to them (model/forward.h).
#ifndef QUIRE_MODEL_OPERATORS_H_
#define QUIRE_MODEL_OPERATORS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/arithmetic.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/weights.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// The parts of a model that a pass needs.
struct ForwardModel {
  const ModelConfig& config;
  const Weights& weights;
  const Rope& rope;
  ComputeType compute;
  Arithmetic arithmetic = Arithmetic::kFma32;  // of the processor's operators
};

/// Rows of f32 values, one for every token of the batch.
enum class Rows : uint8_t {
  kHidden,    // [hidden]: the residual stream
  kNormed,    // [hidden]
  kQkv,       // [query_dim + 2 kv_dim]
  kQueries,   // [query_heads, head_dim]
  kAttended,  // [query_heads, head_dim]
  kGateUp,    // [2 intermediate]
  kGated,     // [intermediate]
  kAdded,     // [hidden]: what joins the residual stream
};
inline constexpr size_t kRowsKinds = 8;

/// Values of a row.
constexpr uint64_t RowValues(const ModelConfig& config, Rows rows) {
  switch (rows) {
    case Rows::kHidden:
    case Rows::kNormed:
    case Rows::kAdded: return config.hidden;
    case Rows::kQkv: return config.query_dim() + 2 * config.kv_dim();
    case Rows::kQueries:
    case Rows::kAttended: return config.query_dim();
    case Rows::kGateUp: return 2 * uint64_t{config.intermediate};
    case Rows::kGated: return config.intermediate;
  }
  return 0;
}

/// Orders and roundings are those of docs/numerics.md section 3, whatever the device. Operations
/// take place in the order of the calls, and after what block operations and attention of the same
/// device were asked for before.
///
/// Threads: one pass at a time
class Operators {
 public:
  virtual ~Operators() = default;

  /// Whether the host may read what Data points to.
  virtual bool on_host() const = 0;
  /// Begins a pass over rows with these tokens at these positions: kHidden has their embeddings,
  /// unless another stage has these.
  /// Errors: kNoSpace no memory for so many rows
  virtual Result<void> Begin(std::span<const TokenId> tokens, std::span<const uint64_t> positions,
                             Executor& executor) = 0;
  /// What was asked for starts now, and the rest of the pass as it is asked for: the host is about
  /// to wait for something else, or gives the pass up.
  virtual void StopWaiting() {}
  /// Where rows lie, in the memory of the device; valid until the next Begin.
  virtual float* Data(Rows rows) = 0;

  /// kHidden, as the stage before left it.
  /// Shape: [rows, hidden], the host's
  virtual void PutHidden(std::span<const float> rows) {
    std::ranges::copy(rows, Data(Rows::kHidden));
  }
  /// kHidden, for the stage behind; there when the call returns.
  ///
  /// Shape:  [rows, hidden], the host's
  /// Errors: kIo the device failed at this or at anything before
  virtual Result<void> TakeHidden(std::span<float> rows) {
    std::copy_n(Data(Rows::kHidden), rows.size(), rows.data());
    return {};
  }
  /// kNormed = the norm of kHidden.
  virtual void Norm(const std::vector<float>& weight) = 0;
  /// y = x times the matrix; a bias, unless it is empty, joins the unrounded product.
  virtual void Multiply(const PackedMatrix& matrix, const std::vector<float>& bias, Rows x,
                        Rows y) = 0;
  /// Queries and keys of kQkv get norm and position; queries go to kQueries. `factors`: both are
  /// multiplied with those of the layer.
  virtual void Rotate(const LayerWeights& layer, bool factors) = 0;
  /// Rounds kAttended.
  virtual void RoundAttended() = 0;
  /// kGated from kGateUp.
  virtual void Gate() = 0;
  /// Adds kAdded to kHidden.
  virtual void Add() = 0;
  /// Add, then Norm.
  virtual void AddNorm(const std::vector<float>& weight) = 0;
  /// The logits of some rows of kHidden, there when the call returns.
  ///
  /// Shape:  outputs: for each of `rows` [vocab], the host's
  /// Errors: kIo the device failed at this or at anything before
  virtual Result<void> Logits(std::span<const uint32_t> rows, std::span<float* const> outputs) = 0;
};

/// Makes the operators of a device for a model, which outlives them.
using OperatorsFactory = std::function<Result<std::unique_ptr<Operators>>(const ForwardModel&)>;

/// Those of this machine's processor.
Result<std::unique_ptr<Operators>> MakeCpuOperators(const ForwardModel& model);

}  // namespace quire::model

#endif  // QUIRE_MODEL_OPERATORS_H_
