// The operators between the matrix products, on one row of f32 values each. Rows are independent,
// so the caller may run them on any thread. Orders and roundings: docs/numerics.md section 3.
#ifndef QUIRE_MODEL_LAYERS_H_
#define QUIRE_MODEL_LAYERS_H_

#include <cstdint>

#include "quire/identity.h"

namespace quire::model {

/// False when this CPU has no fused multiply-add that the kernels are compiled for; then nothing
/// here or in matmul.h may be called.
bool CpuIsSupported();

/// RMS norm of one row.
/// Shape: x, weight, out [n]; out may be x
void RmsNorm(const float* x, const float* weight, uint32_t n, float eps, ComputeType round,
             float* out);

/// RMS norm if the model has one, then rotary position, of every head of one row.
struct HeadsOp {
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  const float* norm_weight = nullptr;  // [head_dim], or null: no norm
  float norm_eps = 0;
  ComputeType round = ComputeType::kF32;
};
/// Shape: x, out [heads, head_dim], out may be x; angles [2, head_dim / 2] of Rope::Angles
void RotateHeads(const HeadsOp& op, const float* x, const float* angles, float* out);

/// out = Round(Round(gate / (1 + Exp(-gate))) * up).
/// Shape: all [n]; out may be gate or up
void SwiGlu(const float* gate, const float* up, uint32_t n, ComputeType round, float* out);

/// x = Round(x + y): a residual, or the bias of a product that is not rounded yet.
/// Shape: both [n]
void AddRow(const float* y, uint32_t n, ComputeType round, float* x);

/// weights = Exp(logits / temperature - max), the weights of docs/numerics.md section 4; 0 for NaN.
/// Shape: both [n]
void WeighLogits(const float* logits, uint32_t n, float temperature, float max, float* weights);

/// x = Round(x).
void RoundValues(uint32_t n, ComputeType round, float* x);

}  // namespace quire::model

#endif  // QUIRE_MODEL_LAYERS_H_
