#include "codec/slot_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bits.h"
#include "base/check.h"
#include "codec/planes.h"

namespace quire::codec {

namespace {

StreamLayout PlaceHeads(const Stream& stream, Codec codec, InnerAxis inner, uint32_t block_tokens) {
  StreamLayout placed;
  placed.codec = codec;
  placed.inner = inner;
  placed.heads = stream.heads;
  placed.dim = stream.dim;
  placed.block_tokens = block_tokens;
  placed.head_stride_bytes = PlaneBytes(codec, inner, stream.dim, block_tokens);
  placed.scale_head_stride_bytes = ScaleBytes(codec, block_tokens);
  return placed;
}

}  // namespace

Result<SlotLayout> SlotLayout::Create(const Geometry& geometry, const NumericProfile& profile,
                                      ArenaLayout arena_layout) {
  return Make(geometry, profile, {.arena = arena_layout, .open = false});
}

Result<SlotLayout> SlotLayout::CreateOpen(const Geometry& geometry, const NumericProfile& profile) {
  return Make(geometry, profile, {.arena = ArenaLayout::kBlockMajor, .open = true});
}

Result<SlotLayout> SlotLayout::Make(const Geometry& geometry, const NumericProfile& profile,
                                    const Form& form) {
  QUIRE_TRY(geometry.Validate());
  const uint32_t block_tokens = profile.block_tokens;
  if (!IsPow2(block_tokens) || block_tokens < kBlockTokensMin || block_tokens > kBlockTokensMax) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("profile: block_tokens is {}, must be a power of two in {}..{}",
                            block_tokens, kBlockTokensMin, kBlockTokensMax));
  }
  SlotLayout layout;
  layout.geometry_ = geometry;
  layout.arena_ = form.arena;
  layout.block_tokens_ = block_tokens;
  layout.layers_.resize(geometry.layer_count());
  for (uint32_t g = 0; g < geometry.groups.size(); ++g) {
    const uint32_t group = layout.GroupFor(g);
    for (const uint32_t layer : geometry.groups[g].layers) {
      layout.layers_[layer] = {.geometry_group = g, .group = group};
    }
  }

  if (form.open && !IsIdentity(profile.open_dtype)) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("profile: open_dtype {} encodes; open blocks store values as they are",
                            CodecName(profile.open_dtype)));
  }
  const bool block_major = form.arena == ArenaLayout::kBlockMajor;
  for (Layer& layer : layout.layers_) {
    layer.key = static_cast<uint32_t>(layout.streams_.size());
    for (const Stream& stream : geometry.groups[layer.geometry_group].streams) {
      QUIRE_ASSIGN(const Codec codec, profile.CodecFor(stream.role));
      if (!block_major && !IsIdentity(codec)) {
        return Fail(ErrorCode::kUnsupported,
                    fmt::format("arena layout {}: codec {} encodes, which needs block_major",
                                ArenaLayoutName(form.arena), CodecName(codec)));
      }
      if (!IsIdentity(codec) && stream.role == StreamRole::kLatent) {
        return Fail(ErrorCode::kUnsupported,
                    fmt::format("profile: codec {} of a latent, which is read as K and as V",
                                CodecName(codec)));
      }
      const InnerAxis inner =
          block_major && stream.role == StreamRole::kKey ? InnerAxis::kToken : InnerAxis::kDim;
      layout.streams_.push_back(
          PlaceHeads(stream, form.open ? profile.open_dtype : codec, inner, block_tokens));
      layout.streams_.back().rotated = !IsIdentity(codec);
      layout.identity_ = layout.identity_ && IsIdentity(codec);
    }
    layer.value = static_cast<uint32_t>(layout.streams_.size()) - 1;
  }
  if (block_major) {
    layout.PlaceBlockMajor();
  } else {
    layout.CutIntoPieces();
  }
  return layout;
}

