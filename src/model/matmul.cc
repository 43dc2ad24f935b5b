// The product is computed in register tiles of kTileRows rows by a few panels. Rows are first
// copied into tiles of [k][rows], so that a tile reads one stream; weights lie in panels of [k][16]
// already.
//
// Few rows: every weight is read once and widened on the fly, all of k in one go; memory is the
// limit. Many rows: k is cut so that a panel's step, widened once into the L1 cache, serves a block
// of rows whose step fits in the L2 cache. The sums go on from what is in y: still one chain.
#include "model/matmul.h"

#include <algorithm>
#include <cstring>

#include "base/bits.h"
#include "base/check.h"
#include "model/targets.h"
#include "model/tensor_source.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/matmul.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "model/simd-inl.h"

#ifndef QUIRE_MODEL_MATMUL_ONCE_
#define QUIRE_MODEL_MATMUL_ONCE_
namespace quire::model {

// How the rows of a product are cut for a target's registers.
struct TileShape {
  uint32_t tile_rows = 0;
  uint32_t tile_count = 0;
  uint32_t tile_panels = 0;  // that go together best
};

// One product, as the workers see it.
struct MatmulJob {
  PackedMatrix w;
  const float* tiles = nullptr;  // [tile_count][k][tile_rows]
  std::span<float* const> y = {};
  TileShape shape = {};
  uint32_t panel_count = 0;
  ComputeType round = ComputeType::kF32;
  // How it is cut into items: [tile blocks][panel groups].
  uint32_t tiles_per_item = 0;
  uint32_t panels_per_item = 0;
};

}  // namespace quire::model
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::model::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kPanelColumns>;
constexpr size_t kLanes = hn::MaxLanes(F32());
constexpr size_t kPanelVectors = kPanelColumns / kLanes;

// Registers decide: accumulators, the weights of one k and a broadcast must fit in 16 (AVX2) or 32.
constexpr uint32_t kTileRows = kLanes == kPanelColumns ? 12 : 6;

// Panels of a register tile of `rows` rows. A multiply-add takes 4 cycles and two start in each, so
// at least 8 sums must be under way.
constexpr uint32_t TilePanels(uint32_t rows) {
  if (kLanes < kPanelColumns) return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
  return rows == 1 ? 8 : rows <= 6 ? 4 : rows <= 8 ? 3 : 2;
}

// Where one row takes eight panels at once, the hardware does not fetch all of them far enough
// ahead: so many bytes of each are fetched before they are read.
constexpr uint32_t kFetchBytes = 1024;
constexpr uint32_t kLineBytes = 64;
constexpr bool FetchesAhead(uint32_t rows) { return kLanes == kPanelColumns && rows == 1; }

// Values of k that are widened at a time: 16 KiB of f32 a panel.
constexpr uint32_t kWidenedDepth = 256;
// From this many tiles on it pays to widen weights once for all of them.
constexpr uint32_t kWidenTilesMin = 3;

template <ComputeType kType>
HWY_INLINE hn::Vec<F32> LoadWeights(const std::byte* p) {
  const F32 d;
  if constexpr (kType == ComputeType::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
  } else if constexpr (kType == ComputeType::kBf16) {
    const hn::Rebind<hwy::bfloat16_t, F32> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::bfloat16_t*>(p)));
  } else {
    const hn::Rebind<hwy::float16_t, F32> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}

// A few panels times one tile over a step of k.
struct TileStep {
  const float* x = nullptr;      // [depth][x_step]
  uint32_t x_step = 0;           // rows of the tile as it was packed
  uint32_t depth = 0;            // values of k
  const std::byte* w = nullptr;  // first panel at this k
  uint64_t panel_bytes = 0;      // from one panel to the next
  float* const* y = nullptr;     // [rows]
  uint32_t column = 0;           // first column
  uint32_t columns = 0;          // of y after `column`; may end inside the last panel
  bool first = false;            // sums start at zero, else at y
  bool last = false;             // sums are rounded
  ComputeType round = ComputeType::kF32;
};

