// Where every stream of every layer lies inside a slot.
#ifndef QUIRE_CODEC_SLOT_LAYOUT_H_
#define QUIRE_CODEC_SLOT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "quire/attention.h"
#include "quire/error.h"
#include "quire/geometry.h"
#include "quire/identity.h"

namespace quire::codec {

/// Streams begin on a cache line, so that no vector load of a plane crosses one needlessly.
inline constexpr uint64_t kStreamAlignmentBytes = 64;

/// Layout of a block, block-major: [layer][stream][head][plane], layers in absolute order, streams
/// as the geometry lists them, each aligned to 64 bytes. K planes are token-contiguous
/// ([dim][token]), V planes channel-contiguous ([token][dim]). A latent is read both ways; it lies
/// as V does, because one token's latent is written and moved as one row. After the planes of a
/// codec that encodes come its scales (docs/codecs.md), on a cache line of their own.
///
/// With such a codec in the profile a block has two forms, each with a layout: open, all streams in
/// the profile's open_dtype, and sealed.
///
/// The layers that look back equally far are one *layer group* here, whatever groups the geometry
/// has. Each has a slot of its own for a block, so that a window can release the slots outside it.
/// Models with one kind of layers have one.
///
/// In the other arenas a slot is not one run of bytes but one piece in each of several arrays over
/// all slots: `pieces` of `piece_bytes`, equally far apart. K and V are [token][dim] there. Where
/// streams differ in size the pieces are those of the largest.
///
/// Threads: immutable after Create and PlaceArena
class SlotLayout {
 public:
  /// The layout of sealed slots: every stream in the codec that `profile` gives its role.
  /// Errors: kInvalidArgument from Geometry::Validate; block_tokens not a power of two in 16..256;
  ///         a stream without codec. kUnsupported a codec that encodes, in an arena that is not
  ///         block-major or for a latent
  static Result<SlotLayout> Create(const Geometry& geometry, const NumericProfile& profile,
                                   ArenaLayout arena_layout);
  /// The block-major layout of open slots: every stream in the profile's open_dtype.
  /// Errors: as Create; kUnsupported an open_dtype that encodes
  static Result<SlotLayout> CreateOpen(const Geometry& geometry, const NumericProfile& profile);

  /// No stream is encoded: open and sealed forms are the same bytes, in this layout.
  bool identity() const { return identity_; }

  uint32_t group_count() const { return static_cast<uint32_t>(groups_.size()); }
  /// One of the geometry's groups in this one: its kind, window and sinks are those of all.
  const LayerGroup& group(uint32_t group) const {
    return geometry_.groups[groups_[group].geometry_group];
  }
  /// Bytes of one slot of a group, all pieces together; block-major a multiple of 64.
  uint64_t slot_bytes(uint32_t group) const { return pieces(group) * piece_bytes(group); }
  uint32_t pieces(uint32_t group) const { return groups_[group].pieces; }
  uint64_t piece_bytes(uint32_t group) const { return groups_[group].piece_bytes; }

  /// Fixes where a group's streams lie in an arena whose pieces are `piece_stride_bytes` apart.
  /// Block-major needs none of this.
  void PlaceArena(uint32_t group, uint64_t piece_stride_bytes);
  uint32_t block_tokens() const { return block_tokens_; }
  uint32_t layer_count() const { return static_cast<uint32_t>(layers_.size()); }
  const Geometry& geometry() const { return geometry_; }

  /// The geometry's group of `layer`. Needs layer < layer_count(), as the next three do.
  const LayerGroup& geometry_group(uint32_t layer) const;
  uint32_t group_of(uint32_t layer) const;
  /// The stream that is read as K: the key stream, or the latent.
  const StreamLayout& key(uint32_t layer) const;
  /// The stream that is read as V: the value stream, or the latent.
  const StreamLayout& value(uint32_t layer) const;

  /// The stream of one role.
  /// Errors: kInvalidArgument layer out of range, or without such a stream
  Result<StreamLayout> Find(uint32_t layer, StreamRole role) const;

 private:
  struct Group {
    uint32_t geometry_group = 0;  // one whose layers are in this one
    uint32_t pieces = 1;
    uint64_t piece_bytes = 0;
    uint32_t arrays = 0;  // streams of all its layers
  };
  struct Layer {
    uint32_t geometry_group = 0;
    uint32_t group = 0;
    uint32_t key = 0;    // index into streams_
    uint32_t value = 0;  // index into streams_; the key's when there is one latent
  };

  struct Form {
    ArenaLayout arena = ArenaLayout::kBlockMajor;
    bool open = false;
  };

  SlotLayout() = default;
  static Result<SlotLayout> Make(const Geometry& geometry, const NumericProfile& profile,
                                 const Form& form);
  uint32_t GroupFor(uint32_t geometry_group);
  void PlaceBlockMajor();
  void CutIntoPieces();

  Geometry geometry_;
  ArenaLayout arena_ = ArenaLayout::kBlockMajor;
  bool identity_ = true;
  uint32_t block_tokens_ = 0;
  std::vector<Group> groups_;
  std::vector<Layer> layers_;
  std::vector<StreamLayout> streams_;
};

}  // namespace quire::codec

#endif  // QUIRE_CODEC_SLOT_LAYOUT_H_
