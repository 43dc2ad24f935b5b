// A launch of a kernel, as a device starts it. Plain: .cu files include it, which cannot have
// std::expected.
#ifndef QUIRE_CUDA_KERNEL_LAUNCH_H_
#define QUIRE_CUDA_KERNEL_LAUNCH_H_

#include <cstdint>

namespace quire::cuda {

/// The queues of a device: launches with their arguments, and beside those copies from the host's
/// memory and copies to it, and checksums of the bytes copied either way.
enum class Stream : uint8_t { kCompute = 0, kIn = 1, kOut = 2, kInSums = 3, kOutSums = 4 };
inline constexpr Stream kStreams[] = {Stream::kCompute, Stream::kIn, Stream::kOut, Stream::kInSums,
                                      Stream::kOutSums};

/// The size of one launch.
struct Grid {
  uint32_t blocks = 0;
  uint32_t threads = 0;  // of each block
  uint32_t shared_bytes = 0;

  friend bool operator==(const Grid&, const Grid&) = default;
};

/// A kernel of any arguments: the device whose it is knows its type.
using AnyKernel = void (*)();

struct KernelLaunch {
  const char* name = nullptr;  // "RunSplits"
  AnyKernel kernel = nullptr;
  Grid grid{};
  const void* args = nullptr;  // one struct; valid during the call that the launch is given to
  uint32_t args_bytes = 0;
  // Whether two structs of this type are equal: what lies between their members may be anything.
  bool (*args_equal)(const void* a, const void* b) = nullptr;
};

/// Arguments are kept so aligned: a tensor map among them needs it.
inline constexpr uint32_t kArgsAlignment = 128;

template <class Args>
KernelLaunch LaunchOf(const char* name, AnyKernel kernel, const Grid& grid, const Args& args) {
  static_assert(alignof(Args) <= kArgsAlignment);
  return {.name = name,
          .kernel = kernel,
          .grid = grid,
          .args = &args,
          .args_bytes = sizeof(Args),
          .args_equal = [](const void* a, const void* b) {
            return *static_cast<const Args*>(a) == *static_cast<const Args*>(b);
          }};
}

/// Takes launches one at a time.
class LaunchSink {
 public:
  virtual void Take(const KernelLaunch& launch) = 0;

 protected:
  ~LaunchSink() = default;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNEL_LAUNCH_H_
