// Weights in several safetensors files: model.safetensors.index.json says which tensor is in which.
#ifndef QUIRE_MODEL_SHARDS_H_
#define QUIRE_MODEL_SHARDS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/safetensors.h"
#include "model/tensor_source.h"
#include "quire/error.h"

namespace quire::model {

/// Most files of one model: each is open while the model is read. The largest released have 200.
inline constexpr size_t kShardsMax = 512;

class ShardedTensors final : public TensorSource {
 public:
  /// Opens every file that the index names, all beside the index.
  ///
  /// Errors: kNotFound no index, or a file that it names is not there; kCorrupt the index is no
  ///         JSON or names a tensor twice, a file's name is not a plain one, a tensor is not in the
  ///         file said to hold it, or is in another as well; what Safetensors::Open says. The
  ///         message names index, file and tensor
  static Result<ShardedTensors> Open(const std::string& index_path);

  /// Of the index.
  const std::string& path() const override { return path_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  /// Errors: kCorrupt the file became shorter since it was opened; kIo
  Result<void> Read(const TensorInfo& tensor, uint64_t offset_bytes,
                    std::span<std::byte> out) const override;

 private:
  struct Placed {
    TensorInfo tensor;
    uint32_t shard;
  };
  ShardedTensors(std::string path, std::vector<Safetensors> shards, std::vector<Placed> placed);

  std::string path_;
  std::vector<Safetensors> shards_;
  std::vector<TensorInfo> tensors_;  // by name
  std::vector<uint32_t> shard_of_;   // [tensors]
};

/// The weights of a directory: model.safetensors, and only where there is none the files of
/// model.safetensors.index.json.
/// Errors: those of Safetensors::Open or ShardedTensors::Open
Result<std::unique_ptr<TensorSource>> OpenWeights(const std::string& directory);

}  // namespace quire::model

#endif  // QUIRE_MODEL_SHARDS_H_
