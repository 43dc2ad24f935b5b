// A model's pass on a device (model/operators.h). In fma32 it has the bits of the CPU; in mma16
// products of weights of 16 bits have another order (docs/numerics.md section 5).
#ifndef QUIRE_CUDA_OPERATORS_H_
#define QUIRE_CUDA_OPERATORS_H_

#include <cstdint>
#include <memory>

#include "cuda/arithmetic.h"
#include "cuda/device.h"
#include "model/operators.h"

namespace quire::cuda {

struct OperatorsOptions {
  Arithmetic arithmetic = Arithmetic::kFma32;
  // The launches of a pass start together, as graphs where they repeat (Device::BeginPass).
  bool graphs = true;
};

/// Copies the model's weights to the device.
///
/// Errors:   kNoSpace the device has no room for them
/// Lifetime: not longer than the device and the model
Result<std::unique_ptr<model::Operators>> MakeOperators(Device& device,
                                                        const model::ForwardModel& model,
                                                        const OperatorsOptions& options = {});

/// Memory of the device that a pass over so many rows takes, beside weights, blocks and attention.
uint64_t PassBytes(const model::ModelConfig& config, uint32_t rows);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_OPERATORS_H_
