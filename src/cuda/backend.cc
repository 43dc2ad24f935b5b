#include "cuda/backend.h"

#include <utility>

#include "cuda/block_ops.h"
#include "cuda/host/host_device.h"
#include "cuda/operators.h"

namespace quire::cuda {

Result<std::unique_ptr<Backend>> Backend::Make(std::string name, std::unique_ptr<Device> device,
                                               std::unique_ptr<GranuleDriver> driver,
                                               const BackendOptions& options) {
  auto backend = std::unique_ptr<Backend>(new Backend(options));
  backend->device_ = std::move(device);
  backend->driver_ = std::move(driver);
  backend->memory_ = backend->driver_ == nullptr
                         ? MakeEmulatedMemory(*backend->device_)
                         : MakeGranuleMemory(std::move(name), *backend->driver_, *backend->device_);
  QUIRE_ASSIGN(backend->ops_, MakeBlockOps(*backend->device_));
  return backend;
}

void Backend::Choose(CacheOptions& options) const {
  options.memory = memory_.get();
  options.ops = ops_.get();
  options.profile.arithmetic = ArithmeticClass(arithmetic(), device_->target());
}

void Backend::Choose(DiskStoreOptions& options) const {
  options.host_allocator = &device_->host_allocator();
}

std::unique_ptr<AttentionBackend> Backend::MakeAttention(AttentionOptions options) {
  options.arithmetic = arithmetic();
  options.bulk_copies = options_.bulk_copies;
  return cuda::MakeAttention(*device_, options);
}

model::OperatorsFactory Backend::operators() {
  return [this](const model::ForwardModel& model) {
    return MakeOperators(*device_, model, {.arithmetic = arithmetic(), .graphs = options_.graphs});
  };
}

Result<std::unique_ptr<Backend>> MakeEmulatedBackend(const BackendOptions& options) {
  constexpr uint64_t kSeed = 1;
  auto streams = std::make_unique<LateStreams>("emulated", kSeed);
  auto device = MakeHostDevice(streams.get());
  QUIRE_ASSIGN(auto backend,
               Backend::Make("emulated", std::move(device), /*driver=*/nullptr, options));
  backend->streams_ = std::move(streams);
  return backend;
}

}  // namespace quire::cuda
