// CRC32C by many threads. A checksum is linear: that of all bytes is the exclusive or of the
// threads' checksums, each moved on by the bytes that follow its own, and of the start's. Zeros
// before a thread's bytes change nothing, so runs are counted from the end of a section: what
// follows one is always a number of whole runs.
#ifndef QUIRE_CUDA_KERNELS_CHECKSUM_INL_H_
#define QUIRE_CUDA_KERNELS_CHECKSUM_INL_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/bits.h"
#include "cuda/kernels/blocks.h"
#include "cuda/kernels/simt.h"

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

/// The effect of `bytes` following bytes on a checksum: a factor of x^(8 * bytes).
constexpr uint32_t PolynomialAfter(uint64_t bytes) {
  uint32_t result = 0x80000000u;  // 1
  uint32_t power = 0x00800000u;   // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1u) != 0) result = MultiplyPolynomials(result, power);
    power = MultiplyPolynomials(power, power);
  }
  return result;
}

/// The checksum of a section from its sum.
constexpr uint32_t ChecksumOf(uint32_t sum, uint64_t bytes) {
  return sum ^ ~MultiplyPolynomials(PolynomialAfter(bytes), ~0u);
}

inline constexpr uint64_t kChecksumBlockBytes = kChecksumRunBytes * kBlockThreads;

/// Arguments that have the powers, and nothing else.
constexpr ChecksumArgs ChecksumPowers() {
  ChecksumArgs args;
  uint32_t power = PolynomialAfter(kChecksumRunBytes);
  for (uint32_t& of : args.run_powers) {
    of = power;
    power = MultiplyPolynomials(power, power);
  }
  for (uint32_t& of : args.block_powers) {
    of = power;
    power = MultiplyPolynomials(power, power);
  }
  return args;
}

/// Blocks of threads for the sections of one slot. 0: there is nothing to launch, all sums are
/// zero.
constexpr uint32_t ChecksumBlocks(const ChecksumArgs& args) {
  uint64_t blocks = 0;
  uint64_t begin = args.begin;
  for (uint32_t section = 0; section < args.sections; ++section) {
    blocks += DivUp(args.ends[section] - begin, kChecksumBlockBytes);
    begin = args.ends[section];
  }
  return static_cast<uint32_t>(blocks);
}

template <class Thread>
class ChecksumKernel {
 public:
  QUIRE_KERNEL ChecksumKernel(Thread& self, const ChecksumArgs& args)
      : self_(self),
        args_(args),
        slot_(self.block() / args.blocks),
        tables_(reinterpret_cast<uint32_t*>(self.shared())) {}

  /// Of the tables and of the threads' sums.
  static constexpr uint32_t kSharedBytes = (4 * 256 + 2 * kBlockThreads) * 4;

  QUIRE_KERNEL void Run() {
    MakeTables();
    const Place place = Find();
    const uint64_t after = place.block * kChecksumBlockBytes + self_.id() * kChecksumRunBytes;
    const uint64_t bytes = place.end - place.begin;
    uint32_t sum = 0;
    if (after < bytes) {
      const uint64_t end = place.end - after;
      sum = SumOf(end - std::min(bytes - after, uint64_t{kChecksumRunBytes}), end);
    }
    sum = Join(sum);
    if (self_.id() != 0) return;
    const auto following = static_cast<uint32_t>(place.block);
    for (uint32_t i = 0; i < 32 && following >> i != 0; ++i) {
      if ((following >> i & 1u) != 0) sum = MultiplyPolynomials(args_.block_powers[i], sum);
    }
    Add(args_.sums + slot_ * args_.sections + place.section, sum);
    uint32_t* const done = args_.sums + kChecksumsOfLaunch;
    if (CountUp(done) + 1 != args_.slot_count * args_.blocks) return;
    for (uint32_t i = 0; i < args_.slot_count * args_.sections; ++i) {
      args_.results[i] = TakeOut(args_.sums + i);
    }
    TakeOut(done);
  }

 private:
  /// Which bytes of which section a block of threads has: the one with that number from the end.
  struct Place {
    uint32_t section = 0;
    uint64_t begin = 0;  // of the section
    uint64_t end = 0;
    uint64_t block = 0;
  };
  struct alignas(16) Words {
    uint32_t word[4];
  };

