// A load by layer: which layers of its blocks are asked for next, and which have come.
#ifndef QUIRE_CACHE_BELOW_LAYER_SLICES_H_
#define QUIRE_CACHE_BELOW_LAYER_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/below/arrival.h"
#include "cache/below/records.h"

namespace quire::cache {

/// The layers of blocks in slices: of all blocks the first slice is read, then the next one. How
/// many blocks there are is known when the first slice has come.
///
/// Threads:  one at a time
/// Lifetime: the shapes must outlive it
class LayerSlices {
 public:
  static constexpr uint32_t kSlicesMax = 8;

  /// Of the only slot of each block, in `slices` slices. Needs as many layers, and that the shapes
  /// know their bytes.
  LayerSlices(const RecordShapes& shapes, uint32_t slices, size_t blocks,
              std::shared_ptr<Arrival> arrival);

  /// A slice of a block.
  struct Next {
    size_t block = 0;
    size_t slice = 0;
  };
  /// The next one to be asked for, of the first `end` blocks.
  std::optional<Next> TakeNext(size_t end);
  /// Whether a block has been asked for, or is the next.
  bool HasReached(size_t block) const { return slice_ > 0 || block <= started_; }
  /// Blocks before this one have been asked for as a whole.
  size_t started_whole() const { return slice_ + 1 == slices_.size() ? started_ : 0; }
  /// In the record of a block.
  SectionRange sections(size_t slice) const { return slices_[slice].sections; }

  /// A slice has come, with the checksums of its sections. True: the block has all of them.
  bool Add(const Next& which, std::span<const uint32_t> crcs);
  bool has_all(size_t block) const { return missing_[block] == 0; }
  /// Of all sections of a block.
  std::span<const uint32_t> crcs(size_t block) const;
  /// Tells the arrival of layers that the first `end` blocks have, but for those of the last slice,
  /// which come with the end of the load. True: there are more than before.
  bool Tell(size_t end);
  /// Blocks that had the first layers when these were told; 0: they were not.
  size_t arriving() const { return arriving_; }

 private:
  struct Slice {
    uint32_t layers_end = 0;
    SectionRange sections{};
  };

  const size_t sections_;  // of a block
  std::vector<Slice> slices_;
  std::vector<uint8_t> missing_;  // [blocks]: a bit for each slice that has not come
  std::vector<uint32_t> crcs_;    // [blocks, sections]
  const std::shared_ptr<Arrival> arrival_;
  size_t slice_ = 0;    // that is being asked for
  size_t started_ = 0;  // blocks of which it has been
  size_t told_ = 0;     // slices
  size_t there_ = 0;    // blocks that have the next one
  size_t arriving_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_LAYER_SLICES_H_
