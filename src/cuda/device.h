// The device interface of this layer's backends: memory, copies and launches on its streams. CUDA's
// is in cuda_device.cc; tests have one that runs kernels on the host.
#ifndef QUIRE_CUDA_DEVICE_H_
#define QUIRE_CUDA_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "cuda/kernel_launch.h"
#include "cuda/kernels/attend.h"
#include "cuda/kernels/blocks.h"
#include "cuda/kernels/bulk.h"
#include "cuda/kernels/floors.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/model.h"
#include "cuda/pass_launches.h"
#include "cuda/waiting_blocks.h"
#include "env/host_buffer.h"
#include "quire/block_ops.h"
#include "quire/env.h"
#include "quire/error.h"

namespace quire::cuda {

/// Equal runs of bytes in two memories: `count` of `bytes` each.
struct CopyShape {
  uint32_t count = 1;
  uint64_t bytes = 0;
  uint64_t from_stride_bytes = 0;
  uint64_t to_stride_bytes = 0;
};

/// Where no stream is named, it is kCompute.
///
/// Threads: any; calls of one thread on one stream take place in its order
class Device : public LaunchStarter {
 public:
  /// "sm_90".
  virtual std::string_view target() const = 0;
  /// Bytes that a block of threads has at most.
  virtual uint32_t shared_bytes_max() const = 0;

  /// Memory of the device, aligned to 256 bytes.
  /// Errors: kNoSpace with the number of bytes asked for
  virtual Result<void*> Allocate(uint64_t bytes) = 0;
  /// Takes place in the order of kCompute. Null: nothing is freed.
  virtual void Free(void* memory) = 0;
  /// Whether an address is the device's.
  virtual bool Owns(const void* address) const = 0;
  /// Memory of the host that copies go to and from beside the host: pinned.
  virtual HostAllocator& host_allocator() = 0;
  /// Whether kernels reach memory that it gave.
  virtual bool Reaches(const HostBuffer& memory) const = 0;

  /// `host` is read before the call returns.
  virtual void CopyIn(const void* host, uint64_t bytes, void* device) = 0;
  /// Copies within the device and between it and the host, whose bytes have to stay until a fence
  /// after the call is done. Memory of the host that is not pinned may make the caller wait.
  virtual void Copy(const void* from, void* to, const CopyShape& shape, Stream stream) = 0;
  void Copy(const void* from, void* to, const CopyShape& shape) {
    Copy(from, to, shape, Stream::kCompute);
  }
  /// Rows into an open slot, and a block to be sealed, in the order of kCompute.
  void Write(const WrittenStream& stream, const WrittenBlock& block);
  void Seal(const SealedStream& stream, const SealedBlock& block);
  /// Checksums of one slot, in the order of kCompute. They wait for those of more slots until the
  /// device is asked for anything else.
  void Sum(const ChecksumArgs& args);
  /// What this thread writes and seals from now on waits for more of it until this thread asks for
  /// anything else, and is launched together. Rows stay where they are until then. What other
  /// threads ask for comes after what waits by then.
  void LetWait();
  /// What this thread launches on kCompute from now on until EndPass waits for more of it, until
  /// the device is asked for anything but launches, or by another thread for anything, and starts
  /// together (cuda/pass_launches.h). Two threads at once: the launches of the later one wait.
  /// model: whose pass it is; an address that tells it from others.
  void BeginPass(const void* model);
  void EndPass();
  /// Launches, copies, zeros, starts of graphs and changes of them, so far.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  /// Zeroes the runs that `to_stride_bytes` describes.
  virtual void Zero(void* to, const CopyShape& shape, Stream stream) = 0;
  void Zero(void* to, const CopyShape& shape) { Zero(to, shape, Stream::kCompute); }

