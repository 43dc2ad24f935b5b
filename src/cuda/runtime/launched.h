// What became of a kernel's launch. For .cu files: no header here needs std::expected.
#ifndef QUIRE_CUDA_RUNTIME_LAUNCHED_H_
#define QUIRE_CUDA_RUNTIME_LAUNCHED_H_

#include <cstdint>

struct CUstream_st;

namespace quire::cuda {

/// What one launch asks of a device.
struct Grid {
  uint32_t blocks = 0;
  uint32_t threads = 0;  // of each block
  uint32_t shared_bytes = 0;
};

/// Gives `error`, what CUDA said of a launch; with QUIRE_CUDA_SYNC=1 waits for `stream` and gives
/// what the kernel came to. The first error of the process is logged with what was launched: those
/// after it follow from it.
int Launched(const char* kernel, const Grid& grid, int error, CUstream_st* stream);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_LAUNCHED_H_
