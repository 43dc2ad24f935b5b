#include "cuda/runtime/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cuda/allocations.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/launched.h"
#include "cuda/runtime/tensor_maps.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kBulkCapability = 90;   // from here on there are bulk copies
constexpr uint64_t kPitchMax = INT32_MAX;  // cudaDeviceProp::memPitch of every device

/// The architecture whose code a device runs: the newest of its generation that is not newer.
uint32_t CodeFor(uint32_t capability) {
  uint32_t found = 0;
  for (const uint32_t built : kArchitectures) {
    if (built / 10 == capability / 10 && built <= capability) found = built;
  }
  return found;
}

bool HasBulkCopies(uint32_t capability) {
  return CodeFor(capability) >= kBulkCapability && CanMakeTensorMaps();
}

std::unexpected<Error> IoError(const char* what, int error) {
  return Fail(ErrorCode::kIo, fmt::format("cuda: {}: {}", what,
                                          cudaGetErrorString(static_cast<cudaError_t>(error))));
}

/// The first error of a device: later results mean nothing, and it stays.
class FirstError {
 public:
  explicit FirstError(int number) : number_(number) {}

  void Note(int error) {
    int none = cudaSuccess;
    if (error != cudaSuccess) error_.compare_exchange_strong(none, error);
  }
  Result<void> outcome() const {
    const int error = error_.load(std::memory_order_relaxed);
    if (error == cudaSuccess) return {};
    return IoError(fmt::format("device {}", number_).c_str(), error);
  }

 private:
  const int number_;
  std::atomic<int> error_ = cudaSuccess;
};

class EventFence final : public Fence {
 public:
  EventFence(cudaEvent_t event, FirstError& error) : event_(event), error_(error) {}
  ~EventFence() override { cudaEventDestroy(event_); }
  EventFence(const EventFence&) = delete;
  EventFence& operator=(const EventFence&) = delete;

  // A device that has failed will not finish the rest either.
  bool IsDone() const override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    error_.Note(error);
    return true;
  }
  void Wait() override { error_.Note(cudaEventSynchronize(event_)); }

 private:
  const cudaEvent_t event_;
  FirstError& error_;
};

class PinnedAllocator final : public HostAllocator {
 public:
  explicit PinnedAllocator(int number) : number_(number), name_(fmt::format("cuda:{}", number)) {}

  std::string_view name() const override { return name_; }
  bool pinned() const override { return true; }
  // Portable: other devices recognise it as pinned memory, too.
  Result<std::byte*> Allocate(uint64_t bytes) override {
    cudaSetDevice(number_);
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (error == cudaSuccess) return static_cast<std::byte*>(memory);
    static_cast<void>(cudaGetLastError());  // it is returned here, so later calls must not see it
    return Fail(ErrorCode::kNoSpace, fmt::format("{}: cannot pin {} bytes of host memory: {}",
                                                 name_, bytes, cudaGetErrorString(error)));
  }
  void Free(std::byte* memory, uint64_t) override { cudaFreeHost(memory); }

 private:
  const int number_;
  const std::string name_;
};

class CudaDevice final : public Device {
 public:
  using Streams = std::array<cudaStream_t, std::size(kStreams)>;