  /// Later calls on `after` take place after all earlier calls on `before`.
  virtual void Order(Stream before, Stream after) = 0;
  /// Done when all earlier calls on a stream are; null: they are.
  virtual std::unique_ptr<Fence> Record(Stream stream) = 0;
  std::unique_ptr<Fence> Record() { return Record(Stream::kCompute); }
  /// The first failure of the device, if a completed fence has seen one: it stays, and no later
  /// call has an effect.
  /// Errors: kIo names the device
  virtual Result<void> outcome() const = 0;
  /// Waits for all earlier calls on a stream.
  /// Errors: as outcome
  virtual Result<void> Synchronize(Stream stream) = 0;
  Result<void> Synchronize() { return Synchronize(Stream::kCompute); }
  /// Seconds that a stream needs for the calls of `work`, by the device's clock. Waits for it.
  /// Errors: as outcome
  virtual Result<double> Seconds(Stream stream, const std::function<void()>& work) = 0;

  /// Whether blocks of threads have bulk copies (cuda/kernels/bulk.h).
  virtual bool has_bulk_copies() const = 0;
  /// Needs:  has_bulk_copies
  /// Errors: kUnsupported with the driver's message
  virtual Result<TensorMap> MakeMap(const BoxedArray& array) = 0;

  // Launches; pointers in their arguments are the device's. What waits comes before them; in a pass
  // they wait themselves.
  template <typename... Args>
  void Launch(const Args&... args) {
    Starting sink(*this, Stream::kCompute);
    MakeLaunch(args..., sink);
  }
  void Launch(const ChecksumArgs& args, Stream stream) {
    Starting sink(*this, stream);
    MakeLaunch(args, sink);
  }

  // Each gives its launch to the sink, once.
  virtual void MakeLaunch(const SplitsArgs& args, const SplitsLaunch& how, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const FoldArgs& args, uint32_t vectors, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const WriteArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const ReadArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const EncodeArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const ChecksumArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const MatmulArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const EmbedArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const NormArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const HeadsArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const GateArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const AddArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const ReadFloorArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const MultiplyFloorArgs& args, LaunchSink& sink) = 0;
  virtual void MakeLaunch(const MatrixFloorArgs& args, LaunchSink& sink) = 0;

 protected:
  /// Begins every call that asks the device for something and is no launch.
  void LaunchWaiting();
  void CountCall() { calls_.fetch_add(1, std::memory_order_relaxed); }

 private:
  class Starting final : public LaunchSink {
   public:
    Starting(Device& device, Stream stream) : device_(device), stream_(stream) {}
    void Take(const KernelLaunch& launch) override { device_.Start(launch, stream_); }

   private:
    Device& device_;
    const Stream stream_;
  };

  template <typename Add>
  void AddOrLaunch(const Add& add);
  void Start(const KernelLaunch& launch, Stream stream);
  void StartWaiting() QUIRE_REQUIRES(mutex_);
  void StartBlocks() QUIRE_REQUIRES(mutex_);
  void StartPass() QUIRE_REQUIRES(mutex_);
  void StartInPass(const KernelLaunch& launch) QUIRE_REQUIRES(mutex_);

  std::atomic<uint64_t> calls_ = 0;
  Mutex mutex_{LockRank::kDeviceWaiting};
  // What waits: launches of a pass, and behind them blocks.
  PassLaunches pass_ QUIRE_GUARDED_BY(mutex_);
  WaitingBlocks blocks_ QUIRE_GUARDED_BY(mutex_);
  std::thread::id in_pass_ QUIRE_GUARDED_BY(mutex_);    // the thread whose launches wait
  std::thread::id blocks_of_ QUIRE_GUARDED_BY(mutex_);  // the thread whose blocks wait
};

/// Memory of a device that grows to the largest use and stays.
///
/// Threads: one at a time
class DeviceBuffer {
 public:
  explicit DeviceBuffer(Device& device) : device_(device) {}
  ~DeviceBuffer() { device_.Free(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  /// Room for so many bytes; growing loses the contents.
  /// Errors: kNoSpace; nothing changes
  Result<void> Reserve(uint64_t bytes) {
    if (bytes <= bytes_) return {};
    const Result<void*> data = device_.Allocate(bytes);
    if (!data) return std::unexpected(data.error());
    device_.Free(data_);
    data_ = *data;
    bytes_ = bytes;
    return {};
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device& device_;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_DEVICE_H_
