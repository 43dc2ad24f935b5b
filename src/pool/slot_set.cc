#include "pool/slot_set.h"

#include <bit>

#include "base/bits.h"
#include "base/check.h"

namespace quire::pool {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};

// The positions in `bits` where `count` ones in sequence begin, 1 <= count <= 64.
uint64_t RunStarts(uint64_t bits, uint32_t count) {
  for (uint32_t covered = 1; covered < count;) {
    const uint32_t step = covered <= count - covered ? covered : count - covered;
    bits &= bits >> step;
    covered += step;
  }
  return bits;
}

}  // namespace

uint64_t SlotSet::Bytes(uint32_t universe) {
  uint64_t words = 0;
  for (uint64_t bits = universe; bits > 0;) {
    bits = DivUp(bits, uint64_t{64});
    words += bits;
    if (bits == 1) break;
  }
  return words * sizeof(uint64_t);
}

SlotSet::SlotSet(std::byte* memory, uint32_t universe, Start start)
    : universe_(universe), inverted_(start == Start::kFull ? kAll : 0) {
  auto* next = reinterpret_cast<uint64_t*>(memory);
  for (uint64_t bits = universe; bits > 0;) {
    const uint64_t words = DivUp(bits, uint64_t{64});
    QUIRE_CHECK(levels_ < kLevelsMax);
    words_[levels_] = next;
    word_counts_[levels_] = words;
    // No member lies beyond the end.
    if (start == Start::kFull && bits % 64 != 0) next[words - 1] = kAll << (bits % 64);
    ++levels_;
    next += words;
    bits = words;
    if (words == 1) break;
  }
}

void SlotSet::Insert(uint32_t member) {
  uint64_t number = member;
  for (uint32_t level = 0; level < levels_; ++level) {
    uint64_t& word = words_[level][number / 64];
    const bool was_empty = (word ^ inverted_) == 0;
    word ^= uint64_t{1} << number % 64;
    if (!was_empty) return;
    number /= 64;
  }
}

void SlotSet::Erase(uint32_t member) {
  uint64_t number = member;
  for (uint32_t level = 0; level < levels_; ++level) {
    uint64_t& word = words_[level][number / 64];
    word ^= uint64_t{1} << number % 64;
    if ((word ^ inverted_) != 0) return;
    number /= 64;
  }
}

uint32_t SlotSet::First(uint32_t from) const {
  uint64_t number = from;
  for (uint32_t level = 0; level < levels_; ++level) {
    const uint64_t index = number / 64;
    if (index >= word_counts_[level]) break;
    const uint64_t bits = Word(level, index) & (kAll << number % 64);
    if (bits == 0) {
      number = index + 1;  // the words behind this one, one level up
      continue;
    }
    number = index * 64 + static_cast<uint64_t>(std::countr_zero(bits));
    while (level-- > 0) {
      number = number * 64 + static_cast<uint64_t>(std::countr_zero(Word(level, number)));
    }
    return static_cast<uint32_t>(number);
  }
  return universe_;
}

uint32_t SlotSet::FirstRun(uint32_t count) const {
  uint64_t before = 0;  // members just before the word
  for (uint64_t index = First(0) / 64; index < word_counts_[0];) {
    const uint64_t bits = Word(0, index);
    if (bits == 0) {
      before = 0;
      const uint32_t next = First(static_cast<uint32_t>(index * 64));
      if (next == universe_) break;
      index = next / 64;
      continue;
    }
    if (before + static_cast<uint64_t>(std::countr_one(bits)) >= count) {
      return static_cast<uint32_t>(index * 64 - before);
    }
    if (bits == kAll) {
      before += 64;
    } else {
      const uint64_t starts = count <= 64 ? RunStarts(bits, count) : 0;
      if (starts != 0) {
        return static_cast<uint32_t>(index * 64 + static_cast<uint64_t>(std::countr_zero(starts)));
      }
      before = static_cast<uint64_t>(std::countl_one(bits));
    }
    ++index;
  }
  return universe_;
}

}  // namespace quire::pool
