#include "cache/below/outgoing_record.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "cache/state/forms.h"

namespace quire::cache {

void OutgoingRecord::Begin(const PerClass<SlotId>& slots, const FormError& error) {
  const RecordShapes& shapes = cache_.shapes();
  const bool reachable = std::ranges::all_of(slots, [&](SlotId slot) {
    return slot.is_none() || !cache_.slots().HostBytes(slot).empty();
  });
  std::span<std::byte> payload;
  if (!reachable) {
    payload = cache_.transfers()->Place(identity_, layout_);
    has_place_ = !payload.empty();
    if (!has_place_) {
      chunk_ = cache_.write_staging()->Take();
      payload = (*cache_.write_staging())[*chunk_];
    }
    for (size_t i = 0; i < layout_.sections().size(); ++i) {
      sections_.push_back(payload.subspan(layout_.offset(i), layout_.sections()[i].bytes));
    }
    crcs_.resize(sections_.size());
  }
  error_ = error;
  std::vector<SlotSection> of_slot;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    if (slots[c].is_none()) continue;
    if (reachable) {
      const bool reencodes = cache_.classes().reencodes();
      shapes.Cut(c, reencodes ? Reencoded(slots[c]) : cache_.slots().HostBytes(slots[c]),
                 sections_);
      continue;
    }
    const auto [first, count] = shapes.sections(c);
    of_slot.clear();
    shapes.CutPayload(c, payload.data(), std::span(crcs_).subspan(first, count), of_slot);
    copies_ = true;
    cache_.slots().CopyOut(slots[c], of_slot);
  }
  if (copies_) {
    there_ = cache_.slots().ops().RecordCopies(CopyWay::kOut);
    return;
  }
  if (shapes.has_error()) {
    sections_.push_back(std::as_bytes(std::span(&error_, 1)));
  }
  static_cast<void>(cache_.slots().ops().Synchronize());
  for (const auto& bytes : sections_) crcs_.push_back(Crc32c(bytes));
}

// A ladder has one sealed class, in memory that the host can reach.
std::span<const std::byte> OutgoingRecord::Reencoded(SlotId slot) {
  const SlotClasses& classes = cache_.classes();
  const std::span<const std::byte> bytes = cache_.slots().HostBytes(slot);
  slot_crc_ = Crc32c(bytes);
  reencoded_.resize(classes.store_layout().slot_bytes(0));
  error_ = error_.Then(Reencode(cache_.slots().ops(), {classes.layout(), bytes.data()},
                                classes.store_layout(), reencoded_.data()));
  return reencoded_;
}

OutgoingRecord::~OutgoingRecord() {
  static_cast<void>(Await());
  if (chunk_) cache_.write_staging()->Give(*chunk_);
  if (has_place_) cache_.transfers()->Withdraw(identity_.key);
}

Result<void> OutgoingRecord::Await() {
  if (std::exchange(copies_, false) && there_ == nullptr) {
    return cache_.slots().ops().SynchronizeCopies(CopyWay::kOut);
  }
  if (there_ != nullptr) there_->Wait();
  there_ = nullptr;
  return cache_.slots().ops().outcome();
}

uint32_t OutgoingRecord::CrcOf(uint32_t slot_class) const {
  if (cache_.classes().reencodes()) return slot_crc_;
  const auto [first, count] = cache_.shapes().sections(slot_class);
  return cache_.shapes().Join(slot_class, std::span(crcs_).subspan(first, count));
}

void OutgoingRecord::Write(transfer::Ends& ends, transfer::AtEnd at_end) {
  cache_.transfers()->Write(
      {.identity = identity_, .layout = &layout_, .sections = sections_, .crcs = crcs_}, ends,
      std::move(at_end));
  has_place_ = false;  // the store's now
}

}  // namespace quire::cache
