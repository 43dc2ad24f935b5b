// A model's pass on a device (model/operators.h), with the bits of the CPU.
#ifndef QUIRE_CUDA_OPERATORS_H_
#define QUIRE_CUDA_OPERATORS_H_

#include <memory>

#include "cuda/device.h"
#include "model/operators.h"

namespace quire::cuda {

/// Copies the model's weights to the device.
///
/// Errors:   kNoSpace the device has no room for them
/// Lifetime: not longer than the device and the model
Result<std::unique_ptr<model::Operators>> MakeOperators(Device& device,
                                                        const model::ForwardModel& model);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_OPERATORS_H_