void SlotLayout::PlaceBlockMajor() {
  for (const Layer& layer : layers_) {
    uint64_t& offset_bytes = groups_[layer.group].piece_bytes;
    for (uint32_t s = layer.key; s <= layer.value; ++s) {
      StreamLayout& stream = streams_[s];
      stream.offset_bytes = offset_bytes;
      offset_bytes =
          RoundUp(offset_bytes + stream.heads * stream.head_stride_bytes, kStreamAlignmentBytes);
      if (IsIdentity(stream.codec)) continue;
      stream.scale_offset_bytes = offset_bytes;
      offset_bytes = RoundUp(offset_bytes + stream.heads * stream.scale_head_stride_bytes,
                             kStreamAlignmentBytes);
    }
  }
}

void SlotLayout::CutIntoPieces() {
  std::vector<uint32_t> heads(groups_.size());
  for (const Layer& layer : layers_) {
    Group& group = groups_[layer.group];
    group.arrays += layer.value - layer.key + 1;
    for (uint32_t s = layer.key; s <= layer.value; ++s) {
      const StreamLayout& stream = streams_[s];
      heads[layer.group] = std::max(heads[layer.group], stream.heads);
      const uint64_t planes = arena_ == ArenaLayout::kLayerMajor ? stream.heads : 1;
      group.piece_bytes = std::max(group.piece_bytes, planes * stream.head_stride_bytes);
    }
  }
  for (uint32_t p = 0; p < groups_.size(); ++p) {
    groups_[p].pieces = groups_[p].arrays * (arena_ == ArenaLayout::kHeadMajor ? heads[p] : 1);
  }
}

void SlotLayout::PlaceArena(uint32_t group, uint64_t piece_stride_bytes) {
  if (arena_ == ArenaLayout::kBlockMajor) return;
  uint64_t array = 0;
  for (const Layer& layer : layers_) {
    if (layer.group != group) continue;
    for (uint32_t s = layer.key; s <= layer.value; ++s) {
      streams_[s].offset_bytes = array++ * piece_stride_bytes;
      if (arena_ == ArenaLayout::kHeadMajor) {
        streams_[s].head_stride_bytes = groups_[group].arrays * piece_stride_bytes;
      }
    }
  }
}

uint32_t SlotLayout::GroupFor(uint32_t geometry_group) {
  const LayerGroup& wanted = geometry_.groups[geometry_group];
  for (uint32_t p = 0; p < groups_.size(); ++p) {
    const LayerGroup& have = geometry_.groups[groups_[p].geometry_group];
    if (have.kind == wanted.kind && have.window_tokens == wanted.window_tokens &&
        have.sink_tokens == wanted.sink_tokens) {
      return p;
    }
  }
  groups_.push_back({.geometry_group = geometry_group});
  return static_cast<uint32_t>(groups_.size()) - 1;
}

const LayerGroup& SlotLayout::geometry_group(uint32_t layer) const {
  QUIRE_CHECK(layer < layers_.size());
  return geometry_.groups[layers_[layer].geometry_group];
}

uint32_t SlotLayout::group_of(uint32_t layer) const {
  QUIRE_CHECK(layer < layers_.size());
  return layers_[layer].group;
}

const StreamLayout& SlotLayout::key(uint32_t layer) const {
  QUIRE_CHECK(layer < layers_.size());
  return streams_[layers_[layer].key];
}

const StreamLayout& SlotLayout::value(uint32_t layer) const {
  QUIRE_CHECK(layer < layers_.size());
  return streams_[layers_[layer].value];
}

Result<StreamLayout> SlotLayout::Find(uint32_t layer, StreamRole role) const {
  if (layer >= layers_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("layer {} of {} layers", layer, layers_.size()));
  }
  const std::vector<Stream>& streams = geometry_group(layer).streams;
  for (size_t s = 0; s < streams.size(); ++s) {
    if (streams[s].role == role) return streams_[layers_[layer].key + s];
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("layer {} has no stream of role {}", layer, static_cast<int>(role)));
}

}  // namespace quire::codec
