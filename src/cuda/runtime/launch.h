// Starts kernels on a CUDA stream: the seam between .cu files and the rest.
#ifndef QUIRE_CUDA_LAUNCH_H_
#define QUIRE_CUDA_LAUNCH_H_

#include "cuda/attend.h"

struct CUstream_st;

namespace quire::cuda {

/// What cudaGetLastError says afterwards; 0: the launch is enqueued.
int LaunchSplits(const SplitsArgs& args, const SplitsLaunch& how, CUstream_st* stream);
int LaunchFold(const FoldArgs& args, uint32_t vectors, CUstream_st* stream);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_LAUNCH_H_
