#include "cuda/runtime/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "base/check.h"
#include "cuda/runtime/launch.h"

namespace quire::cuda {
namespace {

/// The architecture whose code a device runs: the newest of its generation that is not newer.
uint32_t CodeFor(uint32_t capability) {
  uint32_t found = 0;
  for (const uint32_t built : kArchitectures) {
    if (built / 10 == capability / 10 && built <= capability) found = built;
  }
  return found;
}

std::unexpected<Error> IoError(const char* what, int error) {
  return Fail(ErrorCode::kIo, fmt::format("cuda: {}: {}", what,
                                          cudaGetErrorString(static_cast<cudaError_t>(error))));
}

class EventFence final : public Fence {
 public:
  explicit EventFence(cudaEvent_t event) : event_(event) {}
  ~EventFence() override { cudaEventDestroy(event_); }
  EventFence(const EventFence&) = delete;
  EventFence& operator=(const EventFence&) = delete;

  // A device that has failed will not do what is left either.
  bool IsDone() const override { return cudaEventQuery(event_) != cudaErrorNotReady; }
  void Wait() override { cudaEventSynchronize(event_); }

 private:
  const cudaEvent_t event_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int number, std::string target, cudaStream_t stream)
      : number_(number), target_(std::move(target)), stream_(stream) {}
  ~CudaDevice() override {
    Enter();
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string_view target() const override { return target_; }

  Result<void*> Allocate(uint64_t bytes) override {
    Enter();
    void* memory = nullptr;
    const cudaError_t error = cudaMallocAsync(&memory, bytes, stream_);
    if (error == cudaSuccess) return memory;
    static_cast<void>(cudaGetLastError());  // it is told here, and is nothing to later calls
    return Fail(ErrorCode::kNoSpace, fmt::format("cuda:{}: cannot allocate {} bytes: {}", number_,
                                                 bytes, cudaGetErrorString(error)));
  }
  void Free(void* memory) override {
    Enter();
    if (memory != nullptr) Note(cudaFreeAsync(memory, stream_));
  }
  bool Owns(const void* address) const override {
    cudaPointerAttributes attributes{};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
    return error == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
  }

  // From memory that is not pinned the runtime takes the bytes before it returns.
  void CopyIn(const void* host, uint64_t bytes, void* device) override {
    Enter();
    Note(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void Copy(const void* from, void* to, const CopyShape& shape) override {
    Enter();
    if (shape.count == 1) {
      Note(cudaMemcpyAsync(to, from, shape.bytes, cudaMemcpyDefault, stream_));
    } else if (shape.count > 1) {
      Note(cudaMemcpy2DAsync(to, shape.to_stride_bytes, from, shape.from_stride_bytes, shape.bytes,
                             shape.count, cudaMemcpyDefault, stream_));
    }
  }
  void Zero(void* to, const CopyShape& shape) override {
    Enter();
    if (shape.count == 1) {
      Note(cudaMemsetAsync(to, 0, shape.bytes, stream_));
    } else if (shape.count > 1) {
      Note(cudaMemset2DAsync(to, shape.to_stride_bytes, 0, shape.bytes, shape.count, stream_));
    }
  }

  std::unique_ptr<Fence> Record() override {
    Enter();
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
      Note(cudaStreamSynchronize(stream_));
      return nullptr;
    }
    Note(cudaEventRecord(event, stream_));
    return std::make_unique<EventFence>(event);
  }
  Result<void> Synchronize() override {
    Enter();
    Note(cudaStreamSynchronize(stream_));
    const int error = error_.load(std::memory_order_relaxed);
    if (error == cudaSuccess) return {};
    return IoError(fmt::format("device {}", number_).c_str(), error);
  }

  void Launch(const SplitsArgs& args, const SplitsLaunch& how) override {
    Enter();
    Note(LaunchSplits(args, how, stream_));
  }
  void Launch(const MmaArgs& args, const MmaLaunch& how) override {
    Enter();
    Note(LaunchMmaSplits(args, how, stream_));
  }
  void Launch(const FoldArgs& args, uint32_t vectors) override {
    Enter();
    Note(LaunchFold(args, vectors, stream_));
  }
  void Launch(const WriteArgs& args) override {
    Enter();
    Note(LaunchWrite(args, stream_));
  }
  void Launch(const ReadArgs& args) override {
    Enter();
    Note(LaunchRead(args, stream_));
  }
  void Launch(const EncodeArgs& args) override {
    Enter();
    Note(LaunchEncode(args, stream_));
  }
  void Launch(const ChecksumArgs& args) override {
    Enter();
    Note(LaunchChecksum(args, stream_));
  }
  void Launch(const MatmulArgs& args) override {
    Enter();
    Note(args.mma ? LaunchMmaProduct(args, stream_) : LaunchMatmul(args, stream_));
  }
  void Launch(const EmbedArgs& args) override {
    Enter();
    Note(LaunchEmbed(args, stream_));
  }
  void Launch(const NormArgs& args) override {
    Enter();
    Note(LaunchNorm(args, stream_));
  }
  void Launch(const HeadsArgs& args) override {
    Enter();
    Note(LaunchHeads(args, stream_));
  }
  void Launch(const GateArgs& args) override {
    Enter();
    Note(LaunchGate(args, stream_));
  }
  void Launch(const AddArgs& args) override {
    Enter();
    Note(LaunchAdd(args, stream_));
  }
  void Launch(const ReadFloorArgs& args) override {
    Enter();
    Note(LaunchReadFloor(args, stream_));
  }
  void Launch(const MultiplyFloorArgs& args) override {
    Enter();
    Note(LaunchMultiplyFloor(args, stream_));
  }
  void Launch(const MatrixFloorArgs& args) override {
    Enter();
    Note(LaunchMatrixFloor(args, stream_));
  }

 private:
  // The device of a thread is its own affair.
  void Enter() const { cudaSetDevice(number_); }

  /// The first error stays: what follows it means nothing.
  void Note(int error) {
    int none = cudaSuccess;
    if (error != cudaSuccess) error_.compare_exchange_strong(none, error);
  }

  const int number_;
  const std::string target_;
  const cudaStream_t stream_;
  std::atomic<int> error_ = cudaSuccess;
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
    devices.push_back({.name = properties.name,
                       .target = fmt::format("sm_{}", CapabilityOf(properties)),
                       .memory_bytes = properties.totalGlobalMem});
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
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cuda:{}: {} is sm_{}, and this build has code for sm_80, sm_89 and "
                            "sm_90 and later devices of their generations",
                            number, properties.name, capability));
  }
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    return IoError("set device", error);
  }
  cudaStream_t stream = nullptr;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      error != cudaSuccess) {
    return IoError("create stream", error);
  }
  return std::make_unique<CudaDevice>(device, fmt::format("sm_{}", capability), stream);
}

Result<std::unique_ptr<Backend>> OpenBackend(uint32_t number, Arithmetic arithmetic) {
  QUIRE_ASSIGN(auto device, OpenDevice(number));
  QUIRE_ASSIGN(auto driver, MakeCudaDriver(number));
  return Backend::Make(fmt::format("cuda:{}", number), std::move(device), std::move(driver),
                       arithmetic);
}

}  // namespace quire::cuda
