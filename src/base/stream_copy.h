// Copies past the processor's caches.
#ifndef QUIRE_BASE_STREAM_COPY_H_
#define QUIRE_BASE_STREAM_COPY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/hash.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace quire {

/// Copies bytes that this core will not use soon: where the processor can, it writes whole lines
/// of memory without reading them first, and evicts nothing from its caches for them.
///
/// Other threads see them as after any other write.
inline void StreamCopy(std::span<const std::byte> from, std::byte* to) {
#ifdef __SSE2__
  constexpr size_t kLine = 64;
  constexpr size_t kVector = 16;
  constexpr size_t kFew = 4096;  // the caches have room for these
  if (from.size() < kFew) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  const size_t head = std::min(from.size(), -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from.data(), head);
  from = from.subspan(head);
  to += head;
  for (; from.size() >= kLine; from = from.subspan(kLine), to += kLine) {
    for (size_t at = 0; at < kLine; at += kVector) {
      const auto bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + at));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), bytes);
    }
  }
  _mm_sfence();
#endif
  std::memcpy(to, from.data(), from.size());
}

/// The same. Returns the CRC32C of the bytes, which are read from memory once.
inline uint32_t StreamCopyCrc(std::span<const std::byte> from, std::byte* to) {
  constexpr size_t kPiece = 16 << 10;
  uint32_t crc = 0;
  while (!from.empty()) {
    const auto piece = from.first(std::min(kPiece, from.size()));
    crc = Crc32c(piece, crc);
    StreamCopy(piece, to);
    from = from.subspan(piece.size());
    to += piece.size();
  }
  return crc;
}

}  // namespace quire

#endif  // QUIRE_BASE_STREAM_COPY_H_
