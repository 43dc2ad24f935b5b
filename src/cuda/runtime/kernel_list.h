// What a device has of each kernel: registers, local memory, how many blocks of threads one of its
// processors runs at once.
#ifndef QUIRE_CUDA_RUNTIME_KERNEL_LIST_H_
#define QUIRE_CUDA_RUNTIME_KERNEL_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "quire/error.h"

namespace quire::cuda {

struct ListedKernel {
  std::string name;           // "RunSplits"
  std::string of;             // "int8, 8 query vectors"; empty: there is one
  uint32_t threads = 0;       // of a block
  uint32_t shared_bytes = 0;  // of a block
  uint32_t registers = 0;     // of a thread
  uint32_t local_bytes = 0;   // of a thread: arrays and spilled registers
  uint32_t blocks = 0;        // that a processor runs at once; 0: the device has no room for one
  double occupancy = 0.0;     // their threads, as a share of those that a processor has room for
};

/// All kernels but those of floors, launched as for 16 query heads on 8 KV heads of 128 channels.
/// Those of bulk copies are left out where the device has none.
///
/// Errors: kIo with the driver's message
Result<std::vector<ListedKernel>> ListKernels(uint32_t device);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_KERNEL_LIST_H_
