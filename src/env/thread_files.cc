// Files through threads: each makes one plain call at a time. For kernels and containers that
// refuse io_uring.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "env/file.h"
#include "env/posix_files.h"

namespace quire {
namespace {

constexpr uint32_t kThreadsMax = 8;  // more only wait for the same disk

class ThreadFiles final : public PosixFiles {
 public:
  ThreadFiles() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  ~ThreadFiles() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();  // after all submitted requests
    if (event_ >= 0) ::close(event_);
  }

  Result<void> Start(uint32_t threads) {
    if (event_ < 0) return FailErrno(errno, "eventfd", "files");
    try {
      while (threads_.size() < threads) threads_.push_back(StartThread([this] { Work(); }));
    } catch (const std::exception& error) {
      if (threads_.empty()) return Fail(ErrorCode::kIo, error.what());
    }
    return {};
  }

  void Submit(std::span<const IoRequest> requests) override {
    {
      MutexLock lock(mutex_);
      for (const IoRequest& request : requests) {
        queue_.push_back({.request = request, .descriptor = DescriptorOf(request.file)});
      }
    }
    in_flight_ += requests.size();
    wake_.NotifyAll();
  }

  size_t Complete(std::span<IoCompletion> out, uint64_t wait_us) override {
    size_t count = Take(out);
    if (count > 0 || wait_us == 0 || in_flight_ == 0) return count;
    pollfd waiting = {.fd = event_, .events = POLLIN, .revents = 0};
    const timespec timeout = {.tv_sec = static_cast<time_t>(wait_us / 1'000'000),
                              .tv_nsec = static_cast<long>(wait_us % 1'000'000 * 1000)};
    ::ppoll(&waiting, 1, &timeout, nullptr);
    return Take(out);
  }

  uint64_t in_flight() const override { return in_flight_; }
  std::string_view queue_name() const override { return "threads"; }

 private:
  struct Item {
    IoRequest request{};
    int descriptor = -1;
  };

  size_t Take(std::span<IoCompletion> out) {
    uint64_t signalled = 0;
    // Read before looking: a completion that comes later signals again.
    while (::read(event_, &signalled, sizeof(signalled)) > 0) {
    }
    MutexLock lock(mutex_);
    const size_t count = std::min(out.size(), done_.size());
    std::copy_n(done_.begin(), count, out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(count));
    in_flight_ -= count;
    return count;
  }

  void Work() {
    while (true) {
      Item item;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !stopping_) wake_.Wait(mutex_);
        if (queue_.empty()) return;
        item = queue_.front();
        queue_.pop_front();
      }
      const IoCompletion completion = Perform(item);
      {
        MutexLock lock(mutex_);
        done_.push_back(completion);
      }
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(event_, &one, sizeof(one));
    }
  }

  static IoCompletion Perform(const Item& item) {
    const IoRequest& request = item.request;
    IoCompletion completion = {.tag = request.tag};
    if (request.kind == IoKind::kSync) {
      if (::fdatasync(item.descriptor) != 0) completion.error = CodeOfErrno(errno);
      return completion;
    }
    while (completion.bytes < request.bytes) {
      std::byte* data = request.data + completion.bytes;
      const uint64_t bytes = request.bytes - completion.bytes;
      const auto offset = static_cast<off_t>(request.offset + completion.bytes);
      const ssize_t moved = request.kind == IoKind::kRead
                                ? ::pread(item.descriptor, data, bytes, offset)
                                : ::pwrite(item.descriptor, data, bytes, offset);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0) completion.error = CodeOfErrno(errno);
      if (moved <= 0) break;
      completion.bytes += static_cast<uint64_t>(moved);
    }
    return completion;
  }

  const int event_;
  uint64_t in_flight_ = 0;
  Mutex mutex_{LockRank::kLeaf};
  CondVar wake_;
  bool stopping_ QUIRE_GUARDED_BY(mutex_) = false;
  std::deque<Item> queue_ QUIRE_GUARDED_BY(mutex_);
  std::deque<IoCompletion> done_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<Files>> MakeThreadFiles(uint32_t depth) {
  auto files = std::make_unique<ThreadFiles>();
  QUIRE_TRY(files->Start(std::clamp(depth, 1u, kThreadsMax)));
  return files;
}

}  // namespace quire
