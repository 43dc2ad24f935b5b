// The result of a kernel's launch, and what a device has of the kernel. For .cu files: no header
// here needs std::expected.
#ifndef QUIRE_CUDA_RUNTIME_LAUNCHED_H_
#define QUIRE_CUDA_RUNTIME_LAUNCHED_H_

#include <cstdint>
#include <vector>

struct CUstream_st;

namespace quire::cuda {

/// The size of one launch.
struct Grid {
  uint32_t blocks = 0;
  uint32_t threads = 0;  // of each block
  uint32_t shared_bytes = 0;
};

/// A kernel as a device has it, in blocks of threads of one launch.
struct KernelUse {
  const char* name = nullptr;
  Grid grid{};
  uint32_t registers = 0;            // of a thread
  uint32_t local_bytes = 0;          // of a thread: arrays and spilled registers
  uint32_t blocks_of_processor = 0;  // that one runs at once
};

/// While it lives, launches by its thread start nothing: it has what they would have started.
class ListedLaunches {
 public:
  ListedLaunches();
  ~ListedLaunches();
  ListedLaunches(const ListedLaunches&) = delete;
  ListedLaunches& operator=(const ListedLaunches&) = delete;

  const std::vector<KernelUse>& uses() const { return uses_; }

  /// Of the calling thread; null: its launches start kernels.
  static ListedLaunches* Current();
  /// Returns `error`, CUDA's result of what was asked of `kernel` before, or that of questions
  /// about it.
  int Add(const char* name, const void* kernel, const Grid& grid, int error);

 private:
  std::vector<KernelUse> uses_;
};

/// Returns `error`, CUDA's result of a launch; with QUIRE_CUDA_SYNC=1 waits for `stream` and
/// returns the kernel's result. The first error of the process is logged with the launch: later
/// ones follow from it.
int Launched(const char* kernel, const Grid& grid, int error, CUstream_st* stream);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_LAUNCHED_H_
