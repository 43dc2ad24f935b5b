// A small reproducible source of numbers. Everything random in Quire takes one as an argument, so
// one seed replays one run. Not for secrets.
#ifndef QUIRE_BASE_PRNG_H_
#define QUIRE_BASE_PRNG_H_

#include <array>
#include <bit>
#include <cstdint>

#include "base/check.h"

namespace quire {

/// xoshiro256** with its state filled by splitmix64. The sequence of a seed never changes: seeds
/// are written in bug reports and golden files.
///
/// Threads: none; one per thread
/// Source:  Blackman and Vigna, prng.di.unimi.it (public domain reference code)
class Prng {
 public:
  /// The position in the sequence, for a generator that continues in another process.
  using State = std::array<uint64_t, 4>;

  explicit constexpr Prng(uint64_t seed) {
    for (uint64_t& word : state_) word = SplitMix64(seed);
  }
  /// Continues from the state of another generator; not all words are 0.
  explicit constexpr Prng(const State& state) : state_(state) {}
  constexpr const State& state() const { return state_; }

  /// 64 uniform bits.
  constexpr uint64_t Next64() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, limit), without the bias of a plain remainder. Needs limit > 0.
  constexpr uint64_t NextBelow(uint64_t limit) {
    QUIRE_CHECK(limit > 0);
    // The lowest 2^64 mod limit values would make some remainders likelier than others.
    const uint64_t rejected_below = (0 - limit) % limit;
    uint64_t bits = Next64();
    while (bits < rejected_below) bits = Next64();
    return bits % limit;
  }

  /// Uniform multiple of 2^-53 in [0, 1).
  constexpr double NextDouble() { return static_cast<double>(Next64() >> 11) * 0x1p-53; }

  /// Uniform in [low, high). Needs low < high and a finite high - low.
  constexpr float NextFloat(float low, float high) {
    const float unit = static_cast<float>(Next64() >> 40) * 0x1p-24f;
    const float value = low + unit * (high - low);
    return value < high ? value : low;  // rounding may reach high
  }

  /// True once in `one_in` on average. Needs one_in > 0.
  constexpr bool NextChance(uint64_t one_in) { return NextBelow(one_in) == 0; }

 private:
  static constexpr uint64_t SplitMix64(uint64_t& state) {
    state += 0x9e3779b97f4a7c15;
    uint64_t mixed = state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }

  State state_ = {};
};

}  // namespace quire

#endif  // QUIRE_BASE_PRNG_H_
