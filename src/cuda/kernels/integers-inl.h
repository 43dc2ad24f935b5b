// Integer codes of tiles (codec/planes.h), four at a time, as the bytes of a word.
#ifndef QUIRE_CUDA_KERNELS_INTEGERS_INL_H_
#define QUIRE_CUDA_KERNELS_INTEGERS_INL_H_

#include <cstdint>
#include <type_traits>

#include "codec/formats.h"
#include "cuda/kernels/simt.h"

namespace quire::cuda {

/// A table of sixteen signed bytes in four words.
struct TableWords {
  uint32_t at[4] = {};
};

consteval TableWords WordsOf(const codec::IntegerTable& table) {
  TableWords words;
  for (uint32_t i = 0; i < 16; ++i) {
    words.at[i / 4] |= uint32_t{static_cast<uint8_t>(table[i])} << i % 4 * 8;
  }
  return words;
}

/// A thread's word of step `s` of a tile.
QUIRE_KERNEL uint32_t LoadStep(const std::byte* tile, uint64_t s) {
  return Load<uint32_t>(tile + s * codec::kStepBytes);
}

/// The bytes of a table for the low half of every byte of `codes`; upper halves are ignored.
template <const codec::IntegerTable& kTable>
QUIRE_KERNEL uint32_t LookUp(uint32_t codes) {
  constexpr TableWords kWords = WordsOf(kTable);
  const uint32_t four = codes & 0x0f0f0f0fu;
  const uint32_t joined = four | four >> 4;
  const uint32_t selector = ((joined & 0xffu) | (joined >> 8 & 0xff00u)) & 0x7777u;
  const uint32_t lower = Permute(kWords.at[0], kWords.at[1], selector);
  const uint32_t upper = Permute(kWords.at[2], kWords.at[3], selector);
  const uint32_t is_upper = (four >> 3 & 0x01010101u) * 0xffu;
  return (lower & ~is_upper) | (upper & is_upper);
}

/// The table of a format, where device code may name it: members of the host's classes it may not.
template <class Format>
inline constexpr codec::IntegerTable kTableOf = Format::kIntegers;

/// The integers of four codes of half a byte, as signed bytes.
template <class Format>
QUIRE_KERNEL uint32_t NibbleIntegers(uint32_t codes) {
  if constexpr (std::is_same_v<Format, codec::Int4>) {
    return (((codes & 0x0f0f0f0fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
  } else {
    return LookUp<kTableOf<Format>>(codes);
  }
}

/// Negates the bytes whose lowest bit in `signs` is set; none of them may be 0.
QUIRE_KERNEL uint32_t NegateSome(uint32_t bytes, uint32_t signs) {
  const uint32_t some = signs & 0x01010101u;
  return (bytes ^ some * 0xffu) + some;
}

/// Steps of a tile have two terms of lane l, then of lane l + 8 ... in the bytes 0 2 and 1 3: both
/// terms of a lane become neighbours.
QUIRE_KERNEL uint32_t ByLane(uint32_t bytes) { return Permute(bytes, 0, 0x3120u); }

/// Two lanes of one step of a tile of half bytes: terms 0 1 and 2 3 of lane l in the low halves, of
/// lane l + 8 in the high ones.
struct NibbleStep {
  uint32_t first = 0;   // terms 0, 1
  uint32_t second = 0;  // terms 2, 3
};

template <class Format>
QUIRE_KERNEL NibbleStep ReadNibbles(uint32_t word) {
  return {ByLane(NibbleIntegers<Format>(word)), ByLane(NibbleIntegers<Format>(word >> 4))};
}

/// The same of a tile of pairs: both coordinates of the pairs.
struct PairStep {
  NibbleStep first{};   // coordinates
  NibbleStep second{};  // likewise
};

/// One coordinate; `signs` has those of the step in its lowest two bits of every byte.
template <const codec::IntegerTable& kTable>
QUIRE_KERNEL NibbleStep ReadCoordinate(uint32_t word, uint32_t signs) {
  return {ByLane(NegateSome(LookUp<kTable>(word), signs)),
          ByLane(NegateSome(LookUp<kTable>(word >> 4), signs >> 1))};
}

/// `signs`: the word of the tile's fifth step; `step` of its four.
QUIRE_KERNEL PairStep ReadPairs(uint32_t word, uint32_t signs, uint32_t step) {
  return {ReadCoordinate<codec::kPairFirstIntegers>(word, signs >> step * 2),
          ReadCoordinate<codec::kPairSecondIntegers>(word, signs >> step * 2)};
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_INTEGERS_INL_H_
