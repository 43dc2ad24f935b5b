// Matrix products whose rows do not know of each other: every output is one chain of fused
// multiply-adds over k, so neither batch nor threads nor vector width shows in a bit.
#ifndef QUIRE_MODEL_MATMUL_H_
#define QUIRE_MODEL_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/env.h"
#include "quire/identity.h"

namespace quire::model {

/// Columns of one panel.
inline constexpr uint32_t kPanelColumns = 16;

/// A weight matrix [n, k] as panels of 16 outputs: value (n, k) at [n / 16][k][n % 16], the columns
/// after the last zero. A view: it does not own the bytes.
struct PackedMatrix {
  const std::byte* panels = nullptr;  // [DivUp(n, 16)][k][16], aligned to 64
  uint32_t n = 0;                     // outputs
  uint32_t k = 0;                     // inputs
  ComputeType type = ComputeType::kF32;
};

/// Bytes of the panels of an [n, k] matrix.
uint64_t PackedBytes(uint64_t n, uint64_t k, ComputeType type);

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

/// Memory that products reuse; it grows to the largest one.
struct MatmulScratch {
  std::vector<float> packed_rows;  // the inputs as tiles of [k][rows of a tile]
};

/// y[i][j] = Round(Chain over k ascending of (x[i][k], w[j][k])) for every row i.
///
/// Shape:   x [rows, k]; y: one pointer per row to [n] values
/// Threads: runs on `executor`; one call per scratch at a time
/// Source:  docs/numerics.md section 3
void Matmul(const PackedMatrix& w, const float* x, std::span<float* const> y, ComputeType round,
            MatmulScratch& scratch, Executor& executor);

}  // namespace quire::model

#endif  // QUIRE_MODEL_MATMUL_H_
