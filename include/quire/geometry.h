// What one token costs and where its values lie: codecs, streams, layer groups, arena layouts.
#ifndef QUIRE_GEOMETRY_H_
#define QUIRE_GEOMETRY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "quire/attention_types.h"
#include "quire/error.h"

namespace [[gnu::visibility("default")]] quire {

/// The codecs of this build. Not inline: it would be a symbol of the library.
[[maybe_unused]] constexpr std::array kCodecs = {
    Codec::kF32,  Codec::kF16,  Codec::kBf16, Codec::kFp8E4m3, Codec::kFp8E5m2,
    Codec::kInt8, Codec::kInt4, Codec::kNf4,  Codec::kFp4,     Codec::kQ25};

/// Name on the command line and in JSON: "f32", "f16", "bf16", "fp8_e4m3", ... "q25".
std::string_view CodecName(Codec codec);
std::optional<Codec> ParseCodec(std::string_view name);

/// Stored bits per value at head_dim 128, scales included.
double CodecBitsPerValue(Codec codec);

/// What a stream of a layer holds. MLA stores one latent stream that is read as K and as V.
enum class StreamRole : uint8_t { kKey = 1, kValue = 2, kLatent = 3 };

struct Stream {
  StreamRole role;
  uint32_t heads;  // KV heads: MHA = query heads, MQA = 1
  uint32_t dim;    // values per head and token

  bool operator==(const Stream&) const = default;
};

/// How far back the layers of a group look.
enum class LayerKind : uint8_t { kFull = 1, kWindow = 2 };

/// Layers that share kind, window and streams.
struct LayerGroup {
  LayerKind kind = LayerKind::kFull;
  std::vector<uint32_t> layers{};  // absolute layer numbers, ascending
  uint32_t window_tokens = 0;  // kWindow only: a query sees itself and window_tokens - 1 before it
  uint32_t sink_tokens = 0;    // kWindow only: first tokens that stay visible
  std::vector<Stream> streams{};  // K and V, or one latent

  bool operator==(const LayerGroup&) const = default;
};

/// The shape of a model's KV cache. Every layer 0 .. layer_count-1 is in exactly one group.
struct Geometry {
  std::vector<LayerGroup> groups{};

  /// One full-attention group with K and V streams: the common case.
  static Geometry Uniform(uint32_t layers, uint32_t kv_heads, uint32_t head_dim);

  uint32_t layer_count() const;
  /// Values stored for one token over all layers and streams.
  uint64_t values_per_token() const;
  /// Errors: kInvalidArgument names the group and field (a layer twice or missing, zero heads or
  /// dim, a window of zero tokens, more than 65,536 layers, heads or dims, no stream).
  Result<void> Validate() const;

  bool operator==(const Geometry&) const = default;
};

/// Order of the axes in an arena. Only the strides differ; the values and their bits do not. The
/// last two are for engines that want one array per layer or head: they take codecs that store
/// values as they are, and K lies token by token as V does.
enum class ArenaLayout : uint8_t {
  kBlockMajor = 1,  // [slot][layer][stream][head]...: a block of all layers is one record
  kLayerMajor = 2,  // [layer][stream][slot][head][token][dim]
  kHeadMajor = 3,   // [head][layer][stream][slot][token][dim]
};

std::string_view ArenaLayoutName(ArenaLayout layout);
std::optional<ArenaLayout> ParseArenaLayout(std::string_view name);

/// Which free slots an allocation gets. All are deterministic: the same calls take the same slots.
enum class Placement : uint8_t {
  kFreeList,  // the slot freed last, O(1): for paged use. Has no runs
  kFirstFit,  // the lowest slots that do
  kBestFit,   // the shortest free run that does; of equal ones the lowest. O(log of the free runs)
  kBuddy,     // the lowest of the smallest aligned power-of-two blocks that do. O(log slots)
};

/// "free_list", "first_fit", "best_fit", "buddy".
constexpr std::string_view PlacementName(Placement placement) {
  switch (placement) {
    case Placement::kFreeList: return "free_list";
    case Placement::kFirstFit: return "first_fit";
    case Placement::kBestFit: return "best_fit";
    case Placement::kBuddy: return "buddy";
  }
  return "unknown";
}

/// Limits of block_tokens: a power of two, so that a split of 256 tokens is whole blocks.
inline constexpr uint32_t kBlockTokensMin = 16;
inline constexpr uint32_t kBlockTokensMax = 256;
inline constexpr uint32_t kBlockTokensDefault = 16;

}  // namespace quire

#endif  // QUIRE_GEOMETRY_H_
