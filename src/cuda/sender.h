// Sends bytes of the host to a device without waiting for the copy.
#ifndef QUIRE_CUDA_SENDER_H_
#define QUIRE_CUDA_SENDER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "cuda/device.h"
#include "env/host_buffer.h"

namespace quire::cuda {

/// A ring of pieces of pinned memory: each is used again when the device has read it.
///
/// Threads: one at a time
class Sender {
 public:
  static constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

  /// Throws std::bad_alloc.
  explicit Sender(Device& device, uint64_t piece_bytes = kPieceBytes)
      : device_(device),
        piece_bytes_(piece_bytes),
        memory_(device.host_allocator(), kPieces * piece_bytes, "copies to a device") {}

  /// `host` is read before the call returns; the copy takes place in the order of kCompute.
  void Send(const void* host, uint64_t bytes, void* there) {
    for (uint64_t done = 0; done < bytes; done += piece_bytes_) {
      const uint64_t count = std::min(piece_bytes_, bytes - done);
      const size_t piece = next_++ % kPieces;
      if (read_[piece] != nullptr) read_[piece]->Wait();
      std::byte* const staged = memory_.bytes().data() + piece * piece_bytes_;
      std::memcpy(staged, static_cast<const std::byte*>(host) + done, count);
      device_.Copy(staged, static_cast<std::byte*>(there) + done, {.bytes = count});
      read_[piece] = device_.Record();
    }
  }

 private:
  static constexpr size_t kPieces = 8;

  Device& device_;
  const uint64_t piece_bytes_;
  const HostBuffer memory_;                             // [kPieces]
  std::array<std::unique_ptr<Fence>, kPieces> read_{};  // null: it is not being read
  size_t next_ = 0;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_SENDER_H_
