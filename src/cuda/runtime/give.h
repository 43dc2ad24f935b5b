// Gives the launch of a kernel to a sink. For .cu files only.
#ifndef QUIRE_CUDA_RUNTIME_GIVE_H_
#define QUIRE_CUDA_RUNTIME_GIVE_H_

#include "cuda/kernel_launch.h"

namespace quire::cuda {

template <class Args>
void Give(const char* name, void (*kernel)(Args), const Grid& grid, LaunchSink& sink,
          const Args& args) {
  sink.Take(LaunchOf(name, reinterpret_cast<AnyKernel>(kernel), grid, args));
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_RUNTIME_GIVE_H_
