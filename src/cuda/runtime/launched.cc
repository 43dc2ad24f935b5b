#include "cuda/runtime/launched.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"

namespace quire::cuda {
namespace {

/// More shared memory than this is had by those kernels only that ask for it before.
constexpr uint32_t kSharedUnasked = 48 * 1024;

const void* FunctionOf(const KernelLaunch& launch) {
  return reinterpret_cast<const void*>(launch.kernel);
}

/// The shared memory that kernels were allowed so far: it only grows, as graphs have launches of
/// earlier sizes.
///
/// Threads: any
class AllowedShared {
 public:
  /// Of the current device.
  cudaError_t Allow(const void* function, uint32_t bytes) {
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
    MutexLock lock(mutex_);
    uint32_t& allowed = bytes_[{device, function}];
    if (bytes <= allowed) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(
        function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error == cudaSuccess) allowed = bytes;
    return error;
  }

 private:
  Mutex mutex_{LockRank::kLeaf};
  std::map<std::pair<int, const void*>, uint32_t> bytes_ QUIRE_GUARDED_BY(mutex_);
};

/// What a kernel needs before it is launched or joins a graph.
cudaError_t AskForShared(const KernelLaunch& launch) {
  static AllowedShared* const allowed = new AllowedShared;  // outlives all devices
  if (launch.grid.shared_bytes <= kSharedUnasked) return cudaSuccess;
  return allowed->Allow(FunctionOf(launch), launch.grid.shared_bytes);
}

/// `args` has the address of the launch's arguments and must stay.
cudaKernelNodeParams ParamsOf(const KernelLaunch& launch, void** args) {
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(FunctionOf(launch));
  params.gridDim = dim3(launch.grid.blocks);
  params.blockDim = dim3(launch.grid.threads);
  params.sharedMemBytes = launch.grid.shared_bytes;
  params.kernelParams = args;
  return params;
}

}  // namespace

bool WaitsForEach() {
  static const bool waits = [] {
    const char* const asked = std::getenv("QUIRE_CUDA_SYNC");
    return asked != nullptr && asked == std::string_view("1");
  }();
  return waits;
}

int StartKernel(const KernelLaunch& launch, CUstream_st* stream) {
  cudaError_t error = AskForShared(launch);
  if (error == cudaSuccess) {
    void* args[] = {const_cast<void*>(launch.args)};
    error = cudaLaunchKernel(FunctionOf(launch), dim3(launch.grid.blocks),
                             dim3(launch.grid.threads), args, launch.grid.shared_bytes, stream);
  }
  // The runtime keeps the error, too: later calls must not see it.
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return Launched(launch, error, stream);
}

int Launched(const KernelLaunch& launch, int error, CUstream_st* stream) {
  static std::atomic<bool> logged = false;
  const bool waits = WaitsForEach();
  if (error == cudaSuccess && waits) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess && !logged.exchange(true)) {
    LogError("cuda: {} in {} blocks of {} threads with {} bytes of shared memory: {}{}",
             launch.name, launch.grid.blocks, launch.grid.threads, launch.grid.shared_bytes,
             cudaGetErrorString(static_cast<cudaError_t>(error)),
             waits ? "" : "; a kernel before it may be the cause: QUIRE_CUDA_SYNC=1 tells which");
  }
  return error;
}

struct CudaGraph::Handles {
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> nodes{};  // each after the one before
  cudaGraphExec_t instance = nullptr;
};

CudaGraph::~CudaGraph() {
  if (handles_ == nullptr) return;
  if (handles_->instance != nullptr) cudaGraphExecDestroy(handles_->instance);
  if (handles_->graph != nullptr) cudaGraphDestroy(handles_->graph);
}

int CudaGraph::Make(const LaunchList& launches) {
  handles_ = std::make_unique<Handles>();
  cudaError_t error = cudaGraphCreate(&handles_->graph, 0);
  for (uint32_t i = 0; i < launches.size() && error == cudaSuccess; ++i) {
    const KernelLaunch launch = launches[i];
    void* args[] = {const_cast<void*>(launch.args)};
    const cudaKernelNodeParams params = ParamsOf(launch, args);
    cudaGraphNode_t node = nullptr;
    error = AskForShared(launch);
    if (error != cudaSuccess) break;
    error =
        cudaGraphAddKernelNode(&node, handles_->graph, i == 0 ? nullptr : &handles_->nodes[i - 1],
                               i == 0 ? 0 : 1, &params);
    handles_->nodes.push_back(node);
  }
  if (error == cudaSuccess) error = cudaGraphInstantiate(&handles_->instance, handles_->graph, 0);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // returned, as above
  return error;
}

int CudaGraph::Set(uint32_t at, const KernelLaunch& launch) {
  void* args[] = {const_cast<void*>(launch.args)};
  const cudaKernelNodeParams params = ParamsOf(launch, args);
  cudaError_t error = AskForShared(launch);
  if (error == cudaSuccess) {
    error = cudaGraphExecKernelNodeSetParams(handles_->instance, handles_->nodes[at], &params);
  }
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

int CudaGraph::Start(CUstream_st* stream) {
  const cudaError_t error = cudaGraphLaunch(handles_->instance, stream);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

void ListedLaunches::Take(const KernelLaunch& launch) {
  cudaFuncAttributes attributes{};
  int blocks = 0;
  cudaError_t error = AskForShared(launch);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, FunctionOf(launch));
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, FunctionOf(launch),
                                                          static_cast<int>(launch.grid.threads),
                                                          launch.grid.shared_bytes);
  }
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    if (error_ == cudaSuccess) error_ = error;
    return;
  }
  uses_.push_back({.name = launch.name,
                   .grid = launch.grid,
                   .registers = static_cast<uint32_t>(attributes.numRegs),
                   .local_bytes = static_cast<uint32_t>(attributes.localSizeBytes),
                   .blocks_of_processor = static_cast<uint32_t>(blocks)});
}

}  // namespace quire::cuda
