#include "cuda/host/host_device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/mutex.h"
#include "cuda/allocations.h"
#include "cuda/host/host_grid.h"
#include "cuda/kernels/checksum-inl.h"
#include "cuda/kernels/encode-inl.h"
#include "cuda/kernels/floors-inl.h"
#include "cuda/kernels/fold-inl.h"
#include "cuda/kernels/mma_folded-inl.h"
#include "cuda/kernels/mma_product-inl.h"
#include "cuda/kernels/mma_states-inl.h"
#include "cuda/kernels/model-inl.h"
#include "cuda/kernels/rows-inl.h"
#include "cuda/kernels/splits-inl.h"

namespace quire::cuda {
namespace {

using Thread = HostGrid::Thread;

constexpr size_t kAlignment = 256;

class HostDevice final : public Device {
 public:
  HostDevice(LateStreams* streams, bool reaches_host, bool is_idle)
      : streams_(streams), reaches_host_(reaches_host), is_idle_(is_idle) {}
  ~HostDevice() override {
    LaunchWaiting();
    if (streams_ != nullptr) streams_->RunAll();
  }
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  std::string_view target() const override { return "host"; }
  uint32_t shared_bytes_max() const override { return kSm90SharedMax; }

  Result<void*> Allocate(uint64_t bytes) override {
    void* const memory = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
    if (memory == nullptr) return Fail(ErrorCode::kNoSpace, "no memory for a device");
    if (!is_idle_) std::memset(memory, 0xff, bytes);
    allocations_.Add(memory, bytes);
    return memory;
  }
  void Free(void* memory) override {
    if (memory == nullptr) return;
    LaunchWaiting();
    // A device that failed still frees.
    if (streams_ != nullptr) streams_->RunUpTo(streams_->Now(Number(Stream::kCompute)));
    allocations_.Remove(memory);
    std::free(memory);
  }
  bool Owns(const void* address) const override { return allocations_.Contains(address); }
  uint64_t allocated_bytes() const { return allocations_.bytes(); }
  HostAllocator& host_allocator() override { return PlainHostAllocator(); }
  bool Reaches(const HostBuffer&) const override { return reaches_host_; }

  void CopyIn(const void* host, uint64_t bytes, void* device) override {
    const auto* const first = static_cast<const std::byte*>(host);
    if (is_idle_) return Do(Stream::kCompute, [] {});
    Do(Stream::kCompute, [kept = std::vector<std::byte>(first, first + bytes), device] {
      std::memcpy(device, kept.data(), kept.size());
    });
  }
  void Copy(const void* from, void* to, const CopyShape& shape, Stream stream) override {
    Do(stream, [=] {
      for (uint32_t i = 0; i < shape.count; ++i) {
        std::memcpy(static_cast<std::byte*>(to) + i * shape.to_stride_bytes,
                    static_cast<const std::byte*>(from) + i * shape.from_stride_bytes, shape.bytes);
      }
    });
  }
  void Zero(void* to, const CopyShape& shape, Stream stream) override {
    Do(stream, [=] {
      for (uint32_t i = 0; i < shape.count; ++i) {
        std::memset(static_cast<std::byte*>(to) + i * shape.to_stride_bytes, 0, shape.bytes);
      }
    });
  }

