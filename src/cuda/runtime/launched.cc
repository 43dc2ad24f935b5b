#include "cuda/runtime/launched.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/log.h"

namespace quire::cuda {
namespace {

bool WaitsForEach() {
  static const bool waits = [] {
    const char* const asked = std::getenv("QUIRE_CUDA_SYNC");
    return asked != nullptr && asked == std::string_view("1");
  }();
  return waits;
}

thread_local ListedLaunches* listed = nullptr;

}  // namespace

ListedLaunches::ListedLaunches() { listed = this; }
ListedLaunches::~ListedLaunches() { listed = nullptr; }
ListedLaunches* ListedLaunches::Current() { return listed; }

int ListedLaunches::Add(const char* name, const void* kernel, const Grid& grid, int error) {
  cudaFuncAttributes attributes{};
  int blocks = 0;
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, static_cast<int>(grid.threads), grid.shared_bytes);
  }
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // it is returned, so later launches must not see it
    return error;
  }
  uses_.push_back({.name = name,
                   .grid = grid,
                   .registers = static_cast<uint32_t>(attributes.numRegs),
                   .local_bytes = static_cast<uint32_t>(attributes.localSizeBytes),
                   .blocks_of_processor = static_cast<uint32_t>(blocks)});
  return cudaSuccess;
}

int Launched(const char* kernel, const Grid& grid, int error, CUstream_st* stream) {
  static std::atomic<bool> logged = false;
  const bool waits = WaitsForEach();
  if (error == cudaSuccess && waits) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess && !logged.exchange(true)) {
    LogError("cuda: {} in {} blocks of {} threads with {} bytes of shared memory: {}{}", kernel,
             grid.blocks, grid.threads, grid.shared_bytes,
             cudaGetErrorString(static_cast<cudaError_t>(error)),
             waits ? "" : "; a kernel before it may be the cause: QUIRE_CUDA_SYNC=1 tells which");
  }
  return error;
}

}  // namespace quire::cuda