// Vector v of row r of y; the last one may reach past the row's end.
HWY_INLINE hn::Vec<F32> LoadSums(const TileStep& step, size_t r, size_t v) {
  const F32 d;
  const float* y = step.y[r] + step.column + v * kLanes;
  if (HWY_LIKELY((v + 1) * kLanes <= step.columns)) return hn::LoadU(d, y);
  if (v * kLanes >= step.columns) return hn::Zero(d);
  return hn::MaskedLoad(hn::FirstN(d, step.columns - v * kLanes), d, y);
}

HWY_INLINE void StoreSums(hn::Vec<F32> sums, const TileStep& step, size_t r, size_t v) {
  const F32 d;
  float* y = step.y[r] + step.column + v * kLanes;
  if (HWY_LIKELY((v + 1) * kLanes <= step.columns)) {
    hn::StoreU(sums, d, y);
  } else if (v * kLanes < step.columns) {
    hn::BlendedStore(sums, hn::FirstN(d, step.columns - v * kLanes), d, y);
  }
}

template <ComputeType kRound, size_t kCount>
HWY_INLINE void RoundSums(hn::Vec<F32> (&sums)[kCount]) {
  QUIRE_UNROLL
  for (size_t i = 0; i < kCount; ++i) sums[i] = RoundTo<kRound>(F32(), sums[i]);
}

template <ComputeType kType, uint32_t kRows, uint32_t kPanels>
HWY_NOINLINE void MultiplyTile(const TileStep& step) {
  const F32 d;
  constexpr size_t kVectors = kPanels * kPanelVectors;
  constexpr size_t kValueBytes = TypeBytes(kType);
  hn::Vec<F32> sums[kRows * kVectors];
  QUIRE_UNROLL
  for (size_t i = 0; i < kRows * kVectors; ++i) sums[i] = hn::Zero(d);
  if (!step.first) {
    QUIRE_UNROLL
    for (size_t i = 0; i < kRows * kVectors; ++i) {
      sums[i] = LoadSums(step, i / kVectors, i % kVectors);
    }
  }
  const float* x = step.x;
  const std::byte* w = step.w;
  const auto weights = [&](size_t v) HWY_ATTR {
    const std::byte* panel = w + (v / kPanelVectors) * step.panel_bytes;
    return LoadWeights<kType>(panel + (v % kPanelVectors) * kLanes * kValueBytes);
  };
  for (uint32_t k = 0; k < step.depth; ++k) {
    // The fewer of the two stay in registers, the others come one by one; the order of these loops
    // is what keeps the sums from being spilled.
    if constexpr (kRows < kVectors) {
      hn::Vec<F32> inputs[kRows];
      QUIRE_UNROLL
      for (size_t r = 0; r < kRows; ++r) inputs[r] = hn::Set(d, x[r]);
      if (FetchesAhead(kRows) && uint64_t{k} * kPanelColumns * kValueBytes % kLineBytes == 0) {
        QUIRE_UNROLL
        for (size_t p = 0; p < kPanels; ++p) hwy::Prefetch(w + p * step.panel_bytes + kFetchBytes);
      }
      QUIRE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        const auto column = weights(v);
        QUIRE_UNROLL
        for (size_t r = 0; r < kRows; ++r) {
          sums[r * kVectors + v] = hn::MulAdd(inputs[r], column, sums[r * kVectors + v]);
        }
      }
    } else {
      hn::Vec<F32> columns[kVectors];
      QUIRE_UNROLL
      for (size_t v = 0; v < kVectors; ++v) columns[v] = weights(v);
      QUIRE_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        const auto input = hn::Set(d, x[r]);
        QUIRE_UNROLL
        for (size_t v = 0; v < kVectors; ++v) {
          sums[r * kVectors + v] = hn::MulAdd(input, columns[v], sums[r * kVectors + v]);
        }
      }
    }
    x += step.x_step;
    w += kPanelColumns * kValueBytes;
  }
  if (step.last && step.round == ComputeType::kBf16) RoundSums<ComputeType::kBf16>(sums);
  if (step.last && step.round == ComputeType::kF16) RoundSums<ComputeType::kF16>(sums);
  QUIRE_UNROLL
  for (size_t i = 0; i < kRows * kVectors; ++i) {
    StoreSums(sums[i], step, i / kVectors, i % kVectors);
  }
}

