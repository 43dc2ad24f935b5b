// A low-rank adapter of a model (LoRA): what it adds to the products of each layer.
//
//   auto adapter = Adapter::Load("adapters/tone", model.config());
//   StepItem item{..., .adapter = adapter->get()};
#ifndef QUIRE_MODEL_ADAPTER_H_
#define QUIRE_MODEL_ADAPTER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "env/reservation.h"
#include "model/adapter_config.h"
#include "model/config.h"
#include "model/matmul.h"
#include "model/tensor_source.h"
#include "model/weights.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// What is added to some outputs of a product: scale * up (down x).
struct LowRank {
  PackedMatrix down;          // A: [rank, inputs]
  PackedMatrix up;            // B: [columns, rank]
  uint32_t first_column = 0;  // of the product's outputs
  float scale = 1;
};

/// Parts of each product, of those of its modules that the adapter changes.
struct AdapterLayer {
  std::vector<LowRank> qkv{};
  std::vector<LowRank> out{};
  std::vector<LowRank> gate_up{};
  std::vector<LowRank> down{};
};

/// Threads: any, once it is loaded
class Adapter {
 public:
  /// Reads adapter_config.json and adapter_model.safetensors of a directory as PEFT writes it. At
  /// most `bytes_max` of weights are read.
  ///
  /// Errors: those of ParseAdapterConfig and Safetensors::Open; kCorrupt a tensor has another shape
  ///         than the model's module, or its other half is missing; kUnsupported a module that has
  ///         no product here, or tensors of several types; kTooLarge; kNoSpace. The message names
  ///         the file and the tensor
  static Result<std::unique_ptr<Adapter>> Load(const std::string& directory,
                                               const ModelConfig& model,
                                               uint64_t bytes_max = UINT64_MAX);
  /// The same from any source.
  static Result<std::unique_ptr<Adapter>> Create(const AdapterConfig& config,
                                                 const TensorSource& source,
                                                 const ModelConfig& model,
                                                 uint64_t bytes_max = UINT64_MAX);
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  /// [layers of the model]
  const std::vector<AdapterLayer>& layers() const { return layers_; }
  /// BLAKE2b-256 over each module's name, scale and both matrices, layer by layer.
  const Digest& digest() const { return digest_; }
  /// Largest of all modules.
  uint32_t rank() const { return rank_; }
  /// Modules it changes, over all layers.
  uint32_t modules() const { return modules_; }
  /// Bytes of all matrices as packed.
  uint64_t bytes() const { return arena_->bytes(); }

 private:
  class Loader;
  Adapter() = default;

  std::vector<AdapterLayer> layers_;
  Digest digest_{};
  uint32_t rank_ = 0;
  uint32_t modules_ = 0;
  std::unique_ptr<DeviceMemory> memory_;
  std::optional<Reservation> arena_;
};

/// Tensors of an adapter of one rank that changes every module it can, by their names in the file.
std::vector<TensorSpec> AdapterTensorsOf(const ModelConfig& model, uint32_t rank);

/// Bytes that an adapter of one rank takes, if it changes every module it can.
uint64_t AdapterBytes(const ModelConfig& model, uint32_t rank, ComputeType type);

}  // namespace quire::model

#endif  // QUIRE_MODEL_ADAPTER_H_
