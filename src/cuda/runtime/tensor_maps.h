// Tensor maps of CUDA: how bulk copies read arrays (cuda/kernels/bulk.h).
#ifndef QUIRE_CUDA_RUNTIME_TENSOR_MAPS_H_
#define QUIRE_CUDA_RUNTIME_TENSOR_MAPS_H_

#include "cuda/kernels/bulk.h"
#include "quire/error.h"

namespace quire::cuda {

/// Whether the driver can make tensor maps. The device has to be of sm_90 or later, too.
bool CanMakeTensorMaps();

/// Needs:  CanMakeTensorMaps
/// Errors: kUnsupported the driver refuses the array
Result<TensorMap> MakeTensorMap(const BoxedArray& array);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_TENSOR_MAPS_H_
