#include "registry/owner_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quire {

std::string OwnerName(const Owner& owner) {
  if (const auto* inference = std::get_if<InferenceOwner>(&owner)) {
    const uint64_t id = inference->id;
    if (id < InferenceOwner::kFirstRequest) return fmt::format("inference {}", id);
    return fmt::format("request {}", id - InferenceOwner::kFirstRequest);
  }
  const TrainingOwner& training = std::get<TrainingOwner>(owner);
  std::string text = fmt::format("training {}/{}", training.adapter, training.run);
  if (training.version != 0) text += fmt::format("@{}", training.version);
  return text;
}

}  // namespace quire

namespace quire::registry {

OwnerCacheImpl::OwnerCacheImpl(Owner owner, OwnerOptions options,
                               std::unique_ptr<Sequence> sequence,
                               std::vector<uint32_t> layer_numbers, FreeCapacity free_capacity,
                               const Clock& clock)
    : owner_(std::move(owner)),
      options_(std::move(options)),
      layer_numbers_(std::move(layer_numbers)),
      free_capacity_(std::move(free_capacity)),
      clock_(clock),
      sequence_(std::move(sequence)),
      layers_(std::make_unique<LayerMutex[]>(layer_numbers_.size())),
      room_tokens_(sequence_->stats().tokens_reserved),
      last_access_us_(clock.NowMicros()) {}

std::unexpected<Error> OwnerCacheImpl::Fail(ErrorCode code, std::string_view what) const {
  return quire::Fail(code, fmt::format("{}: {}", OwnerName(owner_), what));
}

Result<void> OwnerCacheImpl::CheckAlive() const {
  switch (state_.load(std::memory_order_acquire)) {
    case OwnerState::kAlive: return {};
    case OwnerState::kEvicted: return Fail(ErrorCode::kNotFound, "it was evicted");
    case OwnerState::kReleased: break;
  }
  return Fail(ErrorCode::kNotFound, "it was released");
}

Result<void> OwnerCacheImpl::CheckWritable() const {
  QUIRE_TRY(CheckAlive());
  if (free_capacity_) return {};
  return Fail(ErrorCode::kBusy, "an engine writes to it");
}

Result<uint32_t> OwnerCacheImpl::LayerOf(uint32_t layer) const {
  if (layer >= layer_numbers_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("layer {} of a model with {}", layer, layer_numbers_.size()));
  }
  if (layer_numbers_[layer] == kNoLayer) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("layer {} is a checkpoint layer: recomputed, not cached", layer));
  }
  return layer_numbers_[layer];
}

void OwnerCacheImpl::Touch() const {
  const uint64_t now_us = clock_.NowMicros();
  uint64_t last_us = last_access_us_.load(std::memory_order_relaxed);
  while (last_us < now_us && !last_access_us_.compare_exchange_weak(last_us, now_us)) {
  }
}

Result<void> OwnerCacheImpl::Append(uint32_t layer, const LayerRows& rows) {
  QUIRE_ASSIGN(const uint32_t number, LayerOf(layer));
  Touch();
  while (true) {
    uint64_t end = 0;
    {
      SharedLock structure(structure_);
      QUIRE_TRY(CheckWritable());
      MutexLock writer(layers_[number]);
      end = sequence_->cursor(number) + rows.tokens;
      if (options_.tokens_max > 0 && end > options_.tokens_max) {
        return Fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} tokens are over its limit of {} (tokens_max)", end,
                                options_.tokens_max));
      }
      if (end <= room_tokens_.load(std::memory_order_relaxed)) {
        return sequence_->Append(number, rows);
      }
    }
    QUIRE_TRY(Grow(end));
  }
}

// No lock is held while other owners make room: they may be asking for room of this one.
Result<void> OwnerCacheImpl::Grow(uint64_t tokens) {
  while (true) {
    Result<void> grown;
    {
      MutexLock structure(structure_);
      QUIRE_TRY(CheckAlive());
      grown = sequence_->Reserve(tokens);
      if (grown) {
        room_tokens_.store(sequence_->stats().tokens_reserved, std::memory_order_relaxed);
        return {};
      }
    }
    if (grown.error().code != ErrorCode::kNoSpace || !free_capacity_(*this)) {
      return Fail(grown.error().code, grown.error().message);
    }
  }
}

Result<void> OwnerCacheImpl::Commit(std::span<const TokenId> tokens) {
  Touch();
  MutexLock structure(structure_);
  QUIRE_TRY(CheckWritable());
  return sequence_->Commit(tokens);
}

Result<void> OwnerCacheImpl::Clear() {
  Touch();
  MutexLock structure(structure_);
  QUIRE_TRY(CheckWritable());
  sequence_->Reset();
  room_tokens_.store(0, std::memory_order_relaxed);
  return {};
}

void OwnerCacheImpl::End(OwnerState how) {
  {
    MutexLock structure(structure_);
    if (state_ != OwnerState::kAlive) return;
    state_.store(how, std::memory_order_release);
  }
  if (free_capacity_) GiveBack();
}

void OwnerCacheImpl::GiveBack() {
  MutexLock structure(structure_);
  sequence_->Reset();
  room_tokens_.store(0, std::memory_order_relaxed);
}

// Readers take no lock of the owner's. If it ends meanwhile the sequence is empty, and slots that
// they took before stay pinned.
Result<void> OwnerCacheImpl::Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                                    std::span<float> out) const {
  QUIRE_ASSIGN(const uint32_t number, LayerOf(layer));
  QUIRE_TRY(CheckAlive());
  Touch();
  auto gathered = sequence_->Gather(number, role, begin, end, out);
  if (!gathered) QUIRE_TRY(CheckAlive());
  return gathered;
}

Result<BlockListView> OwnerCacheImpl::View(uint32_t layer, StreamRole role,
                                           TokenRange range) const {
  QUIRE_ASSIGN(const uint32_t number, LayerOf(layer));
  QUIRE_TRY(CheckAlive());
  Touch();
  auto view = sequence_->View(number, role, range);
  if (!view) QUIRE_TRY(CheckAlive());
  return view;
}

Result<void> OwnerCacheImpl::ReadBlocks(
    uint32_t layer, const std::function<Result<void>(const LayerBlocks&)>& read) const {
  QUIRE_ASSIGN(const uint32_t number, LayerOf(layer));
  Touch();
  SharedLock structure(structure_);
  QUIRE_TRY(CheckAlive());
  MutexLock writer(layers_[number]);
  return read(sequence_->Blocks(number));
}

}  // namespace quire::registry
