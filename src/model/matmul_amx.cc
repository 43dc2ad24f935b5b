// A register tile is two tiles of rows by two panels: four tiles of sums, two of inputs and two of
// weights. Inputs are first rounded off to 16 bits, which is exact, and copied so that every
// tile of them is one stretch; a panel's 32 k are a tile of weights as they lie.
//
// Many rows: k is cut so that a block of rows, as many steps of it, stays in the L2 cache while
// panels pass; sums wait as tiles, and rows of y are written once. One tile of rows goes through
// four panels at a time, so every weight is read once, all of k in one go; memory is the limit.
#include "model/matmul_amx.h"

#include "base/amx.h"
#include "base/bits.h"
#include "base/check.h"
#include "model/matmul_items.h"
#include "model/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/matmul_amx.cc"
#include "hwy/foreach_target.h"
// foreach_target.h first
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "model/simd-inl.h"

#ifndef QUIRE_MODEL_MATMUL_AMX_ONCE_
#define QUIRE_MODEL_MATMUL_AMX_ONCE_
namespace quire::model {

constexpr uint32_t kAmxRows = 16;           // of a tile at most
constexpr uint32_t kAmxLineBytes = 64;      // of a row of a tile
constexpr uint32_t kAmxWeightBytes = 1024;  // of a tile of weights
constexpr uint32_t kAmxPair = 2;            // tiles of rows, and panels, that go together
constexpr uint32_t kAmxStreams = 4;         // panels that go together with one tile of rows

// Sums of a register tile.
struct alignas(64) AmxSums {
  float values[kAmxPair * kAmxPair][kAmxRows][kPanelColumns];
};

// One product, as the workers see it.
struct AmxJob {
  PackedMatrix w;
  uint32_t steps = 0;                // of kPairsStep values of k
  uint32_t tile_rows = 0;            // of every tile; the last one may have fewer
  const std::byte* tiles = nullptr;  // [tiles][steps][tile_rows][64 bytes]
  std::span<float* const> y = {};
  ComputeType round = ComputeType::kF32;
  ItemPlan items = {};
  uint32_t block_steps = 0;  // of an item that are done before its next ones
  AmxSums* sums = nullptr;   // [workers][sums_per_worker]
  uint32_t sums_per_worker = 0;
};

}  // namespace quire::model
#endif

HWY_BEFORE_NAMESPACE();
namespace quire::model::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows [tile_rows] of a tile, as [steps][tile_rows][32].
void PackAmxTile(const float* x, uint32_t rows, const AmxJob& job, std::byte* tile) {
  using D = hn::CappedTag<float, 16>;
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const uint32_t k = job.w.k;
  for (uint32_t r = 0; r < rows; ++r, x += k) {
    for (uint32_t step = 0; step < job.steps; ++step) {
      auto* const to =
          reinterpret_cast<uint16_t*>(tile + (uint64_t{step} * job.tile_rows + r) * kAmxLineBytes);
      const float* from = x + uint64_t{step} * kPairsStep;
      float padded[kPairsStep];
      if (const uint32_t left = k - step * kPairsStep; left < kPairsStep) {
        for (uint32_t i = 0; i < kPairsStep; ++i) padded[i] = i < left ? from[i] : 0.0f;
        from = padded;
      }
      for (size_t i = 0; i < kPairsStep; i += hn::Lanes(d)) {
        const auto high = hn::ShiftRight<16>(hn::BitCast(du, hn::LoadU(d, from + i)));
        hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, high)), d16, to + i);
      }
    }
  }
}

#if defined(__x86_64__)

// Some steps of k of a register tile.
struct AmxStep {
  const std::byte* x = nullptr;  // first tile of rows
  uint64_t x_tile_bytes = 0;     // from one tile of rows to the next
  uint64_t x_step_bytes = 0;
  const std::byte* w = nullptr;  // first panel
  uint64_t panel_bytes = 0;
  uint32_t steps = 0;
  const std::byte* next = nullptr;  // a pair of tiles: its share of the next panels' weights
};

