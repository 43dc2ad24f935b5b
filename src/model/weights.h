// The weights of one model, checked, hashed and packed for the matrix products while they are read.
#ifndef QUIRE_MODEL_WEIGHTS_H_
#define QUIRE_MODEL_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "env/reservation.h"
#include "model/config.h"
#include "model/matmul.h"
#include "model/stage.h"
#include "model/tensor_source.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// One tensor that a model of some config has.
struct TensorSpec {
  std::string name;
  std::vector<uint64_t> shape;
};

/// All tensors of a model, sorted by name.
std::vector<TensorSpec> TensorsOf(const ModelConfig& config);

/// Bytes of a stage's matrices, as they lie in memory.
uint64_t MatrixBytes(const ModelConfig& config, const LayerRange& layers, ComputeType type);

struct LayerWeights {
  std::vector<float> input_norm;      // [hidden]
  std::vector<float> attention_norm;  // [hidden], before the feed-forward
  std::vector<float> q_norm;          // [head_dim], or empty: the model has none
  std::vector<float> k_norm;          // [head_dim], or empty
  PackedMatrix qkv;                   // [query_dim + 2 kv_dim, hidden]: q, k, v rows
  PackedMatrix out;                   // [hidden, query_dim]
  PackedMatrix gate_up;               // [2 intermediate, hidden]: gate, up rows
  PackedMatrix down;                  // [hidden, intermediate]
  std::vector<float> qkv_bias;        // by the rows of its matrix, as the three below; or empty
  std::vector<float> out_bias;
  std::vector<float> gate_up_bias;
  std::vector<float> down_bias;
  // Powers of two; where K is encoded, keys and queries are multiplied with them (FindKeyFactors).
  std::vector<float> key_factors;    // [kv_heads, head_dim]
  std::vector<float> query_factors;  // [query_heads, head_dim]: inverses of their KV head's
};

/// Bytes done and to do.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

struct WeightsOptions {
  /// Where the values of matrices lie. Pairs are of bf16.
  PanelOrder order = PanelOrder::kSingles;
  /// Bytes of weights read so far; may be empty.
  LoadProgress progress = {};
};

class Weights {
 public:
  /// Reads every tensor of the config from the source, in the order of their names.
  ///
  /// Errors: kCorrupt a tensor is missing or has another shape; kUnsupported matrices of different
  ///         types, or of one that has no such order, a tensor that the config does not call for;
  ///         kNoSpace; what the source says.
  ///         The message names source, tensor, shape expected and found
  static Result<std::unique_ptr<Weights>> Load(const TensorSource& source,
                                               const ModelConfig& config,
                                               const WeightsOptions& options) {
    return Load(source, config, AllLayers(config), options);
  }
  /// The same of a stage, of whose tensors alone the bytes are read. All tensors are checked.
  static Result<std::unique_ptr<Weights>> Load(const TensorSource& source,
                                               const ModelConfig& config, const LayerRange& layers,
                                               const WeightsOptions& options);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  /// Of all matrices. Norm weights and biases are kept in f32 whatever their type.
  ComputeType type() const { return type_; }
  // [vocab, hidden]; the head may be the embedding. Without panels: another stage has it.
  const PackedMatrix& embedding() const { return embedding_; }
  const PackedMatrix& head() const { return head_; }
  const std::vector<float>& final_norm() const { return final_norm_; }  // empty: likewise
  const std::vector<LayerWeights>& layers() const { return layers_; }   // of the stage
  /// BLAKE2b-256 over what in the config shapes the values, every tensor's name, type, shape and
  /// bytes in order of names, and the factors of every layer's keys. Of a stage: over what it has,
  /// and which layers these are.
  const Digest& fingerprint() const { return fingerprint_; }
  /// Bytes of all matrices as packed.
  uint64_t bytes() const { return arena_->bytes(); }

 private:
  class Loader;
  Weights() = default;

  ComputeType type_ = ComputeType::kF32;
  PackedMatrix embedding_;
  PackedMatrix head_;
  std::vector<float> final_norm_;
  std::vector<LayerWeights> layers_;
  Digest fingerprint_{};
  std::unique_ptr<DeviceMemory> memory_;
  std::optional<Reservation> arena_;
};

/// Chooses the layer's key_factors and query_factors from its weights alone, by docs/codecs.md
/// ("Factors"): powers of two, the same for both channels of a rotary pair and for all query heads
/// of a KV head. The layer's matrices, norms and biases must be loaded.
///
/// Cost: reads the rows of q_proj and k_proj once
void FindKeyFactors(const ModelConfig& config, LayerWeights& layer);

}  // namespace quire::model

#endif  // QUIRE_MODEL_WEIGHTS_H_
