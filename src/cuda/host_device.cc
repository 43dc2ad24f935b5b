#include "cuda/host_device.h"

#include <cstdlib>
#include <cstring>

#include "cuda/fold-inl.h"
#include "cuda/host_grid.h"
#include "cuda/splits-inl.h"

namespace quire::cuda {
namespace {

constexpr size_t kAlignment = 256;

class HostDevice final : public Device {
 public:
  std::string_view target() const override { return "host"; }

  Result<void*> Allocate(uint64_t bytes) override {
    void* const memory = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
    if (memory == nullptr) return Fail(ErrorCode::kNoSpace, "no memory for a device");
    std::memset(memory, 0xff, bytes);
    return memory;
  }
  void Free(void* memory) override { std::free(memory); }
  void CopyIn(const void* host, uint64_t bytes, void* device) override {
    std::memcpy(device, host, bytes);
  }
  void CopyOut(const void* device, uint64_t bytes, void* host) override {
    std::memcpy(host, device, bytes);
  }
  Result<void> Synchronize() override { return {}; }

  void Launch(const SplitsArgs& args, const SplitsLaunch& how) override {
    if (how.queries_max <= 4) return Splits<4>(args, how);
    if (how.queries_max <= 8) return Splits<8>(args, how);
    Splits<16>(args, how);
  }

  void Launch(const FoldArgs& args, uint32_t vectors) override {
    grid_.Run(vectors, kAttendThreads, FoldSharedBytes(args.value.dim),
              [&](HostGrid::Thread& self) { FoldKernel<HostGrid::Thread>(self, args).Run(); });
  }

 private:
  template <uint32_t kQueries>
  void Splits(const SplitsArgs& args, const SplitsLaunch& how) {
    grid_.Run(how.blocks, kAttendThreads, SharedBytes<kQueries>(args.shape.key.dim),
              [&](HostGrid::Thread& self) {
                SplitsKernel<HostGrid::Thread, Any, Any, kQueries>(self, args).Run();
              });
  }

  HostGrid grid_;
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace quire::cuda
