// One type per kind of id, so that a block id passed where a tenant id belongs does not compile.
#ifndef QUIRE_IDS_H_
#define QUIRE_IDS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace [[gnu::visibility("default")]] quire {

/// A number that names one kind of thing. Explicit to make, ordered, hashable; the largest value is
/// "none".
template <typename Tag, typename Number>
class Id {
 public:
  using number_type = Number;

  constexpr Id() = default;
  constexpr explicit Id(Number number) : number_(number) {}

  static constexpr Id None() { return Id(); }

  constexpr Number number() const { return number_; }
  constexpr bool is_none() const { return number_ == std::numeric_limits<Number>::max(); }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  Number number_ = std::numeric_limits<Number>::max();
};

/// A published block of the cache: block_tokens tokens, all layers.
using BlockId = Id<struct BlockTag, uint32_t>;
/// A place in an arena that holds one block.
using SlotId = Id<struct SlotTag, uint32_t>;
/// One sequence of one cache.
using SequenceId = Id<struct SequenceTag, uint64_t>;
/// A party that pays for and may read its own blocks only.
using TenantId = Id<struct TenantTag, uint32_t>;

/// A token of the model's vocabulary (or of the image-token space above it).
using TokenId = int32_t;

}  // namespace quire

template <typename Tag, typename Number>
struct std::hash<quire::Id<Tag, Number>> {
  size_t operator()(quire::Id<Tag, Number> id) const noexcept {
    return std::hash<Number>{}(id.number());
  }
};

#endif  // QUIRE_IDS_H_
