// The device of a program: its memory, block operations, attention and model operators, to be given
// to caches, models and engines together.
#ifndef QUIRE_CUDA_BACKEND_H_
#define QUIRE_CUDA_BACKEND_H_

#include <memory>
#include <string>

#include "cuda/arithmetic.h"
#include "cuda/attention.h"
#include "cuda/device.h"
#include "cuda/granule_memory.h"
#include "env/late_streams.h"
#include "model/operators.h"
#include "quire/attention.h"
#include "quire/block_ops.h"
#include "quire/cache.h"
#include "quire/disk_store.h"

namespace quire::cuda {

struct BackendOptions {
  Arithmetic arithmetic = Arithmetic::kFma32;
  bool bulk_copies = true;  // where the device has them (AttentionOptions::bulk_copies)
  bool graphs = true;       // of a pass (OperatorsOptions::graphs)
};

/// Lifetime: must outlive the objects made with it
class Backend {
 public:
  /// `driver` is null where the device is the host. All objects made with the backend are of one
  /// arithmetic class.
  /// Errors: kNoSpace the device has no memory for block operations
  static Result<std::unique_ptr<Backend>> Make(std::string name, std::unique_ptr<Device> device,
                                               std::unique_ptr<GranuleDriver> driver,
                                               const BackendOptions& options);

  /// A cache with these options has its arenas here, and blocks of this arithmetic class.
  void Choose(CacheOptions& options) const;
  /// The memory of a store is placed where copies to and from the device do not wait.
  void Choose(DiskStoreOptions& options) const;
  /// `options` but for what the backend's own say.
  std::unique_ptr<AttentionBackend> MakeAttention(AttentionOptions options = {});
  model::OperatorsFactory operators();
  Device& device() { return *device_; }
  Arithmetic arithmetic() const { return options_.arithmetic; }

 private:
  explicit Backend(const BackendOptions& options) : options_(options) {}

  friend Result<std::unique_ptr<Backend>> MakeEmulatedBackend(const BackendOptions& options);

  const BackendOptions options_;
  std::unique_ptr<LateStreams> streams_;  // of the device that is the host; else null
  std::unique_ptr<Device> device_;
  std::unique_ptr<GranuleDriver> driver_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<BlockOps> ops_;
};

/// The kernels of devices on this machine's processor, a thread at a time, on streams that are late
/// and in random order where Order was not called: slow, for checks.
Result<std::unique_ptr<Backend>> MakeEmulatedBackend(const BackendOptions& options = {});

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_BACKEND_H_
