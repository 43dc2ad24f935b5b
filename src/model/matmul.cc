// The product is computed in register tiles of kTileRows rows by a few panels. Rows are first
// copied into tiles of [k][rows], so that a tile reads one stream; weights lie in panels of [k][16]
// already.
//
// Few rows: every weight is read once and widened on the fly, all of k in one go; memory is the
// limit. Many rows: k is cut so that a panel's step, widened once into the L1 cache, serves a block
// of rows whose step fits in the L2 cache. The sums go on from what is in y: still one chain.
//
// Weights in pairs are not widened: an instruction multiplies two of them with two inputs, which
// lie in their tile as one value of four bytes. So a step of k is a pair, and all else is the same.
#include "model/matmul.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bits.h"
#include "base/check.h"
#include "env/machine.h"
#include "model/matmul_items.h"
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

// What a step of k multiplies with: a value, or a pair of bf16.
enum class Weight : uint8_t { kF32, kF16, kBf16, kPair };

// Steps of k that are widened at a time: 16 KiB a panel.
constexpr uint32_t kWidenedDepth = 256;

constexpr uint64_t WeightBytes(Weight weight) {
  return weight == Weight::kF32 || weight == Weight::kPair ? 4 : 2;
}

// One product, as the workers see it.
struct MatmulJob {
  PackedMatrix w;
  uint32_t depth = 0;            // steps of k
  const float* tiles = nullptr;  // [tile_count][depth][tile_rows]
  std::span<float* const> y = {};
  TileShape shape = {};
  ComputeType round = ComputeType::kF32;
  ItemPlan items = {};
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

// From this many tiles on it pays to widen weights once for all of them.
constexpr uint32_t kWidenTilesMin = 3;

template <Weight kWeight>
HWY_INLINE hn::Vec<F32> LoadWeights(const std::byte* p) {
  const F32 d;
  if constexpr (WeightBytes(kWeight) == 4) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
  } else if constexpr (kWeight == Weight::kBf16) {
    const hn::Rebind<hwy::bfloat16_t, F32> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::bfloat16_t*>(p)));
  } else {
    const hn::Rebind<hwy::float16_t, F32> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}

#if defined(__x86_64__) && HWY_TARGET <= HWY_AVX3
#define QUIRE_MODEL_PAIRS 1
#else
#define QUIRE_MODEL_PAIRS 0
#endif

template <Weight kWeight>
HWY_INLINE hn::Vec<F32> MultiplyAdd(hn::Vec<F32> input, hn::Vec<F32> weights, hn::Vec<F32> sum) {
#if QUIRE_MODEL_PAIRS
  if constexpr (kWeight == Weight::kPair) {
    // Written out: the target that the kernel is compiled for need not have it, the processor has.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(input.raw), "v"(weights.raw));
    return sum;
  }
#endif
  return hn::MulAdd(input, weights, sum);
}

// A few panels times one tile over some steps of k.
struct TileStep {
  const float* x = nullptr;      // [depth][x_step]
  uint32_t x_step = 0;           // rows of the tile as it was packed
  uint32_t depth = 0;            // steps of k
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

template <Weight kWeight, uint32_t kRows, uint32_t kPanels>
HWY_NOINLINE void MultiplyTile(const TileStep& step) {
  const F32 d;
  constexpr size_t kVectors = kPanels * kPanelVectors;
  constexpr size_t kValueBytes = WeightBytes(kWeight);
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
    return LoadWeights<kWeight>(panel + (v % kPanelVectors) * kLanes * kValueBytes);
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
          sums[r * kVectors + v] = MultiplyAdd<kWeight>(inputs[r], column, sums[r * kVectors + v]);
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
          sums[r * kVectors + v] = MultiplyAdd<kWeight>(input, columns[v], sums[r * kVectors + v]);
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

// All of `panels` panels, as many at a time as the registers hold. Where they are so many, nothing
// is copied: a step that was just filled in field by field is slow to copy.
template <Weight kWeight, uint32_t kRows>
void MultiplyPanels(const TileStep& step, uint32_t panels) {
  constexpr uint32_t kPanels = TilePanels(kRows);
  if (panels == kPanels) return MultiplyTile<kWeight, kRows, kPanels>(step);
  TileStep rest = step;
  for (; panels >= kPanels; panels -= kPanels) {
    MultiplyTile<kWeight, kRows, kPanels>(rest);
    rest = After(rest, kPanels);
  }
  for (; panels > 0; --panels) {
    MultiplyTile<kWeight, kRows, 1>(rest);
    rest = After(rest, 1);
  }
}

template <Weight kWeight, uint32_t kRows = kTileRows>
void MultiplyRows(const TileStep& step, uint32_t rows, uint32_t panels) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return MultiplyPanels<kWeight, kRows>(step, panels);
    MultiplyRows<kWeight, kRows - 1>(step, rows, panels);
  }
}

