#include "cuda/host/host_grid.h"

#include <ucontext.h>

#include <cstring>
#include <vector>

#include "base/check.h"

namespace quire::cuda {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;  // a warp's fragments are on it
constexpr size_t kCopyBytes = 16;
constexpr size_t kSharedAlignment = kBulkAlignment;

thread_local HostGrid* entering = nullptr;

}  // namespace

struct HostGrid::Fibers {
  ucontext_t main{};
  std::vector<ucontext_t> contexts{};
  std::unique_ptr<std::byte[]> stacks{};  // of the most threads so far; pages come as they are used
  size_t stacked = 0;
  std::vector<bool> is_done{};
  std::vector<bool> waits{};  // for the other threads, or for bytes
  std::vector<Thread> threads{};
  std::vector<std::byte> shared{};
};

HostGrid::HostGrid() : fibers_(std::make_unique<Fibers>()) {}
HostGrid::~HostGrid() = default;

void HostGrid::Run(uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                   const std::function<void(Thread&)>& kernel) {
  kernel_ = &kernel;
  threads_ = threads;
  fibers_->contexts.resize(threads);
  if (threads > fibers_->stacked) {
    fibers_->stacks = std::make_unique_for_overwrite<std::byte[]>(threads * kStackBytes);
    fibers_->stacked = threads;
  }
  fibers_->threads.resize(threads);
  fibers_->shared.resize(shared_bytes + kSharedAlignment);
  const size_t misaligned = reinterpret_cast<uintptr_t>(fibers_->shared.data()) % kSharedAlignment;
  shared_ = fibers_->shared.data() + (misaligned == 0 ? 0 : kSharedAlignment - misaligned);
  descending_ = !descending_;
  for (uint32_t i = 0; i < blocks; ++i) {
    block_ = descending_ ? blocks - 1 - i : i;
    std::memset(shared_, 0xff, shared_bytes);
    bulk_.Start(shared_, shared_bytes);
    RunBlock();
    bulk_.Finish();
  }
}

void HostGrid::RunBlock() {
  Fibers& fibers = *fibers_;
  fibers.is_done.assign(threads_, false);
  for (uint32_t i = 0; i < threads_; ++i) {
    fibers.threads[i].grid_ = this;
    fibers.threads[i].id_ = i;
    fibers.threads[i].copies_.clear();
    fibers.threads[i].groups_.clear();
    ucontext_t& context = fibers.contexts[i];
    QUIRE_CHECK(getcontext(&context) == 0);
    context.uc_stack.ss_sp = fibers.stacks.get() + i * kStackBytes;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = &fibers.main;
    makecontext(&context, &HostGrid::Enter, 0);
  }
  bool descending = false;
  for (uint32_t done = 0; done < threads_; descending = !descending) {
    QUIRE_CHECK_MSG(done == 0, "a thread has returned, and others wait for it to sync");
    done = RunToSync(descending);
  }
}

/// Runs every thread until it syncs or returns. How many have returned.
uint32_t HostGrid::RunToSync(bool descending) {
  Fibers& fibers = *fibers_;
  fibers.waits.assign(threads_, true);
  uint32_t done = 0;
  for (uint32_t waiting = threads_; waiting > 0;) {
    const uint32_t before = waiting;
    const uint64_t events = bulk_.events();
    for (uint32_t i = 0; i < threads_; ++i) {
      running_ = descending ? threads_ - 1 - i : i;
      if (!fibers.waits[running_]) continue;
      fibers.waits[running_] = false;
      entering = this;
      QUIRE_CHECK(swapcontext(&fibers.main, &fibers.contexts[running_]) == 0);
      waiting -= fibers.waits[running_] ? 0 : 1;
      done += fibers.is_done[running_] ? 1 : 0;
    }
    QUIRE_CHECK_MSG(waiting < before || bulk_.events() != events,
                    "threads wait for bytes that nobody asks for");
  }
  return done;
}

void HostGrid::Thread::FinishCopies(size_t but_groups) {
  if (groups_.size() <= but_groups) return;
  const size_t groups = groups_.size() - but_groups;
  const size_t count = groups_[groups - 1];
  for (size_t i = 0; i < count; ++i) {
    if (copies_[i].from == nullptr) {
      std::memset(copies_[i].to, 0, kCopyBytes);
    } else {
      std::memcpy(copies_[i].to, copies_[i].from, kCopyBytes);
    }
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<ptrdiff_t>(count));
  groups_.erase(groups_.begin(), groups_.begin() + static_cast<ptrdiff_t>(groups));
  for (size_t& end : groups_) end -= count;
}

bool HostGrid::Thread::IsLast(uint32_t* arrived, uint32_t blocks) {
  Sync();
  if (id_ == 0) {
    QUIRE_CHECK(*arrived < blocks);
    grid_->is_last_ = ++*arrived == blocks;
    if (grid_->is_last_) *arrived = 0;
  }
  Sync();
  return grid_->is_last_;
}

void HostGrid::Enter() {
  HostGrid* const grid = entering;
  (*grid->kernel_)(grid->fibers_->threads[grid->running_]);
  grid->fibers_->is_done[grid->running_] = true;
}

void HostGrid::LetOthersRun() {
  fibers_->waits[running_] = true;
  Sync();
}

void HostGrid::Sync() {
  const uint32_t self = running_;
  QUIRE_CHECK(swapcontext(&fibers_->contexts[self], &fibers_->main) == 0);
}

}  // namespace quire::cuda