// The panels after the first `count`.
TileStep After(TileStep step, uint32_t count) {
  step.w += count * step.panel_bytes;
  step.column += count * kPanelColumns;
  step.columns -= std::min(step.columns, count * kPanelColumns);
  return step;
}

// All of `panels` panels, as many at a time as the registers hold.
template <ComputeType kType, uint32_t kRows>
void MultiplyPanels(TileStep step, uint32_t panels) {
  constexpr uint32_t kPanels = TilePanels(kRows);
  for (; panels >= kPanels; panels -= kPanels) {
    MultiplyTile<kType, kRows, kPanels>(step);
    step = After(step, kPanels);
  }
  for (; panels > 0; --panels) {
    MultiplyTile<kType, kRows, 1>(step);
    step = After(step, 1);
  }
}

template <ComputeType kType, uint32_t kRows = kTileRows>
void MultiplyRows(const TileStep& step, uint32_t rows, uint32_t panels) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return MultiplyPanels<kType, kRows>(step, panels);
    MultiplyRows<kType, kRows - 1>(step, rows, panels);
  }
}

// Widens `depth` values of k of one panel.
template <ComputeType kType>
void Widen(const std::byte* panel, uint32_t depth, float* out) {
  const F32 d;
  for (size_t i = 0; i < size_t{depth} * kPanelColumns; i += kLanes) {
    hn::StoreU(LoadWeights<kType>(panel + i * 2), d, out + i);
  }
}

// One item: a block of tiles times a group of panels.
struct ItemRange {
  uint32_t tile_begin, tile_end;
  uint32_t panel_begin, panel_end;
};

template <ComputeType kType>
void MultiplyStreaming(const MatmulJob& job, const ItemRange& range) {
  const uint64_t panel_bytes = PackedBytes(kPanelColumns, job.w.k, kType);
  for (uint32_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
    const uint32_t row = tile * job.shape.tile_rows;
    const uint32_t rows = std::min(job.shape.tile_rows, static_cast<uint32_t>(job.y.size()) - row);
    const uint32_t column = range.panel_begin * kPanelColumns;
    MultiplyRows<kType>({.x = job.tiles + uint64_t{row} * job.w.k,
                         .x_step = job.shape.tile_rows,
                         .depth = job.w.k,
                         .w = job.w.panels + range.panel_begin * panel_bytes,
                         .panel_bytes = panel_bytes,
                         .y = job.y.data() + row,
                         .column = column,
                         .columns = job.w.n - column,
                         .first = true,
                         .last = true,
                         .round = job.round},
                        rows, range.panel_end - range.panel_begin);
  }
}

template <ComputeType kType>
void MultiplyBlocked(const MatmulJob& job, const ItemRange& range) {
  constexpr uint32_t kPanels = TilePanels(kTileRows);
  constexpr size_t kWidenedPanel = size_t{kWidenedDepth} * kPanelColumns;
  HWY_ALIGN float widened[kPanels * kWidenedPanel];
  const uint64_t panel_bytes = PackedBytes(kPanelColumns, job.w.k, kType);
  for (uint32_t k = 0; k < job.w.k; k += kWidenedDepth) {
    const uint32_t depth = std::min(kWidenedDepth, job.w.k - k);
    for (uint32_t panel = range.panel_begin; panel < range.panel_end; panel += kPanels) {
      const uint32_t panels = std::min(kPanels, range.panel_end - panel);
      const std::byte* w =
          job.w.panels + panel * panel_bytes + PackedBytes(kPanelColumns, k, kType);
      uint64_t step_bytes = panel_bytes;
      if constexpr (kType != ComputeType::kF32) {
        for (uint32_t i = 0; i < panels; ++i) {
          Widen<kType>(w + i * panel_bytes, depth, widened + i * kWidenedPanel);
        }
        w = reinterpret_cast<const std::byte*>(widened);
        step_bytes = kWidenedPanel * sizeof(float);
      }
      const uint32_t column = panel * kPanelColumns;
      for (uint32_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
        const uint32_t row = tile * job.shape.tile_rows;
        const uint32_t rows =
            std::min(job.shape.tile_rows, static_cast<uint32_t>(job.y.size()) - row);
        MultiplyRows<ComputeType::kF32>(
            {.x = job.tiles + uint64_t{row} * job.w.k + uint64_t{k} * job.shape.tile_rows,
             .x_step = job.shape.tile_rows,
             .depth = depth,
             .w = w,
             .panel_bytes = step_bytes,
             .y = job.y.data() + row,
             .column = column,
             .columns = job.w.n - column,
             .first = k == 0,
             .last = k + depth == job.w.k,
             .round = job.round},
            rows, panels);
      }
    }
  }
}