  /// Table k: the share of a byte that k more follow.
  QUIRE_KERNEL void MakeTables() {
    for (uint32_t i = self_.id(); i < 256; i += self_.count()) {
      uint32_t value = i;
      for (uint32_t bit = 0; bit < 8; ++bit) {
        value = value >> 1 ^ ((value & 1u) != 0 ? kPolynomial : 0u);
      }
      tables_[i] = value;
    }
    self_.Sync();
    for (uint32_t table = 1; table < 4; ++table) {
      for (uint32_t i = self_.id(); i < 256; i += self_.count()) {
        const uint32_t before = tables_[(table - 1) * 256 + i];
        tables_[table * 256 + i] = tables_[before & 0xffu] ^ before >> 8;
      }
    }
    self_.Sync();
  }

  QUIRE_KERNEL Place Find() const {
    Place place{.begin = args_.begin, .end = args_.ends[0], .block = self_.block() % args_.blocks};
    while (true) {
      const uint64_t blocks = DivUp(place.end - place.begin, kChecksumBlockBytes);
      if (place.block < blocks) return place;
      place.block -= blocks;
      place.begin = place.end;
      place.end = args_.ends[++place.section];
    }
  }

  /// Of bytes [at, end) alone.
  QUIRE_KERNEL uint32_t SumOf(uint64_t at, uint64_t end) const {
    uint64_t piece = at / args_.bytes;
    uint64_t in_piece = at % args_.bytes;
    const auto aligned = [](uint64_t value) { return value % sizeof(Words) == 0; };
    const bool words = aligned(at) && aligned(end) && aligned(args_.bytes) &&
                       aligned(args_.stride_bytes) &&
                       aligned(reinterpret_cast<uintptr_t>(args_.slots[slot_]));
    const uint64_t step = words ? sizeof(Words) : 1;
    uint32_t sum = 0;
    for (; at < end; at += step) {
      const std::byte* const from = args_.slots[slot_] + piece * args_.stride_bytes + in_piece;
      if (words) {
        const Words next = Load<Words>(from);
        QUIRE_DEVICE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          sum ^= next.word[i];
          sum = tables_[3 * 256 + (sum & 0xffu)] ^ tables_[2 * 256 + (sum >> 8 & 0xffu)] ^
                tables_[256 + (sum >> 16 & 0xffu)] ^ tables_[sum >> 24];
        }
      } else {
        sum = tables_[(sum ^ static_cast<uint32_t>(*from)) & 0xffu] ^ sum >> 8;
      }
      in_piece += step;
      if (in_piece == args_.bytes) {
        in_piece = 0;
        ++piece;
      }
    }
    return sum;
  }

  /// The sum of all threads' bytes, for thread 0. Those of thread i are followed by i runs.
  QUIRE_KERNEL uint32_t Join(uint32_t sum) {
    uint32_t* from = tables_ + size_t{4} * 256;
    uint32_t* to = from + kBlockThreads;
    from[self_.id()] = sum;
    for (uint32_t join = 0; join < kChecksumJoins; ++join) {
      self_.Sync();
      if (self_.id() < kBlockThreads >> (join + 1)) {
        sum = from[2 * self_.id()] ^
              MultiplyPolynomials(args_.run_powers[join], from[2 * self_.id() + 1]);
        to[self_.id()] = sum;
      }
      std::swap(from, to);
    }
    return sum;
  }

  // What blocks of threads share. A block has added before it counts itself.

  QUIRE_KERNEL static void Add(uint32_t* to, uint32_t sum) {
#if defined(__CUDA_ARCH__)
    atomicXor(to, sum);
#else
    *to ^= sum;
#endif
  }
  QUIRE_KERNEL static uint32_t CountUp(uint32_t* counter) {
#if defined(__CUDA_ARCH__)
    __threadfence();
    const uint32_t before = atomicAdd(counter, 1u);
    __threadfence();  // the last one sees what all have added
    return before;
#else
    return (*counter)++;
#endif
  }
  /// The value, which is zero afterwards.
  QUIRE_KERNEL static uint32_t TakeOut(uint32_t* from) {
#if defined(__CUDA_ARCH__)
    return atomicExch(from, 0u);
#else
    return std::exchange(*from, 0u);
#endif
  }

  Thread& self_;
  const ChecksumArgs& args_;
  const uint32_t slot_;  // of the launch, whose bytes the block has
  uint32_t* const tables_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_CHECKSUM_INL_H_