  CudaDevice(int number, uint32_t capability, uint32_t shared_bytes_max, const Streams& streams)
      : number_(number),
        target_(fmt::format("sm_{}", capability)),
        shared_bytes_max_(shared_bytes_max),
        has_bulk_copies_(HasBulkCopies(capability)),
        streams_(streams),
        stream_(StreamOf(Stream::kCompute)),
        error_(number),
        pinned_(number) {}
  ~CudaDevice() override {
    Enter();
    for (const cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string_view target() const override { return target_; }
  uint32_t shared_bytes_max() const override { return shared_bytes_max_; }

  Result<void*> Allocate(uint64_t bytes) override {
    Enter();
    void* memory = nullptr;
    const cudaError_t error = cudaMallocAsync(&memory, bytes, stream_);
    if (error == cudaSuccess) {
      allocations_.Add(memory, bytes);
      return memory;
    }
    static_cast<void>(cudaGetLastError());  // it is returned here, so later calls must not see it
    return Fail(ErrorCode::kNoSpace, fmt::format("cuda:{}: cannot allocate {} bytes: {}", number_,
                                                 bytes, cudaGetErrorString(error)));
  }
  void Free(void* memory) override {
    if (memory == nullptr) return;
    Enter();
    allocations_.Remove(memory);
    Note(cudaFreeAsync(memory, stream_));
  }
  // CUDA is asked about the memory of others alone: a step asks for every row of every layer.
  bool Owns(const void* address) const override {
    if (allocations_.Contains(address)) return true;
    cudaPointerAttributes attributes{};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
    return error == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
  }

  // The runtime takes the bytes before it returns only where the memory is not pinned.
  void CopyIn(const void* host, uint64_t bytes, void* device) override {
    Ask();
    Note(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_));
    Note(cudaStreamSynchronize(stream_));
  }
  void Copy(const void* from, void* to, const CopyShape& shape, Stream stream) override {
    Ask();
    if (IsPitched(shape)) {
      return Note(cudaMemcpy2DAsync(to, shape.to_stride_bytes, from, shape.from_stride_bytes,
                                    shape.bytes, shape.count, cudaMemcpyDefault, StreamOf(stream)));
    }
    for (uint64_t i = 0; i < shape.count; ++i) {
      Note(cudaMemcpyAsync(static_cast<std::byte*>(to) + i * shape.to_stride_bytes,
                           static_cast<const std::byte*>(from) + i * shape.from_stride_bytes,
                           shape.bytes, cudaMemcpyDefault, StreamOf(stream)));
    }
  }
  void Zero(void* to, const CopyShape& shape, Stream stream) override {
    Ask();
    if (IsPitched(shape)) {
      return Note(cudaMemset2DAsync(to, shape.to_stride_bytes, 0, shape.bytes, shape.count,
                                    StreamOf(stream)));
    }
    for (uint64_t i = 0; i < shape.count; ++i) {
      Note(cudaMemsetAsync(static_cast<std::byte*>(to) + i * shape.to_stride_bytes, 0, shape.bytes,
                           StreamOf(stream)));
    }
  }

  void Order(Stream before, Stream after) override {
    Enter();
    const cudaEvent_t event = NewEvent(StreamOf(before));
    if (event == nullptr) return Note(cudaStreamSynchronize(StreamOf(before)));
    Note(cudaStreamWaitEvent(StreamOf(after), event, 0));
    cudaEventDestroy(event);  // it goes when it is done
  }
  std::unique_ptr<Fence> Record(Stream stream) override {
    Enter();
    const cudaEvent_t event = NewEvent(StreamOf(stream));
    if (event != nullptr) {
      std::unique_ptr<Fence> fence(new (std::nothrow) EventFence(event, error_));
      if (fence != nullptr) return fence;
      cudaEventDestroy(event);
    }
    Note(cudaStreamSynchronize(StreamOf(stream)));
    return nullptr;
  }
  Result<void> outcome() const override { return error_.outcome(); }
  Result<void> Synchronize(Stream stream) override {
    Enter();
    Note(cudaStreamSynchronize(StreamOf(stream)));
    return error_.outcome();
  }
  Result<double> Seconds(Stream stream, const std::function<void()>& work) override {
    Enter();
    cudaEvent_t events[2] = {};  // null where one cannot be made: recording it is an error
    for (cudaEvent_t& event : events) Note(cudaEventCreate(&event));
    Note(cudaEventRecord(events[0], StreamOf(stream)));
    work();
    LaunchWaiting();
    Note(cudaEventRecord(events[1], StreamOf(stream)));
    Note(cudaEventSynchronize(events[1]));
    float milliseconds = 0;
    Note(cudaEventElapsedTime(&milliseconds, events[0], events[1]));
    for (const cudaEvent_t event : events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    QUIRE_TRY(error_.outcome());
    return 1e-3 * milliseconds;
  }
  HostAllocator& host_allocator() override { return pinned_; }
  bool Reaches(const HostBuffer& memory) const override { return memory.pinned(); }

  bool has_bulk_copies() const override { return has_bulk_copies_; }
  Result<TensorMap> MakeMap(const BoxedArray& array) override {
    Choose();  // it asks the device for nothing, so what waits goes on waiting
    return MakeTensorMap(array);
  }

  void MakeLaunch(const SplitsArgs& args, const SplitsLaunch& how, LaunchSink& sink) override {
    LaunchSplits(args, how, sink);
  }
  void MakeLaunch(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) override {
    LaunchMma(args, how, sink);
  }
  void MakeLaunch(const FoldArgs& args, uint32_t vectors, LaunchSink& sink) override {
    LaunchFold(args, vectors, sink);
  }
  void MakeLaunch(const WriteArgs& args, LaunchSink& sink) override { LaunchWrite(args, sink); }
  void MakeLaunch(const ReadArgs& args, LaunchSink& sink) override { LaunchRead(args, sink); }
  void MakeLaunch(const EncodeArgs& args, LaunchSink& sink) override { LaunchEncode(args, sink); }
  void MakeLaunch(const ChecksumArgs& args, LaunchSink& sink) override {
    LaunchChecksum(args, sink);
  }
  void MakeLaunch(const MatmulArgs& args, LaunchSink& sink) override {
    args.mma ? LaunchMmaProduct(args, sink) : LaunchMatmul(args, sink);
  }
  void MakeLaunch(const EmbedArgs& args, LaunchSink& sink) override { LaunchEmbed(args, sink); }
  void MakeLaunch(const NormArgs& args, LaunchSink& sink) override { LaunchNorm(args, sink); }
  void MakeLaunch(const HeadsArgs& args, LaunchSink& sink) override { LaunchHeads(args, sink); }
  void MakeLaunch(const GateArgs& args, LaunchSink& sink) override { LaunchGate(args, sink); }
  void MakeLaunch(const AddArgs& args, LaunchSink& sink) override { LaunchAdd(args, sink); }
  void MakeLaunch(const ReadFloorArgs& args, LaunchSink& sink) override {
    LaunchReadFloor(args, sink);
  }
  void MakeLaunch(const MultiplyFloorArgs& args, LaunchSink& sink) override {
    LaunchMultiplyFloor(args, sink);
  }
  void MakeLaunch(const MatrixFloorArgs& args, LaunchSink& sink) override {
    LaunchMatrixFloor(args, sink);
  }

  void StartNow(const KernelLaunch& launch, Stream stream) override {
    Choose();
    CountCall();
    Note(StartKernel(launch, StreamOf(stream)));
  }
  // Where CUDA makes none, launches start one by one.
  std::unique_ptr<LaunchGraph> MakeGraph(const LaunchList& launches) override {
    if (!makes_graphs_) return nullptr;
    auto made = std::make_unique<Graph>(*this);
    return made->Make(launches) ? std::move(made) : nullptr;
  }

 private:
  class Graph final : public LaunchGraph {
   public:
    explicit Graph(CudaDevice& device) : device_(device) {}
    bool Make(const LaunchList& launches) {
      return Ask([&] { return graph_.Make(launches); });
    }
    bool Set(uint32_t at, const KernelLaunch& launch) override {
      return Ask([&] { return graph_.Set(at, launch); });
    }
    bool Start() override {
      return Ask([&] { return graph_.Start(device_.stream_); });
    }

   private:
    template <typename Call>
    bool Ask(const Call& call) {
      device_.Choose();
      device_.CountCall();
      const int error = call();
      if (error != cudaSuccess) device_.StopGraphs(error);
      return error == cudaSuccess;
    }

    CudaDevice& device_;
    CudaGraph graph_;
  };

  void StopGraphs(int error) {
    if (!std::exchange(makes_graphs_, false)) return;
    LogWarn("cuda:{}: no graph of a pass, its kernels are launched one by one: {}", number_,
            cudaGetErrorString(static_cast<cudaError_t>(error)));
  }

  // Other code of the thread may have chosen another device.
  void Choose() const { cudaSetDevice(number_); }
  void Enter() {
    Choose();
    LaunchWaiting();
  }
  void Ask() {
    Enter();
    CountCall();
  }

  void Note(int error) { error_.Note(error); }
  cudaStream_t StreamOf(Stream stream) const { return streams_[static_cast<size_t>(stream)]; }

  /// Whether one call does for all its pieces: CUDA refuses those that lie further apart.
  static bool IsPitched(const CopyShape& shape) {
    return shape.count > 1 && std::max(shape.from_stride_bytes, shape.to_stride_bytes) <= kPitchMax;
  }

  /// Null: there is none to be had.
  cudaEvent_t NewEvent(cudaStream_t stream) {
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess) {
      if (cudaEventRecord(event, stream) == cudaSuccess) return event;
      cudaEventDestroy(event);
    }
    static_cast<void>(cudaGetLastError());  // the caller waits instead: no launch failed
    return nullptr;
  }

  const int number_;
  const std::string target_;
  const uint32_t shared_bytes_max_;
  const bool has_bulk_copies_;
  const Streams streams_;
  const cudaStream_t stream_;  // of kCompute
  FirstError error_;
  PinnedAllocator pinned_;
  // Not with QUIRE_CUDA_SYNC=1: a graph would not say whose error it is. Threads: as LaunchStarter.
  bool makes_graphs_ = !WaitsForEach();
  Allocations allocations_;
};

uint32_t CapabilityOf(const cudaDeviceProp& properties) {
  return static_cast<uint32_t>(properties.major * 10 + properties.minor);
}

}  // namespace

