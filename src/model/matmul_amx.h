// The matrix product of the class dot16-amx: tiles of 16 rows, 16 outputs and 32 k are one
// instruction.
#ifndef QUIRE_MODEL_MATMUL_AMX_H_
#define QUIRE_MODEL_MATMUL_AMX_H_

#include <span>

#include "model/matmul.h"
#include "quire/env.h"
#include "quire/identity.h"

namespace quire::model {

/// As Matmul, of a matrix in pairs; the chain is that of the class dot16-amx. Inputs must be bf16
/// values, and UsableAmx().bf16 true.
///
/// Source: docs/numerics.md section 6
void MatmulAmx(const PackedMatrix& w, const float* x, std::span<float* const> y, ComputeType round,
               MatmulScratch& scratch, Executor& executor);

}  // namespace quire::model

#endif  // QUIRE_MODEL_MATMUL_AMX_H_
