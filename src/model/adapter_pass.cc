#include "model/adapter_pass.h"

#include <algorithm>
#include <utility>

#include "model/layers.h"

namespace quire::model {
namespace {

// Rows that read an adapter's matrices once.
constexpr uint32_t kChunkRowsMax = 24;
// Outputs of one item of work: whole panels.
constexpr uint32_t kPieceColumns = 512;
static_assert(kPieceColumns % kPanelColumns == 0);
// Rows that a product's tiles may take besides those it has.
constexpr uint32_t kTileSlack = 12;

// The products here are items of work themselves.
class CallingThread final : public Executor {
 public:
  uint32_t worker_count() const override { return 1; }
  void Run(uint32_t items, void (*work)(void* context, uint32_t item, uint32_t worker),
           void* context) override {
    for (uint32_t item = 0; item < items; ++item) work(context, item, 0);
  }
};

PackedMatrix Columns(const PackedMatrix& matrix, uint32_t first, uint32_t count) {
  PackedMatrix some = matrix;
  some.panels += PackedBytes(first, matrix.k, matrix.type);
  some.n = count;
  return some;
}

}  // namespace

void AdapterPass::Begin(std::span<const Adapter* const> adapters) {
  rows_.clear();
  chunks_.clear();
  std::vector<const Adapter*> seen;
  for (const Adapter* const adapter : adapters) {
    if (adapter == nullptr || std::ranges::find(seen, adapter) != seen.end()) continue;
    seen.push_back(adapter);
    const auto begin = static_cast<uint32_t>(rows_.size());
    for (uint32_t row = 0; row < adapters.size(); ++row) {
      if (adapters[row] == adapter) rows_.push_back(row);
    }
    const auto end = static_cast<uint32_t>(rows_.size());
    for (uint32_t first = begin; first < end; first += kChunkRowsMax) {
      chunks_.push_back({adapter, first, std::min(kChunkRowsMax, end - first)});
    }
  }
}

void AdapterPass::GrowScratch(uint64_t values, uint32_t workers) {
  uint32_t rows = 0;
  for (const Chunk& chunk : chunks_) rows = std::max(rows, chunk.rows);
  if (scratch_.size() < workers) scratch_.resize(workers);
  for (Scratch& scratch : scratch_) {
    const auto grow = [](auto& to, uint64_t count) {
      if (to.size() < count) to.resize(count);
    };
    scratch.matmul.Grow((rows + kTileSlack) * values * sizeof(float));
    grow(scratch.rows, rows * values);
    grow(scratch.pointers, rows);
  }
}

void AdapterPass::Add(uint32_t layer, std::vector<LowRank> AdapterLayer::* product,
                      const RowBlock<const float>& x, const RowBlock<float>& y, ComputeType round,
                      Executor& executor) {
  downs_.clear();
  ups_.clear();
  uint64_t inner = 0;
  uint64_t widest = std::max<uint64_t>(x.values, kPieceColumns);
  ends_.clear();
  for (const Chunk& chunk : chunks_) {
    for (const LowRank& low_rank : chunk.adapter->layers()[layer].*product) {
      downs_.push_back({&chunk, &low_rank, inner, 0, low_rank.down.n});
      for (uint32_t at = 0; at < low_rank.up.n; at += kPieceColumns) {
        ups_.push_back({&chunk, &low_rank, inner, at, std::min(kPieceColumns, low_rank.up.n - at)});
      }
      inner += uint64_t{chunk.rows} * low_rank.down.n;
      widest = std::max<uint64_t>(widest, low_rank.up.k);
    }
    ends_.emplace_back(downs_.size(), ups_.size());
  }
  if (downs_.empty()) return;
  if (inner_.size() < inner) inner_.resize(inner);
  GrowScratch(widest, executor.worker_count());  // here: an item may not run out of memory
  if (chunks_.size() >= executor.worker_count()) {
    // Enough for all workers as they are: to wake them once costs less than an even end gains.
    executor.ParallelFor(static_cast<uint32_t>(chunks_.size()), [&](uint32_t i, uint32_t worker) {
      const auto [down, up] = i == 0 ? std::pair<size_t, size_t>() : ends_[i - 1];
      for (size_t at = down; at < ends_[i].first; ++at) {
        MultiplyDown(downs_[at], x, scratch_[worker]);
      }
      for (size_t at = up; at < ends_[i].second; ++at) {
        MultiplyUp(ups_[at], y, round, scratch_[worker]);
      }
    });
    return;
  }
  executor.ParallelFor(static_cast<uint32_t>(downs_.size()), [&](uint32_t item, uint32_t worker) {
    MultiplyDown(downs_[item], x, scratch_[worker]);
  });
  executor.ParallelFor(static_cast<uint32_t>(ups_.size()), [&](uint32_t item, uint32_t worker) {
    MultiplyUp(ups_[item], y, round, scratch_[worker]);
  });
}

void AdapterPass::MultiplyDown(const Piece& piece, const RowBlock<const float>& x,
                               Scratch& scratch) {
  const Chunk& chunk = *piece.chunk;
  const uint32_t rank = piece.low_rank->down.n;
  const uint32_t first_row = rows_[chunk.first];
  const float* rows = x.row(first_row);
  if (rows_[chunk.first + chunk.rows - 1] - first_row != chunk.rows - 1) {
    for (uint32_t i = 0; i < chunk.rows; ++i) {
      std::copy_n(x.row(rows_[chunk.first + i]), x.values, scratch.rows.data() + i * x.values);
    }
    rows = scratch.rows.data();
  }
  float* const inner = inner_.data() + piece.inner;
  for (uint32_t i = 0; i < chunk.rows; ++i) scratch.pointers[i] = inner + uint64_t{i} * rank;
  CallingThread here;
  Matmul(piece.low_rank->down, rows, std::span(scratch.pointers).first(chunk.rows),
         ComputeType::kF32, scratch.matmul, here);
  for (uint64_t i = 0; i < uint64_t{chunk.rows} * rank; ++i) inner[i] *= piece.low_rank->scale;
}

void AdapterPass::MultiplyUp(const Piece& piece, const RowBlock<float>& y, ComputeType round,
                             Scratch& scratch) const {
  const Chunk& chunk = *piece.chunk;
  for (uint32_t i = 0; i < chunk.rows; ++i) {
    scratch.pointers[i] = scratch.rows.data() + uint64_t{i} * piece.columns;
  }
  CallingThread here;
  Matmul(Columns(piece.low_rank->up, piece.first_column, piece.columns),
         inner_.data() + piece.inner, std::span(scratch.pointers).first(chunk.rows),
         ComputeType::kF32, scratch.matmul, here);
  const uint32_t column = piece.low_rank->first_column + piece.first_column;
  for (uint32_t i = 0; i < chunk.rows; ++i) {
    AddRow(scratch.pointers[i], piece.columns, round, y.row(rows_[chunk.first + i]) + column);
  }
}

}  // namespace quire::model
