// CRC32C by many threads. A checksum is linear: that of all bytes is the exclusive or of the
// threads' checksums, each moved on by the bytes that follow its own, and of the start's.
#ifndef QUIRE_CUDA_CHECKSUM_INL_H_
#define QUIRE_CUDA_CHECKSUM_INL_H_

#include <algorithm>
#include <cstdint>

#include "base/bits.h"
#include "cuda/blocks.h"
#include "cuda/simt.h"

namespace quire::cuda {

/// Bytes of one thread.
inline constexpr uint64_t kChecksumRunBytes = 256;

/// The polynomial of CRC32C, bits reversed: x^32 without its highest term.
inline constexpr uint32_t kPolynomial = 0x82f63b78u;

/// a * b modulo the polynomial. The highest bit is x^0.
constexpr uint32_t MultiplyPolynomials(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0; bit < 32; ++bit) {
    product ^= (a >> (31 - bit) & 1u) != 0 ? b : 0u;
    b = b >> 1 ^ ((b & 1u) != 0 ? kPolynomial : 0u);
  }
  return product;
}

/// What `bytes` bytes that follow do to a checksum: it is multiplied with x^(8 * bytes).
constexpr uint32_t PolynomialAfter(uint64_t bytes) {
  uint32_t result = 0x80000000u;  // 1
  uint32_t power = 0x00800000u;   // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1u) != 0) result = MultiplyPolynomials(result, power);
    power = MultiplyPolynomials(power, power);
  }
  return result;
}

/// What *crc is before the kernel adds to it.
constexpr uint32_t ChecksumStart(uint64_t bytes) {
  return ~MultiplyPolynomials(PolynomialAfter(bytes), ~0u);
}

/// Blocks of threads that a checksum takes.
constexpr uint32_t ChecksumBlocks(const ChecksumArgs& args) {
  return static_cast<uint32_t>(DivUp(args.count * args.bytes, kChecksumRunBytes * kBlockThreads));
}

template <class Thread>
class ChecksumKernel {
 public:
  QUIRE_KERNEL ChecksumKernel(Thread& self, const ChecksumArgs& args)
      : self_(self), args_(args), table_(reinterpret_cast<uint32_t*>(self.shared())) {}

  /// Of the table and of the threads' sums.
  static constexpr uint32_t kSharedBytes = (256 + kBlockThreads) * 4;

  QUIRE_KERNEL void Run() {
    for (uint32_t i = self_.id(); i < 256; i += self_.count()) {
      uint32_t value = i;
      for (uint32_t bit = 0; bit < 8; ++bit) {
        value = value >> 1 ^ ((value & 1u) != 0 ? kPolynomial : 0u);
      }
      table_[i] = value;
    }
    self_.Sync();
    const uint64_t total = args_.count * args_.bytes;
    const uint64_t begin =
        (uint64_t{self_.block()} * self_.count() + self_.id()) * kChecksumRunBytes;
    const uint64_t end = std::min(begin + kChecksumRunBytes, total);
    uint32_t sum = 0;
    if (begin < end) {
      for (uint64_t at = begin; at < end; ++at) {
        const std::byte* from =
            args_.slot + at / args_.bytes * args_.stride_bytes + at % args_.bytes;
        sum = table_[(sum ^ static_cast<uint32_t>(*from)) & 0xffu] ^ sum >> 8;
      }
      sum = MultiplyPolynomials(PolynomialAfter(total - end), sum);
    }
    uint32_t* const sums = table_ + 256;
    sums[self_.id()] = sum;
    self_.Sync();
    if (self_.id() != 0) return;
    for (uint32_t i = 1; i < self_.count(); ++i) sum ^= sums[i];
    Add(sum);
  }

 private:
  QUIRE_KERNEL void Add(uint32_t sum) const {
#if defined(__CUDA_ARCH__)
    atomicXor(args_.crc, sum);
#else
    *args_.crc ^= sum;
#endif
  }

  Thread& self_;
  const ChecksumArgs& args_;
  uint32_t* const table_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_CHECKSUM_INL_H_
