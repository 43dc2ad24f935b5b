// Runs kernels on the host, for tests: the threads of a block run one at a time, each until it
// syncs, in ascending order up to one barrier and in descending order up to the next. So a barrier
// that is missing shows as a wrong result. Copies take place when they are waited for, so a wait
// that is missing shows too. Blocks run one after the other, in ascending order in one launch and
// in descending order in the next.
#ifndef QUIRE_CUDA_HOST_HOST_GRID_H_
#define QUIRE_CUDA_HOST_HOST_GRID_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/host/host_bulk.h"

namespace quire::cuda {

class HostGrid {
 public:
  /// One thread of a block (cuda/kernels/simt.h).
  class Thread {
   public:
    uint32_t id() const { return id_; }
    uint32_t count() const { return grid_->threads_; }
    uint32_t block() const { return grid_->block_; }
    std::byte* shared() const { return grid_->shared_; }
    void Sync() { grid_->Sync(); }
    bool IsLast(uint32_t* arrived, uint32_t blocks);

    void CopyAsync(void* to, const void* from, bool valid) {
      copies_.push_back({to, valid ? from : nullptr});
    }
    void CommitCopies() { groups_.push_back(copies_.size()); }
    template <int kGroups>
    void WaitCopies() {
      FinishCopies(kGroups);
    }

    void InitBarrier(uint64_t* barrier) { grid_->bulk_.InitBarrier(barrier); }
    void ExpectBytes(uint64_t* barrier, uint32_t bytes) {
      grid_->bulk_.ExpectBytes(barrier, bytes);
    }
    void CopyBulk(void* to, const TensorMap& map, const BoxCorner& corner, uint64_t* barrier) {
      grid_->bulk_.CopyBulk(to, map, corner, barrier);
    }
    void WaitBytes(uint64_t* barrier, uint32_t parity) {
      while (!grid_->bulk_.Poll(barrier, parity)) grid_->LetOthersRun();
    }
    void FenceBulk() { grid_->bulk_.FenceBulk(); }

   private:
    friend class HostGrid;
    struct Copy {
      void* to = nullptr;
      const void* from = nullptr;  // null: zeros
    };

    void FinishCopies(size_t but_groups);

    HostGrid* grid_ = nullptr;
    uint32_t id_ = 0;
    std::vector<Copy> copies_;    // that have not taken place
    std::vector<size_t> groups_;  // where each ends among them
  };

  HostGrid();
  ~HostGrid();
  HostGrid(const HostGrid&) = delete;
  HostGrid& operator=(const HostGrid&) = delete;

  /// Calls kernel(thread) for every thread of every block. Before each block all of its shared
  /// memory is 0xff. Aborts when a thread returns while others wait for it, or when all wait for
  /// bytes that no copy brings.
  void Run(uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
           const std::function<void(Thread&)>& kernel);

 private:
  struct Fibers;

  void Sync();
  void LetOthersRun();
  void RunBlock();
  uint32_t RunToSync(bool descending);
  static void Enter();

  std::unique_ptr<Fibers> fibers_;
  const std::function<void(Thread&)>* kernel_ = nullptr;
  HostBulk bulk_;
  std::byte* shared_ = nullptr;
  uint32_t threads_ = 0;
  uint32_t block_ = 0;
  uint32_t running_ = 0;
  bool descending_ = true;  // the blocks of this launch
  bool is_last_ = false;    // this block, of those that count themselves in
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_HOST_HOST_GRID_H_