// Widens `depth` values of k of one panel.
template <Weight kWeight>
void Widen(const std::byte* panel, uint32_t depth, float* out) {
  const F32 d;
  for (size_t i = 0; i < size_t{depth} * kPanelColumns; i += kLanes) {
    hn::StoreU(LoadWeights<kWeight>(panel + i * 2), d, out + i);
  }
}

template <Weight kWeight>
void MultiplyStreaming(const MatmulJob& job, const ItemRange& range) {
  const uint64_t panel_bytes = PanelBytes(job.w);
  for (uint32_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
    const uint32_t row = tile * job.shape.tile_rows;
    const uint32_t rows = std::min(job.shape.tile_rows, static_cast<uint32_t>(job.y.size()) - row);
    const uint32_t column = range.panel_begin * kPanelColumns;
    MultiplyRows<kWeight>({.x = job.tiles + uint64_t{row} * job.depth,
                           .x_step = job.shape.tile_rows,
                           .depth = job.depth,
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

// The bytes of a step of k of a few panels. Tiles fetch a share each, so that what is widened or
// multiplied next is in the cache by then.
struct FetchedStep {
  const std::byte* w = nullptr;  // of the first panel
  uint64_t panel_bytes = 0;      // from one panel to the next
  uint64_t step_bytes = 0;       // of each
  uint32_t panels = 0;

  HWY_INLINE void FetchShare(uint32_t share, uint32_t shares) const {
    const uint64_t share_bytes = RoundUp(DivUp(step_bytes, uint64_t{shares}), uint64_t{kLineBytes});
    const uint64_t end = std::min(step_bytes, (share + 1) * share_bytes);
    for (uint32_t panel = 0; panel < panels; ++panel) {
      for (uint64_t at = share * share_bytes; at < end; at += kLineBytes) {
        hwy::Prefetch(w + panel * panel_bytes + at);
      }
    }
  }
};

template <Weight kWeight>
void MultiplyBlocked(const MatmulJob& job, const ItemRange& range) {
  constexpr uint32_t kPanels = TilePanels(kTileRows);
  constexpr size_t kWidenedPanel = size_t{kWidenedDepth} * kPanelColumns;
  constexpr bool kWidens = WeightBytes(kWeight) < sizeof(float);
  constexpr Weight kStep = kWidens ? Weight::kF32 : kWeight;
  constexpr uint64_t kRowBytes = kPanelColumns * WeightBytes(kWeight);
  HWY_ALIGN float widened[kPanels * kWidenedPanel];
  const uint64_t panel_bytes = PanelBytes(job.w);
  const auto step_at = [&](uint32_t k, uint32_t panel) {
    return FetchedStep{.w = job.w.panels + panel * panel_bytes + k * kRowBytes,
                       .panel_bytes = panel_bytes,
                       .step_bytes = std::min(kWidenedDepth, job.depth - k) * kRowBytes,
                       .panels = std::min(kPanels, range.panel_end - panel)};
  };
  for (uint32_t k = 0; k < job.depth; k += kWidenedDepth) {
    const uint32_t depth = std::min(kWidenedDepth, job.depth - k);
    for (uint32_t panel = range.panel_begin; panel < range.panel_end; panel += kPanels) {
      const FetchedStep now = step_at(k, panel);
      FetchedStep next;
      if (panel + kPanels < range.panel_end) {
        next = step_at(k, panel + kPanels);
      } else if (k + depth < job.depth) {
        next = step_at(k + depth, range.panel_begin);
      }
      TileStep step = {.x_step = job.shape.tile_rows,
                       .depth = depth,
                       .w = now.w,
                       .panel_bytes = panel_bytes,
                       .column = panel * kPanelColumns,
                       .columns = job.w.n - panel * kPanelColumns,
                       .first = k == 0,
                       .last = k + depth == job.depth,
                       .round = job.round};
      if constexpr (kWidens) {
        for (uint32_t i = 0; i < now.panels; ++i) {
          Widen<kWeight>(now.w + i * panel_bytes, depth, widened + i * kWidenedPanel);
        }
        step.w = reinterpret_cast<const std::byte*>(widened);
        step.panel_bytes = kWidenedPanel * sizeof(float);
      }
      for (uint32_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
        next.FetchShare(tile - range.tile_begin, range.tile_end - range.tile_begin);
        const uint32_t row = tile * job.shape.tile_rows;
        step.x = job.tiles + uint64_t{row} * job.depth + uint64_t{k} * job.shape.tile_rows;
        step.y = job.y.data() + row;
        MultiplyRows<kStep>(
            step, std::min(job.shape.tile_rows, static_cast<uint32_t>(job.y.size()) - row),
            now.panels);
      }
    }
  }
}

template <Weight kWeight>
void MultiplyItemOf(const MatmulJob& job, const ItemRange& range) {
  if (range.tile_end - range.tile_begin >= kWidenTilesMin) {
    MultiplyBlocked<kWeight>(job, range);
  } else {
    MultiplyStreaming<kWeight>(job, range);
  }
}

void MultiplyItem(const MatmulJob& job, uint32_t item) {
  const ItemRange range = job.items.At(item);
  if (job.w.order == PanelOrder::kPairs) {
#if QUIRE_MODEL_PAIRS
    return MultiplyItemOf<Weight::kPair>(job, range);
#else
    QUIRE_CHECK(false);  // no processor with this target has the class
#endif
  }
  switch (job.w.type) {
    case ComputeType::kF32: return MultiplyItemOf<Weight::kF32>(job, range);
    case ComputeType::kF16: return MultiplyItemOf<Weight::kF16>(job, range);
    case ComputeType::kBf16: return MultiplyItemOf<Weight::kBf16>(job, range);
  }
}

#undef QUIRE_MODEL_PAIRS

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

// Rows of x that stay in the L2 cache while a group of panels passes: a step of k of so many takes
// half of it. More than 512 were not tried.
uint32_t BlockRows() {
  constexpr uint64_t kStepBytes = kWidenedDepth * sizeof(float);  // of a row
  static const uint64_t rows = SecondLevelCacheBytes() / 2 / kStepBytes;
  return static_cast<uint32_t>(std::clamp<uint64_t>(rows, 128, 512));
}

// The pair of inputs 2 i and 2 i + 1 of a row of k, as one value. Inputs are bf16, so half of their
// bits are zeros.
float PairOf(const float* x, uint32_t k, uint32_t i) {
  const auto half = [&](uint32_t at) { return at < k ? std::bit_cast<uint32_t>(x[at]) >> 16 : 0u; };
  return std::bit_cast<float>(half(2 * i) | half(2 * i + 1) << 16);
}

// Copies a tile's rows to [depth][tile_rows]; rows it lacks stay as they are and are never read.
// at(r, k) is step k of row r.
template <uint32_t kRows = 12, typename At>
void PackTile(const At& at, uint32_t rows, uint32_t tile_rows, uint32_t depth, float* tile) {
  if constexpr (kRows > 0) {
    if (rows != kRows) return PackTile<kRows - 1>(at, rows, tile_rows, depth, tile);
    for (uint32_t k = 0; k < depth; ++k) {
      QUIRE_UNROLL
      for (uint32_t r = 0; r < kRows; ++r) tile[uint64_t{k} * tile_rows + r] = at(r, k);
    }
  }
}

void PackTiles(MatmulJob& job, const float* x, MatmulScratch& scratch, Executor& executor) {
  const auto rows = static_cast<uint32_t>(job.y.size());
  const bool pairs = job.w.order == PanelOrder::kPairs;
  if (rows == 1 && !pairs) {  // a tile of one row is that row
    job.tiles = x;
    return;
  }
  const uint64_t values = uint64_t{job.shape.tile_count} * job.shape.tile_rows * job.depth;
  auto* const tiles = reinterpret_cast<float*>(scratch.Grow(values * sizeof(float)));
  const uint32_t k = job.w.k;
  executor.ParallelFor(job.shape.tile_count, [&](uint32_t tile, uint32_t) {
    const uint32_t row = tile * job.shape.tile_rows;
    const uint32_t tile_rows = std::min(job.shape.tile_rows, rows - row);
    const float* const from = x + uint64_t{row} * k;
    float* const to = tiles + uint64_t{row} * job.depth;
    const auto pack = [&](const auto& at) {
      PackTile(at, tile_rows, job.shape.tile_rows, job.depth, to);
    };
    if (pairs) {
      pack([=](uint32_t r, uint32_t i) { return PairOf(from + uint64_t{r} * k, k, i); });
    } else {
      pack([=](uint32_t r, uint32_t i) { return from[uint64_t{r} * k + i]; });
    }
  });
  job.tiles = tiles;
}

// A row lies in its panel as values of some bytes, 16 columns apart; a pair is one value.
uint64_t UnitBytes(const PackedMatrix& matrix) {
  return matrix.order == PanelOrder::kPairs ? 4 : TypeBytes(matrix.type);
}

}  // namespace

uint64_t PackedBytes(uint64_t n, uint64_t k, ComputeType type, PanelOrder order) {
  if (order == PanelOrder::kPairs) k = RoundUp(k, uint64_t{kPairsStep});
  return RoundUp(n, uint64_t{kPanelColumns}) * k * TypeBytes(type);
}

void PackRows(const PackedMatrix& matrix, const std::byte* rows, uint32_t first_row,
              uint32_t row_count, std::byte* panels) {
  QUIRE_CHECK(first_row <= matrix.n && row_count <= matrix.n - first_row);
  const uint64_t row_bytes = uint64_t{matrix.k} * TypeBytes(matrix.type);
  const uint64_t panel_bytes = PanelBytes(matrix);
  const auto place = [&](auto unit) {
    using Unit = decltype(unit);
    const uint64_t whole = row_bytes / sizeof(Unit);
    const uint64_t units = panel_bytes / kPanelColumns / sizeof(Unit);
    const auto at = [&](uint32_t row) {
      return panels + row / kPanelColumns * panel_bytes + row % kPanelColumns * sizeof(Unit);
    };
    const auto fill = [&](std::byte* to, uint64_t first) {  // with zeros, from this unit on
      for (uint64_t i = first; i < units; ++i) {
        std::memset(to + i * kPanelColumns * sizeof(Unit), 0, sizeof(Unit));
      }
    };
    for (uint32_t i = 0; i < row_count; ++i) {
      std::byte* const to = at(first_row + i);
      const std::byte* const from = rows + i * row_bytes;
      for (uint64_t u = 0; u < whole; ++u) {
        std::memcpy(to + u * kPanelColumns * sizeof(Unit), from + u * sizeof(Unit), sizeof(Unit));
      }
      fill(to, whole);
      if (const uint64_t rest = row_bytes % sizeof(Unit); rest != 0) {
        std::memcpy(to + whole * kPanelColumns * sizeof(Unit), from + row_bytes - rest, rest);
      }
    }
    if (row_count == 0 || first_row + row_count < matrix.n) return;
    for (uint32_t row = matrix.n; row % kPanelColumns != 0; ++row) fill(at(row), 0);
  };
  if (UnitBytes(matrix) == 4) {
    place(uint32_t{});
  } else {
    place(uint16_t{});
  }
}

void UnpackRow(const PackedMatrix& matrix, uint32_t row, float* out) {
  QUIRE_CHECK(row < matrix.n);
  const uint64_t value_bytes = TypeBytes(matrix.type);
  const uint64_t unit_bytes = UnitBytes(matrix);
  const auto values = static_cast<uint32_t>(unit_bytes / value_bytes);  // of a unit
  const std::byte* const panel = matrix.panels + row / kPanelColumns * PanelBytes(matrix);
  const std::byte* from = panel + row % kPanelColumns * unit_bytes;
  for (uint32_t k = 0; k < matrix.k; from += kPanelColumns * unit_bytes) {
    for (uint32_t i = 0; i < values && k < matrix.k; ++i, ++k) {
      out[k] = LoadValue(matrix.type, from + i * value_bytes);
    }
  }
}

void Matmul(const PackedMatrix& w, const float* x, std::span<float* const> y, ComputeType round,
            MatmulScratch& scratch, Executor& executor) {
  if (y.empty() || w.n == 0) return;
  const auto rows = static_cast<uint32_t>(y.size());
  MatmulJob job = {.w = w,
                   .depth = static_cast<uint32_t>(PanelBytes(w) / kPanelColumns / UnitBytes(w)),
                   .y = y,
                   .shape = HWY_DYNAMIC_DISPATCH(ShapeOf)(rows),
                   .round = round};
  PackTiles(job, x, scratch, executor);
  job.items = ItemPlan({.rows = rows,
                        .block_rows = BlockRows(),
                        .tile_count = job.shape.tile_count,
                        .panel_count = DivUp(w.n, kPanelColumns),
                        .panels_step = job.shape.tile_panels,
                        .workers = executor.worker_count()});
  executor.ParallelFor(job.items.count(), [&](uint32_t item, uint32_t) {
    HWY_DYNAMIC_DISPATCH(MultiplyItem)(job, item);
  });
}

}  // namespace quire::model
#endif  // HWY_ONCE