// Weights are fetched before they are read. Where one tile of rows passes: those of two steps
// later, at the end of the panels those of the next ones. In a block: each of eight pairs of tiles
// fetches an eighth of the next panels' step (a loop over the lines would cost what that saves).
constexpr uint32_t kAmxFetchSteps = 2;
constexpr uint32_t kAmxShareBytes = kAmxWeightBytes / 8;

template <uint32_t kPanels>
HWY_INLINE void FetchAmxStream(const AmxStep& step, const std::byte* w, uint32_t i) {
  const bool ends = i + kAmxFetchSteps >= step.steps;
  w += kAmxFetchSteps * kAmxWeightBytes + (ends ? (kPanels - 1) * step.panel_bytes : 0);
  for (uint32_t p = 0; p < kPanels; ++p) {
    for (uint32_t at = 0; at < kAmxWeightBytes; at += kAmxLineBytes) {
      hwy::Prefetch(w + p * step.panel_bytes + at);
    }
  }
}

template <uint32_t kPanels>
HWY_INLINE void FetchAmxShare(const AmxStep& step, uint32_t i) {
  const std::byte* const from = step.next + i * kAmxShareBytes;
  QUIRE_UNROLL
  for (uint32_t line = 0; line < kPanels * kAmxShareBytes / kAmxLineBytes; ++line) {
    const uint32_t at = line * kAmxLineBytes;
    hwy::Prefetch(from + at / kAmxShareBytes * step.panel_bytes + at % kAmxShareBytes);
  }
}

template <uint32_t kTiles, uint32_t kPanels>
void MultiplyAmxSteps(const AmxStep& step) {
  const std::byte* x = step.x;
  const std::byte* w = step.w;
  for (uint32_t i = 0; i < step.steps; ++i) {
    if constexpr (kPanels == kAmxStreams) {
      FetchAmxStream<kPanels>(step, w, i);
    } else {
      FetchAmxShare<kPanels>(step, i);
    }
    LoadAmxTile<4>(x, kAmxLineBytes);
    LoadAmxTile<6>(w, kAmxLineBytes);
    MultiplyAmxBf16<0, 4, 6>();
    if constexpr (kPanels > 1) {
      LoadAmxTile<7>(w + step.panel_bytes, kAmxLineBytes);
      MultiplyAmxBf16<1, 4, 7>();
    }
    if constexpr (kPanels > kAmxPair) {
      static_assert(kTiles == 1 && kPanels == kAmxStreams);
      LoadAmxTile<6>(w + 2 * step.panel_bytes, kAmxLineBytes);
      MultiplyAmxBf16<2, 4, 6>();
      LoadAmxTile<7>(w + 3 * step.panel_bytes, kAmxLineBytes);
      MultiplyAmxBf16<3, 4, 7>();
    }
    if constexpr (kTiles == 2) {
      LoadAmxTile<5>(x + step.x_tile_bytes, kAmxLineBytes);
      MultiplyAmxBf16<2, 5, 6>();
      if constexpr (kPanels == 2) MultiplyAmxBf16<3, 5, 7>();
    }
    x += step.x_step_bytes;
    w += kAmxWeightBytes;
  }
}

void ClearAmxSums() {
  ClearAmxTile<0>();
  ClearAmxTile<1>();
  ClearAmxTile<2>();
  ClearAmxTile<3>();
}

void LoadAmxSums(const AmxSums& sums) {
  LoadAmxTile<0>(sums.values[0], kAmxLineBytes);
  LoadAmxTile<1>(sums.values[1], kAmxLineBytes);
  LoadAmxTile<2>(sums.values[2], kAmxLineBytes);
  LoadAmxTile<3>(sums.values[3], kAmxLineBytes);
}

void StoreAmxSums(AmxSums& sums) {
  StoreAmxTile<0>(sums.values[0], kAmxLineBytes);
  StoreAmxTile<1>(sums.values[1], kAmxLineBytes);
  StoreAmxTile<2>(sums.values[2], kAmxLineBytes);
  StoreAmxTile<3>(sums.values[3], kAmxLineBytes);
}

// A register tile, and what of k is added to its sums.
struct AmxUnit {
  uint32_t tile = 0;
  uint32_t panel = 0;
  uint32_t first_step = 0;
  uint32_t steps = 0;
  uint32_t share = 0;  // of the next panels, that it fetches
};

