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

/// The bytes of a table for the nibbles of the low half of a word.
template <const codec::IntegerTable& kTable>
QUIRE_KERNEL uint32_t LookUp(uint32_t nibbles) {
  constexpr TableWords kWords = WordsOf(kTable);
  const uint32_t selector = nibbles & 0x7777u;
  const uint32_t lower = Permute(kWords.at[0], kWords.at[1], selector);
  const uint32_t upper = Permute(kWords.at[2], kWords.at[3], selector);
  return Permute(lower, upper, (nibbles >> 1 & 0x4444u) | 0x3210u);
}

/// The table of a format, where device code may name it: members of the host's classes it may not.
template <class Format>
inline constexpr codec::IntegerTable kTableOf = Format::kIntegers;

/// Negates the bytes whose lowest bit in `signs` is set; none of them may be 0.
QUIRE_KERNEL uint32_t NegateSome(uint32_t bytes, uint32_t signs) {
  const uint32_t some = signs & 0x01010101u;
  return (bytes ^ some * 0xffu) + some;
}

/// A word of a step of half bytes has terms 0 to 3 of lane l as the nibbles 0, 4, 1, 5, and those
/// of lane l + 8 as 2, 6, 3, 7. Bytes of its low half are terms 0, 2 of lane l, then of lane l + 8,
/// bytes of its high half terms 1, 3.
struct HalfWords {
  uint32_t low = 0;
  uint32_t high = 0;
};
template <const codec::IntegerTable& kTable>
QUIRE_KERNEL HalfWords LookUpBoth(uint32_t word) {
  return {LookUp<kTable>(word), LookUp<kTable>(word >> 16)};
}

/// Two lanes of one step of a tile of half bytes: terms 0 1 and 2 3 of lane l in the low halves, of
/// lane l + 8 in the high ones.
struct NibbleStep {
  uint32_t first = 0;   // terms 0, 1
  uint32_t second = 0;  // terms 2, 3
};
QUIRE_KERNEL NibbleStep StepOf(const HalfWords& words) {
  return {Permute(words.low, words.high, 0x6240u), Permute(words.low, words.high, 0x7351u)};
}

template <class Format>
QUIRE_KERNEL NibbleStep ReadNibbles(uint32_t word) {
  if constexpr (std::is_same_v<Format, codec::Int4>) {
    const auto integers = [](uint32_t codes) {
      const uint32_t bytes = (((codes & 0x0f0f0f0fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
      return Permute(bytes, 0, 0x3120u);
    };
    return {integers(word), integers(word >> 4)};
  } else {
    return StepOf(LookUpBoth<kTableOf<Format>>(word));
  }
}

/// The same of a tile of pairs: both coordinates of the pairs.
struct PairStep {
  NibbleStep first{};   // coordinates
  NibbleStep second{};  // likewise
};

/// Which pairs of a word are negated, in the order of HalfWords. `signs` is the word of the tile's
/// fifth step, shifted so that the lowest two bits of every byte are of the word's step.
QUIRE_KERNEL HalfWords SignsOf(uint32_t signs) {
  return {Permute(signs, signs >> 1, 0x5140u), Permute(signs, signs >> 1, 0x7362u)};
}
/// One coordinate of a word of pairs.
template <const codec::IntegerTable& kTable>
QUIRE_KERNEL HalfWords CoordinatesOf(uint32_t word, const HalfWords& signs) {
  const HalfWords points = LookUpBoth<kTable>(word);
  return {NegateSome(points.low, signs.low), NegateSome(points.high, signs.high)};
}

/// `signs`: the word of the tile's fifth step; `step` of its four.
QUIRE_KERNEL PairStep ReadPairs(uint32_t word, uint32_t signs, uint32_t step) {
  const HalfWords negated = SignsOf(signs >> step * 2);
  return {StepOf(CoordinatesOf<codec::kPairFirstIntegers>(word, negated)),
          StepOf(CoordinatesOf<codec::kPairSecondIntegers>(word, negated))};
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_INTEGERS_INL_H_
