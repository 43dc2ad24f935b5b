// Files through io_uring. Partial transfers are continued here, so a request ends whole, with an
// error, or at the end of the file.
#include <liburing.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "env/file.h"
#include "env/posix_files.h"

namespace quire {
namespace {

class UringFiles final : public PosixFiles {
 public:
  explicit UringFiles(uint32_t depth) : slots_(depth) {
    for (uint32_t slot = depth; slot-- > 0;) free_slots_.push_back(slot);
  }
  ~UringFiles() override {
    if (!ring_made_) return;
    // The kernel must not write to memory that its owner will free.
    while (busy_slots() > 0) Harvest(kForever);
    io_uring_queue_exit(&ring_);
  }

  Result<void> MakeRing() {
    const auto depth = static_cast<unsigned>(slots_.size());
    const int error = -io_uring_queue_init(depth, &ring_, 0);
    if (error != 0) return Fail(ErrorCode::kUnsupported, ErrnoText("io_uring", error));
    ring_made_ = true;
    return {};
  }

  void Submit(std::span<const IoRequest> requests) override {
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    in_flight_ += requests.size();
    StartWaiting();
  }

  size_t Complete(std::span<IoCompletion> out, uint64_t wait_us) override {
    StartWaiting();
    Harvest(done_.empty() ? wait_us : 0);
    const size_t count = std::min(out.size(), done_.size());
    std::copy_n(done_.begin(), count, out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(count));
    in_flight_ -= count;
    StartWaiting();
    return count;
  }

  uint64_t in_flight() const override { return in_flight_; }

  void RegisterBuffers(std::span<const std::span<std::byte>> buffers) override {
    QUIRE_CHECK(registered_.empty());
    std::vector<iovec> vectors;
    for (const auto& buffer : buffers) {
      vectors.push_back({.iov_base = buffer.data(), .iov_len = buffer.size()});
    }
    const int error =
        -io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
    // Processes without privileges may lock a few megabytes only.
    if (error == 0) {
      registered_.assign(buffers.begin(), buffers.end());
    } else {
      LogDebug("{}", ErrnoText("registering buffers", error));
    }
  }

  std::string_view queue_name() const override { return "io_uring"; }

 private:
  static constexpr uint64_t kForever = ~uint64_t{0};

  struct Slot {
    IoRequest request{};
    uint64_t bytes_done = 0;
  };

  static std::string ErrnoText(std::string_view what, int error) {
    return fmt::format("{}: {}", what, std::generic_category().message(error));
  }

  size_t busy_slots() const { return slots_.size() - free_slots_.size(); }

  // The registered buffer that has all of these bytes.
  std::optional<int> BufferOf(const std::byte* data, uint64_t bytes) const {
    for (size_t i = 0; i < registered_.size(); ++i) {
      const std::span<std::byte>& buffer = registered_[i];
      if (data < buffer.data() || data + bytes > buffer.data() + buffer.size()) continue;
      return static_cast<int>(i);
    }
    return std::nullopt;
  }

  void StartWaiting() {
    bool any = false;
    while (!waiting_.empty() && !free_slots_.empty()) {
      const uint32_t slot = free_slots_.back();
      free_slots_.pop_back();
      slots_[slot] = {.request = waiting_.front()};
      waiting_.pop_front();
      Prepare(slot);
      any = true;
    }
    if (any) Enter();
  }

  // Requests that the kernel does not take now (it is short of memory) are tried again by the next
  // call.
  void Enter() { io_uring_submit(&ring_); }

  void Prepare(uint32_t slot) {
    const auto& [request, done] = slots_[slot];
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      Enter();
      entry = io_uring_get_sqe(&ring_);
    }
    QUIRE_CHECK(entry != nullptr);  // the ring has an entry for every slot
    const int descriptor = DescriptorOf(request.file);
    std::byte* data = request.data + done;
    // The kernel takes 32 bits; the rest of a longer request is a partial transfer.
    constexpr uint64_t kBytesMax = uint64_t{1} << 30;
    const auto bytes = static_cast<unsigned>(std::min(request.bytes - done, kBytesMax));
    const uint64_t offset = request.offset + done;
    const auto fixed = request.kind != IoKind::kSync ? BufferOf(data, bytes) : std::nullopt;
    switch (request.kind) {
      case IoKind::kRead:
        if (fixed) {
          io_uring_prep_read_fixed(entry, descriptor, data, bytes, offset, *fixed);
        } else {
          io_uring_prep_read(entry, descriptor, data, bytes, offset);
        }
        break;
      case IoKind::kWrite:
        if (fixed) {
          io_uring_prep_write_fixed(entry, descriptor, data, bytes, offset, *fixed);
        } else {
          io_uring_prep_write(entry, descriptor, data, bytes, offset);
        }
        break;
      case IoKind::kSync: io_uring_prep_fsync(entry, descriptor, IORING_FSYNC_DATASYNC); break;
    }
    io_uring_sqe_set_data64(entry, slot);
  }

  void Harvest(uint64_t wait_us) {
    io_uring_cqe* entry = nullptr;
    if (io_uring_peek_cqe(&ring_, &entry) != 0 && wait_us > 0 && busy_slots() > 0) {
      Enter();
      __kernel_timespec timeout = {.tv_sec = static_cast<int64_t>(wait_us / 1'000'000),
                                   .tv_nsec = static_cast<int64_t>(wait_us % 1'000'000 * 1000)};
      io_uring_wait_cqe_timeout(&ring_, &entry, wait_us == kForever ? nullptr : &timeout);
    }
    bool again = false;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      const auto slot = static_cast<uint32_t>(io_uring_cqe_get_data64(entry));
      const int result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      again |= Finish(slot, result);
    }
    if (again) Enter();
  }

  // True when the rest of a partial transfer was prepared.
  bool Finish(uint32_t number, int result) {
    Slot& slot = slots_[number];
    if (result == -EINTR || result == -EAGAIN) {
      Prepare(number);
      return true;
    }
    const bool moves = slot.request.kind != IoKind::kSync;
    if (result > 0 && moves) {
      slot.bytes_done += static_cast<uint64_t>(result);
      if (slot.bytes_done < slot.request.bytes) {
        Prepare(number);
        return true;
      }
    }
    IoCompletion completion = {.tag = slot.request.tag, .bytes = slot.bytes_done};
    if (result < 0) completion.error = CodeOfErrno(-result);
    done_.push_back(completion);
    free_slots_.push_back(number);
    return false;
  }

  io_uring ring_ = {};
  bool ring_made_ = false;
  std::vector<std::span<std::byte>> registered_;
  std::vector<Slot> slots_;           // what the kernel works on
  std::vector<uint32_t> free_slots_;  //
  std::deque<IoRequest> waiting_;     // no slot yet
  std::deque<IoCompletion> done_;     // not taken yet
  uint64_t in_flight_ = 0;
};

}  // namespace

Result<std::unique_ptr<Files>> MakeUringFiles(uint32_t depth) {
  auto files = std::make_unique<UringFiles>(std::max(depth, 1u));
  QUIRE_TRY(files->MakeRing());
  return files;
}

}  // namespace quire
