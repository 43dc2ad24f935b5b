// The result of a kernel's launch. For .cu files: no header here needs std::expected.
#ifndef QUIRE_CUDA_RUNTIME_LAUNCHED_H_
#define QUIRE_CUDA_RUNTIME_LAUNCHED_H_

#include <cstdint>

struct CUstream_st;

namespace quire::cuda {

/// The size of one launch.
struct Grid {
  uint32_t blocks = 0;
  uint32_t threads = 0;  // of each block
  uint32_t shared_bytes = 0;
};

/// Returns `error`, CUDA's result of a launch; with QUIRE_CUDA_SYNC=1 waits for `stream` and
/// returns the kernel's result. The first error of the process is logged with the launch: later
/// ones follow from it.
int Launched(const char* kernel, const Grid& grid, int error, CUstream_st* stream);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_LAUNCHED_H_
