// A record of a block on its way out of its slots, to the store.
#ifndef QUIRE_CACHE_BELOW_OUTGOING_RECORD_H_
#define QUIRE_CACHE_BELOW_OUTGOING_RECORD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/wiped_vector.h"
#include "cache/state/locked_state.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// Bytes that the host can read are given to the store where they are. Others are copied to where
/// the store will have them, if it has memory for them, else to the cache's staging memory, of
/// which there is enough for kReadingMax at a time. Where a precision ladder has a step for stores
/// the block is encoded anew.
///
/// Threads:  one at a time; the caller holds the cache's reading_mutex while the host cannot read
/// Lifetime: the slots, and what the identity points to, until it ends
class OutgoingRecord {
 public:
  OutgoingRecord(LockedState& cache, const tier::RecordIdentity& identity, bool twins)
      : cache_(cache), identity_(identity), layout_(cache.shapes().record(twins)) {}
  /// Nothing is copied any more. The store gives away the place of what was not written.
  ~OutgoingRecord();
  OutgoingRecord(const OutgoingRecord&) = delete;
  OutgoingRecord& operator=(const OutgoingRecord&) = delete;

  /// Begins to copy. Shape: slots of the form, none for the other's; the error of a sealed form
  void Begin(const PerClass<SlotId>& slots, const FormError& error);
  /// The store has memory for it, or it needs none.
  bool placed() const { return !chunk_; }
  /// Returns when its bytes are there. Errors: kIo names the device that failed
  Result<void> Await();
  /// The checksum of a slot, from those of what came.
  uint32_t CrcOf(uint32_t slot_class) const;
  void Write(transfer::Ends& ends, transfer::AtEnd at_end);

 private:
  std::span<const std::byte> Reencoded(SlotId slot);

  LockedState& cache_;
  const tier::RecordIdentity identity_;
  const tier::RecordLayout& layout_;
  FormError error_{};  // of a precision ladder: a section
  // Of a ladder with a step for stores: what this one is given, and the checksum of the slot.
  WipedVector<std::byte> reencoded_{};
  uint32_t slot_crc_ = 0;
  std::vector<std::span<const std::byte>> sections_;
  std::vector<uint32_t> crcs_;
  bool has_place_ = false;           // in the store's memory
  std::optional<uint32_t> chunk_{};  // else of the staging memory
  bool copies_ = false;              // until `there_`
  std::unique_ptr<Fence> there_{};
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_OUTGOING_RECORD_H_
