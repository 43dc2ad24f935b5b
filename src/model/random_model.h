// Models with random weights: any shape, from a seed, in memory or as a Hugging Face directory. For
// tests and benchmarks.
#ifndef QUIRE_MODEL_RANDOM_MODEL_H_
#define QUIRE_MODEL_RANDOM_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "model/config.h"
#include "model/tensor_source.h"
#include "model/weights.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// A small Qwen3 that every field of can be changed: 2 layers, hidden 64, 4 query heads on 2 KV
/// heads of dim 32, vocabulary 96.
ModelConfig SmallConfig();

/// Weights made up as they are read: the same bytes for the same config, type and seed. Matrices
/// are uniform with variance 1 / inputs, so activations keep their size; norm weights are near one,
/// biases near zero.
class RandomTensors final : public TensorSource {
 public:
  RandomTensors(const ModelConfig& config, ComputeType type, uint64_t seed);
  /// The same of any names and shapes, such as AdapterTensorsOf.
  RandomTensors(std::vector<TensorSpec> specs, ComputeType type, uint64_t seed);

  const std::string& path() const override { return path_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override;

 private:
  std::string path_ = "random weights";
  uint64_t seed_;
  std::vector<TensorInfo> tensors_;
};

/// config.json as transformers would write it.
std::string ConfigJson(const ModelConfig& config);

/// An adapter of every module with random weights, in memory.
std::unique_ptr<Adapter> RandomAdapter(const ModelConfig& config, uint32_t rank, ComputeType type,
                                       uint64_t seed);

/// Writes adapter_config.json and adapter_model.safetensors into an existing directory.
/// Errors: those of writing files
Result<void> WriteAdapter(const ModelConfig& config, uint32_t rank, ComputeType type, uint64_t seed,
                          const std::string& directory);

/// Writes config.json and model.safetensors into an existing directory.
/// Errors: those of writing files
Result<void> WriteModel(const ModelConfig& config, const TensorSource& tensors,
                        const std::string& directory);

}  // namespace quire::model

#endif  // QUIRE_MODEL_RANDOM_MODEL_H_
