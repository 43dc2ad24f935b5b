// What becomes of launches on CUDA: they start, alone or as a graph, or are listed.
#ifndef QUIRE_CUDA_RUNTIME_LAUNCHED_H_
#define QUIRE_CUDA_RUNTIME_LAUNCHED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/kernel_launch.h"
#include "cuda/pass_launches.h"

struct CUstream_st;

namespace quire::cuda {

/// Enqueues a kernel. With QUIRE_CUDA_SYNC=1 waits for the stream, so the result is the kernel's.
/// Returns CUDA's error. The first error of the process is logged with the launch: later ones
/// follow from it.
int StartKernel(const KernelLaunch& launch, CUstream_st* stream);
/// The second half of StartKernel: `error` is CUDA's result of the launch.
int Launched(const KernelLaunch& launch, int error, CUstream_st* stream);
/// Whether each kernel is waited for: QUIRE_CUDA_SYNC=1.
bool WaitsForEach();

/// Launches as a CUDA graph.
class CudaGraph {
 public:
  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Each returns CUDA's error.
  int Make(const LaunchList& launches);
  int Set(uint32_t at, const KernelLaunch& launch);
  int Start(CUstream_st* stream);

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

/// A kernel as a device has it, in blocks of threads of one launch.
struct KernelUse {
  const char* name = nullptr;
  Grid grid{};
  uint32_t registers = 0;            // of a thread
  uint32_t local_bytes = 0;          // of a thread: arrays and spilled registers
  uint32_t blocks_of_processor = 0;  // that one runs at once
};

/// Starts nothing: it has what would have started.
class ListedLaunches final : public LaunchSink {
 public:
  void Take(const KernelLaunch& launch) override;

  const std::vector<KernelUse>& uses() const { return uses_; }
  /// CUDA's first error; the launch is not among the uses.
  int error() const { return error_; }

 private:
  std::vector<KernelUse> uses_;
  int error_ = 0;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_LAUNCHED_H_
