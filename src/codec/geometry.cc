// Bodies of quire/geometry.h (names, sizes, what makes a geometry well formed) and of the codecs in
// quire/identity.h.
#include "quire/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <ranges>

#include "codec/planes.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire {
namespace {

consteval bool FormatsListEveryCodec() {
  for (const Codec codec : kCodecs) {
    if (codec::InfoOf(codec).layout == codec::CodeLayout::kNone) return false;
  }
  return codec::IdentityFormats::kCodecs.size() + codec::EncodingFormats::kCodecs.size() ==
         kCodecs.size();
}
static_assert(FormatsListEveryCodec(), "kCodecs of quire/geometry.h and codec/formats.h differ");

constexpr uint32_t kLayersMax = 65'536;
constexpr uint32_t kHeadsMax = 65'536;
constexpr uint32_t kDimMax = 65'536;

std::unexpected<Error> Bad(size_t group, const std::string& what) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("geometry: groups[{}].{}", group, what));
}

Result<void> ValidateStreams(size_t g, const LayerGroup& group) {
  const std::vector<Stream>& streams = group.streams;
  for (size_t s = 0; s < streams.size(); ++s) {
    if (streams[s].heads == 0 || streams[s].heads > kHeadsMax) {
      return Bad(
          g, fmt::format("streams[{}].heads is {}, must be 1..{}", s, streams[s].heads, kHeadsMax));
    }
    if (streams[s].dim == 0 || streams[s].dim > kDimMax) {
      return Bad(g,
                 fmt::format("streams[{}].dim is {}, must be 1..{}", s, streams[s].dim, kDimMax));
    }
  }
  const bool latent = streams.size() == 1 && streams[0].role == StreamRole::kLatent;
  const bool key_value = streams.size() == 2 && streams[0].role == StreamRole::kKey &&
                         streams[1].role == StreamRole::kValue;
  if (!latent && !key_value) {
    return Bad(g, fmt::format("streams has {} entries, must be key then value, or one latent",
                              streams.size()));
  }
  if (key_value && streams[0].heads != streams[1].heads) {
    return Bad(
        g, fmt::format("streams: key has {} heads, value {}", streams[0].heads, streams[1].heads));
  }
  return {};
}

Result<void> ValidateWindow(size_t g, const LayerGroup& group) {
  if (group.kind == LayerKind::kWindow) {
    if (group.window_tokens == 0) return Bad(g, "window_tokens is 0 in a window group");
    return {};
  }
  if (group.kind != LayerKind::kFull) {
    return Bad(g, fmt::format("kind is {}", static_cast<int>(group.kind)));
  }
  if (group.window_tokens != 0) return Bad(g, "window_tokens is set in a full-attention group");
  if (group.sink_tokens != 0) return Bad(g, "sink_tokens is set in a full-attention group");
  return {};
}

}  // namespace

std::string_view CodecName(Codec codec) { return codec::InfoOf(codec).name; }

std::optional<Codec> ParseCodec(std::string_view name) {
  for (const Codec codec : kCodecs) {
    if (name == CodecName(codec)) return codec;
  }
  return std::nullopt;
}

double CodecBitsPerValue(Codec codec) {
  constexpr uint32_t kDim = 128;
  constexpr uint32_t kTokens = 16;
  const uint64_t bytes =
      codec::PlaneBytes(codec, InnerAxis::kDim, kDim, kTokens) + codec::ScaleBytes(codec, kTokens);
  return static_cast<double>(bytes * 8) / (kDim * kTokens);
}

std::string_view ArenaLayoutName(ArenaLayout layout) {
  switch (layout) {
    case ArenaLayout::kBlockMajor: return "block_major";
    case ArenaLayout::kLayerMajor: return "layer_major";
    case ArenaLayout::kHeadMajor: return "head_major";
  }
  return "unknown";
}

std::optional<ArenaLayout> ParseArenaLayout(std::string_view name) {
  for (const auto layout :
       {ArenaLayout::kBlockMajor, ArenaLayout::kLayerMajor, ArenaLayout::kHeadMajor}) {
    if (name == ArenaLayoutName(layout)) return layout;
  }
  return std::nullopt;
}

