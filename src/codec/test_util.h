// What the tests of this folder share.
#ifndef QUIRE_CODEC_TEST_UTIL_H_
#define QUIRE_CODEC_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <hwy/highway.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "codec/planes.h"
#include "codec/token_codec.h"
#include "quire/attention.h"
#include "quire/geometry.h"

namespace quire::codec {

/// Every target this machine can run, the scalar fallback included; the last state is restored.
template <typename Body>
void ForEachTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// Bytes with a page behind them, and one before, that must not be touched.
class GuardedBytes {
 public:
  /// The bytes end at the page behind, or with `at_front` begin at the one before.
  GuardedBytes(size_t bytes, bool at_front) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    mapped_bytes_ = inside + 2 * page;
    void* mapped =
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
    QUIRE_CHECK(mapped != MAP_FAILED);
    mapped_ = static_cast<std::byte*>(mapped);
    QUIRE_CHECK(mprotect(mapped_ + page, inside, PROT_READ | PROT_WRITE) == 0);
    data_ = mapped_ + page + (at_front ? 0 : inside - bytes);
  }
  ~GuardedBytes() { munmap(mapped_, mapped_bytes_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* mapped_ = nullptr;
  std::byte* data_ = nullptr;
  size_t mapped_bytes_ = 0;
};

/// Puts the code of a channel, or of a pair, into a head's plane.
inline void StoreCode(const StreamLayout& stream, uint32_t token, uint32_t channel, uint8_t code,
                      std::byte* plane) {
  const CodePosition at = PositionOf(stream, token, channel);
  const CodeLayout layout = InfoOf(stream.codec).layout;
  if (layout == CodeLayout::kBytes || layout == CodeLayout::kByteTiles) {
    plane[at.byte] = std::byte{code};
    return;
  }
  const auto put = [&](uint64_t byte, uint32_t mask, uint32_t shift, uint32_t bits) {
    const auto kept = plane[byte] & ~std::byte(mask << shift);
    plane[byte] = kept | std::byte((bits & mask) << shift);
  };
  put(at.byte, 15, at.high ? 4 : 0, code);
  if (layout == CodeLayout::kPairTiles) put(at.sign_byte, 1, at.sign_bit, code / kPairNegated);
}

/// The value that a sealed slot holds of one channel: what reading it back must give.
inline float SealedValue(const StreamLayout& stream, const std::byte* slot, uint32_t head,
                         uint32_t token, uint32_t dim) {
  const std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
  const std::byte* scales = slot + ScaleAt(stream, head, token);
  const float product = LoadValue(Codec::kF16, scales, 0) *
                        CodeValue(stream.codec, LoadCode(stream, plane, token, dim));
  if (!HasMids(stream.codec)) return product;
  return LoadValue(Codec::kF16, scales, stream.block_tokens) + product;
}

/// A stream alone in its slot, `offset_bytes` from its start.
inline StreamLayout OnlyStream(Codec codec, InnerAxis inner, uint32_t heads, uint32_t dim,
                               uint32_t block_tokens, uint64_t offset_bytes) {
  StreamLayout stream{.codec = codec,
                      .inner = inner,
                      .heads = heads,
                      .dim = dim,
                      .block_tokens = block_tokens,
                      .offset_bytes = offset_bytes,
                      .head_stride_bytes = PlaneBytes(codec, inner, dim, block_tokens)};
  stream.scale_offset_bytes = offset_bytes + heads * stream.head_stride_bytes;
  stream.scale_head_stride_bytes = ScaleBytes(codec, block_tokens);
  return stream;
}

/// Bytes up to the end of OnlyStream.
inline uint64_t EndOf(const StreamLayout& stream) {
  return stream.scale_offset_bytes + stream.heads * stream.scale_head_stride_bytes;
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_TEST_UTIL_H_
