// What holds slots and charges for callers, and gives them back at its end.
#include <algorithm>
#include <utility>
#include <vector>

#include "cache/core.h"

namespace quire {

Lease::Lease(cache::Core* core, std::vector<SlotId> slots)
    : core_(core), slots_(std::move(slots)) {}

Lease::Lease(Lease&& other) noexcept
    : core_(std::exchange(other.core_, nullptr)), slots_(std::exchange(other.slots_, {})) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    Release();
    core_ = std::exchange(other.core_, nullptr);
    slots_ = std::exchange(other.slots_, {});
  }
  return *this;
}

Lease::~Lease() { Release(); }

void Lease::Release(std::shared_ptr<Fence> fence) {
  if (slots_.empty()) return;
  core_->ReleaseAfter(std::move(fence), std::exchange(slots_, {}));
}

namespace cache {

OwnedSlots& OwnedSlots::operator=(OwnedSlots&& other) noexcept {
  if (this != &other) {
    Release();
    core_ = std::exchange(other.core_, nullptr);
    slots_ = std::move(other.slots_);
  }
  return *this;
}

void OwnedSlots::Add(OwnedSlots&& more) {
  for (uint32_t c = 0; c < kClassesMax; ++c) {
    slots_[c].reserve(slots_[c].size() + more.slots_[c].size());
  }
  for (uint32_t c = 0; c < kClassesMax; ++c) {
    slots_[c].insert(slots_[c].end(), more.slots_[c].begin(), more.slots_[c].end());
  }
  if (core_ == nullptr) core_ = more.core_;
  more.Disown();
}

void OwnedSlots::Release() {
  Core* const core = std::exchange(core_, nullptr);
  if (core == nullptr) return;
  for (const std::vector<SlotId>& slots : slots_) core->ReleaseSlots(slots);
}

MetadataCharge& MetadataCharge::operator=(MetadataCharge&& other) noexcept {
  if (this != &other) {
    Refund();
    core_ = other.core_;
    tenant_ = other.tenant_;
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

MetadataCharge MetadataCharge::Split(uint64_t bytes) {
  if (core_ == nullptr) return {};
  const uint64_t taken = std::min(bytes, bytes_);
  bytes_ -= taken;
  return {*core_, tenant_, taken};
}

void MetadataCharge::Add(MetadataCharge more) {
  if (bytes_ == 0) {
    *this = std::move(more);
    return;
  }
  bytes_ += std::exchange(more.bytes_, 0);
}

void MetadataCharge::Refund() {
  if (const uint64_t bytes = std::exchange(bytes_, 0); bytes > 0) {
    core_->RefundMetadata(tenant_, bytes);
  }
}

}  // namespace cache
}  // namespace quire
