#include "cache/below/layer_slices.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::cache {

LayerSlices::LayerSlices(const RecordShapes& shapes, uint32_t slices, size_t blocks,
                         std::shared_ptr<Arrival> arrival)
    : sections_(shapes.sealed().sections().size()),
      slices_(slices),
      missing_(blocks, static_cast<uint8_t>((1U << slices) - 1)),
      crcs_(blocks * sections_),
      arrival_(std::move(arrival)) {
  const std::span<const LayerBytes> layers = shapes.layers();
  QUIRE_CHECK(slices > 0 && slices <= kSlicesMax && slices <= layers.size());
  uint32_t layer = 0;
  for (uint32_t i = 0; i < slices; ++i) {
    Slice& slice = slices_[i];
    slice.layers_end = static_cast<uint32_t>(layers.size() * (i + 1) / slices);
    slice.sections.first = layers[layer].sections.first;
    for (; layer < slice.layers_end; ++layer) slice.sections.count += layers[layer].sections.count;
  }
}

std::optional<LayerSlices::Next> LayerSlices::TakeNext(size_t end) {
  if (started_ >= end && slice_ + 1 < slices_.size()) {
    ++slice_;
    started_ = 0;
  }
  if (started_ >= end) return std::nullopt;
  return Next{.block = started_++, .slice = slice_};
}

bool LayerSlices::Add(const Next& which, std::span<const uint32_t> crcs) {
  const size_t first = which.block * sections_ + slices_[which.slice].sections.first;
  std::ranges::copy(crcs, crcs_.begin() + static_cast<ptrdiff_t>(first));
  missing_[which.block] &= static_cast<uint8_t>(~(1U << which.slice));
  return has_all(which.block);
}

std::span<const uint32_t> LayerSlices::crcs(size_t block) const {
  return std::span(crcs_).subspan(block * sections_, sections_);
}

bool LayerSlices::Tell(size_t end) {
  bool more = false;
  while (told_ + 1 < slices_.size() && end > 0) {
    if (told_ > 0 && end != arriving_) break;  // one of them does not come
    while (there_ < end && (missing_[there_] >> told_ & 1U) == 0) ++there_;
    if (there_ < end) break;
    if (told_ == 0) arriving_ = end;
    arrival_->SetReady(slices_[told_].layers_end);
    ++told_;
    there_ = 0;
    more = true;
  }
  return more;
}

}  // namespace quire::cache
