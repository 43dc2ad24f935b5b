// Launches of kernels: the interface between .cu files and the rest.
#ifndef QUIRE_CUDA_RUNTIME_LAUNCH_H_
#define QUIRE_CUDA_RUNTIME_LAUNCH_H_

#include "cuda/kernel_launch.h"
#include "cuda/kernels/attend.h"
#include "cuda/kernels/blocks.h"
#include "cuda/kernels/floors.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/model.h"

namespace quire::cuda {

// Each gives its launch to the sink, once.
void LaunchSplits(const SplitsArgs& args, const SplitsLaunch& how, LaunchSink& sink);
void LaunchMma(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink);
void LaunchFold(const FoldArgs& args, uint32_t vectors, LaunchSink& sink);
void LaunchWrite(const WriteArgs& args, LaunchSink& sink);
void LaunchRead(const ReadArgs& args, LaunchSink& sink);
void LaunchEncode(const EncodeArgs& args, LaunchSink& sink);
void LaunchChecksum(const ChecksumArgs& args, LaunchSink& sink);
void LaunchMatmul(const MatmulArgs& args, LaunchSink& sink);
void LaunchMmaProduct(const MatmulArgs& args, LaunchSink& sink);
void LaunchEmbed(const EmbedArgs& args, LaunchSink& sink);
void LaunchNorm(const NormArgs& args, LaunchSink& sink);
void LaunchHeads(const HeadsArgs& args, LaunchSink& sink);
void LaunchGate(const GateArgs& args, LaunchSink& sink);
void LaunchAdd(const AddArgs& args, LaunchSink& sink);
void LaunchReadFloor(const ReadFloorArgs& args, LaunchSink& sink);
void LaunchMultiplyFloor(const MultiplyFloorArgs& args, LaunchSink& sink);
void LaunchMatrixFloor(const MatrixFloorArgs& args, LaunchSink& sink);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_LAUNCH_H_