template <ComputeType kType>
void MultiplyItemOf(const MatmulJob& job, const ItemRange& range) {
  if (range.tile_end - range.tile_begin >= kWidenTilesMin) {
    MultiplyBlocked<kType>(job, range);
  } else {
    MultiplyStreaming<kType>(job, range);
  }
}

void MultiplyItem(const MatmulJob& job, uint32_t item) {
  const uint32_t groups = DivUp(job.panel_count, job.panels_per_item);
  const uint32_t tile_begin = item / groups * job.tiles_per_item;
  const uint32_t panel_begin = item % groups * job.panels_per_item;
  const ItemRange range = {
      tile_begin, std::min(tile_begin + job.tiles_per_item, job.shape.tile_count), panel_begin,
      std::min(panel_begin + job.panels_per_item, job.panel_count)};
  switch (job.w.type) {
    case ComputeType::kF32: return MultiplyItemOf<ComputeType::kF32>(job, range);
    case ComputeType::kF16: return MultiplyItemOf<ComputeType::kF16>(job, range);
    case ComputeType::kBf16: return MultiplyItemOf<ComputeType::kBf16>(job, range);
  }
}

TileShape ShapeOf(uint32_t rows) {
  const uint32_t tiles = DivUp(rows, kTileRows);
  const uint32_t tile_rows = DivUp(rows, tiles);  // evenly high: 7 rows are 4 + 3, not 6 + 1
  return {tile_rows, tiles, TilePanels(tiles >= kWidenTilesMin ? kTileRows : tile_rows)};
}

}  // namespace quire::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::model {
namespace {

HWY_EXPORT(ShapeOf);
HWY_EXPORT(MultiplyItem);

// Rows of x that stay in the L2 cache while a group of panels passes, for the usual k block.
constexpr uint32_t kBlockRows = 240;
// Panels of one item at most: their sums in y stay in the cache too.
constexpr uint32_t kItemPanelsMax = 8;
// Items for each worker at least, so that an uneven machine ends evenly.
constexpr uint32_t kItemsPerWorker = 4;

// Copies a tile's rows to [k][tile_rows]; rows it lacks stay as they are and are never read.
template <uint32_t kRows = 12>
void PackTile(const float* x, uint32_t rows, uint32_t tile_rows, uint32_t k_count, float* tile) {
  if constexpr (kRows > 0) {
    if (rows != kRows) return PackTile<kRows - 1>(x, rows, tile_rows, k_count, tile);
    for (uint32_t k = 0; k < k_count; ++k) {
      QUIRE_UNROLL
      for (uint32_t r = 0; r < kRows; ++r) {
        tile[uint64_t{k} * tile_rows + r] = x[uint64_t{r} * k_count + k];
      }
    }
  }
}

void PackTiles(MatmulJob& job, const float* x, MatmulScratch& scratch, Executor& executor) {
  const auto rows = static_cast<uint32_t>(job.y.size());
  if (rows == 1) {  // a tile of one row is that row
    job.tiles = x;
    return;
  }
  const uint64_t values = uint64_t{job.shape.tile_count} * job.shape.tile_rows * job.w.k;
  if (scratch.packed_rows.size() < values) scratch.packed_rows.resize(values);
  float* tiles = scratch.packed_rows.data();
  executor.ParallelFor(job.shape.tile_count, [&](uint32_t tile, uint32_t) {
    const uint32_t row = tile * job.shape.tile_rows;
    const uint64_t at = uint64_t{row} * job.w.k;
    PackTile(x + at, std::min(job.shape.tile_rows, rows - row), job.shape.tile_rows, job.w.k,
             tiles + at);
  });
  job.tiles = tiles;
}

}  // namespace