Geometry Geometry::Uniform(uint32_t layers, uint32_t kv_heads, uint32_t head_dim) {
  LayerGroup group;
  group.layers.resize(layers);
  std::iota(group.layers.begin(), group.layers.end(), 0u);
  group.streams = {{.role = StreamRole::kKey, .heads = kv_heads, .dim = head_dim},
                   {.role = StreamRole::kValue, .heads = kv_heads, .dim = head_dim}};
  return Geometry{.groups = {std::move(group)}};
}

uint32_t Geometry::layer_count() const {
  size_t count = 0;
  for (const LayerGroup& group : groups) count += group.layers.size();
  return static_cast<uint32_t>(count);
}

uint64_t Geometry::values_per_token() const {
  uint64_t values = 0;
  for (const LayerGroup& group : groups) {
    uint64_t values_per_layer = 0;
    for (const Stream& stream : group.streams) {
      values_per_layer += uint64_t{stream.heads} * stream.dim;
    }
    values += group.layers.size() * values_per_layer;
  }
  return values;
}

Result<void> Geometry::Validate() const {
  size_t count = 0;
  for (const LayerGroup& group : groups) count += group.layers.size();
  if (count == 0 || count > kLayersMax) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("geometry: {} layers, must be 1..{}", count, kLayersMax));
  }
  // With as many entries as layers, no layer twice and none too large means none missing.
  std::vector<bool> seen(count, false);
  for (size_t g = 0; g < groups.size(); ++g) {
    const LayerGroup& group = groups[g];
    if (group.layers.empty()) return Bad(g, "layers is empty");
    if (!std::ranges::is_sorted(group.layers)) return Bad(g, "layers is not ascending");
    for (const uint32_t layer : group.layers) {
      if (layer >= count) {
        return Bad(g, fmt::format("layers has {}, but there are {} layers", layer, count));
      }
      if (seen[layer]) return Bad(g, fmt::format("layers has {}, which is already taken", layer));
      seen[layer] = true;
    }
    QUIRE_TRY(ValidateWindow(g, group));
    QUIRE_TRY(ValidateStreams(g, group));
  }
  return {};
}

NumericProfile NumericProfile::Uniform(Codec codec, uint32_t block_tokens) {
  NumericProfile profile;
  profile.block_tokens = block_tokens;
  profile.open_dtype = codec;
  for (const StreamRole role : {StreamRole::kKey, StreamRole::kValue, StreamRole::kLatent}) {
    profile.codecs.push_back({.role = role, .codec = codec});
  }
  return profile;
}

Result<Codec> NumericProfile::CodecFor(StreamRole role) const {
  for (const CodecRule& rule : codecs) {
    if (rule.role == role) return rule.codec;
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("profile: no codec rule covers stream role {} ({} rules)",
                          static_cast<int>(role), codecs.size()));
}

namespace {

// None: it is no ladder. Each step takes less than the one before, and all but the first encode.
std::vector<Codec> StepsOf(std::string_view ladder) {
  std::vector<Codec> steps;
  for (const auto name : std::views::split(ladder, ':')) {
    const auto codec = ParseCodec({name.begin(), name.end()});
    if (!codec || IsIdentity(*codec) != steps.empty()) return {};
    if (!steps.empty() && CodecBitsPerValue(*codec) >= CodecBitsPerValue(steps.back())) return {};
    steps.push_back(*codec);
  }
  return steps;
}

}  // namespace

Result<void> SetLadder(std::string_view steps, NumericProfile& profile) {
  const std::vector<Codec> codecs = StepsOf(steps);
  if (codecs.size() < 2 || codecs.size() > 3) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("ladder '{}': is not one of f32, f16, bf16, then one or two codecs that "
                    "encode, each smaller than the one before: f16:int8 or f16:int8:int4",
                    steps));
  }
  profile.open_dtype = codecs[0];
  for (CodecRule& rule : profile.codecs) rule.codec = codecs[1];
  profile.store_codec = codecs.size() > 2 ? std::optional(codecs[2]) : std::nullopt;
  profile.residual_tokens = kPrecisionLadder;
  return {};
}

}  // namespace quire
