// Bulk copies and barriers (cuda/kernels/bulk.h) of one block of threads on the host, for tests.
// Bytes land when a thread waits for their barrier, the last ones first; from the request until
// then their place is 0xff. A use whose order a device would not fix stops the program.
#ifndef QUIRE_CUDA_HOST_HOST_BULK_H_
#define QUIRE_CUDA_HOST_HOST_BULK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cuda/kernels/bulk.h"

namespace quire::cuda {

/// The map that the host's emulation reads.
TensorMap MapOnHost(const BoxedArray& array);

class HostBulk {
 public:
  /// A block begins, with this shared memory.
  void Start(std::byte* shared, uint32_t shared_bytes);
  /// It has ended. Aborts when bytes are on their way.
  void Finish();

  // cuda/kernels/simt.h. Each aborts when the barrier is not one, or is used before its FenceBulk.
  void InitBarrier(uint64_t* barrier);
  /// Aborts when the phase before has not ended.
  void ExpectBytes(uint64_t* barrier, uint32_t bytes);
  /// Aborts when the phase does not expect so many bytes, or when threads have written where they
  /// go and FenceBulk has not been called since.
  void CopyBulk(void* to, const TensorMap& map, const BoxCorner& corner, uint64_t* barrier);
  void FenceBulk();

  /// Whether the phase has ended; its copies land.
  bool Poll(uint64_t* barrier, uint32_t parity);
  /// Counts events that other threads may have waited for.
  uint64_t events() const { return events_; }

 private:
  struct Barrier {
    uint64_t ended = 0;  // phases
    bool expects = false;
    uint64_t bytes = 0;  // that are expected and have not been asked for
  };
  struct Copy {
    std::byte* to = nullptr;
    BoxedArray array{};
    BoxCorner corner{};
    uint64_t* barrier = nullptr;
  };

  Barrier& At(uint64_t* barrier);
  void Land(const Copy& copy);
  uint64_t OffsetOf(const void* byte) const;

  std::byte* shared_ = nullptr;
  uint32_t shared_bytes_ = 0;
  std::map<uint64_t*, Barrier> barriers_;
  bool is_fenced_ = true;  // since the last InitBarrier
  // Shared memory as bulk copies and fences know it.
  std::vector<std::byte> known_;
  std::vector<Copy> copies_;  // on their way
  uint64_t events_ = 0;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_HOST_HOST_BULK_H_
