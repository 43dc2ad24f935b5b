// Headers of records that a load has verified and that are read section by section: the next load
// of such a record reads its sections alone.
#ifndef QUIRE_TIER_KNOWN_HEADERS_H_
#define QUIRE_TIER_KNOWN_HEADERS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/wiped_vector.h"

namespace quire::tier {

/// Threads: one at a time
class KnownHeaders {
 public:
  using Header = WipedVector<std::byte>;

  /// Where a record begins. A segment that is written anew has another generation, so no header is
  /// ever taken for that of a later record.
  struct Place {
    uint64_t generation = 0;
    uint32_t segment = 0;
    uint32_t page = 0;

    auto operator<=>(const Place&) const = default;
  };

  explicit KnownHeaders(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  /// Null: it is not known.
  std::shared_ptr<const Header> Find(const Place& place) const;
  /// Copies a header. Where they are too many, others go by chance: a context that is longer than
  /// what is kept is read from end to end again and again, and by age each would go just before it
  /// is wanted.
  void Keep(const Place& place, std::span<const std::byte> header);
  /// Overwrites all of them, for an erasure; a load under way keeps its own until it ends.
  void Forget();

  uint64_t memory_bytes() const { return bytes_; }

 private:
  void DropOne();

  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  std::map<Place, std::shared_ptr<const Header>> headers_;
  std::vector<Place> places_;  // of all of them
  Prng prng_{1};
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_KNOWN_HEADERS_H_
