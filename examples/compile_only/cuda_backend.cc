// What a GPU adds: memory for the arenas, what is done with blocks there, fences for its stream,
// and attention on block lists. The driver is a table of functions here, so that this compiles
// without a GPU's headers.
#include <quire/attention.h>
#include <quire/block_ops.h>
#include <quire/env.h>
#include <quire/sequence.h>

#include <string>
#include <type_traits>
#include <vector>

namespace example {

using namespace quire;

struct Driver {
  std::byte* (*reserve)(uint64_t bytes);          // address space; null: no room
  bool (*map)(std::byte* begin, uint64_t bytes);  // backs it with device pages
  void (*unmap)(std::byte* begin, uint64_t bytes);
  void (*release)(std::byte* base, uint64_t bytes);
  void (*discard)(std::byte* begin, uint64_t bytes);
  // One launch each, on the device's own addresses.
  void (*write_rows)(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                     TokensInBlock at, std::byte* slot, void* on);
  void (*encode)(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
                 std::byte* sealed_slot, void* on);
  void (*checksum)(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc, void* on);
  void (*zero)(std::byte* slot, const SlotPieces& pieces, void* on);
  void (*copy)(const std::byte* from, std::byte* to, const SlotPieces& pieces, void* on);
  void (*copy_out)(const std::byte* slot, const SlotPieces& pieces,
                   std::span<const SlotSection> sections, void* on);
  void (*copy_in)(std::span<const SlotSection> sections, const SlotPieces& pieces, std::byte* slot,
                  void* on);
  void (*read_rows)(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                    int64_t out_head_stride, void* on);
  void* (*record_event)(void* stream);
  bool (*event_done)(void* event);
  void (*wait_event)(void* event);
  void (*destroy_event)(void* event);
  // A copy of host memory on the device, gone when the stream has passed what is launched next.
  const void* (*upload)(const void* from, uint64_t bytes, void* stream);
  // One launch: what `tables` and `tasks` [task_count] point to lies in device memory.
  void (*attend)(const AttentionShape& shape, const BlockTables& tables, const AttentionTask* tasks,
                 uint32_t task_count, void* stream);
};

class CudaFence final : public Fence {
 public:
  CudaFence(const Driver& driver, void* stream)
      : driver_(driver), event_(driver.record_event(stream)) {}
  ~CudaFence() override { driver_.destroy_event(event_); }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  bool IsDone() const override { return driver_.event_done(event_); }
  void Wait() override { driver_.wait_event(event_); }

 private:
  const Driver& driver_;
  void* const event_;
};

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(const Driver& driver, uint32_t device)
      : driver_(driver), name_("cuda:" + std::to_string(device)) {}

  std::string_view name() const override { return name_; }
  bool host_accessible() const override { return false; }

  Result<std::byte*> Reserve(uint64_t bytes) override {
    std::byte* const base = driver_.reserve(bytes);
    if (base == nullptr) {
      return Fail(ErrorCode::kNoSpace,
                  name_ + ": cannot reserve " + std::to_string(bytes) + " bytes");
    }
    return base;
  }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    if (driver_.map(begin, bytes)) return {};
    return Fail(ErrorCode::kNoSpace, name_ + ": cannot commit " + std::to_string(bytes) + " bytes");
  }
  void Decommit(std::byte* begin, uint64_t bytes) override { driver_.unmap(begin, bytes); }
  void Release(std::byte* base, uint64_t bytes) override { driver_.release(base, bytes); }
  void Discard(std::byte* begin, uint64_t bytes) override { driver_.discard(begin, bytes); }

 private:
  const Driver& driver_;
  const std::string name_;
};

// All on one stream, so each finds the bytes as those before it left them.
class CudaBlockOps final : public BlockOps {
 public:
  CudaBlockOps(const Driver& driver, void* stream) : driver_(driver), stream_(stream) {}

  void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                 TokensInBlock at, std::byte* slot) override {
    driver_.write_rows(stream, rows, row_begin, at, slot, stream_);
  }
  void Encode(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
              std::byte* sealed_slot) override {
    driver_.encode(open, open_slot, sealed, sealed_slot, stream_);
  }
  void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) override {
    driver_.checksum(slot, pieces, crc, stream_);
  }
  void Zero(std::byte* slot, const SlotPieces& pieces) override {
    driver_.zero(slot, pieces, stream_);
  }
  void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) override {
    driver_.copy(from, to, pieces, stream_);
  }
  // With the checksums of the sections whose `crc` is not null.
  void CopyOut(const std::byte* slot, const SlotPieces& pieces,
               std::span<const SlotSection> sections) override {
    driver_.copy_out(slot, pieces, sections, stream_);
  }
  void CopyIn(std::span<const SlotSection> sections, const SlotPieces& pieces,
              std::byte* slot) override {
    driver_.copy_in(sections, pieces, slot, stream_);
  }
  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    driver_.read_rows(stream, slot, at, out, out_head_stride, stream_);
  }
  std::unique_ptr<Fence> Record() override { return std::make_unique<CudaFence>(driver_, stream_); }

 private:
  const Driver& driver_;
  void* const stream_;
};

static_assert(!std::is_abstract_v<CudaBlockOps>);

class CudaAttention final : public AttentionBackend {
 public:
  CudaAttention(const Driver& driver, void* stream) : driver_(driver), stream_(stream) {}

  std::string_view name() const override { return "cuda"; }
  std::string_view target() const override { return "sm_90"; }

  Result<void> Supports(const AttentionShape& shape) const override {
    if (shape.key.heads == 0 || shape.query_heads % shape.key.heads != 0) {
      return Fail(ErrorCode::kInvalidArgument, "cuda: query_heads is no multiple of key.heads");
    }
    if (shape.key.codec == Codec::kF32) {
      return Fail(ErrorCode::kUnsupported, "cuda: key.codec f32");
    }
    return {};
  }

  // The host's threads have nothing to do: the device works, and the call waits for it.
  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& /*executor*/) override {
    QUIRE_TRY(Supports(shape));
    const BlockTables on_device{.sealed = Upload(tables.sealed), .open = Upload(tables.open)};
    const void* const uploaded = driver_.upload(tasks.data(), tasks.size_bytes(), stream_);
    driver_.attend(shape, on_device, static_cast<const AttentionTask*>(uploaded),
                   static_cast<uint32_t>(tasks.size()), stream_);
    CudaFence(driver_, stream_).Wait();
    return {};
  }

 private:
  // The lists; the slots that they name are on the device already.
  BlockTable Upload(BlockTable table) const {
    const uint64_t blocks = table.sequences == 0 ? 0 : table.indptr[table.sequences];
    const void* const slots = driver_.upload(table.slots, blocks * sizeof(uint32_t), stream_);
    const void* const indptr =
        driver_.upload(table.indptr, (table.sequences + 1) * sizeof(uint64_t), stream_);
    table.slots = static_cast<const uint32_t*>(slots);
    table.indptr = static_cast<const uint64_t*>(indptr);
    return table;
  }

  const Driver& driver_;
  void* const stream_;
};

// Pins that outlive the call: the blocks stay until the stream has passed this point.
void ReleaseWhenRead(const Driver& driver, void* stream, BlockListView view) {
  view.Release(std::make_shared<CudaFence>(driver, stream));
}

}  // namespace example
