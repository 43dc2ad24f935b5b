#include "cuda/place.h"

#include <utility>

#include "cuda/attention.h"
#include "cuda/block_ops.h"
#include "cuda/host_device.h"
#include "cuda/operators.h"

namespace quire::cuda {

Result<std::unique_ptr<Place>> Place::Make(std::string name, std::unique_ptr<Device> device,
                                           std::unique_ptr<GranuleDriver> driver) {
  auto place = std::unique_ptr<Place>(new Place());
  place->device_ = std::move(device);
  place->driver_ = std::move(driver);
  if (place->driver_ != nullptr) {
    place->memory_ = MakeGranuleMemory(std::move(name), *place->driver_, *place->device_);
  }
  QUIRE_ASSIGN(place->ops_, MakeBlockOps(*place->device_));
  return place;
}

void Place::Choose(CacheOptions& options) const {
  options.memory = memory_.get();
  options.ops = ops_.get();
}

std::unique_ptr<AttentionBackend> Place::MakeAttention() { return cuda::MakeAttention(*device_); }

model::OperatorsFactory Place::operators() {
  return [this](const model::ForwardModel& model) { return MakeOperators(*device_, model); };
}

Result<std::unique_ptr<Place>> MakeEmulatedPlace() {
  return Place::Make("emulated", MakeHostDevice(), nullptr);
}

}  // namespace quire::cuda