// Calls visit(sums, y, columns) for each row of each panel that a register tile has.
template <typename Visit>
void ForAmxRows(const AmxJob& job, const AmxUnit& unit, uint32_t tiles, uint32_t panels,
                const AmxSums& sums, const Visit& visit) {
  const auto rows = static_cast<uint32_t>(job.y.size());
  for (uint32_t t = 0; t < tiles; ++t) {
    const uint32_t first = (unit.tile + t) * job.tile_rows;
    const uint32_t count = std::min(job.tile_rows, rows - first);
    for (uint32_t r = 0; r < count; ++r) {
      for (uint32_t p = 0; p < panels; ++p) {
        const uint32_t column = (unit.panel + p) * kPanelColumns;
        visit(sums.values[t * kAmxPair + p][r], job.y[first + r] + column,
              std::min(kPanelColumns, job.w.n - column));
      }
    }
  }
}

template <ComputeType kRound>
void RoundAmxRow(const float* sums, float* y, uint32_t columns) {
  const hn::CappedTag<float, kPanelColumns> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < columns; i += lanes) {
    const auto rounded = RoundTo<kRound>(d, hn::Load(d, sums + i));
    if (i + lanes <= columns) {
      hn::StoreU(rounded, d, y + i);
    } else {
      hn::BlendedStore(rounded, hn::FirstN(d, columns - i), d, y + i);
    }
  }
}

// From `sums`, or from zero, to `sums`, or to y.
template <uint32_t kTiles, uint32_t kPanels>
void MultiplyAmxUnit(const AmxJob& job, const AmxUnit& unit, AmxSums& sums) {
  if (unit.first_step == 0) {
    ClearAmxSums();
  } else {
    LoadAmxSums(sums);
  }
  const bool last = unit.first_step + unit.steps == job.steps;
  const uint64_t x_step_bytes = uint64_t{job.tile_rows} * kAmxLineBytes;
  const uint64_t x_tile_bytes = x_step_bytes * job.steps;
  const uint64_t panel_bytes = PanelBytes(job.w);
  const std::byte* const weights =
      job.w.panels + unit.panel * panel_bytes + uint64_t{unit.first_step} * kAmxWeightBytes;
  MultiplyAmxSteps<kTiles, kPanels>(
      {.x = job.tiles + unit.tile * x_tile_bytes + unit.first_step * x_step_bytes,
       .x_tile_bytes = x_tile_bytes,
       .x_step_bytes = x_step_bytes,
       .w = weights,
       .panel_bytes = panel_bytes,
       .steps = unit.steps,
       .next =
           weights + kPanels * panel_bytes + uint64_t{unit.share} * unit.steps * kAmxShareBytes});
  StoreAmxSums(sums);
  if (!last) return;
  const auto store = [&](const auto& to) { ForAmxRows(job, unit, kTiles, kPanels, sums, to); };
  switch (job.round) {
    case ComputeType::kF32: return store(RoundAmxRow<ComputeType::kF32>);
    case ComputeType::kF16: return store(RoundAmxRow<ComputeType::kF16>);
    case ComputeType::kBf16: return store(RoundAmxRow<ComputeType::kBf16>);
  }
}

// The panels that were multiplied: as many as go together best.
uint32_t MultiplyAmxUnits(const AmxJob& job, const AmxUnit& unit, const ItemRange& range,
                          AmxSums& sums) {
  const bool one_tile = range.tile_end - unit.tile == 1;
  const uint32_t panels = range.panel_end - unit.panel;
  if (range.tile_end - range.tile_begin == 1 && panels >= kAmxStreams) {
    MultiplyAmxUnit<1, kAmxStreams>(job, unit, sums);
    return kAmxStreams;
  }
  if (one_tile && panels == 1) {
    MultiplyAmxUnit<1, 1>(job, unit, sums);
  } else if (one_tile) {
    MultiplyAmxUnit<1, 2>(job, unit, sums);
  } else if (panels == 1) {
    MultiplyAmxUnit<2, 1>(job, unit, sums);
  } else {
    MultiplyAmxUnit<2, 2>(job, unit, sums);
  }
  return kAmxPair;
}

