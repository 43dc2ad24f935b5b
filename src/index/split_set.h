// A hash table that grows in small steps.
#ifndef QUIRE_INDEX_SPLIT_SET_H_
#define QUIRE_INDEX_SPLIT_SET_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace quire::index {

/// Numbers, each kept with the hash it is found by. Several may have the same hash.
///
/// Linear hashing over absl::flat_hash_set: when there are more than kPartElements numbers a part,
/// one part splits in two. So no insertion moves more than some two thousand numbers, where a table
/// of a million would stop for a tenth of a second. Nothing iterates: no order is visible.
///
/// Threads: none
/// Source:  Litwin, Linear hashing, VLDB 1980
class SplitSet {
 public:
  static constexpr uint64_t kPartElements = 1024;

  SplitSet() : parts_(1) {}

  uint64_t size() const { return size_; }
  /// Heap bytes, without the allocator's headers.
  uint64_t bytes() const;

  /// A number with this hash for which `matches(number)` holds; at most one must.
  template <typename Matches>
  std::optional<uint32_t> Find(uint32_t hash, const Matches& matches) const {
    const Part& part = parts_[PartOf(hash)];
    const auto found = part.find(Wanted<Matches>{.hash = hash, .matches = matches});
    if (found == part.end()) return std::nullopt;
    return found->number;
  }

  /// Needs a number that is not here with this hash.
  void Insert(uint32_t hash, uint32_t number);
  /// Needs a number that is here with this hash.
  void Erase(uint32_t hash, uint32_t number);

 private:
  // A part uses the low bits of a hash, the choice of the part those above kPartBits: enough for
  // kPartsMax parts. More numbers than these hold make the parts larger.
  static constexpr uint32_t kPartBits = 19;
  static constexpr uint64_t kPartsMax = uint64_t{1} << (32 - kPartBits);

  struct Element {
    uint32_t hash;
    uint32_t number;
  };
  template <typename Matches>
  struct Wanted {
    uint32_t hash;
    const Matches& matches;
  };
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): Abseil looks for it

    template <typename Key>
    size_t operator()(const Key& key) const {
      return key.hash;
    }
  };
  struct Same {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): Abseil looks for it

    bool operator()(const Element& a, const Element& b) const {
      return a.hash == b.hash && a.number == b.number;
    }
    template <typename Matches>
    bool operator()(const Element& element, const Wanted<Matches>& wanted) const {
      return element.hash == wanted.hash && wanted.matches(element.number);
    }
  };
  using Part = absl::flat_hash_set<Element, Hash, Same>;

  uint64_t PartOf(uint32_t hash) const;
  void InsertInto(Part& part, const Element& element);
  void Split();

  std::vector<Part> parts_;
  uint64_t size_ = 0;
  uint64_t places_ = 0;  // of all parts
};

}  // namespace quire::index

#endif  // QUIRE_INDEX_SPLIT_SET_H_
