// Starts kernels on a CUDA stream: the interface between .cu files and the rest.
#ifndef QUIRE_CUDA_RUNTIME_LAUNCH_H_
#define QUIRE_CUDA_RUNTIME_LAUNCH_H_

#include "cuda/kernels/attend.h"
#include "cuda/kernels/blocks.h"
#include "cuda/kernels/floors.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/model.h"

struct CUstream_st;

namespace quire::cuda {

// Each returns the result of Launched (cuda/runtime/launched.h); 0: the launch is enqueued.
int LaunchSplits(const SplitsArgs& args, const SplitsLaunch& how, CUstream_st* stream);
int LaunchMma(const MmaArgs& args, const MmaLaunch& how, CUstream_st* stream);
int LaunchFold(const FoldArgs& args, uint32_t vectors, CUstream_st* stream);
int LaunchWrite(const WriteArgs& args, CUstream_st* stream);
int LaunchRead(const ReadArgs& args, CUstream_st* stream);
int LaunchEncode(const EncodeArgs& args, CUstream_st* stream);
int LaunchChecksum(const ChecksumArgs& args, CUstream_st* stream);
int LaunchMatmul(const MatmulArgs& args, CUstream_st* stream);
int LaunchMmaProduct(const MatmulArgs& args, CUstream_st* stream);
int LaunchEmbed(const EmbedArgs& args, CUstream_st* stream);
int LaunchNorm(const NormArgs& args, CUstream_st* stream);
int LaunchHeads(const HeadsArgs& args, CUstream_st* stream);
int LaunchGate(const GateArgs& args, CUstream_st* stream);
int LaunchAdd(const AddArgs& args, CUstream_st* stream);
int LaunchReadFloor(const ReadFloorArgs& args, CUstream_st* stream);
int LaunchMultiplyFloor(const MultiplyFloorArgs& args, CUstream_st* stream);
int LaunchMatrixFloor(const MatrixFloorArgs& args, CUstream_st* stream);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_LAUNCH_H_
