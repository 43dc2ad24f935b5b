#include "cuda/host/host_device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/mutex.h"
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
  HostDevice(LateStreams* streams, bool reaches_host)
      : streams_(streams), reaches_host_(reaches_host) {}
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
    std::memset(memory, 0xff, bytes);
    MutexLock lock(mutex_);
    allocated_[memory] = bytes;
    return memory;
  }
  void Free(void* memory) override {
    if (memory == nullptr) return;
    LaunchWaiting();
    // A device that failed still frees.
    if (streams_ != nullptr) streams_->RunUpTo(streams_->Now(Number(Stream::kCompute)));
    MutexLock lock(mutex_);
    allocated_.erase(memory);
    std::free(memory);
  }
  bool Owns(const void* address) const override {
    MutexLock lock(mutex_);
    const auto after = allocated_.upper_bound(address);
    if (after == allocated_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return static_cast<const std::byte*>(address) < static_cast<const std::byte*>(begin) + bytes;
  }
  uint64_t allocated_bytes() const {
    MutexLock lock(mutex_);
    uint64_t sum = 0;
    for (const auto& [memory, bytes] : allocated_) sum += bytes;
    return sum;
  }
  HostAllocator& host_allocator() override { return PlainHostAllocator(); }
  bool Reaches(const HostBuffer&) const override { return reaches_host_; }

  void CopyIn(const void* host, uint64_t bytes, void* device) override {
    const auto* const first = static_cast<const std::byte*>(host);
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

  void Launch(const SplitsArgs& args, const SplitsLaunch& how) override {
    if (how.queries_max <= 4) return Splits<4>(args, how);
    if (how.queries_max <= 8) return Splits<8>(args, how);
    Splits<16>(args, how);
  }

  // A thread of the grid is a warp (cuda/kernels/warp-inl.h).
  void Launch(const MmaArgs& args, const MmaLaunch& how) override {
    switch (how.staging) {
      case Staging::kCodes: return States<Staging::kCodes>(args, how);
      case Staging::kCopied: return Mma<Staging::kCopied>(args, how);
      case Staging::kBulk: return Mma<Staging::kBulk>(args, how);
    }
  }

  // The analyzer does not follow std::function of libstdc++ to its end.
  // NOLINTBEGIN(clang-analyzer-cplusplus.NewDeleteLeaks)
  void Launch(const FoldArgs& args, uint32_t vectors) override {
    Run(vectors, kFoldThreads, FoldSharedBytes(args.value.dim),
        [args](Thread& self) { FoldKernel<Thread>(self, args).Run(); });
  }
  void Launch(const WriteArgs& args) override {
    RunWaiting(WriteBlocks(args), WriteSharedBytes(args),
               [args](Thread& self) { WriteRow(self, args); });
  }
  void Launch(const ReadArgs& args) override {
    Run(args.tokens * args.stream.heads, kBlockThreads, RowSharedBytes(args.stream.dim),
        [args](Thread& self) { ReadRow(self, args); });
  }
  void Launch(const EncodeArgs& args) override {
    RunWaiting(EncodeBlocks(args), EncodeSharedBytes(args),
               [args](Thread& self) { EncodeKernel<Thread>(self, args).Run(); });
  }
  void Launch(const ChecksumArgs& args, Stream stream) override {
    using Kernel = ChecksumKernel<Thread>;
    RunOn(stream, args.blocks, kBlockThreads, Kernel::kSharedBytes,
          [args](Thread& self) { Kernel(self, args).Run(); });
  }
  void Launch(const MatmulArgs& args) override {
    if (args.mma) {
      return WithProductShape(args.rows, [&](auto shape) { Product<decltype(shape)>(args); });
    }
    Run(MatmulBlocks(args), kMatmulThreads, kMatmulSharedBytes,
        [args](Thread& self) { MatmulKernel<Thread>(self, args).Run(); });
  }
  void Launch(const EmbedArgs& args) override {
    Run(args.rows, kModelThreads, 0, [args](Thread& self) { EmbedRow(self, args); });
  }
  void Launch(const NormArgs& args) override {
    Run(args.rows, kModelThreads, kNormSharedBytes, [args](Thread& self) { NormRow(self, args); });
  }
  void Launch(const HeadsArgs& args) override {
    Run(HeadBlocks(args), kHeadThreads, kNormSharedBytes,
        [args](Thread& self) { RotateHead(self, args); });
  }
  void Launch(const GateArgs& args) override {
    Run(ValueBlocks(uint64_t{args.rows} * args.n), kModelThreads, 0,
        [args](Thread& self) { GateValue(self, args); });
  }
  void Launch(const AddArgs& args) override {
    Run(ValueBlocks(args.count), kModelThreads, 0, [args](Thread& self) { AddValue(self, args); });
  }
  void Launch(const ReadFloorArgs& args) override {
    Run(kFloorBlocks, kFloorThreads, 0, [args](Thread& self) { ReadFloor(self, args); });
  }
  void Launch(const MultiplyFloorArgs& args) override {
    Run(kFloorBlocks, kFloorThreads, 0, [args](Thread& self) { MultiplyFloor(self, args); });
  }
  void Launch(const MatrixFloorArgs& args) override {
    Run(kMatrixFloorBlocks, kMatrixFloorWarps, 0,
        [args](Thread& self) { MatrixFloor(self, args); });
  }

 private:
  template <Staging kStaging>
  void Mma(const MmaArgs& args, const MmaLaunch& how) {
    if (!how.folds) return States<kStaging>(args, how);
    Run(how.blocks, kMmaWarps, args.shared.bytes,
        [args](Thread& self) { MmaFolded<Thread, kStaging>(self, args).Run(); });
  }
  template <Staging kStaging>
  void States(const MmaArgs& args, const MmaLaunch& how) {
    if (how.query_tiles == 1) {
      Run(how.blocks, kMmaWarps, args.shared.bytes,
          [args](Thread& self) { MmaStates<Thread, kStaging, 1>(self, args).Run(); });
    } else {
      Run(how.blocks, kMmaWarps, args.shared.bytes,
          [args](Thread& self) { MmaStates<Thread, kStaging, kQueryTilesMax>(self, args).Run(); });
    }
  }

  template <class Shape>
  void Product(const MatmulArgs& args) {
    Run(ProductBlocks<Shape>(args), Shape::kWarpsOfBlock, Shape::kSharedBytes,
        [args](Thread& self) { MmaProduct<Thread, Shape>(self, args).Run(); });
  }

  template <uint32_t kQueries>
  void Splits(const SplitsArgs& args, const SplitsLaunch& how) {
    Run(how.blocks, kAttendThreads, SharedBytes<kQueries>(args.shape.key.dim),
        [args](Thread& self) { SplitsKernel<Thread, Any, Any, kQueries>(self, args).Run(); });
  }

  // NOLINTEND(clang-analyzer-cplusplus.NewDeleteLeaks)

  void Run(uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
           std::function<void(Thread&)> kernel) {
    RunOn(Stream::kCompute, blocks, threads, shared_bytes, std::move(kernel));
  }
  void RunOn(Stream stream, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
             std::function<void(Thread&)> kernel) {
    Do(stream, Grid(blocks, threads, shared_bytes, std::move(kernel)));
  }
  void RunWaiting(uint32_t blocks, uint32_t shared_bytes, std::function<void(Thread&)> kernel) {
    Enqueue(Stream::kCompute, Grid(blocks, kBlockThreads, shared_bytes, std::move(kernel)));
  }
  std::function<void()> Grid(uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                             std::function<void(Thread&)> kernel) {
    return [=, this, kernel = std::move(kernel)] {
      MutexLock lock(mutex_);
      grid_.Run(blocks, threads, shared_bytes, kernel);
    };
  }
  template <typename Work>
  void Do(Stream stream, Work work) {
    LaunchWaiting();
    Enqueue(stream, std::move(work));
  }
  template <typename Work>
  void Enqueue(Stream stream, Work work) {
    CountCall();
    if (streams_ == nullptr) return work();
    streams_->Enqueue(Number(stream), std::move(work));
  }
  static uint32_t Number(Stream stream) { return static_cast<uint32_t>(stream); }

  LateStreams* const streams_;  // null: everything is done at once
  const bool reaches_host_;
  mutable Mutex mutex_{LockRank::kLeaf};
  HostGrid grid_ QUIRE_GUARDED_BY(mutex_);
  std::map<const void*, uint64_t> allocated_ QUIRE_GUARDED_BY(mutex_);  // bytes by address
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
  return std::make_unique<HostDevice>(streams, reaches_host);
}

uint64_t AllocatedBytes(const Device& device) {
  return static_cast<const HostDevice&>(device).allocated_bytes();
}

std::unique_ptr<DeviceMemory> MakeEmulatedMemory(Device& device) {
  return std::make_unique<EmulatedMemory>(device);
}

}  // namespace quire::cuda