std::vector<DeviceInfo> ListDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    if (CodeFor(CapabilityOf(properties)) == 0) continue;
    devices.push_back({.number = static_cast<uint32_t>(i),
                       .name = properties.name,
                       .target = fmt::format("sm_{}", CapabilityOf(properties)),
                       .memory_bytes = properties.totalGlobalMem,
                       .has_bulk_copies = HasBulkCopies(CapabilityOf(properties))});
  }
  return devices;
}

Result<std::unique_ptr<Device>> OpenDevice(uint32_t number) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess || number >= static_cast<uint32_t>(count)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cuda:{}: there is no such device ({} found; {})", number,
                            counted == cudaSuccess ? count : 0, cudaGetErrorString(counted)));
  }
  const int device = static_cast<int>(number);
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device);
      error != cudaSuccess) {
    return IoError("properties", error);
  }
  const uint32_t capability = CapabilityOf(properties);
  if (CodeFor(capability) == 0) {
    return Fail(
        ErrorCode::kUnsupported,
        fmt::format("cuda:{}: {} is sm_{}, and this build has code for sm_{} and later "
                    "devices of their generations",
                    number, properties.name, capability, fmt::join(kArchitectures, ", sm_")));
  }
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    return IoError("set device", error);
  }
  CudaDevice::Streams streams{};
  for (cudaStream_t& stream : streams) {
    const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) continue;
    for (const cudaStream_t made : streams) {
      if (made != nullptr) cudaStreamDestroy(made);
    }
    return IoError("create stream", error);
  }
  return std::make_unique<CudaDevice>(
      device, capability, static_cast<uint32_t>(properties.sharedMemPerBlockOptin), streams);
}

Result<std::unique_ptr<Backend>> OpenBackend(uint32_t number, const BackendOptions& options) {
  QUIRE_ASSIGN(auto device, OpenDevice(number));
  QUIRE_ASSIGN(auto driver, MakeCudaDriver(number));
  return Backend::Make(fmt::format("cuda:{}", number), std::move(device), std::move(driver),
                       options);
}

}  // namespace quire::cuda
