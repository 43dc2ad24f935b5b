// Matrix products whose rows do not know of each other: every output is one chain over k, of fused
// multiply-adds or of dot products of pairs, so neither batch nor threads shows in a bit.
#ifndef QUIRE_MODEL_MATMUL_H_
#define QUIRE_MODEL_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bits.h"
#include "quire/env.h"
#include "quire/identity.h"

namespace quire::model {

/// Columns of one panel.
inline constexpr uint32_t kPanelColumns = 16;

/// Where the values of a panel lie.
enum class PanelOrder : uint8_t {
  kSingles,  // (n, k) at [k][n % 16]
  kPairs,    // of bf16 alone: (n, k) at [k / 2][n % 16][k % 2], zeros behind k up to a whole step
};

/// Values of k that a matrix in pairs is filled up to a multiple of: those of one matrix tile
/// (matmul_amx.h).
inline constexpr uint32_t kPairsStep = 32;

/// A weight matrix [n, k] as panels of 16 outputs, the columns after the last zero. A view: it does
/// not own the bytes.
struct PackedMatrix {
  const std::byte* panels = nullptr;  // [DivUp(n, 16)] panels, aligned to 64
  uint32_t n = 0;                     // outputs
  uint32_t k = 0;                     // inputs
  ComputeType type = ComputeType::kF32;
  PanelOrder order = PanelOrder::kSingles;
};

/// Bytes of the panels of an [n, k] matrix.
uint64_t PackedBytes(uint64_t n, uint64_t k, ComputeType type,
                     PanelOrder order = PanelOrder::kSingles);

/// Bytes of one panel.
inline uint64_t PanelBytes(const PackedMatrix& matrix) {
  return PackedBytes(kPanelColumns, matrix.k, matrix.type, matrix.order);
}

/// Writes rows [first_row, first_row + row_count) of a matrix into its panels. The last row of the
/// matrix also clears the columns after it.
///
/// Shape:   rows [row_count, k] in the matrix's type
/// Threads: any number at once for rows of different panels
void PackRows(const PackedMatrix& matrix, const std::byte* rows, uint32_t first_row,
              uint32_t row_count, std::byte* panels);

/// Widens row `row` of the matrix to f32.
/// Shape: out [k]
void UnpackRow(const PackedMatrix& matrix, uint32_t row, float* out);

/// Memory that products reuse for their inputs as tiles; it grows to the largest one.
class MatmulScratch {
 public:
  /// So many bytes, aligned to 64.
  std::byte* Grow(uint64_t bytes) {
    const uint64_t lines = DivUp(bytes, uint64_t{sizeof(Line)});
    if (lines_.size() < lines) lines_.resize(lines);
    return lines_.empty() ? nullptr : lines_.front().bytes;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

/// y[i][j] = Round(Chain over k ascending of (x[i][k], w[j][k])) for every row i. Of a matrix in
/// pairs the chain is that of the class dot16-avx512: inputs must be bf16 values, and the processor
/// must have that class (model/arithmetic.h).
///
/// Shape:   x [rows, k]; y: one pointer per row to [n] values
/// Threads: runs on `executor`; one call per scratch at a time
/// Source:  docs/numerics.md sections 3 and 6
void Matmul(const PackedMatrix& w, const float* x, std::span<float* const> y, ComputeType round,
            MatmulScratch& scratch, Executor& executor);

}  // namespace quire::model

#endif  // QUIRE_MODEL_MATMUL_H_
