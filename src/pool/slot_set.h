// A set of slot numbers that finds its lowest members without looking at each.
#ifndef QUIRE_POOL_SLOT_SET_H_
#define QUIRE_POOL_SLOT_SET_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire::pool {

/// Bits in 64-bit words; above them, level by level, one bit per word of the level below that is
/// set when the word has a member. Zeroed memory is the empty set and, with the bits inverted, the
/// full one: neither touches more than the last word of every level.
///
/// Threads:  none
/// Lifetime: borrows the memory
/// Cost:     O(log64 universe), at most six levels, unless it says otherwise
class SlotSet {
 public:
  enum class Start : uint8_t { kEmpty, kFull };

  /// Bytes for members below `universe`: 65/64 bits each, rounded up to words.
  static uint64_t Bytes(uint32_t universe);

  SlotSet() = default;
  /// Shape: memory [Bytes(universe)], zero, aligned to 8
  SlotSet(std::byte* memory, uint32_t universe, Start start);

  uint32_t universe() const { return universe_; }
  bool Contains(uint32_t member) const {
    return member < universe_ && (Word(0, member / 64) >> (member % 64) & 1) != 0;
  }
  bool empty() const { return levels_ == 0 || Word(levels_ - 1, 0) == 0; }

  /// Needs a number below universe() that is not a member.
  void Insert(uint32_t member);
  /// Needs a member.
  void Erase(uint32_t member);

  /// The lowest member from `from` on; universe() when there is none.
  uint32_t First(uint32_t from) const;

  /// The lowest of `count` consecutive members; universe() when there are none. Needs count > 0.
  ///
  /// Cost: O(words that have members), six steps each
  uint32_t FirstRun(uint32_t count) const;

 private:
  static constexpr uint32_t kLevelsMax = 6;  // 64^6 > 2^32

  uint64_t Word(uint32_t level, uint64_t index) const { return words_[level][index] ^ inverted_; }

  uint32_t universe_ = 0;
  uint32_t levels_ = 0;
  uint64_t inverted_ = 0;  // all ones: a stored 0 is a member
  std::array<uint64_t*, kLevelsMax> words_ = {};
  std::array<uint64_t, kLevelsMax> word_counts_ = {};
};

}  // namespace quire::pool

#endif  // QUIRE_POOL_SLOT_SET_H_
