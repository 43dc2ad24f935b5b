#include "cuda/host/host_bulk.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace quire::cuda {
namespace {

constexpr uint64_t kDestinationAligned = 128;
constexpr std::byte kGarbage{0xff};

BoxedArray ArrayOf(const TensorMap& map) {
  BoxedArray array;
  std::memcpy(&array, map.bytes, sizeof(array));
  return array;
}

uint64_t BytesOf(const BoxedArray& array) { return uint64_t{array.box[0]} * array.box[1] * 2; }

/// Number (x, y) of the box; outside the array zero.
uint16_t NumberAt(const BoxedArray& array, const BoxCorner& corner, uint32_t x, uint32_t y) {
  const std::byte* at = array.base;
  for (uint32_t axis = 0; axis < kBoxAxes; ++axis) {
    const int64_t i = int64_t{corner.at[axis]} + (axis == 0 ? x : axis == 1 ? y : 0);
    if (i < 0 || i >= int64_t{array.counts[axis]}) return 0;
    at += static_cast<uint64_t>(i) * (axis == 0 ? 2 : array.strides_bytes[axis - 1]);
  }
  uint16_t number = 0;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

}  // namespace

TensorMap MapOnHost(const BoxedArray& array) {
  static_assert(sizeof(array) <= sizeof(TensorMap));
  TensorMap map{};
  std::memcpy(map.bytes, &array, sizeof(array));
  return map;
}

void HostBulk::Start(std::byte* shared, uint32_t shared_bytes) {
  shared_ = shared;
  shared_bytes_ = shared_bytes;
  barriers_.clear();
  copies_.clear();
  is_fenced_ = true;
}

void HostBulk::Finish() {
  QUIRE_CHECK_MSG(copies_.empty(), "the block ends, and bytes are on their way to its memory");
}

uint64_t HostBulk::OffsetOf(const void* byte) const {
  return static_cast<uint64_t>(static_cast<const std::byte*>(byte) - shared_);
}

HostBulk::Barrier& HostBulk::At(uint64_t* barrier) {
  const auto found = barriers_.find(barrier);
  QUIRE_CHECK_MSG(found != barriers_.end(), "no barrier");
  return found->second;
}

void HostBulk::InitBarrier(uint64_t* barrier) {
  QUIRE_CHECK(OffsetOf(barrier) % sizeof(*barrier) == 0 && OffsetOf(barrier) < shared_bytes_);
  if (barriers_.empty()) known_.assign(shared_, shared_ + shared_bytes_);
  QUIRE_CHECK_MSG(barriers_.emplace(barrier, Barrier{}).second, "a barrier already");
  is_fenced_ = false;
}

void HostBulk::ExpectBytes(uint64_t* barrier, uint32_t bytes) {
  Barrier& state = At(barrier);
  QUIRE_CHECK_MSG(!state.expects, "the phase has not ended");
  state.expects = true;
  state.bytes = bytes;
  ++events_;
}

void HostBulk::CopyBulk(void* to, const TensorMap& map, const BoxCorner& corner,
                        uint64_t* barrier) {
  const Copy copy{static_cast<std::byte*>(to), ArrayOf(map), corner, barrier};
  const uint64_t bytes = BytesOf(copy.array);
  const uint64_t offset = OffsetOf(to);
  Barrier& state = At(barrier);
  QUIRE_CHECK_MSG(is_fenced_, "barriers are not ready: no FenceBulk");
  QUIRE_CHECK(offset % kDestinationAligned == 0 && offset + bytes <= shared_bytes_);
  QUIRE_CHECK_MSG(state.expects && state.bytes >= bytes, "bytes that nobody expects");
  QUIRE_CHECK_MSG(std::memcmp(to, known_.data() + offset, bytes) == 0,
                  "threads have written here: no FenceBulk");
  state.bytes -= bytes;
  std::fill_n(copy.to, bytes, kGarbage);
  std::fill_n(known_.data() + offset, bytes, kGarbage);
  copies_.push_back(copy);
  ++events_;
}

void HostBulk::FenceBulk() {
  if (!barriers_.empty()) std::memcpy(known_.data(), shared_, shared_bytes_);
  is_fenced_ = true;
}

bool HostBulk::Poll(uint64_t* barrier, uint32_t parity) {
  Barrier& state = At(barrier);
  if (state.ended % 2 != parity) return true;
  const auto wanted = [&](const Copy& copy) { return copy.barrier == barrier; };
  for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
    if (wanted(*copy)) Land(*copy);
  }
  std::erase_if(copies_, wanted);
  if (!state.expects || state.bytes > 0) return false;
  state.expects = false;
  ++state.ended;
  ++events_;
  return true;
}

void HostBulk::Land(const Copy& copy) {
  const uint64_t offset = OffsetOf(copy.to);
  const uint64_t bytes = BytesOf(copy.array);
  QUIRE_CHECK_MSG(std::all_of(copy.to, copy.to + bytes, [](std::byte b) { return b == kGarbage; }),
                  "threads have written where bytes are on their way");
  const uint32_t width = copy.array.box[0];
  for (uint32_t y = 0; y < copy.array.box[1]; ++y) {
    for (uint32_t x = 0; x < width; ++x) {
      const uint16_t number = NumberAt(copy.array, copy.corner, x, y);
      // The swizzle is one of addresses, so boxes at other alignments are other places.
      const uint32_t at = Swizzled(width, static_cast<uint32_t>(offset / 2) + y * width + x);
      std::memcpy(shared_ + uint64_t{at} * 2, &number, sizeof(number));
    }
  }
  std::memcpy(known_.data() + offset, copy.to, bytes);
}

}  // namespace quire::cuda
