// The host's operations on blocks under the schedule: another thread may run before each of them,
// and in the middle of it.
#ifndef QUIRE_SIM_TURNS_STEPPED_OPS_H_
#define QUIRE_SIM_TURNS_STEPPED_OPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/check.h"
#include "quire/block_ops.h"
#include "sim/turns/turns.h"

namespace quire::sim {

/// Stops the program where a slot is written while another thread reads or writes it. Rows of
/// several layers are written by several threads at once.
///
/// Threads: any
class SteppedOps final : public BlockOps {
 public:
  void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                 TokensInBlock at, std::byte* slot) override {
    const Use rows_to(uses_[slot].of_rows, uses_[slot]);
    host_.WriteRows(stream, rows, row_begin, at, slot);
    Turns::Yield();
  }
  void Encode(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
              std::byte* sealed_slot) override {
    const Use rows_from(uses_[open_slot].of_rows, uses_[open_slot]);
    const Use rows_to(uses_[sealed_slot].of_rows, uses_[sealed_slot]);
    host_.Encode(open, open_slot, sealed, sealed_slot);
    Turns::Yield();
  }
  void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) override {
    const Use read(uses_[slot].readers, uses_[slot]);
    host_.Checksum(slot, pieces, crc);
    Turns::Yield();
  }
  void Zero(std::byte* slot, const SlotPieces& pieces) override {
    const Use written(uses_[slot].writers, uses_[slot]);
    host_.Zero(slot, pieces);
    Turns::Yield();
  }
  void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) override {
    const Use read(uses_[from].readers, uses_[from]);
    const Use written(uses_[to].writers, uses_[to]);
    host_.Copy(from, to, pieces);
    Turns::Yield();
  }
  void CopyOut(const std::byte* slot, const SlotPieces& pieces,
               std::span<const SlotSection> sections) override {
    const Use read(uses_[slot].readers, uses_[slot]);
    host_.CopyOut(slot, pieces, sections);
    Turns::Yield();
  }
  void CopyIn(std::span<const SlotSection> sections, const SlotPieces& pieces,
              std::byte* slot) override {
    const Use written(uses_[slot].writers, uses_[slot]);
    host_.CopyIn(sections, pieces, slot);
    Turns::Yield();
  }
  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    host_.ReadRows(stream, slot, at, out, out_head_stride);
  }
  std::unique_ptr<Fence> Record() override { return host_.Record(); }

 private:
  struct Uses {  // by operations that have begun
    uint32_t readers = 0;
    uint32_t of_rows = 0;  // written, or encoded, of one layer
    uint32_t writers = 0;
  };
  /// One operation.
  class Use {
   public:
    Use(uint32_t& count, const Uses& all) : count_(count) {
      ++count_;
      Check(all);
      Turns::Yield();
    }
    ~Use() { --count_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    static void Check(const Uses& all) {
      const bool alone = all.readers + all.of_rows + all.writers == 1;
      QUIRE_CHECK_MSG(alone || all.writers == 0, "a slot is written while others use it");
      QUIRE_CHECK_MSG(all.readers == 0 || all.of_rows == 0,
                      "rows are written to a slot that is read whole");
    }
    uint32_t& count_;
  };

  BlockOps& host_ = HostBlockOps();
  std::map<const std::byte*, Uses> uses_;  // its entries stay where they are
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_TURNS_STEPPED_OPS_H_
