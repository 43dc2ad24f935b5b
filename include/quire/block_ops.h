// The operations on the bytes of blocks. Memory that the host cannot reach brings its own
// operations, and host memory that bytes pass through on their way.
#ifndef QUIRE_BLOCK_OPS_H_
#define QUIRE_BLOCK_OPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/attention_types.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/sequence.h"

namespace [[gnu::visibility("default")]] quire {

/// The bytes of a slot: `count` pieces of `bytes` each, `stride_bytes` from one to the next.
struct SlotPieces {
  uint32_t count = 1;
  uint64_t bytes = 0;
  uint64_t stride_bytes = 0;
};

/// Consecutive bytes of a slot, where the host has them, and where their CRC32C is wanted.
struct SlotSection {
  std::byte* host = nullptr;  // CopyIn does not write it
  uint64_t bytes = 0;
  uint32_t* crc = nullptr;  // null: not asked for
};

/// Consecutive tokens of one block.
struct TokensInBlock {
  uint32_t begin = 0;
  uint32_t count = 0;  // begin + count <= block_tokens
};

/// Memory of the host for bytes on their way to and from a device.
///
/// Threads: any
class HostAllocator {
 public:
  virtual ~HostAllocator() = default;

  /// "cuda:0".
  virtual std::string_view name() const = 0;
  /// Whether a device copies to and from this memory while the host goes on: pinned memory.
  virtual bool pinned() const = 0;
  /// Aligned to 4,096 bytes. The call may stall the device: allocate once and keep the memory.
  /// Errors: kNoSpace with the number of bytes asked for
  virtual Result<std::byte*> Allocate(uint64_t bytes) = 0;
  virtual void Free(std::byte* memory, uint64_t bytes) = 0;
};

/// Ordinary memory, whose pages become resident at first write.
///
/// Lifetime: that of the program
HostAllocator& PlainHostAllocator();

/// Which way bytes go between the host's memory and slots.
enum class CopyWay : uint8_t { kIn, kOut };

/// Everything the cache does with the bytes in its arenas. Calls return without waiting; a
/// fence tells when an operation is over. Slots are addresses in the memory that the
/// cache was given; all other pointers are the host's.
///
/// Operations other than CopyIn and CopyOut take place one after the other, each after all that
/// were enqueued before it, on any thread. A CopyIn or CopyOut takes place after every operation
/// that was enqueued before it, so it sees earlier writes and runs after earlier reads; but nothing
/// that is enqueued after it waits for it, neither operations nor other copies. So the caller holds
/// the slot, and uses what CopyIn writes, or changes what CopyOut reads, only when a fence of
/// RecordCopies after the copy is done. The checksums of the copied bytes are there then.
///
/// The results are those of the host's operations, bit for bit: blocks written by one and by the
/// other have the same checksums.
///
/// Errors:   none, but those of a device that failed: outcome() has them from then on. An operation
///           that cannot be enqueued for lack of memory is done before the call returns
/// Threads:  any, several at once
/// Lifetime: slots, and memory that is copied or written to, stay until a fence after the call is
///           done; layouts and rows need not outlive the call
class BlockOps {
 public:
  virtual ~BlockOps() = default;

  /// Stores rows [row_begin, row_begin + at.count) of `rows` as tokens `at` of an open slot, in the
  /// stream's codec (docs/numerics.md). Bytes of other tokens stay as they are. Host rows are
  /// read before the call returns, rows in the device's memory in the order of the stream.
  ///
  /// Shape: rows (token, head, dim)
  virtual void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                         TokensInBlock at, std::byte* slot) = 0;
  /// Seals one stream of a whole block: all its tokens, from the open into the sealed form
  /// (docs/codecs.md). Bytes of other streams stay as they are.
  virtual void Encode(const StreamLayout& open, const std::byte* open_slot,
                      const StreamLayout& sealed, std::byte* sealed_slot) = 0;
  /// CRC32C of all pieces, one after the other, to *crc.
  virtual void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) = 0;
  /// Zeroes all pieces.
  virtual void Zero(std::byte* slot, const SlotPieces& pieces) = 0;
  /// Copies all pieces to another slot.
  virtual void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) = 0;
  /// All pieces, one after the other, to and from the host's memory, beside other operations. The
  /// sections are all bytes of the slot in their order; a slot of several pieces is one section.
  /// *crc gets the checksum of the bytes in the slot: before CopyOut, after CopyIn.
  virtual void CopyOut(const std::byte* slot, const SlotPieces& pieces,
                       std::span<const SlotSection> sections) = 0;
  virtual void CopyIn(std::span<const SlotSection> sections, const SlotPieces& pieces,
                      std::byte* slot) = 0;
  /// Tokens `at` of one stream, open or sealed, widened to f32.
  ///
  /// Shape: out [heads][at.count][dim], heads out_head_stride elements apart
  virtual void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at,
                        float* out, int64_t out_head_stride) = 0;

  /// Done when all operations enqueued so far are; it says nothing of copies. Null: they are done.
  virtual std::unique_ptr<Fence> Record() = 0;
  /// Done when all copies that way enqueued so far are, with their checksums. Null: they are done.
  /// Operations that do not run apart from each other need no other fence than Record's.
  virtual std::unique_ptr<Fence> RecordCopies(CopyWay way) {
    (void)way;
    return Record();
  }
  /// The failure of the device, if a completed fence has seen one. A failed device stays failed:
  /// its fences are done, and the memory that operations should have written may hold anything.
  /// Errors: kIo names the device
  virtual Result<void> outcome() const { return {}; }
  /// The memory from and to which it copies best. Null: any.
  virtual HostAllocator* host_allocator() { return nullptr; }

  /// Copies of a slot to and from one run of the host's memory. Shape: host [count * bytes]
  void CopyOut(const std::byte* slot, const SlotPieces& pieces, std::byte* host) {
    const SlotSection all = {.host = host, .bytes = pieces.count * pieces.bytes};
    CopyOut(slot, pieces, {&all, 1});
  }
  void CopyIn(const std::byte* host, const SlotPieces& pieces, std::byte* slot) {
    const SlotSection all = {.host = const_cast<std::byte*>(host),  // it is only read
                             .bytes = pieces.count * pieces.bytes};
    CopyIn({&all, 1}, pieces, slot);
  }

  /// Returns when all operations enqueued so far are over, or all copies that way.
  /// Errors: as outcome
  [[nodiscard]] Result<void> Synchronize() { return Await(Record()); }
  [[nodiscard]] Result<void> SynchronizeCopies(CopyWay way) { return Await(RecordCopies(way)); }

 private:
  Result<void> Await(const std::unique_ptr<Fence>& fence) const {
    if (fence != nullptr) fence->Wait();
    return outcome();
  }
};

/// The operations on memory that the host can reach; each is done when the call returns.
///
/// Lifetime: that of the program
BlockOps& HostBlockOps();

}  // namespace quire

#endif  // QUIRE_BLOCK_OPS_H_