void MultiplyAmxItem(const AmxJob& job, uint32_t item, uint32_t worker) {
  const ItemRange range = job.items.At(item);
  const AmxScope scope;
  AmxConfig config;
  for (const int tile : {0, 1, 2, 3, 4, 5}) config.Set(tile, job.tile_rows, kAmxLineBytes);
  for (const int tile : {6, 7}) config.Set(tile, kPairsStep / 2, kAmxLineBytes);
  LoadAmxConfig(config);
  const uint32_t pairs = DivUp(range.tile_end - range.tile_begin, kAmxPair);
  for (uint32_t step = 0; step < job.steps; step += job.block_steps) {
    AmxSums* sums = job.sums + uint64_t{worker} * job.sums_per_worker;
    const uint32_t steps = std::min(job.block_steps, job.steps - step);
    for (uint32_t panel = range.panel_begin, done = 0; panel < range.panel_end; panel += done) {
      AmxUnit unit = {.panel = panel, .first_step = step, .steps = steps};
      for (; unit.share < pairs; ++unit.share) {
        unit.tile = range.tile_begin + unit.share * kAmxPair;
        done = MultiplyAmxUnits(job, unit, range, *sums++);
      }
    }
  }
}

#else

void MultiplyAmxItem(const AmxJob&, uint32_t, uint32_t) { QUIRE_CHECK(false); }  // no tiles

#endif  // __x86_64__

}  // namespace quire::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::model {
namespace {

HWY_EXPORT(PackAmxTile);
HWY_EXPORT(MultiplyAmxItem);

// An item's rows of x, as many steps of them as are done at a time, stay in the L2 cache: 512 KiB.
constexpr uint32_t kAmxBlockRows = 256;
constexpr uint32_t kAmxBlockSteps = 32;

}  // namespace

void MatmulAmx(const PackedMatrix& w, const float* x, std::span<float* const> y, ComputeType round,
               MatmulScratch& scratch, Executor& executor) {
  QUIRE_CHECK(w.order == PanelOrder::kPairs);
  if (y.empty() || w.n == 0) return;
  const auto rows = static_cast<uint32_t>(y.size());
  const uint32_t tile_count = DivUp(rows, kAmxRows);
  AmxJob job = {.w = w,
                .steps = DivUp(w.k, kPairsStep),
                .tile_rows = DivUp(rows, tile_count),  // evenly high
                .y = y,
                .round = round};
  job.items = ItemPlan({.rows = rows,
                        .block_rows = kAmxBlockRows,
                        .tile_count = tile_count,
                        .tiles_step = kAmxPair,
                        .panel_count = DivUp(w.n, kPanelColumns),
                        .panels_step = kAmxPair,
                        .workers = executor.worker_count()});
  const ItemRange first = job.items.At(0);
  job.block_steps = first.tile_end <= kAmxPair ? job.steps : kAmxBlockSteps;
  job.sums_per_worker = DivUp(first.tile_end, kAmxPair) * DivUp(first.panel_end, kAmxPair);
  const uint64_t tile_bytes = uint64_t{job.steps} * job.tile_rows * kAmxLineBytes;
  const uint64_t sums_bytes =
      uint64_t{executor.worker_count()} * job.sums_per_worker * sizeof(AmxSums);
  std::byte* const tiles = scratch.Grow(tile_count * tile_bytes + sums_bytes);
  job.tiles = tiles;
  job.sums = reinterpret_cast<AmxSums*>(tiles + tile_count * tile_bytes);
  executor.ParallelFor(tile_count, [&](uint32_t tile, uint32_t) {
    const uint32_t row = tile * job.tile_rows;
    HWY_DYNAMIC_DISPATCH(PackAmxTile)
    (x + uint64_t{row} * w.k, std::min(job.tile_rows, rows - row), job, tiles + tile * tile_bytes);
  });
  executor.ParallelFor(job.items.count(), [&](uint32_t item, uint32_t worker) {
    HWY_DYNAMIC_DISPATCH(MultiplyAmxItem)(job, item, worker);
  });
}

}  // namespace quire::model
#endif  // HWY_ONCE
