// Everything that decides the bits of a cached block besides its tokens. Equal identity and equal
// tokens mean equal bytes; anything else is another cache.
#ifndef QUIRE_IDENTITY_H_
#define QUIRE_IDENTITY_H_

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/geometry.h"

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
/// A party that pays for its own blocks and may read no others.
using TenantId = Id<struct TenantTag, uint32_t>;

/// A token of the model's vocabulary (or of the image-token space above it).
using TokenId = int32_t;

/// Raised whenever any bit of docs/numerics.md changes.
inline constexpr uint32_t kKernelRevision = 5;

/// A 256-bit digest (BLAKE2b) of something named beside it.
using Digest = std::array<uint8_t, 32>;

/// Type of weights and activations at operator boundaries; sums are always f32.
enum class ComputeType : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };

/// The codec of some streams. The first rule that matches decides; the last one should match
/// everything.
struct CodecRule {
  StreamRole role = StreamRole::kKey;
  Codec codec = Codec::kF16;

  bool operator==(const CodecRule&) const = default;
};

/// As NumericProfile::residual_tokens: a precision ladder. Rows read every block open that has an
/// open form. Under pressure published blocks lose that form and stay in the sealed one, and so, or
/// in NumericProfile::store_codec, they go to a store; requests find them only where they accept
/// approximate blocks (AcquireRequest::approximate_error_max).
inline constexpr uint32_t kPrecisionLadder = UINT32_MAX;

/// The part of identity that says how numbers are made. Same profile, same bits.
struct NumericProfile {
  uint32_t block_tokens = kBlockTokensDefault;
  // Where codecs encode, a row reads the last R tokens in the open form, rounded up to blocks, and
  // a prompt is found only up to where such forms were kept (docs/cache.md, Twins). Or
  // kPrecisionLadder.
  uint32_t residual_tokens = 0;
  Codec open_dtype = Codec::kF16;   // form of blocks that are still being written
  std::vector<CodecRule> codecs{};  // per stream; see CodecFor
  // A third step of a precision ladder: what a store is given of every stream. None: `codecs`.
  std::optional<Codec> store_codec{};
  ComputeType compute = ComputeType::kF32;
  std::string arithmetic = "fma32";  // arithmetic class of the CPU or GPU kernels
  uint32_t kernel_revision = kKernelRevision;

  /// The same codec for every stream, open form included.
  static NumericProfile Uniform(Codec codec, uint32_t block_tokens = kBlockTokensDefault);
  bool has_ladder() const { return residual_tokens == kPrecisionLadder; }
  /// Codec of a stream; kInvalidArgument when no rule covers it.
  Result<Codec> CodecFor(StreamRole role) const;
  /// Whole blocks before its own that a row reads open. Needs block_tokens > 0.
  uint32_t residual_blocks() const {
    if (has_ladder()) return kPrecisionLadder;
    return residual_tokens / block_tokens + (residual_tokens % block_tokens != 0 ? 1 : 0);
  }

  bool operator==(const NumericProfile&) const = default;
};

/// Gives a profile a precision ladder, by name: "f16:int8" or "f16:int8:int4". What sequences
/// compute is written in the first codec, which stores values as they are; what grows cold is left
/// in the second; a store has the last one.
///
/// Errors: kInvalidArgument no ladder has this name. Nothing changes then
Result<void> SetLadder(std::string_view steps, NumericProfile& profile);

/// Tenants that agreed to share. Private by default: a domain is one tenant.
struct Domain {
  std::string name{};        // for humans and catalogues
  Digest secret{};           // keys the identity hash; never logged
  uint64_t erase_epoch = 0;  // raised by erase: nothing older matches

  bool operator==(const Domain&) const = default;
};

/// The source of the values: weights, adapter, position encoding and domain.
struct Identity {
  Digest weights{};              // fingerprint of every weight byte and the config that shapes them
  std::string adapter{};         // LoRA name, empty for none
  uint64_t adapter_version = 0;  // moves at every training step
  std::string position_encoding{};  // for example "rope:theta=1000000"
  Domain domain{};

  bool operator==(const Identity&) const = default;
};

/// Root key of all blocks of (identity, geometry, profile): keyed BLAKE2b-256 over every field,
/// each with its length, so that no two different inputs run together.
///
/// Threads: any
/// Source:  DESIGN invariant 5
Digest RootKey(const Identity& identity, const Geometry& geometry, const NumericProfile& profile);

/// Key of a block: keyed BLAKE2b-256 over (parent key, its tokens). The first block's parent is the
/// root key.
Digest ChildKey(const Domain& domain, const Digest& parent, const TokenId* tokens,
                uint32_t token_count);

}  // namespace quire

template <typename Tag, typename Number>
struct std::hash<quire::Id<Tag, Number>> {
  size_t operator()(quire::Id<Tag, Number> id) const noexcept {
    return std::hash<Number>{}(id.number());
  }
};

#endif  // QUIRE_IDENTITY_H_
