// How a product is cut into items for workers: a block of rows times a group of panels each.
#ifndef QUIRE_MODEL_MATMUL_ITEMS_H_
#define QUIRE_MODEL_MATMUL_ITEMS_H_

#include <algorithm>
#include <cstdint>

#include "base/bits.h"

namespace quire::model {

/// One item: tiles of rows times panels.
struct ItemRange {
  uint32_t tile_begin, tile_end;
  uint32_t panel_begin, panel_end;
};

/// What decides the cut.
struct ItemShape {
  uint32_t rows = 0;
  uint32_t block_rows = 0;  // that stay in the L2 cache while a group of panels passes, at most
  uint32_t tile_count = 0;  // of rows
  uint32_t tiles_step = 1;  // tiles that go together best
  uint32_t panel_count = 0;
  uint32_t panels_step = 1;  // panels that go together best
  uint32_t workers = 1;
};

class ItemPlan {
 public:
  ItemPlan() = default;
  explicit ItemPlan(const ItemShape& shape)
      : tile_count_(shape.tile_count),
        tiles_per_item_(RoundUp(DivUp(shape.tile_count, BlocksOf(shape)), shape.tiles_step)),
        panel_count_(shape.panel_count) {
    const uint32_t blocks = DivUp(tile_count_, tiles_per_item_);
    const uint32_t groups = DivUp(shape.workers * kItemsPerWorker, blocks);
    panels_per_item_ =
        RoundUp(std::clamp(panel_count_ / groups, 1u, kItemPanelsMax), shape.panels_step);
    groups_ = DivUp(panel_count_, panels_per_item_);
    count_ = blocks * groups_;
  }

  uint32_t count() const { return count_; }
  ItemRange At(uint32_t item) const {
    const uint32_t tile = item / groups_ * tiles_per_item_;
    const uint32_t panel = item % groups_ * panels_per_item_;
    return {tile, std::min(tile + tiles_per_item_, tile_count_), panel,
            std::min(panel + panels_per_item_, panel_count_)};
  }

 private:
  // Blocks of rows: as many as the cache asks for, or more where there are too few panels for all
  // workers.
  static uint32_t BlocksOf(const ItemShape& shape) {
    const uint32_t blocks = DivUp(shape.rows, shape.block_rows);
    const uint32_t groups_max = DivUp(shape.panel_count, shape.panels_step);
    if (groups_max >= shape.workers) return blocks;
    const uint32_t wanted = DivUp(shape.workers * kItemsPerWorker, groups_max);
    return std::max(blocks, std::min(wanted, shape.tile_count));
  }

  // Panels of one item at most: their sums in y stay in the cache too.
  static constexpr uint32_t kItemPanelsMax = 8;
  // Items for each worker at least, so that an uneven machine ends evenly.
  static constexpr uint32_t kItemsPerWorker = 4;

  uint32_t tile_count_ = 0;
  uint32_t tiles_per_item_ = 1;
  uint32_t panel_count_ = 0;
  uint32_t panels_per_item_ = 1;
  uint32_t groups_ = 1;
  uint32_t count_ = 0;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_MATMUL_ITEMS_H_