uint64_t PackedBytes(uint64_t n, uint64_t k, ComputeType type) {
  return RoundUp(n, uint64_t{kPanelColumns}) * k * TypeBytes(type);
}

void PackRows(const PackedMatrix& matrix, const std::byte* rows, uint32_t first_row,
              uint32_t row_count, std::byte* panels) {
  QUIRE_CHECK(first_row <= matrix.n && row_count <= matrix.n - first_row);
  const uint64_t value_bytes = TypeBytes(matrix.type);
  const uint64_t panel_bytes = PackedBytes(kPanelColumns, matrix.k, matrix.type);
  const auto copy = [&](auto code) {
    using Code = decltype(code);
    for (uint32_t i = 0; i < row_count; ++i) {
      const uint32_t row = first_row + i;
      std::byte* to =
          panels + row / kPanelColumns * panel_bytes + row % kPanelColumns * value_bytes;
      const std::byte* from = rows + uint64_t{i} * matrix.k * value_bytes;
      for (uint32_t k = 0; k < matrix.k; ++k) {
        std::memcpy(to + uint64_t{k} * kPanelColumns * sizeof(Code), from + k * sizeof(Code),
                    sizeof(Code));
      }
    }
  };
  if (value_bytes == 4) {
    copy(uint32_t{});
  } else {
    copy(uint16_t{});
  }
  if (row_count == 0 || first_row + row_count < matrix.n) return;
  for (uint32_t row = matrix.n; row % kPanelColumns != 0; ++row) {
    std::byte* to = panels + row / kPanelColumns * panel_bytes + row % kPanelColumns * value_bytes;
    for (uint32_t k = 0; k < matrix.k; ++k) {
      std::memset(to + uint64_t{k} * kPanelColumns * value_bytes, 0, value_bytes);
    }
  }
}

void UnpackRow(const PackedMatrix& matrix, uint32_t row, float* out) {
  QUIRE_CHECK(row < matrix.n);
  const uint64_t value_bytes = TypeBytes(matrix.type);
  const std::byte* from = matrix.panels +
                          row / kPanelColumns * PackedBytes(kPanelColumns, matrix.k, matrix.type) +
                          row % kPanelColumns * value_bytes;
  for (uint32_t k = 0; k < matrix.k; ++k, from += kPanelColumns * value_bytes) {
    out[k] = LoadValue(matrix.type, from);
  }
}

void Matmul(const PackedMatrix& w, const float* x, std::span<float* const> y, ComputeType round,
            MatmulScratch& scratch, Executor& executor) {
  if (y.empty() || w.n == 0) return;
  const auto rows = static_cast<uint32_t>(y.size());
  MatmulJob job = {.w = w, .y = y, .shape = HWY_DYNAMIC_DISPATCH(ShapeOf)(rows), .round = round};
  PackTiles(job, x, scratch, executor);

  const uint32_t blocks = DivUp(rows, kBlockRows);
  job.tiles_per_item = DivUp(job.shape.tile_count, blocks);
  job.panel_count = DivUp(w.n, kPanelColumns);
  const uint32_t tile_blocks = DivUp(job.shape.tile_count, job.tiles_per_item);
  const uint32_t groups = DivUp(executor.worker_count() * kItemsPerWorker, tile_blocks);
  job.panels_per_item =
      RoundUp(std::clamp(job.panel_count / groups, 1u, kItemPanelsMax), job.shape.tile_panels);
  executor.ParallelFor(
      tile_blocks * DivUp(job.panel_count, job.panels_per_item),
      [&](uint32_t item, uint32_t) { HWY_DYNAMIC_DISPATCH(MultiplyItem)(job, item); });
}

}  // namespace quire::model
#endif  // HWY_ONCE