  void Order(Stream before, Stream after) override {
    LaunchWaiting();
    if (streams_ != nullptr) streams_->Order(Number(before), Number(after));
  }
  std::unique_ptr<Fence> Record(Stream stream) override {
    LaunchWaiting();
    if (streams_ == nullptr) return nullptr;
    const LateStreams::Mark mark = streams_->Now(Number(stream));
    std::unique_ptr<Fence> fence(new (std::nothrow) LateFence(*streams_, mark));
    if (fence == nullptr) streams_->RunUpTo(mark);
    return fence;
  }
  Result<void> outcome() const override {
    return streams_ == nullptr ? Result<void>() : streams_->outcome();
  }
  Result<void> Synchronize(Stream stream) override {
    LaunchWaiting();
    if (streams_ != nullptr) streams_->RunUpTo(streams_->Now(Number(stream)));
    return outcome();
  }
  Result<double> Seconds(Stream stream, const std::function<void()>& work) override {
    QUIRE_TRY(Synchronize(stream));
    const auto begin = std::chrono::steady_clock::now();
    work();
    QUIRE_TRY(Synchronize(stream));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  bool has_bulk_copies() const override { return true; }
  Result<TensorMap> MakeMap(const BoxedArray& array) override { return MapOnHost(array); }

  void MakeLaunch(const SplitsArgs& args, const SplitsLaunch& how, LaunchSink& sink) override {
    if (how.queries_max <= 4) return Splits<4>(args, how, sink);
    if (how.queries_max <= 8) return Splits<8>(args, how, sink);
    Splits<16>(args, how, sink);
  }

  // A thread of the grid is a warp (cuda/kernels/warp-inl.h).
  void MakeLaunch(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) override {
    switch (how.staging) {
      case Staging::kCodes: return States<Staging::kCodes>(args, how, sink);
      case Staging::kCopied: return Mma<Staging::kCopied>(args, how, sink);
      case Staging::kBulk: return Mma<Staging::kBulk>(args, how, sink);
    }
  }

  void MakeLaunch(const FoldArgs& args, uint32_t vectors, LaunchSink& sink) override {
    Give<RunOf<FoldKernel<Thread>, FoldArgs>>(
        "RunFold", {vectors, kFoldThreads, FoldSharedBytes(args.value.dim)}, args, sink);
  }
  void MakeLaunch(const WriteArgs& args, LaunchSink& sink) override {
    Give<WriteRow<Thread>>("RunWrite", {WriteBlocks(args), kBlockThreads, WriteSharedBytes(args)},
                           args, sink);
  }
  void MakeLaunch(const ReadArgs& args, LaunchSink& sink) override {
    Give<ReadRow<Thread>>(
        "RunRead",
        {args.tokens * args.stream.heads, kBlockThreads, RowSharedBytes(args.stream.dim)}, args,
        sink);
  }
  void MakeLaunch(const EncodeArgs& args, LaunchSink& sink) override {
    Give<RunOf<EncodeKernel<Thread>, EncodeArgs>>(
        "RunEncode", {EncodeBlocks(args), kBlockThreads, EncodeSharedBytes(args)}, args, sink);
  }
  void MakeLaunch(const ChecksumArgs& args, LaunchSink& sink) override {
    using Kernel = ChecksumKernel<Thread>;
    Give<RunOf<Kernel, ChecksumArgs>>(
        "RunChecksum", {args.slot_count * args.blocks, kBlockThreads, Kernel::kSharedBytes}, args,
        sink);
  }
  void MakeLaunch(const MatmulArgs& args, LaunchSink& sink) override {
    if (args.mma) {
      return WithProductShape(args, [&](auto shape) { Product<decltype(shape)>(args, sink); });
    }
    Give<RunOf<MatmulKernel<Thread>, MatmulArgs>>(
        "RunMatmul", {MatmulBlocks(args), kMatmulThreads, kMatmulSharedBytes}, args, sink);
  }
  void MakeLaunch(const EmbedArgs& args, LaunchSink& sink) override {
    Give<EmbedRow<Thread>>("RunEmbed", {args.rows, kModelThreads, 0}, args, sink);
  }
  void MakeLaunch(const NormArgs& args, LaunchSink& sink) override {
    Give<NormRow<Thread>>("RunNorm", {args.rows, kModelThreads, kNormSharedBytes}, args, sink);
  }
  void MakeLaunch(const HeadsArgs& args, LaunchSink& sink) override {
    Give<RotateHead<Thread>>("RunHeads", {HeadBlocks(args), kHeadThreads, kNormSharedBytes}, args,
                             sink);
  }
  void MakeLaunch(const GateArgs& args, LaunchSink& sink) override {
    Give<GateValue<Thread>>(
        "RunGate", {ValueBlocks(uint64_t{args.rows} * args.n), kModelThreads, 0}, args, sink);
  }
  void MakeLaunch(const AddArgs& args, LaunchSink& sink) override {
    Give<AddValue<Thread>>("RunAdd", {ValueBlocks(args.count), kModelThreads, 0}, args, sink);
  }
  void MakeLaunch(const ReadFloorArgs& args, LaunchSink& sink) override {
    Give<ReadFloor<Thread>>("RunReadFloor", {kFloorBlocks, kFloorThreads, 0}, args, sink);
  }
  void MakeLaunch(const MultiplyFloorArgs& args, LaunchSink& sink) override {
    Give<MultiplyFloor<Thread>>("RunMultiplyFloor", {kFloorBlocks, kFloorThreads, 0}, args, sink);
  }
  void MakeLaunch(const MatrixFloorArgs& args, LaunchSink& sink) override {
    Give<MatrixFloor<Thread>>("RunMatrixFloor", {kMatrixFloorBlocks, kMatrixFloorWarps, 0}, args,
                              sink);
  }

  void StartNow(const KernelLaunch& launch, Stream stream) override {
    if (is_idle_) return CountCall();
    LaunchList one;
    one.Add(launch);
    RunList(one, stream);
  }
  std::unique_ptr<LaunchGraph> MakeGraph(const LaunchList& launches) override {
    CountCall();
    return std::make_unique<HostGraph>(*this, launches);
  }

 private:
  using HostKernel = void (*)(Thread&, const void* args);

  /// What starts it has the launches of that moment: later changes do not reach it.
  class HostGraph final : public LaunchGraph {
   public:
    HostGraph(HostDevice& device, const LaunchList& launches)
        : device_(device), launches_(launches) {}
    bool Set(uint32_t at, const KernelLaunch& launch) override {
      device_.CountCall();
      launches_.Set(at, launch);
      return true;
    }
    bool Start() override {
      device_.RunList(launches_, Stream::kCompute);
      return true;
    }

   private:
    HostDevice& device_;
    LaunchList launches_;
  };

  template <class KernelOf, class Args>
  static void RunOf(Thread& self, const Args& args) {
    KernelOf(self, args).Run();
  }
  template <auto kKernel, class Args>
  static void Run(Thread& self, const void* args) {
    kKernel(self, *static_cast<const Args*>(args));
  }
  template <auto kKernel, class Args>
  static void Give(const char* name, const Grid& grid, const Args& args, LaunchSink& sink) {
    const HostKernel kernel = Run<kKernel, Args>;
    sink.Take(LaunchOf(name, reinterpret_cast<AnyKernel>(kernel), grid, args));
  }

  template <Staging kStaging>
  static void Mma(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) {
    if (!how.folds) return States<kStaging>(args, how, sink);
    Give<RunOf<MmaFolded<Thread, kStaging>, MmaArgs>>(
        "RunMmaFolded", {how.blocks, kMmaWarps, args.shared.bytes}, args, sink);
  }
  template <Staging kStaging>
  static void States(const MmaArgs& args, const MmaLaunch& how, LaunchSink& sink) {
    const Grid grid{how.blocks, kMmaWarps, args.shared.bytes};
    if (how.query_tiles == 1) {
      Give<RunOf<MmaStates<Thread, kStaging, 1>, MmaArgs>>("RunMmaStates", grid, args, sink);
    } else {
      Give<RunOf<MmaStates<Thread, kStaging, kQueryTilesMax>, MmaArgs>>("RunMmaStates", grid, args,
                                                                        sink);
    }
  }

  template <class Shape>
  static void Product(const MatmulArgs& args, LaunchSink& sink) {
    Give<RunOf<MmaProduct<Thread, Shape>, MatmulArgs>>(
        "RunMmaProduct", {ProductBlocks<Shape>(args), Shape::kWarpsOfBlock, Shape::kSharedBytes},
        args, sink);
  }

  template <uint32_t kQueries>
  static void Splits(const SplitsArgs& args, const SplitsLaunch& how, LaunchSink& sink) {
    Give<RunOf<SplitsKernel<Thread, Any, Any, kQueries>, SplitsArgs>>(
        "RunSplits", {how.blocks, kAttendThreads, SharedBytes<kQueries>(args.shape.key.dim)}, args,
        sink);
  }

  void RunList(const LaunchList& launches, Stream stream) {
    if (is_idle_) return CountCall();
    Enqueue(stream, [this, launches] {
      MutexLock lock(mutex_);
      for (uint32_t i = 0; i < launches.size(); ++i) {
        const KernelLaunch launch = launches[i];
        const auto kernel = reinterpret_cast<HostKernel>(launch.kernel);
        grid_.Run(launch.grid.blocks, launch.grid.threads, launch.grid.shared_bytes,
                  [&](Thread& self) { kernel(self, launch.args); });
      }
    });
  }
  template <typename Work>
  void Do(Stream stream, Work work) {
    LaunchWaiting();
    Enqueue(stream, std::move(work));
  }
  template <typename Work>
  void Enqueue(Stream stream, Work work) {
    CountCall();
    if (is_idle_) return;
    if (streams_ == nullptr) return work();
    streams_->Enqueue(Number(stream), std::move(work));
  }
  static uint32_t Number(Stream stream) { return static_cast<uint32_t>(stream); }

  LateStreams* const streams_;  // null: everything is done at once
  const bool reaches_host_;
  const bool is_idle_;
  Mutex mutex_{LockRank::kLeaf};
  HostGrid grid_ QUIRE_GUARDED_BY(mutex_);
  Allocations allocations_;
};

class EmulatedMemory final : public DeviceMemory {
 public:
  explicit EmulatedMemory(Device& device) : device_(device) {}

  std::string_view name() const override { return "emulated"; }
  bool host_accessible() const override { return false; }

  Result<std::byte*> Reserve(uint64_t bytes) override { return memory_->Reserve(bytes); }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    return memory_->Commit(begin, bytes);
  }
  void Decommit(std::byte* begin, uint64_t bytes) override {
    AwaitDevice();
    memory_->Decommit(begin, bytes);
  }
  void Release(std::byte* base, uint64_t bytes) override {
    AwaitDevice();
    memory_->Release(base, bytes);
  }
  void Discard(std::byte* begin, uint64_t bytes) override {
    AwaitDevice();
    memory_->Discard(begin, bytes);
  }

 private:
  // A failure of the device is returned by the call that waits for it; the memory is released in
  // any case.
  void AwaitDevice() {
    for (const Stream stream : kStreams) static_cast<void>(device_.Synchronize(stream));
  }

  Device& device_;
  const std::unique_ptr<DeviceMemory> memory_ = MakeHostMemory(/*huge_pages=*/false);
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice(LateStreams* streams, bool reaches_host) {
  return std::make_unique<HostDevice>(streams, reaches_host, /*is_idle=*/false);
}

std::unique_ptr<Device> MakeIdleDevice() {
  return std::make_unique<HostDevice>(nullptr, /*reaches_host=*/true, /*is_idle=*/true);
}

uint64_t AllocatedBytes(const Device& device) {
  return static_cast<const HostDevice&>(device).allocated_bytes();
}

std::unique_ptr<DeviceMemory> MakeEmulatedMemory(Device& device) {
  return std::make_unique<EmulatedMemory>(device);
}

}  // namespace quire::cuda
